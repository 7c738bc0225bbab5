"""Audit losslessness: does every method draw as its target would?

`python -m lantern_demo.bench audit --out audit.json` runs the decoding loop with many seeds on toy
models whose exact distribution of whole sequences is known (`toy`). Methods that share vanilla's
noise must draw the same sequence as vanilla for every seed. For the others, Pearson's chi-square
test compares the counted sequences with the exact distribution. The number of runs is chosen to
detect a distance of SEEN nine times in ten. Every lossless method must pass. Every other one must
fail, which shows that the audit detects faults.

With --device cuda the steps are those of a GPU: captured graphs, and Triton kernels where they are
on. The tables and the tests stay the same.

The audit covers this project's implementation of each method, not its authors' program. With --out
FILE.json the report is written as FILE.json and FILE.md. The exit status is 1 if a lossless row
fails or a lossy one passes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy
import torch

import lantern_demo
from lantern_demo.bench import report as shared
from lantern_demo.bench.chi_square import distance, expected_distance, worst_stretch
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
from lantern_demo.decoding.config import NOISE, Config
from lantern_demo.decoding.graphs import Runners
from lantern_demo.decoding.loop import Decoded, decode
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.timing import Clock
from lantern_demo.kernels import switch
from lantern_demo.models.device import pick_device
from lantern_demo.settings.settings import Settings, planned

CPU = torch.device("cpu")
SEEDS = 500  # of rows that are compared with vanilla's sequences
SEEN = 0.05  # total variation distance that `ToyCase.runs` runs detect nine times in ten
# A row of counts passes when its p-value over all stretches is not below this. Sound rows fall
# below about 3 times in 10,000.
LEAST_P = 1e-4
HOW = (
    f"Toy models of {VOCAB} tokens draw sequences of {LENGTH}. Rows with shared noise count the "
    "seeds whose sequence is not vanilla's. The other rows hold all sequences against the exact "
    "distribution by Pearson's test. At the noise: the p-value of the stretch of tokens that fits "
    f"worst, times the number of stretches, is {LEAST_P:g} or more. Off by: the total variation "
    "distance (0 to 1) less the mean one of as many exact draws. Sees is the smallest distance "
    "that the row finds nine times in ten, where random conditional probabilities are wrong. How "
    "far a relaxed method is off among so few tokens does not tell how far it is off on images. "
    "The audit covers this project's implementation of each method."
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
    has `tvd`, the total variation distance (0 to 1) between the sequences and the exact
    distribution; `expected`, the mean distance of as many exact draws; `stretch`, the stretch of
    tokens that fits worst; `stretch_p`, its p-value times the number of stretches; `impossible`,
    the count of sequences with probability 0. All rows have `sees`, the smallest distance that they
    detect nine times in ten. `accepted` is the mean tokens per forward pass after the prefill.
    `seconds` are those of one process. `engine` is why a GPU ran without graphs or kernels, as in a
    run's record.
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
    engine: str = ""

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
    exact = sum(row.lossless for row in rows)
    lossy = len(rows) - exact
    verdict = f"All {exact} rows of lossless methods pass, and all {lossy} rows of lossy ones fail."
    if wrong := [f"{row.cell.name} at {row.case}" for row in faults(rows)]:
        verdict = f"Not as it should be: {'; '.join(wrong)}."
    told = [asdict(row) | {"verdict": row.verdict} for row in rows]
    return report | {"verdict": verdict, "rows": told}


@cache
def _tables(case: str) -> Tables:
    return Tables(CASES[case])


def sees(cell: Cell, runs: int) -> float:
    """Return the smallest distance that a row detects nine times in ten.

    A paired row detects every seed that differs. The chi-square of another one grows with its runs
    times the squared distance.
    """
    if cell.paired:
        return round(1 - 0.1 ** (1 / runs), 4)
    return round(min(1.0, SEEN * (CASES[cell.case].runs / runs) ** 0.5), 3)


def player(cell: Cell, device: torch.device) -> Callable[[int], Decoded]:
    """Return a function that runs a cell once, given a seed; the runs share models, config, and a
    GPU's graphs."""
    tables = _tables(cell.case)
    target = ToyTarget(tables, device)
    drafter = ToyDrafter(tables, device)
    clock, runners = Clock(device), Runners()
    own = config_of(METHODS[cell.method], cell.noise, CASES[cell.case].sampling, device)
    common = replace(own, ops=switch.ops_of(device, VOCAB))

    def play(seed: int) -> Decoded:
        config = replace(common, seed=seed)
        *_, result = decode(target, drafter, None, config, clock, runners)
        assert isinstance(result, Decoded)
        return result

    return play


def run_cell(cell: Cell, runs: int | None = None, device: torch.device = CPU) -> Row:
    """Run a cell and test it. If `runs` is None, its kind determines their number."""
    runs = runs or (SEEDS if cell.paired else CASES[cell.case].runs)
    play = player(cell, device)
    vanilla = player(Cell("vanilla", "shared", cell.case), device) if cell.paired else None
    # a different first seed per cell, or all methods would draw the same first tokens
    first = zlib.crc32("/".join(cell).encode())
    counts = numpy.zeros(SEQUENCES, dtype=numpy.int64)
    passes = 0
    differ = 0
    began = perf_counter()
    for seed in ((first + i) % 2**32 for i in range(runs)):
        decoded = play(seed)
        counts[index_of(decoded.tokens)] += 1
        passes += decoded.steps
        differ += vanilla is not None and vanilla(seed).tokens != decoded.tokens
    found: dict[str, Any] = {"differ": differ}
    if vanilla is None:
        probs = _tables(cell.case).sequences()
        by_token = (VOCAB,) * LENGTH
        stretch, stretch_p = worst_stretch(counts.reshape(by_token), probs.reshape(by_token))
        found = {
            "tvd": distance(counts, probs),
            "expected": expected_distance(probs, runs),
            "stretch": stretch,
            "stretch_p": stretch_p,
            "impossible": int(counts[probs == 0].sum()),
        }
    found["accepted"] = round(runs * (LENGTH - 1) / passes, 4)
    found["seconds"] = round(perf_counter() - began, 2)
    found["engine"] = decoded.runner_reason
    return Row(*cell, METHODS[cell.method].lossless, runs, sees(cell, runs), **found)


def run_cells(
    cells: Sequence[Cell], runs: int | None, processes: int, device: torch.device = CPU
) -> Iterator[Row]:
    """Yield the rows of cells as they complete, by processes of one thread each.

    A single process runs here. Raises the error of a cell.
    """
    call = partial(run_cell, runs=runs, device=device)
    if min(processes, len(cells)) < 2:
        yield from map(call, cells)
        return
    context = multiprocessing.get_context("spawn")  # OpenMP does not outlive a fork
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
        waiting = [pool.submit(call, cell) for cell in cells]
        try:
            yield from (done.result() for done in as_completed(waiting))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def config_of(method: Method, noise: str, sampling: Sampling, device: torch.device = CPU) -> Config:
    """Return the configuration of a method's runs."""
    plan, near = planned(method, SMALL), neighbours().to(device)
    rule, drafts = plan.rule, plan.drafts
    return Config(LENGTH, sampling, rule, drafts, near, device=device, noise=noise)


def cells_of(methods: Sequence[str], cases: Sequence[str]) -> list[Cell]:
    """Return all cells of these methods and cases, in the order of the tables."""
    cells = []
    for method in METHODS.values():
        if method.id in methods:
            used = dict.fromkeys(config_of(method, one, Sampling()).noise_used for one in NOISE)
            cells += [
                Cell(method.id, noise, case) for noise in used for case in CASES if case in cases
            ]
    return cells


def markdown(report: Report) -> str:
    """Return the report in Markdown: a table of verdicts, the cases and the procedure."""
    listed = "; ".join(f"`{case}`: {label}" for case, label in report["cases"].items())
    return "\n\n".join([glance(report), f"Cases: {listed}.", HOW]) + "\n"


def glance(report: Report) -> str:
    """Return what docs/audit.md shows: the verdict, runs and machine, and a table of verdicts."""
    rows = rows_of(report)
    versions = report["versions"]
    count = report["processes"]
    engine = f" ({report['engine']})" if report["engine"] else ""
    where = (
        f"{runs_in_words(rows)}, {report['machine']['device']}{engine}, "
        f"{count} {'process' if count == 1 else 'processes'}, PyTorch {versions['torch']}, "
        f"{report['created'][:10]}, lantern-demo {versions['lantern_demo']} ({versions['code']})."
    )
    found = {row.cell: row for row in rows}
    lines = []
    for method, noise, lossless in dict.fromkeys((r.method, r.noise, r.lossless) for r in rows):
        cells = [found.get(Cell(method, noise, case)) for case in report["cases"]]
        least = max(row.sees for row in cells if row)
        verdicts = [row.verdict if row else "-" for row in cells]
        lines.append([method, noise, "yes" if lossless else "no", f"{least:g}", *verdicts])
    head = ["method", "noise", "lossless", "sees", *report["cases"]]
    return "\n\n".join([report["verdict"], where, shared.table(head, lines)])


def runs_in_words(rows: Sequence[Row]) -> str:
    """Describe how many runs the rows of each kind have."""
    parts = []
    units = {True: "seeds a row with shared noise", False: "runs a row of the others"}
    for paired, unit in units.items():
        counts = sorted({row.runs for row in rows if row.cell.paired == paired})
        if counts:
            most = f" to {counts[-1]:,}" if counts[-1] > counts[0] else ""
            parts.append(f"{counts[0]:,}{most} {unit}")
    return ", ".join(parts)


def parser() -> argparse.ArgumentParser:
    p = shared.parser_of(__doc__, "audit")
    positive = shared.at_least(1)
    runs = f"of every row (default: {SEEDS} seeds, or enough to see {SEEN})"
    p.add_argument("--runs", type=positive, help=runs)
    for name, known in ("--methods", list(METHODS)), ("--cases", list(CASES)):
        p.add_argument(name, nargs="+", choices=known, default=known, help="default: all")
    p.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (default: cpu)")
    processes = "default: all processors; on a GPU 1"
    p.add_argument("--processes", type=positive, help=processes)
    p.add_argument("--out", type=shared.json_file, help="FILE.json: write FILE.json and FILE.md")
    return p


def engine_of(rows: Sequence[Row], device: torch.device) -> str:
    """Return which kernels ran, or why a GPU ran without them or without graphs; "" on a CPU."""
    reasons = sorted({row.engine for row in rows} - {""})
    if not reasons and switch.on(device):
        reasons = [f"Triton kernels {shared.digest_of(Path(switch.__file__).parent, '*.py')}"]
    return "; ".join(reasons)


def audit(args: argparse.Namespace) -> Report:
    """Run the rows of a command line and return the report."""
    here = Path(__file__).parent
    device = pick_device(args.device)
    processes = args.processes or (1 if device.type == "cuda" else os.cpu_count() or 1)
    cells = cells_of(args.methods, args.cases)
    rows = list[Row]()
    for row in run_cells(cells, args.runs, processes, device):
        rows.append(row)
        count = f"{len(rows)} of {len(cells)}"
        print(f"{count}: {row.cell.name} at {row.case}: {row.verdict}", file=sys.stderr, flush=True)
    report = {
        "created": shared.now(),
        "runs": args.runs,
        "machine": shared.machine_of(device),
        "engine": engine_of(rows, device),
        "versions": {
            "lantern_demo": lantern_demo.__version__,
            "torch": torch.__version__,
            "code": shared.digest_of(here.parent / "decoding", "*.py"),
            "toy": shared.digest_of(here, "toy.py"),
            "audit": shared.digest_of(here, "audit.py"),
        },
        "processes": processes,
        "how": HOW,
        "cases": {case: CASES[case].label for case in CASES if case in args.cases},
    }
    return judged(report, sorted(rows, key=lambda row: cells.index(row.cell)))


def main(argv: Sequence[str]) -> int:
    """Return 0 if every lossless row passes and every other one fails, else 1.

    Raises ValueError for methods, cases or a device that cannot be run.
    """
    args = parser().parse_args(argv)
    torch.set_num_threads(1)
    report = audit(args)
    text = markdown(report)
    print(text)
    if args.out:
        shared.write(args.out, report, text)
    return 1 if faults(rows_of(report)) else 0
