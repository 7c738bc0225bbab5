"""Compare counts with a distribution: total variation distance and Pearson's test.

Counts are whole numbers. Distributions are float64 probabilities that sum to 1.
"""

from __future__ import annotations

import numpy
import torch
from numpy.typing import NDArray

Counts = NDArray[numpy.int64]
Probs = NDArray[numpy.float64]

FEWEST = 5.0  # expected in a cell of Pearson's test
SIMULATED = 200  # sets of counts drawn for a mean


def chi_square(counts: Counts, probs: Probs) -> float:
    """Return the p-value of counts under a distribution, both [n], by Pearson's test.

    Neighbours share a cell until `FEWEST` draws are expected in it. Outcomes of probability 0
    belong to no cell. If one was drawn, p is 0. Raises ValueError if nothing was counted.
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
    if expected[-1] < FEWEST and len(expected) > 1:  # the previous cell takes the remainder
        few, share = observed.pop(), expected.pop()
        observed[-1] += few
        expected[-1] += share
    if counts[probs == 0].any():
        return 0.0
    chi2 = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    df = len(expected) - 1
    half = torch.tensor([df / 2, chi2 / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1])) if df else 1.0


def worst_stretch(counts: Counts, probs: Probs) -> tuple[str, float]:
    """Return the stretch of tokens, such as "2-4", that fits worst, and its p-value.

    The p-value is multiplied by the number of stretches (Bonferroni), at most 1. Counts and
    distribution are [V, ..., V] with a dimension per token. Few tokens make few cells, which show a
    small fault that is lost among all sequences.
    """
    found = []
    for first in range(probs.ndim):
        for last in range(first, probs.ndim):
            others = tuple(i for i in range(probs.ndim) if not first <= i <= last)
            p = chi_square(counts.sum(others).ravel(), probs.sum(others).ravel())
            found.append((p, f"{first + 1}-{last + 1}"))
    p, stretch = min(found)
    return stretch, min(1.0, p * len(found))


def distance(counts: Counts | Probs, probs: Probs) -> float:
    """Return the total variation distance, 0 to 1, between normalised counts and probs [n]."""
    return 0.5 * float(numpy.abs(counts / counts.sum() - probs).sum())


def expected_distance(probs: Probs, runs: int) -> float:
    """Simulate the mean total variation distance between probs [n] and `runs` draws from them."""
    generator = numpy.random.default_rng(0)
    draws = generator.multinomial(runs, probs, size=SIMULATED)
    return float(numpy.mean([distance(counts, probs) for counts in draws]))
