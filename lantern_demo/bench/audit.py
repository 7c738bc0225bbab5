"""The audit of losslessness: does every method draw what its target would? `python -m lantern_demo.bench audit --out audit.json`.

On toy models whose distribution of whole sequences is known exactly (`toy`) the decoding loop itself runs many times, each time
with another seed. The sequences that come out are counted and held against the exact distribution, to the last token of the
picture: by the total variation distance, beside the one that as many draws of the exact distribution show, and by Pearson's
chi-square test. A lossless method must be at the noise. The others show by how much they are off.

What runs is this project's implementation of each method, not its authors' program. With --out FILE.json the report is written as
FILE.json and FILE.md, and the same command goes on where it was interrupted. The exit status is 1 where a lossless method is not
at the noise.
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
from lantern_demo.bench.arguments import add_report, at_least, parser_of
from lantern_demo.bench.chi_square import FEWEST, chi_square, distance, noise, worst_stretch
from lantern_demo.bench.report import machine_of, now, table, write
from lantern_demo.bench.resume import Journal, digest_of
from lantern_demo.bench.toy import CASES, LENGTH, SEQUENCES, VOCAB, Tables, ToyDrafter, ToyTarget, index_of, neighbours
from lantern_demo.bench.workers import spread
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import Drafts
from lantern_demo.decoding.loop import Decoded, decode
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.timing import Clock
from lantern_demo.decoding.wavefront import Wavefront
from lantern_demo.settings.settings import Settings

RUNS = 100_000
# A row is at the noise when its p-value over all stretches is not below this: of 24 lossless rows one falls below by chance 2
# times in 1000.
LEAST_P = 1e-4
HOW = (
    f"Toy models of {VOCAB} tokens draw sequences of {LENGTH}. TVD is the total variation distance (0 to 1) between the "
    "sequences drawn and the exact distribution; expected and 99 % are the mean and the 99th percentile of the one that as "
    "many draws of it show. chi2 and p are of the same sequences by Pearson's test, neighbours taken together until "
    f"{FEWEST:.0f} are expected. Worst is the stretch of tokens whose joint distribution fits worst, and its p-value times the "
    f"number of stretches. At the noise: that is {LEAST_P:g} or more. Off by: the TVD less the expected one; the true distance "
    f"lies between that and their sum, up to the spread of the noise. How far a relaxed method is off among {VOCAB} tokens does "
    "not tell how far it is off on images. What ran is this project's implementation of each method, not its authors' program."
)

# What methods run with: small draft trees and windows, and bounds that say something among so few tokens. The rest is as by
# default.
SMALL = Settings(
    tree="0 1 00 01 10 000",
    draft_top_k=2,
    draft_depth=2,
    draft_nodes=6,
    window=4,
    zipar_window=1,
    lantern_k=2,
    lantern_delta=0.2,
    lanternpp_k=2,
    lanternpp_lambda=2.0,
)


class Variant(NamedTuple):
    """What else a method is run with: another draft tree, whether it is lossless by this, and whether noise is shared where the
    method can."""

    lossless: bool
    tree: Drafts | None = None
    noise: str = "shared"


def _own(method: Method) -> dict[str, Variant]:
    """The papers' rejection sampling, of methods that can share noise."""
    tree = method.drafts.of(SMALL)
    config = Config(method, LENGTH, rule=SMALL.rule(method), tree=tree, neighbours=neighbours(), noise="shared")
    if not config.shared or method.drafts.side_by_side:
        return {}
    return {"independent": Variant(method.lossless, noise="independent")}


VARIANTS: dict[str, dict[str, Variant]] = {method.id: _own(method) for method in METHODS.values()}
VARIANTS["zipar"]["whole row"] = Variant(True, tree=Wavefront(2))

Report = dict[str, Any]


class Cell(NamedTuple):
    """What is run: a method, a variant of it ("" for the method as it stands) and a case, by their ids."""

    method: str
    variant: str
    case: str


@dataclass(frozen=True)
class Row:
    """What came of a cell.

    `lossless`: by the method's own claim. `tvd` is the total variation distance (0 to 1) between the sequences drawn and the
    exact distribution, `expected` and `p99` the mean and the 99th percentile of the one that as many draws of the exact
    distribution show. `cells` to `p` are of Pearson's test of whole sequences, `stretch` is the stretch of tokens whose joint
    distribution fits worst, and `stretch_p` its p-value times the number of stretches. `impossible` sequences were drawn that the
    exact distribution never draws. `accepted` tokens came of a pass behind the prefill. `seconds` are those of one process.
    """

    method: str
    variant: str
    case: str
    lossless: bool
    runs: int
    tvd: float
    expected: float
    p99: float
    cells: int
    chi2: float
    df: int
    p: float
    impossible: int
    stretch: str
    stretch_p: float
    accepted: float
    seconds: float

    @property
    def cell(self) -> Cell:
        return Cell(self.method, self.variant, self.case)

    @property
    def name(self) -> str:
        """The method and its variant, for people."""
        return f"{self.method} ({self.variant})" if self.variant else self.method

    @property
    def at_the_noise(self) -> bool:
        """Whether the sequences may well be draws of the exact distribution."""
        return self.stretch_p >= LEAST_P

    @property
    def off_by(self) -> float:
        """The distance less what the noise alone would show, 0 or more. The true one is no smaller, but for the spread of the
        noise."""
        return max(0.0, self.tvd - self.expected)

    @property
    def verdict(self) -> str:
        """In words."""
        if self.at_the_noise:
            return "at the noise"
        return f"off by {self.off_by:.3f}" if self.off_by >= 0.0005 else "off by less than the noise"

    def told(self) -> dict[str, Any]:
        """The row as a report has it, with what its numbers come to."""
        return asdict(self) | {"at_the_noise": self.at_the_noise, "off_by": self.off_by, "verdict": self.verdict}


def faults(rows: Sequence[Row]) -> list[Row]:
    """The rows of lossless methods that are not at the noise."""
    return [row for row in rows if row.lossless and not row.at_the_noise]


def rows_of(report: Report) -> list[Row]:
    """The rows of a report, or of a journal."""
    return [Row(**{field.name: row[field.name] for field in fields(Row)}) for row in report["rows"]]


def judged(report: Report, rows: Sequence[Row]) -> Report:
    """A report with these rows and a sentence on all of lossless methods."""
    exact, wrong = sum(row.lossless for row in rows), faults(rows)
    verdict = f"All {exact} rows of lossless methods are at the noise." if exact else "No lossless method was run."
    if wrong:
        verdict = f"Not as it should be: {'; '.join(f'{row.name} at {row.case}' for row in wrong)}."
    return report | {"least_p": LEAST_P, "verdict": verdict, "rows": [row.told() for row in rows]}


@cache
def _tables(case: str) -> Tables:
    return Tables(CASES[case])


@cache
def _noise(case: str, runs: int) -> tuple[float, float]:
    return noise(_tables(case).sequences(), runs)


def variant_of(cell: Cell) -> Variant:
    """What a cell's method is run with. Raises KeyError for a variant that there is not."""
    return VARIANTS[cell.method][cell.variant] if cell.variant else Variant(METHODS[cell.method].lossless)


def player(cell: Cell) -> Callable[[int], Decoded]:
    """What runs a cell once, given a seed. Everything that runs share is made once."""
    method, case, tables = METHODS[cell.method], CASES[cell.case], _tables(cell.case)
    target, drafter, clock, near = ToyTarget(tables), ToyDrafter(tables), Clock("cpu"), neighbours()
    variant, rule = variant_of(cell), SMALL.rule(method)
    tree = variant.tree or method.drafts.of(SMALL)

    def play(seed: int) -> Decoded:
        config = Config(method, LENGTH, case.sampling, rule, tree, near, seed, engine="plain", row=2, noise=variant.noise)
        *_, result = decode(target, drafter, None, config, clock)
        assert isinstance(result, Decoded)
        return result

    return play


def run_cell(cell: Cell, runs: int) -> Row:
    """Run a cell and judge it."""
    play, probs = player(cell), _tables(cell.case).sequences()
    first = zlib.crc32("/".join(cell).encode())  # every cell begins elsewhere, or all methods would draw the same first tokens
    counts, passes = numpy.zeros(SEQUENCES, dtype=numpy.int64), 0
    began = perf_counter()
    for i in range(runs):
        decoded = play((first + i) % 2**32)
        counts[index_of(decoded.tokens)] += 1
        passes += decoded.steps
    seconds = perf_counter() - began
    expected, p99 = _noise(cell.case, runs)
    stretch, stretch_p = worst_stretch(counts.reshape((VOCAB,) * LENGTH), probs.reshape((VOCAB,) * LENGTH))
    return Row(
        *cell,
        lossless=variant_of(cell).lossless,
        runs=runs,
        tvd=distance(counts, probs),
        expected=expected,
        p99=p99,
        **chi_square(counts, probs)._asdict(),
        stretch=stretch,
        stretch_p=stretch_p,
        accepted=round(runs * (LENGTH - 1) / passes, 4),
        seconds=round(seconds, 2),
    )


def cells_of(methods: Sequence[str], cases: Sequence[str]) -> list[Cell]:
    """All cells of these methods and cases, the variants of each method behind it, in the order of the tables."""
    return [
        Cell(method, variant, case)
        for method in METHODS
        if method in methods
        for variant in ("", *VARIANTS.get(method, {}))
        for case in CASES
        if case in cases
    ]


def markdown(report: Report) -> str:
    """The report as people read it: the verdicts at a glance, then all numbers."""
    head = ["method", "case", "lossless", "TVD", "expected", "99 %", "chi2", "df", "p", "worst", "tokens a pass", "runs a second"]
    lines = [
        [
            row.name,
            row.case,
            "yes" if row.lossless else "no",
            *(f"{value:.4f}" for value in (row.tvd, row.expected, row.p99)),
            f"{row.chi2:.0f}" + (f", {row.impossible} impossible" if row.impossible else ""),
            str(row.df),
            f"{row.p:.2g}",
            f"{row.stretch}: {row.stretch_p:.2g}",
            f"{row.accepted:.2f}",
            f"{row.runs / max(row.seconds, 0.01):.0f}",
            row.verdict,
        ]
        for row in rows_of(report)
    ]
    listed = "; ".join(f"`{case}`: {label}" for case, label in report["cases"].items())
    return "\n\n".join([glance(report), f"Cases: {listed}.", table([*head, "verdict"], lines), HOW]) + "\n"


def glance(report: Report) -> str:
    """What docs/audit.md shows of a report: the verdict, what ran on what, and a table of the verdicts."""
    rows, versions, processes = rows_of(report), report["versions"], report["processes"]
    runs = ", ".join(f"{n:,}" for n in sorted({row.runs for row in rows}))
    where = (
        f"{runs} runs a row, {report['machine']['device']}, {processes} {'process' if processes == 1 else 'processes'}, "
        f"PyTorch {versions['torch']}, {report['created'][:10]}, lantern-demo {versions['lantern_demo']} ({versions['code']})."
    )
    verdicts = {(row.name, row.case): row.verdict for row in rows}
    lines = [
        [name, "yes" if lossless else "no", *(verdicts.get((name, case), "-") for case in report["cases"])]
        for name, lossless in dict.fromkeys((row.name, row.lossless) for row in rows)
    ]
    return "\n\n".join([report["verdict"], where, table(["method", "lossless", *report["cases"]], lines)])


def parser() -> argparse.ArgumentParser:
    p = parser_of("audit", __doc__)
    p.add_argument("--runs", type=at_least(1), default=RUNS, help=f"of the loop for each method in each case (default: {RUNS:,})")
    p.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="default: all")
    p.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES), help="default: all")
    p.add_argument("--processes", type=at_least(1), default=os.cpu_count() or 1, help="default: one for each processor")
    add_report(p)
    return p


def audit(args: argparse.Namespace) -> Report:
    """Run what a command line asks for and is not in the journal yet -> the report. Raises ValueError for what cannot be run."""
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
    journal = Journal(args.out and args.out.with_suffix(".jsonl"), identity, args.fresh)
    cells = cells_of(args.methods, args.cases)
    rows = rows_of({"rows": journal.of("row")})
    done = {row.cell for row in rows}
    left = [cell for cell in cells if cell not in done]
    for number, row in enumerate(spread(partial(run_cell, runs=args.runs), left, args.processes, 1), 1 + len(cells) - len(left)):
        journal.add("row", asdict(row))
        rows.append(row)
        told = f"{number} of {len(cells)}: {row.name} at {row.case}: {row.verdict} (p = {row.stretch_p:.2g})"
        print(told, file=sys.stderr, flush=True)
    order = cells_of(list(METHODS), list(CASES))
    cases = {case: CASES[case].label for case in CASES if any(row.case == case for row in rows)}
    report = {"created": now(), **identity, "processes": args.processes, "how": HOW, "cases": cases}
    return judged(report, sorted(rows, key=lambda row: order.index(row.cell)))


def main(argv: Sequence[str]) -> int:
    """0 when all lossless methods are at the noise, 1 when one is not. Raises ValueError for what cannot be run."""
    args = parser().parse_args(argv)
    torch.set_num_threads(1)
    report = audit(args)
    text = markdown(report)
    print(text)
    if args.out:
        write(args.out, report, text)
    return 1 if faults(rows_of(report)) else 0
