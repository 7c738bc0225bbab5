"""The loss of the picture decoder."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def picture_loss(output: Tensor, picture: Tensor, cover: Tensor) -> Tensor:
    """Return the errors of pixels, of slopes at three scales, and of their mean steepness.

    Things and their edges weigh three times. output and picture: [B, 3, H, W] in [-1, 1], cover:
    [B, 1, H, W] in [0, 1].
    """
    error = output - picture
    weight = 1 + 2 * F.max_pool2d(cover, 9, 1, 4)
    weight = weight / weight.mean()
    loss = (weight * (error.abs() + 6 * error.square())).mean()
    for factor, share in ((1, 2.0), (2, 2.0), (4, 1.0)):
        part = error if factor == 1 else F.avg_pool2d(error, factor)
        heavy = weight if factor == 1 else F.avg_pool2d(weight, factor)
        across, down = part.diff(dim=-1).abs(), part.diff(dim=-2).abs()
        loss = (
            loss
            + share * (heavy[..., 1:] * across).mean()
            + share * (heavy[..., 1:, :] * down).mean()
        )
    return loss + 10 * (_steepness(output) - _steepness(picture)).abs().mean()


def _steepness(picture: Tensor) -> Tensor:
    """Return the root mean square slope in windows of 8 pixels. A blurred picture lacks it."""
    slopes = (
        F.pad(picture.diff(dim=-1), (0, 1)).square()
        + F.pad(picture.diff(dim=-2), (0, 0, 0, 1)).square()
    )
    return (F.avg_pool2d(slopes, 8, 4) + 1e-5).sqrt()
