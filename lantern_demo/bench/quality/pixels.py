"""Distances of pictures that no network learnt: the spectrum of their light, and the law of their small patches.

Each picture becomes a row of numbers, and a set of pictures the mean of its rows, so that a bootstrap costs a mean.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601
FAINT = 1e-10  # power of a light that is even to about one part in 100,000

LEVELS = 3  # of the pyramid
PATCH = 7  # pixels a side
# Between patches of a level. Odd, while a token is 8 or 16 pixels wide: patches then lie at every offset to a token's edge.
STRIDES = (7, 5, 3)
DIRECTIONS = 32
BINS = 96
WIDEST, FINEST = 6.0, 0.004  # the bins' outer edges, and from where on they widen, in units of the range of pixels


@torch.inference_mode()
def spectrum(images: Tensor) -> NDArray[numpy.float64]:
    """Images [B, 3, H, W] in [0, 1], H = W even -> [B, H / 2 - 1] mean power of luminance per ring of frequencies, in decibels.

    Ring r holds the frequencies whose distance from 0 rounds to r cycles per picture (as Durall et al. 2020). The picture's mean
    is taken off and a Hann window laid over it, or else the step between opposite borders would fill every ring.
    """
    size = images.shape[-1]
    light = torch.einsum("bchw,c->bhw", images.double(), torch.tensor(LUMA, dtype=torch.float64, device=images.device))
    window = torch.hann_window(size, periodic=False, dtype=torch.float64, device=images.device)
    window = torch.outer(window, window)
    window = window / window.square().mean().sqrt()
    light = light - (light * window).mean((1, 2), keepdim=True) / window.mean()
    power = torch.fft.fft2(light * window, norm="ortho").abs().square()
    frequency = torch.fft.fftfreq(size, 1 / size, device=images.device)
    ring = torch.hypot(frequency[:, None], frequency[None]).round().long().flatten()
    rings = size // 2
    total = power.new_zeros(len(images), int(ring.max()) + 1).index_add_(1, ring, power.flatten(1))
    mean = total[:, 1:rings] / torch.bincount(ring)[1:rings]
    return (10 * torch.log10(mean + FAINT)).cpu().numpy()


def spectrum_distance(a: Any, b: Any) -> float:
    """The root mean square over rings of the difference of two sets' mean spectra, [N, bins] each or means [bins]: decibels."""
    return float(numpy.sqrt(((_mean(a) - _mean(b)) ** 2).mean()))


def _directions(device: torch.device) -> Tensor:
    """Unit vectors in the space of patches [DIRECTIONS, 3, PATCH, PATCH], always the same."""
    g = torch.Generator().manual_seed(0)
    drawn = torch.randn(DIRECTIONS, 3 * PATCH * PATCH, generator=g)
    return F.normalize(drawn, dim=1).view(DIRECTIONS, 3, PATCH, PATCH).to(device)


def _edges() -> Tensor:
    """The bins' inner edges [BINS - 1]: even near 0, where fine detail lies, ever wider further out."""
    half = torch.linspace(-1, 1, BINS - 1, dtype=torch.float64)
    reach = float(numpy.arcsinh(WIDEST / FINEST))
    return FINEST * torch.sinh(half * reach)


@torch.inference_mode()
def patches(images: Tensor) -> NDArray[numpy.float32]:
    """Images [B, 3, H, W] in [0, 1], H = W at least 32 -> [B, LEVELS * DIRECTIONS * BINS]: of each level and direction, the share
    of a picture's patches whose projection lies in each bin.

    The levels are those of a Laplacian pyramid: the picture less its half-size copy, that less its own, and the last copy as it is.
    """
    weights, edges = _directions(images.device), _edges().to(images.device, torch.float32)
    found, level = [], images.float()
    for depth, stride in enumerate(STRIDES):
        smaller = F.avg_pool2d(level, 2)
        detail = level
        if depth + 1 < LEVELS:
            detail = level - F.interpolate(smaller, scale_factor=2, mode="bilinear", align_corners=False)
        seen = torch.bucketize(F.conv2d(detail, weights, stride=stride).flatten(2).contiguous(), edges)
        count = seen.new_zeros(*seen.shape[:2], BINS).scatter_add_(2, seen, torch.ones_like(seen))
        found.append(count.float() / seen.shape[2])
        level = smaller
    return torch.stack(found, 1).flatten(1).cpu().numpy()


def patch_distance(a: Any, b: Any) -> float:
    """The sliced Wasserstein distance of two sets' patches (Karras et al. 2018): rows of `patches` [N, S] each, or their means [S].

    Per level and direction the area between the two distribution functions, over the standard deviation of b's: so levels of much
    and little contrast count alike. The mean over levels and directions, without unit. Give the reference as b.
    """
    mine, other = (_mean(x).reshape(LEVELS * DIRECTIONS, BINS) for x in (a, b))
    edges = _edges().numpy()
    middle = numpy.concatenate((edges[:1], (edges[1:] + edges[:-1]) / 2, edges[-1:]))
    centre = (other * middle).sum(1, keepdims=True)
    spread = numpy.sqrt((other * (middle - centre) ** 2).sum(1))
    # Between the middles of two bins the distribution function steps at the edge; the area is that of a law on the middles.
    apart = (numpy.abs((mine - other).cumsum(1)[:, :-1]) * numpy.diff(middle)).sum(1)
    return float((apart / spread.clip(FINEST)).mean())


def _mean(rows: Any) -> NDArray[numpy.float64]:
    given = numpy.asarray(rows)
    return given.mean(0, dtype=numpy.float64) if given.ndim == 2 else given.astype(numpy.float64)
