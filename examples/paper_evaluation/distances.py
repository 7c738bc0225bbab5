"""The distances between two sets of pictures that papers report in addition to FID: KID, precision and recall."""

from __future__ import annotations

from typing import Any

import numpy

from lantern_demo.bench.quality.distances import Array, between, checked


def kernel(a: Any, b: Any) -> float:
    """Return the kernel distance (KID) between two sets of features, a [N, D] and b [M, D].

    It is the unbiased estimate of the squared maximum mean discrepancy under the kernel (x y / D + 1)^3 (Binkowski et al.
    2018). It uses whole sets instead of blocks, and may be negative.
    """
    a, b = checked(a, 2), checked(b, 2)
    return float(_mean_of_pairs(_cubic(a, a)) + _mean_of_pairs(_cubic(b, b)) - 2 * _cubic(a, b).mean())


def _cubic(a: Array, b: Array) -> Array:
    return (a @ b.T / a.shape[1] + 1) ** 3


def _mean_of_pairs(k: Array) -> float:
    """Return the mean of k [N, N] over ordered pairs of different pictures."""
    return float((k.sum() - k.trace()) / (len(k) * (len(k) - 1)))


def precision_recall(real: Any, made: Any, k: int = 3) -> tuple[float, float]:
    """Return precision and recall of made pictures [M, D] against real ones [N, D] (Kynkäänniemi et al. 2019).

    A set's manifold is the union of balls around its features, each as wide as the distance to the k-th nearest other picture.
    Precision is the share of made pictures in the real manifold, recall that of real ones in the made manifold.
    """
    real, made = checked(real, k + 1), checked(made, k + 1)
    apart = between(real, made)
    precision = (apart <= _radii(real, k)[:, None]).any(0).mean()
    return float(precision), float((apart <= _radii(made, k)).any(1).mean())


def _radii(features: Array, k: int) -> Array:
    # Every row contains the picture's distance of 0 to itself, so the k-th nearest other picture has index k.
    radii: Array = numpy.partition(between(features, features), k, axis=1)[:, k]
    return radii
