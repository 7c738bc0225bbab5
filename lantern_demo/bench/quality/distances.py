"""How far two sets of pictures lie apart, in the features [N, D] of some network.

All in numpy, float64. None has a meaning by itself: hold each against the same distance between two sets that one method drew
with different seeds. Classes that hold what a set's resamples share make the bootstrap cheap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy
from numpy.typing import NDArray

from lantern_demo.bench.quality.statistics import Indices

Array = NDArray[numpy.float64]


def _features(given: Any, least: int) -> Array:
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
        """The symmetric square root of the covariance [D, D]."""
        values, vectors = numpy.linalg.eigh(self.covariance)
        return (vectors * numpy.sqrt(values.clip(0))) @ vectors.T


def moments(features: Any) -> Moments:
    """Features [N, D] -> their moments, the covariance over N - 1. Raises ValueError for fewer than two."""
    given = _features(features, 2)
    mean = given.mean(0)
    centred = given - mean
    return Moments(mean, centred.T @ centred / (len(given) - 1))


def frechet(a: Any, b: Any) -> float:
    """The Frechet distance of the normal distributions with the sets' moments (Heusel et al. 2017): features [N, D], or their
    `Moments`.

    |m_a - m_b|^2 + tr(S_a + S_b - 2 (S_b^1/2 S_a S_b^1/2)^1/2), in squared units of the features. Biased upward, the more the
    fewer pictures: only sets of the same size compare. The root of b is taken once per `Moments`, so give a reference as b.
    """
    a, b = (x if isinstance(x, Moments) else moments(x) for x in (a, b))
    # The trace of the root needs only the eigenvalues of a symmetric product; rounding leaves some a little below 0.
    product = numpy.linalg.eigvalsh(b.root @ a.covariance @ b.root)
    shared = numpy.sqrt(product.clip(0)).sum()
    apart = ((a.mean - b.mean) ** 2).sum() + numpy.trace(a.covariance) + numpy.trace(b.covariance) - 2 * shared
    return max(0.0, float(apart))


def _cubic(a: Array, b: Array) -> Array:
    return (a @ b.T / a.shape[1] + 1) ** 3


class Kernel:
    """The kernel distance between two sets of features, a [N, D] and b [M, D], for any choice of the pictures of a.

    The unbiased estimate of the squared maximum mean discrepancy under the kernel (x y / D + 1)^3 (Binkowski et al. 2018), of
    whole sets instead of blocks. It may be negative. A repeat would pair a picture with itself, so such pairs are left out.
    """

    def __init__(self, a: Any, b: Any) -> None:
        a, b = _features(a, 2), _features(b, 2)
        self._within = _cubic(a, a), _cubic(b, b)
        self._between = _cubic(a, b)

    def __call__(self, index: Indices | None = None) -> float:
        """The distance between pictures index [n] of a, all of them when left out, and b."""
        a, b = self._between.shape
        w = numpy.ones(a) if index is None else numpy.bincount(index, minlength=a).astype(numpy.float64)
        v = numpy.ones(b)
        own = _mean_of_pairs(self._within[0], w) + _mean_of_pairs(self._within[1], v)
        return float(own - 2 * (w @ self._between @ v) / (w.sum() * v.sum()))


def _mean_of_pairs(k: Array, w: Array) -> float:
    """The mean of k [N, N] over ordered pairs of different pictures that are there w [N] times."""
    squares = w @ w
    return float((w @ k @ w - (w * w) @ k.diagonal()) / (w.sum() ** 2 - squares))


class Manifolds:
    """Precision and recall of made pictures [M, D] against real ones [N, D] (Kynkäänniemi et al. 2019), of any choice of made
    ones.

    A set's manifold is the union of balls around its features, each as wide as the distance to the k-th nearest other picture.
    A repeat would be its own nearest, so repeats count once: bootstrap with `halves` of the captions.
    """

    def __init__(self, real: Any, made: Any, k: int = 3) -> None:
        real, made = _features(real, k + 1), _features(made, k + 1)
        self.k = k
        self._made, self._between = _distances(made, made), _distances(real, made)
        self._real_radii = self._radii(_distances(real, real))

    def __call__(self, index: Indices | None = None) -> tuple[float, float]:
        """Precision: the share of made pictures in the real manifold. Recall: the share of real ones in the made manifold."""
        made = numpy.arange(len(self._made)) if index is None else numpy.unique(index)
        between = self._between[:, made]
        precision = (between <= self._real_radii[:, None]).any(0).mean()
        recall = (between <= self._radii(self._made[numpy.ix_(made, made)])[None]).any(1).mean()
        return float(precision), float(recall)

    def _radii(self, distances: Array) -> Array:
        # Every row holds the picture's distance of 0 to itself, so that the k-th nearest other one is entry k of the order.
        return numpy.partition(distances, self.k, axis=1)[:, self.k]


def _distances(a: Array, b: Array) -> Array:
    """Euclidean distances [N, M]."""
    squares = (a * a).sum(1)[:, None] + (b * b).sum(1)[None] - 2 * (a @ b.T)
    if a is b:
        numpy.fill_diagonal(squares, 0.0)  # the difference of large numbers leaves a little
    return numpy.sqrt(squares.clip(0))


def diversity(features: Any, groups: Any) -> Array:
    """The mean distance of each picture to the other ones of its caption: features [N, D], captions [N] -> [N].

    Its mean over pictures is the diversity per caption over seeds. Per picture, because drawn again a caption must not be
    compared with itself. Raises ValueError for a caption of one picture.
    """
    given, captions = _features(features, 2), numpy.asarray(groups)
    found = numpy.empty(len(given))
    for caption in numpy.unique(captions):
        rows = (captions == caption).nonzero()[0]
        if len(rows) < 2:
            raise ValueError(f"diversity needs two pictures of a caption or more; caption {caption} has {len(rows)}")
        found[rows] = _distances(same := given[rows], same).sum(1) / (len(rows) - 1)
    return found
