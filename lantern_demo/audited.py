"""What an audit of losslessness found, and how its rows are judged. `python -m lantern_demo.bench audit` makes the reports."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

# A row is at the noise when its p-value over all stretches is not below this: of 24 lossless rows one falls below by chance 2 times in 1000.
LEAST_P = 1e-4
Group = Literal["lossless", "relaxed", "released"]
GROUPS: tuple[Group, ...] = ("lossless", "relaxed", "released")


class Cell(NamedTuple):
    """What is run: a method, a variant of it ("" for the method as it stands) and a law, by their ids."""

    method: str
    variant: str
    law: str


@dataclass(frozen=True)
class Row:
    """What came of a cell.

    `lossless`: by the method's own claim; `released`: it does what a released code does, by our reading. `tvd` is the total variation
    distance (0 to 1) between the sequences drawn and the exact law, `expected` and `p99` the mean and the 99th percentile of the one
    that as many draws of the exact law show. `cells` to `p` are of Pearson's test of whole sequences, `stretch` is the stretch of tokens
    whose joint law fits worst, and `stretch_p` its p-value times the number of stretches. `impossible` sequences were drawn that the
    exact law never draws. `accepted` tokens came of a pass behind the prefill. `seconds` are those of one process.
    """

    method: str
    variant: str
    law: str
    lossless: bool
    released: bool
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
        return Cell(self.method, self.variant, self.law)

    @property
    def name(self) -> str:
        """The method and its variant, for people."""
        return f"{self.method} ({self.variant})" if self.variant else self.method

    @property
    def group(self) -> Group:
        """Lossless by claim, relaxed on purpose, or as a released code does it."""
        return "released" if self.released else "lossless" if self.lossless else "relaxed"

    @property
    def at_the_noise(self) -> bool:
        """Whether the sequences may well be draws of the exact law."""
        return self.stretch_p >= LEAST_P

    @property
    def off_by(self) -> float:
        """The distance less what the noise alone would show, 0 or more. The true one is no smaller, but for the spread of the noise."""
        return max(0.0, self.tvd - self.expected)

    @property
    def verdict(self) -> str:
        """In words."""
        if self.at_the_noise:
            return "at the noise"
        return f"off by {self.off_by:.3f}" if self.off_by >= 0.0005 else "off by less than the noise"


@dataclass(frozen=True)
class Audit:
    """A report: its rows, by method, variant and law in the order of the tables; the labels of the laws by their ids; and what it ran on."""

    rows: tuple[Row, ...]
    laws: dict[str, str]
    device: str  # the processor's name
    processes: int
    torch: str  # version
    lantern_demo: str  # version
    code: str  # digest of the decoder that ran
    created: str  # ISO 8601, UTC

    @property
    def runs(self) -> str:
        """How often the decoding loop ran for each row."""
        return ", ".join(f"{n:,}" for n in sorted({row.runs for row in self.rows}))

    @property
    def verdict(self) -> str:
        """A sentence on all rows of lossless methods."""
        exact, wrong = sum(row.lossless for row in self.rows), faults(self.rows)
        if wrong:
            return f"Not as it should be: {'; '.join(f'{row.name} at {row.law}' for row in wrong)}."
        return f"All {exact} rows of lossless methods are at the noise." if exact else "No lossless method was run."


def faults(rows: Iterable[Row]) -> list[Row]:
    """The rows of lossless methods that are not at the noise."""
    return [row for row in rows if row.lossless and not row.at_the_noise]


def audit_of(report: dict[str, Any]) -> Audit:
    """A report as it is read from JSON. Raises KeyError or TypeError for what is none."""
    versions = report["versions"]
    return Audit(
        tuple(Row(**row) for row in report["rows"]), dict(report["laws"]), report["machine"]["device"], report["processes"],
        versions["torch"], versions["lantern_demo"], versions["code"], report["created"],
    )  # fmt: skip


def read_audit(file: Path) -> Audit:
    """The report that `--out` wrote. Raises ValueError naming the file when it is none."""
    try:
        return audit_of(json.loads(file.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is not a report of the audit") from error
