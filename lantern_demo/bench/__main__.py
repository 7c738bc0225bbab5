"""Measure: `python -m lantern_demo.bench COMMAND`, where COMMAND is one of

    speed  Seconds, steps and look-alikes of every method on this machine. The default.
    nodes  Speed against the nodes that a step checks, of chains and trees.
    audit  The distribution of every method against the exact one.

`python -m lantern_demo.bench COMMAND --help` lists the options.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from lantern_demo.shutdown import stoppable

# Each is imported on demand, so that no command needs another one's dependencies.
COMMANDS = {name: f"lantern_demo.bench.{name}" for name in ("speed", "nodes", "audit")}


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command and exit with its status, or print its ValueError and exit with 2."""
    argv = sys.argv[1:] if argv is None else argv
    first = argv[0] if argv else ""
    if first in ("-h", "--help"):
        return print(__doc__)
    if first not in COMMANDS:
        if first and not first.startswith("-"):
            sys.exit(f"{__doc__}\nThere is no command {first!r}.")
        argv = ["speed", *argv]
    try:
        code = import_module(COMMANDS[argv[0]]).main(argv[1:])
    except ValueError as error:
        print(f"python -m lantern_demo.bench {argv[0]}: {error}", file=sys.stderr)
        code = 2
    if code:
        sys.exit(code)


if __name__ == "__main__":
    with stoppable():
        main()
