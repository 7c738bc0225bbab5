"""LLaMA layers on a CPU: few, large operations on an ordinary cache.

One matmul computes queries, keys and values, another gate and up; the rotation is one complex
multiplication. All numbers are float32, except in the matmuls of some `matmul.KINDS`. Attention is
PyTorch's own. It may round a sum differently in a pass of another shape, by some 1e-5 of a logit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_demo.decoding.cache import KVCache
from lantern_demo.models.llama import LlamaLayer
from lantern_demo.models.machine.matmul import Matmul


def complex_rope(rope: Tensor, heads: int) -> Tensor:
    """Convert a rotary table [S, d / 2, 2] (cos, sin) to [S, 3 heads * d / 2] complex64 for
    queries, keys and values.

    Queries are scaled for attention as they turn; values do not turn.
    """
    rotation = torch.view_as_complex(rope.float().contiguous()).unsqueeze(1).expand(-1, heads, -1)
    return torch.cat(
        (rotation * (2 * rotation.shape[-1]) ** -0.5, rotation, torch.ones_like(rotation)), 1
    ).flatten(1)


def paired(rows: Tensor, heads: int) -> Tensor:
    """Order the rows [heads * d, ...] of queries or keys so that pairs (i, i + d / 2) of each head
    are adjacent.

    `complex_rope` turns adjacent pairs. Scores sum over a whole head, so they do not depend on the
    order.
    """
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(rows.shape)


class Norm:
    """RMSNorm: x [M, D] -> x / sqrt(mean(x^2) + eps) times a weight [D].

    Its small operations are rounded correctly, so that all instruction sets give the same result.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        dim = weight.shape[0]
        self.weight, self.floor = weight.float() * dim**0.5, torch.tensor(dim * eps)

    def __call__(self, x: Tensor) -> Tensor:
        length = (
            torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().add_(self.floor).sqrt_()
        )
        return (x / length).mul_(self.weight)


class Where(NamedTuple):
    """The slots that a layer writes, and those that its nodes see."""

    cache: KVCache
    layer: int
    slots: Tensor  # [n] int64
    end: int  # attention covers the first `end` slots
    mask: Tensor | None  # [R or 1, 1, n, end], bool or added to the scores; None: all are visible


class LeanLayer(LlamaLayer[Where]):
    """A layer of fused matmuls over nodes x [M, D], M of all rows together; `before` is None for a
    layer without a norm before attention.
    """

    def __init__(
        self,
        before: Matmul | None,
        qkv: Matmul,
        out: Matmul,
        after: Matmul,
        gate_up: Matmul,
        down: Matmul,
        heads: int,
    ) -> None:
        self.norm_before, self.norm_after = before or (lambda x: x), after
        self.qkv, self.heads = qkv, heads
        self.gate_up = lambda x: gate_up(x).chunk(2, 1)
        self.add_out = lambda x, attended: out(attended).add_(x)
        self.add_down = lambda x, gated: down(gated).add_(x)

    def attend(self, x: Tensor, rope: Tensor, where: Where) -> Tensor:
        """Write the keys and values of x [R * n, D], and attend with its queries -> [R * n, D]."""
        rotated = self.rotated(x, rope, where.cache.rows)
        k, v = where.cache.write(where.layer, where.slots, where.end, rotated[:, :, 1:])
        q = rotated[:, :, 0].transpose(1, 2)
        attended = F.scaled_dot_product_attention(q, k, v, where.mask, scale=1.0)  # q is scaled
        return attended.transpose(1, 2).reshape(x.shape)

    def rotated(self, x: Tensor, rope: Tensor, rows: int) -> Tensor:
        """Queries, scaled for attention, keys and values [R, n, 3, heads, d] of x [R * n, D]."""
        nodes = rope.shape[0]  # len() of a tensor is Python code in PyTorch
        rotated = self.qkv(x).view(torch.complex64).view(rows, nodes, -1) * rope
        return rotated.view(torch.float32).view(rows, nodes, 3, self.heads, -1)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        return F.silu(gate).mul_(up)
