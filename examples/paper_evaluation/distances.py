"""The distances between two sets of pictures that papers report: FID, KID, precision and recall.

Features are [N, D] of some network, and distances are computed in numpy float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy
from numpy.typing import NDArray

Array = NDArray[numpy.float64]


def checked(given: Any, least: int) -> Array:
    """Return features as float64.

    Raises ValueError unless they are [N, D] of at least `least` pictures.
    """
    features = numpy.asarray(given, dtype=numpy.float64)
    if features.ndim != 2 or len(features) < least:
        raise ValueError(
            f"features must be [N, D] of at least {least} pictures, got the shape {features.shape}"
        )
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
    """Compute the moments of features [N, D], the covariance over N - 1.

    Raises ValueError for fewer than two.
    """
    given = checked(features, 2)
    mean = given.mean(0)
    centred = given - mean
    return Moments(mean, centred.T @ centred / (len(given) - 1))


def frechet(a: Any, b: Any) -> float:
    """Compute the Frechet distance of two sets, given as features [N, D] or their `Moments` (Heusel
    et al. 2017).

    |m_a - m_b|^2 + tr(S_a + S_b - 2 (S_b^1/2 S_a S_b^1/2)^1/2), in squared units of the features.
    The upward bias grows as sets shrink: only sets of the same size compare. The root of b is
    computed once per `Moments`, so pass a reference as b.
    """
    a, b = (x if isinstance(x, Moments) else moments(x) for x in (a, b))
    # The trace of the root needs only the eigenvalues of a symmetric matrix. Rounding leaves some a
    # little below 0.
    product = numpy.linalg.eigvalsh(b.root @ a.covariance @ b.root)
    shared = numpy.sqrt(product.clip(0)).sum()
    apart = (
        ((a.mean - b.mean) ** 2).sum()
        + numpy.trace(a.covariance)
        + numpy.trace(b.covariance)
        - 2 * shared
    )
    return max(0.0, float(apart))


def between(a: Array, b: Array) -> Array:
    """Return the Euclidean distances [N, M] between features [N, D] and [M, D]."""
    squares = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * (a @ b.T)
    if a is b:
        numpy.fill_diagonal(squares, 0.0)  # the difference of large numbers leaves a rounding error
    return numpy.sqrt(squares.clip(0))


def kernel(a: Any, b: Any) -> float:
    """Return the kernel distance (KID) between two sets of features, a [N, D] and b [M, D].

    It is the unbiased estimate of the squared maximum mean discrepancy under the kernel (x y / D +
    1)^3 (Binkowski et al. 2018). It uses whole sets instead of blocks, and may be negative.
    """
    a, b = checked(a, 2), checked(b, 2)
    return float(
        _mean_of_pairs(_cubic(a, a)) + _mean_of_pairs(_cubic(b, b)) - 2 * _cubic(a, b).mean()
    )


def _cubic(a: Array, b: Array) -> Array:
    return (a @ b.T / a.shape[1] + 1) ** 3


def _mean_of_pairs(k: Array) -> float:
    """Return the mean of k [N, N] over ordered pairs of different pictures."""
    return float((k.sum() - k.trace()) / (len(k) * (len(k) - 1)))


def precision_recall(real: Any, made: Any, k: int = 3) -> tuple[float, float]:
    """Return precision and recall of made pictures [M, D] against real ones [N, D] (Kynkäänniemi et
    al. 2019).

    A set's manifold is the union of balls around its features, each as wide as the distance to the
    k-th nearest other picture. Precision is the share of made pictures in the real manifold, recall
    that of real ones in the made manifold.
    """
    real, made = checked(real, k + 1), checked(made, k + 1)
    apart = between(real, made)
    precision = (apart <= _radii(real, k)[:, None]).any(0).mean()
    return float(precision), float((apart <= _radii(made, k)).any(1).mean())


def _radii(features: Array, k: int) -> Array:
    # Every row contains the picture's distance of 0 to itself, so the k-th nearest other picture
    # has index k.
    radii: Array = numpy.partition(between(features, features), k, axis=1)[:, k]
    return radii
