"""Speed of every method, and what it changed, on this machine: `python -m lantern_demo.bench --prompts 6 --out bench.json`.

Every prompt and seed is a round: the methods one after the other on one device, in every other round backwards. Printed are
medians over the rounds; speedups are ratios within a round. With --out FILE.json the report is also written as FILE.json and
FILE.md, and the same command goes on where it was interrupted.

Other commands, of which `python -m lantern_demo.bench COMMAND --help` tells: quality (speed against quality), gpu (steps on a
GPU), audit (of losslessness), and sizes (what models of published sizes take on a processor).
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers

import lantern_demo
from lantern_demo.bench.peers import PeerFile, load_peers, play_peer
from lantern_demo.bench.report import add_model, add_report, at_least, machine_of, parser_of, write
from lantern_demo.bench.resume import Journal, digest_of
from lantern_demo.bench.speed import VARIED, Contestant, Row, jobs_of, measure, play, prompts_for, rows_of
from lantern_demo.bench.speed_report import Report, markdown, report_of
from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.pipeline import Pipeline, load
from lantern_demo.settings.knobs import KNOBS, TREES
from lantern_demo.settings.settings import methods_of

# Imported when asked for, so that no command needs what only another one does.
COMMANDS = {name: f"lantern_demo.bench.{name}" for name in ("gpu", "audit", "sizes")} | {
    "quality": "lantern_demo.bench.quality.command"
}


def setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE -> name and value, a number where it reads as one. Raises ValueError without a "="."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"a setting is NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def parser() -> argparse.ArgumentParser:
    p = parser_of("", __doc__)
    add_model(p)
    p.add_argument("--prompts", type=at_least(1), default=6, help="how many prompts to draw (default: 6)")
    p.add_argument("--seeds", type=at_least(1), default=1, help="how many seeds to draw each prompt with (default: 1)")
    p.add_argument("--methods", nargs="+", choices=list(METHODS), help="by default all that the model has a drafter for")
    add_report(p)
    p.add_argument("--against", type=Path, nargs="+", default=[], metavar="FILE.py", help="peers to run in the same rounds")
    p.add_argument("--set", type=setting, nargs="+", default=[], metavar="NAME=VALUE", help="settings for all, temperature=0 say")
    varied = p.add_argument_group("settings of some methods", "of several values each makes a row; by default the model's preset")
    varied.add_argument("--tree", nargs="+", help=f"{', '.join(TREES)}, or paths such as '0 1 00'")
    varied.add_argument("--noise", nargs="+", choices=KNOBS["noise"].choices, help="whose random numbers")
    for name in VARIED:
        limit = KNOBS[name].limit
        if limit is not None:
            varied.add_argument(f"--{name.replace('_', '-')}", nargs="+", type=int if limit.whole else float)
    return p


def peers_for(args: argparse.Namespace, pipe: Pipeline, rows: list[Row]) -> dict[str, PeerFile]:
    """The adapters by path. Raises ValueError as `load_peers` does, and when a name is taken."""
    files = {str(path): load_peers(path, pipe) for path in args.against}
    taken = [row.name for row in rows] + [name for file in files.values() for name in file.peers]
    twice = sorted({name for name in taken if taken.count(name) > 1})
    if twice:
        raise ValueError(f"--against: the name {twice[0]!r} is taken; every contestant needs its own")
    return files


def identity_of(args: argparse.Namespace, pipe: Pipeline, rows: list[Row], files: dict[str, PeerFile]) -> dict[str, Any]:
    """What is measured, on what, by which code and weights: what a report says of itself, and what a resumed one must share."""
    info, networks = pipe.info, pipe.networks
    asked, against = {row.name: row.settings for row in rows}, {path: file.sha256 for path, file in files.items()}
    weights = None if info.folder is None else digest_of(info.folder, "*")
    return {
        "command": {"prompts": args.prompts, "seeds": args.seeds, "rows": asked, "against": against},
        "model": {"id": info.id, "trained": networks.trained, "sources": networks.sources, "files": weights},
        "dtype": pipe.dtype,
        "products": pipe.products,
        "settings": pipe.defaults.as_dict(),
        "machine": machine_of(pipe.device),
        "versions": {
            "lantern_demo": lantern_demo.__version__,
            "code": digest_of(Path(lantern_demo.__file__).parent, "*.py"),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def benchmark(args: argparse.Namespace) -> Report:
    """Measure what a command line asks for -> the report.

    Raises ValueError for what cannot be run or resumed, RuntimeError when a method or a peer fails.
    """
    pipe = load(args.model, args.device, args.dtype)
    pipe.defaults = pipe.settings(**dict(args.set))
    chosen = pipe.check_methods(methods_of(args.methods or pipe.available_methods))
    values = {key: list(dict.fromkeys(given)) for key in VARIED if (given := getattr(args, key)) is not None}
    rows = rows_of([m.id for m in chosen], values)
    for row in rows:
        pipe.settings(**row.settings)
    files = peers_for(args, pipe, rows)
    contestants: dict[str, Contestant] = {row.name: partial(play, pipe, row) for row in rows}
    for file in files.values():
        contestants |= {name: partial(play_peer, pipe, name, generate) for name, generate in file.peers.items()}
    prompts = prompts_for(pipe.info, args.prompts)
    lines = args.out and args.out.with_suffix(".jsonl")
    journal = Journal(lines, identity_of(args, pipe, rows, files), args.fresh)
    rounds = measure(contestants, jobs_of(prompts, args.seeds), journal)
    notes = {name: file.note for file in files.values() for name in file.peers}
    return report_of(journal.identity, rows, notes, rounds, journal.of("session"))


def run(argv: Sequence[str]) -> int:
    """The benchmark of speed. Raises ValueError for what cannot be run."""
    args = parser().parse_args(argv)
    report = benchmark(args)
    text = markdown(report)
    print(text)
    if args.out:
        print(f"wrote {', '.join(map(str, write(args.out, report, text)))}")
    return 0


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command; the process ends with its exit status, or with 2 and a sentence for what cannot be run."""
    argv = sys.argv[1:] if argv is None else argv
    name = argv[0] if argv and argv[0] in COMMANDS else ""
    try:
        code = import_module(COMMANDS[name]).main(argv[1:]) if name else run(argv)
    except ValueError as error:
        print(f"{parser_of(name, None).prog}: {error}", file=sys.stderr)
        code = 2
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main()
