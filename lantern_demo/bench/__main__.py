"""Measure: `python -m lantern_demo.bench COMMAND`, where COMMAND is one of

    speed    seconds, passes and changed tokens of every method on this machine; the default
    audit    the distribution of every method against the exact one
    quality  speed against quality of the pictures of lantern scenes
    sizes    the time of steps of models of published sizes on a processor
    gpu      the time and tokens of captured steps on a GPU

`python -m lantern_demo.bench COMMAND --help` lists the options.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

# Imported when asked for, so that no command needs what only another one does.
COMMANDS = {name: f"lantern_demo.bench.{name}" for name in ("speed", "audit", "sizes", "gpu")} | {
    "quality": "lantern_demo.bench.quality.command"
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command; the process ends with its exit status, or with 2 and a sentence for what cannot be run."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] not in COMMANDS:
        argv = ["speed", *argv]
    try:
        code = import_module(COMMANDS[argv[0]]).main(argv[1:])
    except ValueError as error:
        print(f"python -m lantern_demo.bench {argv[0]}: {error}", file=sys.stderr)
        code = 2
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main()
