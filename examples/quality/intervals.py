"""Uncertainty of measures: intervals of shares, and the bootstrap over captions of differences to a
noise floor.

Pictures of one caption resemble each other, so the bootstrap resamples captions, each with all its
pictures. Two sets of the same captions are resampled together: a caption's effect on both then
cancels in the spread of their difference.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy

LEVEL = 0.99  # of intervals of shares
# Of a difference the second lowest and the second highest of the resamples, at which 1 % lie
# beyond either. Of lossless methods 1 in 25 misses one of its two by chance.
BOTH_ENDS = 0.98
RESAMPLES = 200


class Difference(NamedTuple):
    """A measure of two sets of pictures, the first minus the second, and the interval of this
    difference.
    """

    value: float
    floor: float
    difference: float
    interval: list[float]


def wilson(right: int, of: int) -> tuple[float, float]:
    """Return the interval of the share `right` / `of` (Wilson 1927): the shares that are at most z
    standard errors from it.
    """
    z, p = NormalDist().inv_cdf((1 + LEVEL) / 2), right / of
    middle = (p + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    # Exactly 0 and 1 at the ends, in spite of rounding.
    return (0.0 if right == 0 else middle - half), (1.0 if right == of else middle + half)


def compared(
    values: Any, floors: Any, groups: Any, seed: int = 0, level: float = BOTH_ENDS
) -> Difference:
    """Compute the difference of the means of values and floors, [N] each, of two sets with the
    captions `groups` [N].

    A resample draws captions with replacement, each with all its pictures. The percentile interval
    over RESAMPLES of them leaves out (1 - level) / 2 at either end. It is shifted so that the
    resamples' mean equals the measured difference.
    """
    values, floors = numpy.asarray(values, numpy.float64), numpy.asarray(floors, numpy.float64)
    value, floor = float(values.mean()), float(floors.mean())
    pictures = [(groups == caption).nonzero()[0] for caption in numpy.unique(groups)]
    g = numpy.random.default_rng(seed)
    found = []
    for _ in range(RESAMPLES):
        drawn = g.integers(len(pictures), size=len(pictures))
        index = numpy.concatenate([pictures[i] for i in drawn])
        found.append(values[index].mean() - floors[index].mean())
    moved = numpy.array(found)
    low, high = numpy.quantile(
        moved - moved.mean() + (value - floor),
        ((1 - level) / 2, (1 + level) / 2),
        method="weibull",  # so that a share of these chances lies beyond, on average
    )
    return Difference(value, floor, value - floor, [float(low), float(high)])
