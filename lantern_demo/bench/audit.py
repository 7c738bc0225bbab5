"""The audit of losslessness: does every method draw what its target would? `python -m lantern_demo.bench audit --out audit.json`.

On toy models whose law of whole sequences is known exactly (`toy`) the decoding loop itself runs many times, each time with another
seed. The sequences that come out are counted and held against the exact law, to the last token of the picture: by the total variation
distance, beside the one that as many draws of the exact law show, and by Pearson's chi-square test. A lossless method must be at the
noise. The others show by how much they are off.

What runs is this project's implementation of each method, not its authors' program. With --out FILE.json the report is written as
FILE.json and FILE.md, and the same command goes on where it was interrupted. The exit status is 1 where a lossless method is not at
the noise.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy
import torch

import lantern_demo
from lantern_demo.audited import LEAST_P, Audit, Cell, Row, audit_of, faults
from lantern_demo.bench.goodness import FEWEST, chi_square, distance, noise, worst_stretch
from lantern_demo.bench.journal import Journal, digest_of, journal_of
from lantern_demo.bench.toy import LAWS, LENGTH, SEQUENCES, VOCAB, Tables, ToyDrafter, ToyTarget, index_of, neighbours
from lantern_demo.decoding.acceptance import Lantern, LanternPlusPlus, Rule
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import Drafts, DynamicTree, StaticTree
from lantern_demo.decoding.loop import Decoded, decode
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.timing import Clock
from lantern_demo.decoding.wavefront import Wavefront
from lantern_demo.decoding.window import CoupledWindow, Window
from lantern_demo.settings import Settings
from lantern_demo.static_trees import read_paths

RUNS = 100_000
HOW = (
    f"Toy models of {VOCAB} tokens draw sequences of {LENGTH}. TVD is the total variation distance (0 to 1) between the sequences drawn and "
    "the exact law; expected and 99 % are the mean and the 99th percentile of the one that as many draws of the exact law show. "
    f"chi2 and p are of the same sequences by Pearson's test, neighbours taken together until {FEWEST:.0f} are expected. Worst is the "
    "stretch of tokens whose joint law fits worst, and its p-value times the number of stretches. "
    f"At the noise: that is {LEAST_P:g} or more. Off by: the TVD less the expected one; the true distance lies between that and their sum, "
    "up to the spread of the noise. "
    f"How far a relaxed method is off among {VOCAB} tokens does not tell how far it is off on images. "
    "What ran is this project's implementation of each method, not its authors' program."
)

# How the rules and the draft trees of methods are set here, by their kind; one that is not named is as the settings have it.
RULES: dict[type[Rule], dict[str, Any]] = {
    Lantern: {"k": 2, "bound": 0.2},
    LanternPlusPlus: {"k": 2, "bound": 2.0},
}
TREES: dict[type[Drafts], dict[str, Any]] = {
    StaticTree: {"paths": read_paths("0 1 00 01 10 000")},
    DynamicTree: {"top_k": 2, "depth": 2, "nodes": 6},
    Window: {"nodes": 4},
    CoupledWindow: {"nodes": 4},
    Wavefront: {"lead": 1},
}


class Variant(NamedTuple):
    """What else a method is run with: other settings of its rule and of its tree, whether it is lossless by these, whether it does what a
    released code does, by our reading, and whether noise is shared where the method can."""

    rule: dict[str, Any]
    lossless: bool
    tree: Mapping[str, Any] = MappingProxyType({})
    released: bool = False
    dice: str = "same"


OWN = {lossless: Variant({}, lossless, dice="own") for lossless in (True, False)}  # the papers' rejection sampling
VARIANTS: dict[str, dict[str, Variant]] = {
    "vanilla": {"own": OWN[True]},
    "eagle1": {"own": OWN[True]},
    "eagle2": {"own": OWN[True]},
    "lantern": {"own": OWN[False], "released": Variant({"residual": "released"}, lossless=False, released=True)},
    "lantern++": {"own": OWN[False], "released": Variant({"residual": "released"}, lossless=False, released=True)},
    "sjd": {
        "own": OWN[True],
        "above": Variant({}, lossless=True, tree={"guess": "above"}),
        "uniform": Variant({}, lossless=True, tree={"guess": "uniform"}),
        "resampled": Variant({"residual": "target"}, lossless=False, released=True),
    },
    "scd": {
        "own": OWN[True],
        "maximal": Variant({}, lossless=True, tree={"coupling": "maximal"}),
        "released": Variant({}, lossless=False, tree={"coupling": "released"}, released=True),
    },
    "cool-sd": {"delta 1": Variant({"bound": 1.0}, lossless=True)},
    "zipar": {"whole row": Variant({}, lossless=True, tree={"lead": 2})},
}

Report = dict[str, Any]


@cache
def _tables(law: str) -> Tables:
    return Tables(LAWS[law])


@cache
def _noise(law: str, runs: int) -> tuple[float, float]:
    return noise(_tables(law).sequences(), runs)


def rule_of(method: Method, variant: str = "") -> Rule:
    """The rule that a method, or a variant of it, is run with. Raises KeyError for a variant that there is not."""
    changes = RULES.get(method.rule, {}) | (VARIANTS[method.id][variant].rule if variant else {})
    return replace(Settings().rule(method), **changes)


def tree_of(method: Method, variant: str = "") -> Drafts:
    """The draft tree that a method, or a variant of it, is run with. Raises ValueError for one that the audit cannot set up."""
    try:
        return method.drafts(**TREES.get(method.drafts, {}) | (dict(VARIANTS[method.id][variant].tree if variant else {})))
    except TypeError as error:
        raise ValueError(f"method {method.id} drafts by {method.drafts.name!r}, which the audit cannot set up") from error


def is_lossless(cell: Cell) -> bool:
    """Whether the table of methods, or that of variants, says that a cell's method is lossless."""
    return VARIANTS[cell.method][cell.variant].lossless if cell.variant else METHODS[cell.method].lossless


def is_released(cell: Cell) -> bool:
    """Whether a cell's variant does what a released code does, by our reading."""
    return bool(cell.variant) and VARIANTS[cell.method][cell.variant].released


def player(cell: Cell) -> Callable[[int], Decoded]:
    """What runs a cell once, given a seed. Everything that runs share is made once."""
    method, law, tables = METHODS[cell.method], LAWS[cell.law], _tables(cell.law)
    target, drafter, clock, near = ToyTarget(tables), ToyDrafter(tables), Clock("cpu"), neighbours()
    rule, tree = rule_of(method, cell.variant), tree_of(method, cell.variant)
    dice = VARIANTS[cell.method][cell.variant].dice if cell.variant else "same"

    def play(seed: int) -> Decoded:
        config = Config(method, LENGTH, law.sampling, rule, tree, near, seed, engine="plain", row=2, dice=dice)
        *_, result = decode(target, drafter, None, config, clock)
        assert isinstance(result, Decoded)
        return result

    return play


def run_cell(cell: Cell, runs: int) -> Row:
    """Run a cell and judge it."""
    play, law = player(cell), _tables(cell.law).sequences()
    first = zlib.crc32("/".join(cell).encode())  # every cell begins elsewhere, or all methods would draw the same first tokens
    counts, passes = numpy.zeros(SEQUENCES, dtype=numpy.int64), 0
    began = perf_counter()
    for i in range(runs):
        decoded = play((first + i) % 2**32)
        counts[index_of(decoded.tokens)] += 1
        passes += decoded.steps
    seconds = perf_counter() - began
    expected, p99 = _noise(cell.law, runs)
    stretch, stretch_p = worst_stretch(counts.reshape((VOCAB,) * LENGTH), law.reshape((VOCAB,) * LENGTH))
    return Row(
        *cell, lossless=is_lossless(cell), released=is_released(cell), runs=runs, tvd=distance(counts, law), expected=expected, p99=p99,
        **chi_square(counts, law)._asdict(), stretch=stretch, stretch_p=stretch_p,
        accepted=round(runs * (LENGTH - 1) / passes, 4), seconds=round(seconds, 2),
    )  # fmt: skip


def cells_of(methods: Sequence[str], laws: Sequence[str]) -> list[Cell]:
    """All cells of these methods and laws, the variants of each method behind it, in the order of the tables."""
    return [
        Cell(method, variant, law)
        for method in METHODS
        if method in methods
        for variant in ("", *VARIANTS.get(method, {}))
        for law in LAWS
        if law in laws
    ]


def run_cells(cells: Sequence[Cell], runs: int, processes: int) -> Iterator[Row]:
    """The rows of cells, as they are done, in any order; one process computes here. Raises what a run raises."""
    if processes == 1 or len(cells) < 2:
        yield from (run_cell(cell, runs) for cell in cells)
        return
    start = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
    context = multiprocessing.get_context(start)
    pool = ProcessPoolExecutor(min(processes, len(cells)), context, initializer=torch.set_num_threads, initargs=(1,))
    with pool:
        waiting = [pool.submit(run_cell, cell, runs) for cell in cells]
        try:
            yield from (done.result() for done in as_completed(waiting))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def markdown(report: Report) -> str:
    """The report as people read it: the verdicts at a glance, then all numbers."""
    found = audit_of(report)
    full = [[
        "method", "law", "lossless", "TVD", "expected", "99 %", "chi2", "df", "p", "worst", "tokens a pass", "runs a second", "verdict",
    ]]  # fmt: skip
    full += [
        [
            row.name, row.law, "yes" if row.lossless else "no", f"{row.tvd:.4f}", f"{row.expected:.4f}", f"{row.p99:.4f}",
            f"{row.chi2:.0f}" + (f", {row.impossible} impossible" if row.impossible else ""), str(row.df), f"{row.p:.2g}",
            f"{row.stretch}: {row.stretch_p:.2g}", f"{row.accepted:.2f}", f"{row.runs / max(row.seconds, 0.01):.0f}", row.verdict,
        ]
        for row in found.rows
    ]  # fmt: skip
    listed = "; ".join(f"`{law}`: {label}" for law, label in found.laws.items())
    return "\n\n".join([glance(found), f"Laws: {listed}.", _table(full), HOW]) + "\n"


def glance(found: Audit) -> str:
    """What docs/audit.md shows of a report: the verdict, what ran on what, and a table of the verdicts."""
    where = (
        f"{found.runs} runs a row, {found.device}, {found.processes} {'process' if found.processes == 1 else 'processes'}, PyTorch {found.torch}, {found.created[:10]}, "
        f"lantern-demo {found.lantern_demo} ({found.code})."
    )
    names = list(dict.fromkeys((row.name, row.lossless) for row in found.rows))
    verdicts = {(row.name, row.law): row.verdict for row in found.rows}
    table = [["method", "lossless", *found.laws]]
    table += [[name, "yes" if right else "no", *(verdicts.get((name, law), "-") for law in found.laws)] for name, right in names]
    return "\n\n".join([found.verdict, where, _table(table)])


def _table(lines: list[list[str]]) -> str:
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, "|---|" + "--:|" * (len(lines[0]) - 1), *body])


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m lantern_demo.bench audit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--runs", type=int, default=RUNS, help=f"of the loop for each method and law (default: {RUNS:,})")
    p.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="default: all")
    p.add_argument("--laws", nargs="+", choices=list(LAWS), default=list(LAWS), help="default: all")
    p.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one for each processor")
    p.add_argument("--out", type=Path, help="FILE.json: write FILE.json and FILE.md, and be resumable")
    p.add_argument("--fresh", action="store_true", help="throw away what an earlier command left beside --out")
    return p


def audit(args: argparse.Namespace) -> Report:
    """Run what a command line asks for and is not in the journal yet -> the report. Raises ValueError for what cannot be run."""
    # imported here: what it needs takes seconds to import, and a reader of rows has no use for it
    from lantern_demo.bench.report import machine_of

    for name in ("runs", "processes"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}")
    if args.out is not None and args.out.suffix != ".json":
        raise ValueError(f"--out must end in .json, got {str(args.out)!r}")
    here = Path(__file__).parent
    identity = {
        "runs": args.runs,
        "machine": machine_of(torch.device("cpu")),
        "versions": {
            "lantern_demo": lantern_demo.__version__, "torch": torch.__version__,
            "code": digest_of(here.parent / "decoding", "*.py"), "toy": digest_of(here, "toy.py"), "audit": digest_of(here, "audit.py"),
        },
    }  # fmt: skip
    journal = Journal(journal_of(args.out, 0) if args.out else None, identity, args.fresh)
    cells = cells_of(args.methods, args.laws)
    rows = [Row(**{key: value for key, value in line.items() if key != "kind"}) for line in journal.of("row")]
    done = {row.cell for row in rows}
    left = [cell for cell in cells if cell not in done]
    for cell in left:  # what cannot be run is told at once
        rule_of(METHODS[cell.method], cell.variant)
        tree_of(METHODS[cell.method])
    for number, row in enumerate(run_cells(left, args.runs, args.processes), start=len(cells) - len(left) + 1):
        journal.add("row", asdict(row))
        rows.append(row)
        told = f"{number} of {len(cells)}: {row.name} at {row.law}: {row.verdict} (p = {row.stretch_p:.2g})"
        print(told, file=sys.stderr, flush=True)
    order = cells_of(list(METHODS), list(LAWS))
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **identity,
        "processes": args.processes,
        "how": HOW,
        "laws": {law: LAWS[law].label for law in LAWS if any(row.law == law for row in rows)},
        "rows": [asdict(row) for row in sorted(rows, key=lambda row: order.index(row.cell))],
    }


def main(argv: Sequence[str]) -> int:
    """0 when all lossless methods are at the noise, 1 when one is not, 2 for what cannot be run."""
    p = parser()
    args = p.parse_args(argv)
    torch.set_num_threads(1)
    try:
        report = audit(args)
    except ValueError as error:
        print(f"{p.prog}: {error}", file=sys.stderr)
        return 2
    text = markdown(report)
    print(text)
    if args.out:
        for file, content in ((args.out, json.dumps(report, indent=1) + "\n"), (args.out.with_suffix(".md"), text)):
            part = file.with_suffix(".part")
            part.write_text(content)
            part.replace(file)
    return 1 if faults(audit_of(report).rows) else 0
