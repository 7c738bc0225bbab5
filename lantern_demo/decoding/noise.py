"""Gumbel noise: one vector G_i for each position i of a picture, computed from the picture's seed
alone. argmax(logits + G_i) is a draw from softmax(logits).

SplitMix64 (Steele and others 2014) derives each number from its seed, position and token. So the
noise is the same for every method, engine, tree and order of work. G = -log(E), E = -log(1 - u),
where u are 63 bits read as a float32. Near 0, where E decides which token wins, they keep all of a
float32's digits, and u is never 0 nor 1. A draw's distribution is off by less than 1e-6, on flat
distributions over 16,384 tokens and on sharp ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 2**16  # numbers computed at once, which stay in a processor's cache
LARGE_CHUNK = 2**22  # on a GPU, where each chunk costs launches
# SplitMix64's, as signed numbers
_STEP, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
_MOST = 1 - 2.0**-24  # the largest float32 below 1


def gumbel_(out: Tensor, seed: int) -> Tensor:
    """Fill out [positions, V] float32 with the noise of the positions 0, 1, ... of a seed."""
    positions, vocabulary = out.shape
    numbers = torch.arange(1, 1 + max(positions, vocabulary), device=out.device) * _STEP
    keys = _mixed(_mixed(numbers[:1] * (seed + 1)) + numbers[:positions]).unsqueeze(1)
    rows = max(1, (LARGE_CHUNK if out.is_cuda else CHUNK) // vocabulary)
    for some, into in zip(keys.split(rows), out.split(rows), strict=True):
        bits = _mixed(some + numbers[:vocabulary]).bitwise_and_(2**63 - 1)
        from_uniforms_(into.copy_(bits).add_(0.5).mul_(2.0**-63).clamp_(max=_MOST))
    return out


def from_uniforms_(u: Tensor) -> Tensor:
    """Turn uniforms between 0 and 1 into Gumbel noise, in place; a smaller uniform gives higher
    noise."""
    return u.neg_().log1p_().neg_().log_().neg_()


def _mixed(z: Tensor) -> Tensor:
    """Apply SplitMix64's finaliser to numbers z int64, in place: every bit of z reaches every bit
    of the result."""
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        z.bitwise_xor_((z >> shift).bitwise_and_(2 ** (64 - shift) - 1)).mul_(factor)
    return z.bitwise_xor_((z >> 31).bitwise_and_(2**33 - 1))
