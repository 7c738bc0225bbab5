"""Distances between two sets of pictures, in the features [N, D] of some network, computed in numpy float64.

No distance has an absolute meaning. Compare each with that between two sets that one method drew with different seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy
from numpy.typing import NDArray

Array = NDArray[numpy.float64]


def checked(given: Any, least: int) -> Array:
    """Return features as float64. Raises ValueError unless they are [N, D] of at least `least` pictures."""
    features = numpy.asarray(given, dtype=numpy.float64)
    if features.ndim != 2 or len(features) < least:
        raise ValueError(f"features must be [N, D] of at least {least} pictures, got the shape {features.shape}")
    return features


@dataclass(frozen=True)
class Moments:
    """Mean [D] and covariance [D, D] of features."""

    mean: Array
    covariance: Array

    @cached_property
    def root(self) -> Array:
        """Return the symmetric square root of the covariance [D, D]."""
        values, vectors = numpy.linalg.eigh(self.covariance)
        return (vectors * numpy.sqrt(values.clip(0))) @ vectors.T


def moments(features: Any) -> Moments:
    """Compute the moments of features [N, D], the covariance over N - 1. Raises ValueError for fewer than two."""
    given = checked(features, 2)
    mean = given.mean(0)
    centred = given - mean
    return Moments(mean, centred.T @ centred / (len(given) - 1))


def frechet(a: Any, b: Any) -> float:
    """Compute the Frechet distance of two sets, given as features [N, D] or their `Moments` (Heusel et al. 2017).

    |m_a - m_b|^2 + tr(S_a + S_b - 2 (S_b^1/2 S_a S_b^1/2)^1/2), in squared units of the features. The upward bias grows as sets
    shrink: only sets of the same size compare. The root of b is computed once per `Moments`, so pass a reference as b.
    """
    a, b = (x if isinstance(x, Moments) else moments(x) for x in (a, b))
    # The trace of the root needs only the eigenvalues of a symmetric matrix. Rounding leaves some a little below 0.
    product = numpy.linalg.eigvalsh(b.root @ a.covariance @ b.root)
    shared = numpy.sqrt(product.clip(0)).sum()
    apart = ((a.mean - b.mean) ** 2).sum() + numpy.trace(a.covariance) + numpy.trace(b.covariance) - 2 * shared
    return max(0.0, float(apart))


def between(a: Array, b: Array) -> Array:
    """Return the Euclidean distances [N, M] between features [N, D] and [M, D]."""
    squares = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * (a @ b.T)
    if a is b:
        numpy.fill_diagonal(squares, 0.0)  # the difference of large numbers leaves a rounding error
    return numpy.sqrt(squares.clip(0))


def diversity(features: Any, groups: Any) -> Array:
    """Compute the mean distance [N] of each picture to the others of its caption, from features [N, D] and captions [N].

    Its mean over pictures is the diversity per caption over seeds. It is computed per picture because a resampled caption must
    not be compared with itself. Raises ValueError for a caption of one picture.
    """
    given, captions = checked(features, 2), numpy.asarray(groups)
    found = numpy.empty(len(given))
    for caption in numpy.unique(captions):
        rows = (captions == caption).nonzero()[0]
        if len(rows) < 2:
            raise ValueError(f"diversity needs two pictures of a caption or more; caption {caption} has {len(rows)}")
        found[rows] = between(same := given[rows], same).sum(1) / (len(rows) - 1)
    return found
