"""Speed and distortion of every method on this machine: `python -m lantern_demo.bench --prompts 6 --out bench.json`.

Every prompt and seed is a round: the methods one after the other on one device, in every other round backwards. Printed are medians
over the rounds; speedups are ratios within a round. With --out FILE.json the report is also written as FILE.json, FILE.md and
FILE.png, and the same command goes on where it was interrupted. Under torchrun the rounds are shared by the processes.

`python -m lantern_demo.bench quality --help` tells of the other benchmark, of speed against quality, `python -m lantern_demo.bench gpu
--help` of the command that looks at a GPU, `python -m lantern_demo.bench audit --help` of the audit of losslessness, and
`python -m lantern_demo.bench sizes --help` of what models of every size take on a processor.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

import lantern_demo
from lantern_demo.bench.curve import sweeps
from lantern_demo.bench.journal import Journal, code_digest, digest_of, journal_of, merged
from lantern_demo.bench.peers import PeerFile, load_peers, play_peer
from lantern_demo.bench.processes import Process, join, leave
from lantern_demo.bench.prompts import prompts_for
from lantern_demo.bench.report import Report, machine_of, markdown, report_of, session_of, write
from lantern_demo.bench.speed import VARIED, Contestant, Job, Row, jobs_of, measure, play, rows_of, shard
from lantern_demo.decoding.methods import METHODS
from lantern_demo.knobs import KNOBS, TREES
from lantern_demo.pipeline import Pipeline, load
from lantern_demo.settings import methods_of


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
    p = argparse.ArgumentParser(
        prog="python -m lantern_demo.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--model", default="lantern-scenes", help="registry id or a model folder (default: lantern-scenes)")
    p.add_argument("--prompts", type=int, default=6, help="how many prompts to draw (default: 6)")
    p.add_argument("--seeds", type=int, default=1, help="how many seeds to draw each prompt with (default: 1)")
    p.add_argument("--methods", nargs="+", choices=list(METHODS), help="by default all that the model has a drafter for")
    p.add_argument("--out", type=Path, help="FILE.json: write FILE.json, FILE.md and FILE.png, and be resumable")
    p.add_argument("--fresh", action="store_true", help="throw away what an earlier command left beside --out")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    p.add_argument("--dtype", default="auto", help="of target and drafter (default: auto)")
    p.add_argument("--curve", type=int, nargs="?", const=7, default=0, metavar="SWEEPS", help="measure the cost curve too")
    p.add_argument("--against", type=Path, nargs="+", default=[], metavar="FILE.py", help="peers to run in the same rounds")
    p.add_argument("--set", type=setting, nargs="+", default=[], metavar="NAME=VALUE", help="settings for all, temperature=0 say")
    varied = p.add_argument_group("settings of some methods", "of several values each makes a row; by default the model's preset")
    varied.add_argument("--tree", nargs="+", help=f"{', '.join(TREES)}, or paths such as '0 1 00'")
    varied.add_argument("--dice", nargs="+", choices=KNOBS["dice"].choices, help="whose random numbers")
    for name in VARIED:
        limit = KNOBS[name].limit
        if limit is not None:
            varied.add_argument(f"--{name.replace('_', '-')}", nargs="+", type=int if limit.whole else float)
    return p


def check(args: argparse.Namespace, process: Process) -> None:
    """Raises ValueError for a command line that cannot be run."""
    for name, least in (("prompts", 1), ("seeds", 1), ("curve", 0)):
        if getattr(args, name) < least:
            raise ValueError(f"--{name} must be at least {least}, got {getattr(args, name)}")
    if args.out is not None and args.out.suffix != ".json":
        raise ValueError(f"--out must end in .json, got {str(args.out)!r}")
    if args.out is None and process.world > 1:
        raise ValueError("several processes share their results through files; give --out FILE.json")


def rows_for(args: argparse.Namespace, pipe: Pipeline) -> list[Row]:
    """The rows that a command line asks for. Raises ValueError for settings that are not allowed."""
    chosen = pipe.check_methods(methods_of(args.methods or pipe.available_methods))
    values = {key: given for key in VARIED if (given := getattr(args, key)) is not None}
    rows = rows_of([m.id for m in chosen], {key: list(dict.fromkeys(given)) for key, given in values.items()})
    for row in rows:
        pipe.settings(**row.settings)
    return rows


def peers_for(args: argparse.Namespace, pipe: Pipeline, rows: list[Row]) -> dict[str, PeerFile]:
    """The adapters by path. Raises ValueError as `load_peers` does, and when a name is taken."""
    files = {str(path): load_peers(path, pipe) for path in args.against}
    taken = [row.name for row in rows] + [name for file in files.values() for name in file.peers]
    twice = sorted({name for name in taken if taken.count(name) > 1})
    if twice:
        raise ValueError(f"--against: the name {twice[0]!r} is taken; every contestant needs its own")
    return files


def identity_of(
    args: argparse.Namespace, pipe: Pipeline, rows: list[Row], files: dict[str, PeerFile], process: Process
) -> dict[str, Any]:
    """What is measured, on what, by which code and weights: what a report says of itself, and what a resumed one must share."""
    info, networks = pipe.info, pipe.networks
    return {
        "command": {
            "prompts": args.prompts, "seeds": args.seeds, "rows": {row.name: row.settings for row in rows}, "sweeps": args.curve,
            "against": {path: file.sha256 for path, file in files.items()}, "processes": process.world,
        },
        "model": {
            "id": info.id, "trained": networks.trained, "sources": networks.sources,
            "files": None if info.folder is None else digest_of(info.folder, "*"),
        },
        "dtype": pipe.dtype,
        "products": pipe.products,
        "settings": pipe.defaults.as_dict(),
        "machine": machine_of(pipe.device),
        "versions": {
            "lantern_demo": lantern_demo.__version__, "code": code_digest(), "python": platform.python_version(),
            "torch": torch.__version__, "transformers": transformers.__version__,
        },
    }  # fmt: skip


def benchmark(args: argparse.Namespace, process: Process) -> Report | None:
    """Measure what a command line asks for -> the report; None on all processes but the first.

    Raises ValueError for what cannot be run or resumed, RuntimeError when a method or a peer fails.
    """
    check(args, process)
    pipe = load(args.model, process.device(args.device), args.dtype)
    pipe.defaults = pipe.settings(**dict(args.set))
    rows = rows_for(args, pipe)
    files = peers_for(args, pipe, rows)
    contestants: dict[str, Contestant] = {row.name: partial(play, pipe, row) for row in rows}
    for file in files.values():
        contestants |= {name: partial(play_peer, pipe, name, generate) for name, generate in file.peers.items()}
    prompts = prompts_for(pipe.info, args.prompts)
    journal = Journal(
        journal_of(args.out, process.rank) if args.out else None, identity_of(args, pipe, rows, files, process), args.fresh
    )
    _rounds(contestants, jobs_of(prompts, args.seeds), journal, process)
    process.wait()
    if process.rank:
        return None
    for record in sweeps(pipe, prompts[0], args.curve, len(journal.of("sweep"))):
        journal.add("sweep", record)
    journals = [journal_of(args.out, rank) for rank in range(process.world)] if args.out else []
    rounds, sessions = (merged(journals, kind) if journals else journal.of(kind) for kind in ("round", "session"))
    notes = {name: file.note for file in files.values() for name in file.peers}
    return report_of(journal.identity, rows, notes, rounds, journal.of("sweep"), sessions)


def _rounds(contestants: dict[str, Contestant], jobs: list[Job], journal: Journal, process: Process) -> None:
    """Measure this process's rounds that its journal lacks."""
    done = {record["number"] for record in journal.of("round")}
    mine = shard(jobs, process.rank, process.world)
    if all(job.number in done for job, _ in mine):
        return
    journal.add("session", session_of(process.rank))
    for record in measure(contestants, mine, done, quiet=process.rank > 0):
        journal.add("round", record)


def main(argv: Sequence[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else argv
    # imported here, so that no command needs what only another one does
    if argv and argv[0] == "quality":
        from lantern_demo.bench.quality.command import main as quality

        return quality(argv[1:])
    if argv and argv[0] == "gpu":
        from lantern_demo.bench.gpu import main as gpu

        sys.exit(gpu(argv[1:]))
    if argv and argv[0] == "audit":
        from lantern_demo.bench.audit import main as audit

        sys.exit(audit(argv[1:]))
    if argv and argv[0] == "sizes":
        from lantern_demo.bench.sizes import main as sizes

        sys.exit(sizes(argv[1:]))
    p = parser()
    args, process = p.parse_args(argv), join()
    try:
        report = benchmark(args, process)
    except ValueError as error:
        p.exit(2, f"{p.prog}: {error}\n")
    if report is not None:
        print(markdown(report))
        if args.out:
            print(f"wrote {', '.join(map(str, write(report, args.out)))}")
    leave(process)


if __name__ == "__main__":
    main()
