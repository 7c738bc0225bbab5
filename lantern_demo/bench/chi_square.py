"""How well counts fit a distribution: distance and Pearson's test, and the distance that counts of the distribution itself have.

Counts are whole numbers, distributions float64 probabilities that sum to 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy
import torch
from numpy.typing import NDArray

Counts = NDArray[numpy.int64]
Probs = NDArray[numpy.float64]

FEWEST = 5.0  # expected in a cell of Pearson's test
SIMULATED = 200  # sets of counts drawn for a mean


class Pearson(NamedTuple):
    """Pearson's test of counts against a distribution: how many cells, the statistic, its degrees of freedom and p-value, and how
    many draws had probability 0."""

    cells: int
    chi2: float
    df: int
    p: float
    impossible: int


def chi_square(counts: Counts, probs: Probs) -> Pearson:
    """Pearson's test of counts against a distribution, both [n].

    Neighbours are taken together until `FEWEST` are expected. What has probability 0 belongs to no cell; when it was drawn p is
    0.
    Raises ValueError when nothing was counted.
    """
    runs = int(counts.sum())
    if runs < 1:
        raise ValueError(f"counts hold {runs} draws; there must be at least 1")
    observed, expected = [0], [0.0]
    for seen, share in zip(counts.tolist(), probs.tolist(), strict=True):
        if expected[-1] >= FEWEST:
            observed.append(0)
            expected.append(0.0)
        observed[-1] += seen if share > 0 else 0
        expected[-1] += share * runs
    if expected[-1] < FEWEST and len(expected) > 1:  # what is left over goes to the cell before
        few, share = observed.pop(), expected.pop()
        observed[-1] += few
        expected[-1] += share
    chi2, df = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True)), len(expected) - 1
    impossible = int(counts[probs == 0].sum())
    half = torch.tensor([df / 2, chi2 / 2], dtype=torch.float64)
    p = 0.0 if impossible else float(torch.special.gammaincc(half[0], half[1])) if df else 1.0
    return Pearson(df + 1, chi2, df, p, impossible)


def worst_stretch(counts: Counts, probs: Probs) -> tuple[str, float]:
    """Of all stretches of tokens that follow each other, such as "2-4", the one whose joint distribution fits worst, and the
    p-value of that times the number of stretches (Bonferroni), at most 1.

    counts and distribution are [V, ..., V] with a dimension for every token. Few tokens make few cells, in which a small fault
    shows that is lost among all sequences.
    """
    found = []
    for first in range(probs.ndim):
        for last in range(first, probs.ndim):
            others = tuple(i for i in range(probs.ndim) if not first <= i <= last)
            found.append((chi_square(counts.sum(others).ravel(), probs.sum(others).ravel()).p, f"{first + 1}-{last + 1}"))
    p, stretch = min(found)
    return stretch, min(1.0, p * len(found))


def distance(counts: Counts | Probs, probs: Probs) -> float:
    """The total variation distance, 0 to 1, between the distribution that counts, or weights, [n] stand for and another."""
    return 0.5 * float(numpy.abs(counts / counts.sum() - probs).sum())


def expected_distance(probs: Probs, runs: int) -> float:
    """Return the mean total variation distance between probabilities [n] and `runs` draws with them, by simulation."""
    generator = numpy.random.default_rng(0)
    return float(numpy.mean([distance(generator.multinomial(runs, probs), probs) for _ in range(SIMULATED)]))
