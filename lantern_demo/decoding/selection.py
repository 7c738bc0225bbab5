"""Selections from rows of scores, each in one Triton kernel, for steps on a GPU.

One block holds a row in its registers. `cut` gives the numbers of `sampling.scores`, and `top` the
tokens of `topk`. `draw_in_turn` has the law of `sampling.draw_in_turn`, from the same uniforms.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import switch

WIDEST = 2**14  # scores of a row


def fits(rows: Tensor) -> bool:
    """Return whether the kernels select from rows [..., V]."""
    return rows.dtype == torch.float32 and rows.shape[-1] <= WIDEST and switch.on(rows.device)


@triton.jit
def _cut(x, k, V: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = x + tl.program_id(0) * V + i
    values = tl.load(at, mask=i < V, other=-float("inf"))
    bits = values.to(tl.uint32, bitcast=True)
    # unsigned numbers in the order of the values
    order = tl.where(bits >> 31 == 1, bits ^ 0xFFFFFFFF, bits | 0x80000000)
    least = tl.zeros((), tl.uint32)
    for bit in range(32):  # the highest number that k values reach
        trial = least | (tl.full((), 0x80000000, tl.uint32) >> bit)
        least = tl.where(tl.sum((order >= trial).to(tl.int32), 0) >= k, trial, least)
    least = tl.where(least >> 31 == 1, least & 0x7FFFFFFF, least ^ 0xFFFFFFFF)
    dropped = values < least.to(tl.float32, bitcast=True)
    tl.store(at, tl.where(dropped, -float("inf"), values), mask=i < V)


@triton.jit
def _top(x, tokens, best, V: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    values = tl.load(x + row * V + i, mask=i < V, other=-float("inf"))
    unsound = tl.max((values != values).to(tl.int32), 0) == 1
    for c in tl.static_range(C):
        value, index = tl.max(values, 0, return_indices=True)
        tl.store(tokens + row * C + c, index.to(tl.int64))
        if c == 0:
            tl.store(best + row, tl.where(unsound, float("nan"), value))
        values = tl.where(i == index, -float("inf"), values)


@triton.jit
def _draw(q, u, u_row, tokens, V: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    left = tl.load(q + row * V + i, mask=i < V, other=0.0).to(tl.float64)
    left = tl.where(left > 0, left, 0.0)  # NaN counts as 0
    for c in tl.static_range(C):
        running = tl.cumsum(left, 0)
        mass = tl.max(running, 0)
        height = tl.load(u + row * u_row + c).to(tl.float64) * mass
        reached = (running >= height) & (left > 0)
        index = tl.min(tl.where(reached, i, V - 1), 0)
        tl.store(tokens + row * C + c, index.to(tl.int64))
        left = tl.where(i == index, 0.0, left)


def _sizes(rows: Tensor) -> dict[str, Any]:
    block = triton.next_power_of_2(rows.shape[-1])
    return {"V": rows.shape[-1], "BLOCK": block, "num_warps": min(16, max(4, block // 1024))}


@switch.guarded
def cut(scores: Tensor, k: int) -> Tensor:
    """Set all of scores [n, V] float32, contiguous, to -inf but the k highest; ties stay."""
    _cut[(len(scores),)](scores, k, **_sizes(scores))
    return scores


@switch.guarded
def top(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the same as `sampling.top`."""
    scores, n = scores.contiguous(), len(scores)
    best, tokens = scores.new_empty(n), scores.new_empty(n, count, dtype=torch.int64)
    _top[(n,)](scores, tokens, best, C=count, **_sizes(scores))
    return best, tokens


@switch.guarded
def draw_in_turn(q: Tensor, u: Tensor) -> Tensor:
    """Draw as `sampling.draw_in_turn`."""
    q, u = q.contiguous(), u.contiguous()
    tokens = q.new_empty(u.shape, dtype=torch.int64)
    _draw[(len(q),)](q, u, u.stride(0), tokens, C=u.shape[1], **_sizes(q))
    return tokens
