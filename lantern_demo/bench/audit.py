"""Audit losslessness: does every method draw as its target would? `python -m lantern_demo.bench
audit --out audit.json`.

The decoding loop runs with many seeds on toy models whose exact distribution of whole sequences is
known (`toy`). Methods that share vanilla's noise must draw the same sequence as vanilla for every
seed. For the others, Pearson's chi-square test compares the counted sequences with the exact
distribution. The number of runs is chosen to detect a distance of SEEN nine times in ten. Every
lossless method must pass. Every other one must fail, which shows that the audit detects faults.

The audit covers this project's implementation of each method, not its authors' program. With --out
FILE.json the report is written as FILE.json and FILE.md. The exit status is 1 if a lossless row
fails or a lossy one passes.
"""

from __future__ import annotations

import argparse
import os
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy
import torch

import lantern_demo
from lantern_demo.bench.chi_square import Counts, Probs, distance, expected_distance, worst_stretch
from lantern_demo.bench.report import (
    at_least,
    digest_of,
    json_file,
    machine_of,
    now,
    parser_of,
    table,
    write,
)
from lantern_demo.bench.toy import (
    CASES,
    LENGTH,
    SEQUENCES,
    VOCAB,
    Tables,
    ToyDrafter,
    ToyTarget,
    index_of,
    neighbours,
)
from lantern_demo.bench.workers import spread
from lantern_demo.decoding.config import NOISE, Config
from lantern_demo.decoding.loop import Decoded, decode
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.timing import Clock
from lantern_demo.settings.drafts import choice_of
from lantern_demo.settings.settings import Settings

SEEDS = 500  # of rows that are compared with vanilla's sequences
SEEN = 0.05  # total variation distance of sequences that the other rows detect nine times in ten
DISTANCES = (0.01, 0.02, 0.03, SEEN, 0.08, 0.12, 0.2, 0.3, 0.5)
SIMULATED = 100  # audits of a faulty decoder, to count how often they detect it
GROWTH = 1.25  # factor between the numbers of runs that are tried
# A row of counts passes when its p-value over all stretches is not below this. Sound rows fall
# below about 3 times in 10,000.
LEAST_P = 1e-4
HOW = (
    f"Toy models of {VOCAB} tokens draw sequences of {LENGTH}. Rows with shared noise count the seeds whose sequence is not "
    "vanilla's. The other rows hold all sequences against the exact distribution by Pearson's test. At the noise: the p-value of "
    f"the stretch of tokens that fits worst, times the number of stretches, is {LEAST_P:g} or more. Off by: the total variation "
    "distance (0 to 1) less the mean one of as many exact draws. Sees is the smallest distance that the row finds nine times in "
    "ten, where random conditional probabilities are wrong. How far a relaxed method is off among so few tokens does not tell "
    "how far it is off on images. The audit covers this project's implementation of each method."
)

# Small draft trees and windows, and bounds that matter among so few tokens. Other settings keep
# their defaults.
SMALL = Settings(
    tree="0 1 00 01 10 000",
    draft_top_k=2,
    draft_depth=2,
    draft_nodes=6,
    window=4,
    lantern_k=2,
    lantern_delta=0.2,
    lanternpp_k=2,
    lanternpp_lambda=2.0,
)

Report = dict[str, Any]


class Cell(NamedTuple):
    """A row to run: the ids of a method, its noise and a case."""

    method: str
    noise: str
    case: str

    @property
    def lossless(self) -> bool:
        return METHODS[self.method].lossless

    @property
    def paired(self) -> bool:
        """Return whether the row is compared with vanilla's sequences."""
        return self.noise != "independent" and self.method != "vanilla"

    @property
    def name(self) -> str:
        return f"{self.method} ({self.noise})"


@dataclass(frozen=True)
class Row:
    """The result of a cell.

    A paired row has `differ`, the number of seeds whose sequence is not vanilla's. Any other row
    has the following fields. `tvd`: total variation distance (0 to 1) between the sequences and the
    exact distribution. `expected`: mean distance of as many exact draws. `stretch`: the stretch of
    tokens that fits worst. `stretch_p`: its p-value times the number of stretches. `impossible`:
    count of sequences with probability 0. All rows have `sees`, the smallest distance that they
    detect nine times in ten. `accepted` is the mean tokens per forward pass after the prefill.
    `seconds` are those of one process.
    """

    method: str
    noise: str
    case: str
    lossless: bool
    runs: int
    sees: float
    differ: int | None = None
    tvd: float | None = None
    expected: float | None = None
    stretch: str = ""
    stretch_p: float | None = None
    impossible: int = 0
    accepted: float = 1.0
    seconds: float = 0.0

    @property
    def cell(self) -> Cell:
        return Cell(self.method, self.noise, self.case)

    @property
    def exact(self) -> bool:
        """Return whether the row is indistinguishable from an exact method."""
        return not self.differ if self.stretch_p is None else self.stretch_p >= LEAST_P

    @property
    def verdict(self) -> str:
        if self.stretch_p is None:
            return f"{self.differ} of {self.runs} differ" if self.differ else "vanilla's own"
        if self.exact:
            return "at the noise"
        assert self.tvd is not None and self.expected is not None
        return f"off by {max(0.0, self.tvd - self.expected):.3f}"


def faults(rows: Sequence[Row]) -> list[Row]:
    """Return the unexpected rows: lossless ones that fail, and others that pass."""
    return [row for row in rows if row.lossless != row.exact]


def rows_of(report: Report) -> list[Row]:
    return [Row(**{field.name: row[field.name] for field in fields(Row)}) for row in report["rows"]]


def judged(report: Report, rows: Sequence[Row]) -> Report:
    """Return a report with these rows and one sentence on all of them."""
    exact, wrong = sum(row.lossless for row in rows), faults(rows)
    verdict = f"All {exact} rows of lossless methods pass, and all {len(rows) - exact} rows of lossy ones fail."
    if wrong:
        verdict = (
            f"Not as it should be: {'; '.join(f'{row.cell.name} at {row.case}' for row in wrong)}."
        )
    return report | {
        "verdict": verdict,
        "rows": [asdict(row) | {"verdict": row.verdict} for row in rows],
    }


@cache
def _tables(case: str) -> Tables:
    return Tables(CASES[case])


@cache
def finds(case: str, runs: int, far: float) -> bool:
    """Return whether nine of ten audits with this many runs detect a faulty decoder.

    Its sequences are at a total variation distance of `far` from the exact ones. False if no fault
    of `Tables.sequences` is so large.
    """
    probs, low, high = _tables(case).sequences(), 0.0, 0.99
    if distance(_tables(case).sequences(high), probs) < far:
        return False
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (
            (low, middle)
            if distance(_tables(case).sequences(middle), probs) > far
            else (middle, high)
        )
    generator, faulty, missed = numpy.random.default_rng(0), _tables(case).sequences(high), 0
    for _ in range(SIMULATED):
        missed += _worst(generator.multinomial(runs, faulty / faulty.sum()), probs)[1] >= LEAST_P
        if missed > SIMULATED // 10:
            return False
    return True


def sees(cell: Cell, runs: int) -> float:
    """Return the smallest of DISTANCES that a row detects nine times in ten, otherwise 1.

    A paired row detects every seed that differs."""
    if cell.paired:
        return round(1 - 0.1 ** (1 / runs), 4)
    return next((far for far in DISTANCES if finds(cell.case, runs, far)), 1.0)


@cache
def runs_to_see(case: str) -> int:
    """Return how many runs detect a distance of SEEN nine times in ten."""
    runs = 1000.0
    while not finds(case, round(runs, -2), SEEN):
        runs *= GROWTH
    return int(round(runs, -2))


def _worst(counts: Counts, probs: Probs) -> tuple[str, float]:
    return worst_stretch(counts.reshape((VOCAB,) * LENGTH), probs.reshape((VOCAB,) * LENGTH))


def player(cell: Cell) -> Callable[[int], Decoded]:
    """Return a function that runs a cell once, given a seed.

    The runs share models, rule and tree.
    """
    method, case, tables = METHODS[cell.method], CASES[cell.case], _tables(cell.case)
    target, drafter, clock, near = ToyTarget(tables), ToyDrafter(tables), Clock("cpu"), neighbours()
    rule, tree = SMALL.rule(method), choice_of(method.drafts, SMALL).policy

    def play(seed: int) -> Decoded:
        config = Config(method, LENGTH, case.sampling, rule, tree, near, seed, noise=cell.noise)
        *_, result = decode(target, drafter, None, config, clock)
        assert isinstance(result, Decoded)
        return result

    return play


def run_cell(cell: Cell, runs: int | None = None) -> Row:
    """Run a cell and test it. If `runs` is None, its kind determines their number."""
    runs = runs or (SEEDS if cell.paired else runs_to_see(cell.case))
    play, vanilla = (
        player(cell),
        player(Cell("vanilla", "shared", cell.case)) if cell.paired else None,
    )
    # a different first seed per cell, or all methods would draw the same first tokens
    first = zlib.crc32("/".join(cell).encode())
    counts, passes, differ = numpy.zeros(SEQUENCES, dtype=numpy.int64), 0, 0
    began = perf_counter()
    for seed in ((first + i) % 2**32 for i in range(runs)):
        decoded = play(seed)
        counts[index_of(decoded.tokens)] += 1
        passes += decoded.steps
        differ += vanilla is not None and vanilla(seed).tokens != decoded.tokens
    told: dict[str, Any] = {"differ": differ}
    if vanilla is None:
        probs = _tables(cell.case).sequences()
        stretch, stretch_p = _worst(counts, probs)
        told = {
            "tvd": distance(counts, probs),
            "expected": expected_distance(probs, runs),
            "stretch": stretch,
        }
        told |= {"stretch_p": stretch_p, "impossible": int(counts[probs == 0].sum())}
    accepted, seconds = round(runs * (LENGTH - 1) / passes, 4), round(perf_counter() - began, 2)
    return Row(
        *cell, cell.lossless, runs, sees(cell, runs), **told, accepted=accepted, seconds=seconds
    )


def ways(method: Method) -> list[str]:
    """Return the kinds of noise that a method is run with."""
    rule, tree, near = SMALL.rule(method), choice_of(method.drafts, SMALL).policy, neighbours()
    made = (
        Config(method, LENGTH, rule=rule, tree=tree, neighbours=near, noise=noise)
        for noise in NOISE
    )
    return list(dict.fromkeys(config.noise_used for config in made))


def cells_of(methods: Sequence[str], cases: Sequence[str]) -> list[Cell]:
    """Return all cells of these methods and cases, in the order of the tables."""
    return [
        Cell(method.id, noise, case)
        for method in METHODS.values()
        if method.id in methods
        for noise in ways(method)
        for case in CASES
        if case in cases
    ]


def markdown(report: Report) -> str:
    """Return the report in Markdown: a table of verdicts, the cases and the procedure.

    The JSON has the numbers.
    """
    listed = "; ".join(f"`{case}`: {label}" for case, label in report["cases"].items())
    return "\n\n".join([glance(report), f"Cases: {listed}.", HOW]) + "\n"


def glance(report: Report) -> str:
    """Return the part of a report that docs/audit.md shows: the verdict, runs and machine, and a
    table of the verdicts.
    """
    rows, versions, processes = rows_of(report), report["versions"], report["processes"]
    where = (
        f"{runs_in_words(rows)}, {report['machine']['device']}, {processes} {'process' if processes == 1 else 'processes'}, "
        f"PyTorch {versions['torch']}, {report['created'][:10]}, lantern-demo {versions['lantern_demo']} ({versions['code']})."
    )
    found = {row.cell: row for row in rows}
    lines = []
    for method, noise, lossless in dict.fromkeys(
        (row.method, row.noise, row.lossless) for row in rows
    ):
        cells = [found.get(Cell(method, noise, case)) for case in report["cases"]]
        least = max(row.sees for row in cells if row)
        verdicts = [row.verdict if row else "-" for row in cells]
        lines.append([method, noise, "yes" if lossless else "no", f"{least:g}", *verdicts])
    return "\n\n".join(
        [
            report["verdict"],
            where,
            table(["method", "noise", "lossless", "sees", *report["cases"]], lines),
        ]
    )


def runs_in_words(rows: Sequence[Row]) -> str:
    """Describe how many runs the rows of each kind have."""
    kinds = {True: "seeds a row with shared noise", False: "runs a row of the others"}
    counts = {
        paired: sorted({row.runs for row in rows if row.cell.paired == paired}) for paired in kinds
    }
    parts = (
        f"{n[0]:,}{f' to {n[-1]:,}' if n[-1] > n[0] else ''} {kinds[paired]}"
        for paired, n in counts.items()
        if n
    )
    return ", ".join(parts)


def parser() -> argparse.ArgumentParser:
    p = parser_of("audit", __doc__)
    p.add_argument(
        "--runs",
        type=at_least(1),
        help=f"of every row (default: {SEEDS} seeds, or enough to see {SEEN})",
    )
    p.add_argument(
        "--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="default: all"
    )
    p.add_argument(
        "--cases", nargs="+", choices=list(CASES), default=list(CASES), help="default: all"
    )
    p.add_argument(
        "--processes",
        type=at_least(1),
        default=os.cpu_count() or 1,
        help="default: one for each processor",
    )
    p.add_argument("--out", type=json_file, help="FILE.json: write FILE.json and FILE.md")
    return p


def audit(args: argparse.Namespace) -> Report:
    """Run the rows of a command line and return the report."""
    here = Path(__file__).parent
    identity = {
        "runs": args.runs,
        "machine": machine_of(torch.device("cpu")),
        "versions": {
            "lantern_demo": lantern_demo.__version__,
            "torch": torch.__version__,
            "code": digest_of(here.parent / "decoding", "*.py"),
            "toy": digest_of(here, "toy.py"),
            "audit": digest_of(here, "audit.py"),
        },
    }
    cells, rows = cells_of(args.methods, args.cases), list[Row]()
    for row in spread(partial(run_cell, runs=args.runs), cells, args.processes):
        rows.append(row)
        told = f"{len(rows)} of {len(cells)}: {row.cell.name} at {row.case}: {row.verdict}"
        print(told, file=sys.stderr, flush=True)
    cases = {case: CASES[case].label for case in CASES if any(row.case == case for row in rows)}
    report = {"created": now(), **identity, "processes": args.processes, "how": HOW, "cases": cases}
    return judged(report, sorted(rows, key=lambda row: cells.index(row.cell)))


def main(argv: Sequence[str]) -> int:
    """Return 0 if every lossless row passes and every other one fails, else 1.

    Raises ValueError for methods or cases that cannot be run."""
    args = parser().parse_args(argv)
    torch.set_num_threads(1)
    report = audit(args)
    text = markdown(report)
    print(text)
    if args.out:
        write(args.out, report, text)
    return 1 if faults(rows_of(report)) else 0
