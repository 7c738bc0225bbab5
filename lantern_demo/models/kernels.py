"""A layer of a LLaMA decoder in five Triton kernels, for steps on a GPU.

    linear    norm; queries, keys and values
    attend    rotation, write to the cache, attention
    linear    output projection, added to the states in place
    linear    norm; gate and up; silu(gate) * up
    linear    down projection, added to the states in place

A norm scales each row by one number. So `linear` sums the squares along with the products, and
scales its sums at the end. Sums are float32, and none is split among blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from lantern_demo.decoding.switch import guarded
from lantern_demo.models.llama import Attention, Layer, Stored

SHARED = 90 * 2**10  # bytes of a block's shared memory: an RTX 3090 has 99 KiB
HEAD_DIMS = (16, 32, 64, 128)


@triton.jit
def _linear(
    x, weight, out, rows, outputs, eps,
    K: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1) * BM + tl.arange(0, BM)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    in_rows = row[:, None] < rows
    in_columns = column[:, None] < outputs
    x_at = x + row[:, None] * K + k[None]
    w_at = weight + column[:, None] * K + k[None]
    sums = tl.zeros((BM, BN), tl.float32)
    gated_by = tl.zeros((BM, BN), tl.float32)
    squares = tl.zeros((BM,), tl.float32)
    for first in range(0, K, BK):
        part = tl.load(x_at + first, mask=in_rows, other=0.0)
        if NORM:
            full = part.to(tl.float32)
            squares += tl.sum(full * full, 1)
        w = tl.load(w_at + first, mask=in_columns, other=0.0)
        sums = tl.dot(part, w.T, sums, input_precision=PRECISION)
        if GATED:  # rows of the second half of the weight
            w = tl.load(w_at + outputs * K + first, mask=in_columns, other=0.0)
            gated_by = tl.dot(part, w.T, gated_by, input_precision=PRECISION)
    if NORM:
        length = tl.rsqrt(squares / K + eps)[:, None]
        sums *= length
        gated_by *= length
    if GATED:
        sums = sums * tl.sigmoid(sums) * gated_by
    at = out + row[:, None] * outputs + column[None]
    inside = in_rows & (column[None] < outputs)
    if ADD:
        sums += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, sums.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _attend(
    qkv, turns, turn_row, turn_node, slots, bias, bias_row, cache, out, nodes, end, room, scale,
    HEADS: tl.constexpr, D: tl.constexpr,
    BQ: tl.constexpr, BS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    row = tl.program_id(1)
    half: tl.constexpr = D // 2
    node = tl.arange(0, BQ)
    d = tl.arange(0, D)
    pair = tl.arange(0, half)
    here = node[:, None] < nodes
    # the two numbers of each pair that turns
    first = pair
    second = pair + half
    kind = cache.dtype.element_ty
    turn = turns + row * turn_row + node[:, None] * turn_node + 2 * pair[None]
    cos = tl.load(turn, mask=here, other=0.0)
    sin = tl.load(turn + 1, mask=here, other=0.0)

    read = qkv + ((row * nodes + node[:, None]) * 3 * HEADS + head) * D
    a = tl.load(read + first[None], mask=here, other=0.0)
    b = tl.load(read + second[None], mask=here, other=0.0)
    q1 = (a * cos - b * sin).to(kind)
    q2 = (a * sin + b * cos).to(kind)

    read += HEADS * D
    a = tl.load(read + first[None], mask=here, other=0.0)
    b = tl.load(read + second[None], mask=here, other=0.0)
    value = tl.load(read + HEADS * D + d[None], mask=here, other=0.0)
    slot = tl.load(slots + node, mask=node < nodes, other=0)[:, None]
    keys = cache + (row * 2 * HEADS + head) * room * D
    values = keys + HEADS * room * D
    tl.store(keys + slot * D + first[None], (a * cos - b * sin).to(kind), mask=here)
    tl.store(keys + slot * D + second[None], (a * sin + b * cos).to(kind), mask=here)
    tl.store(values + slot * D + d[None], value.to(kind), mask=here)
    tl.debug_barrier()  # no other block reads or writes this head

    highest = tl.full((BQ,), -float("inf"), tl.float32)
    total = tl.zeros((BQ,), tl.float32)
    found = tl.zeros((BQ, D), tl.float32)
    for start in range(0, end, BS):
        at = start + tl.arange(0, BS)
        seen = at < end
        k1 = tl.load(keys + at[None] * D + first[:, None], mask=seen[None], other=0.0)
        k2 = tl.load(keys + at[None] * D + second[:, None], mask=seen[None], other=0.0)
        scores = tl.dot(q1, k1, input_precision=PRECISION)
        scores = tl.dot(q2, k2, scores, input_precision=PRECISION) * scale
        bias_at = bias + row * bias_row + node[:, None] * end + at[None]
        known = tl.load(bias_at, mask=here & seen[None], other=-float("inf"))
        scores += known.to(tl.float32)
        higher = tl.maximum(highest, tl.max(scores, 1))
        level = tl.where(higher == -float("inf"), 0.0, higher)  # nothing is visible so far
        weights = tl.exp(scores - level[:, None])
        before = tl.exp(highest - level)
        total = total * before + tl.sum(weights, 1)
        v = tl.load(values + at[:, None] * D + d[None], mask=seen[:, None], other=0.0)
        found = tl.dot(weights.to(kind), v, found * before[:, None], input_precision=PRECISION)
        highest = higher
    write = out + (row * nodes + node[:, None]) * HEADS * D + head * D + d[None]
    tl.store(write, (found / total[:, None]).to(out.dtype.element_ty), mask=here)


def precision(dtype: torch.dtype) -> str:
    """Return how products are computed: those of float32 by three of TF32."""
    return "tf32x3" if dtype == torch.float32 else "tf32"


class Blocks(NamedTuple):
    """How `linear` divides its work: rows, outputs and inputs of a block, warps, stages."""

    rows: int
    outputs: int
    k: int
    warps: int
    stages: int


def blocks_of(rows: int, k: int, outputs: int, size: int, gated: bool) -> Blocks:
    """Return the blocks of `linear` for x [rows, K] of numbers of `size` bytes."""
    many = outputs >= 2048
    widest = 128 if many else 256
    block = Blocks(
        min(64, max(16, triton.next_power_of_2(rows))),
        32 if many else 16,
        min(widest // 4 if size == 4 else widest, k & -k),  # it divides K
        4,
        2,
    )
    stage = (block.rows + block.outputs * (2 if gated else 1)) * block.k * size
    return block._replace(stages=max(2, min(6, 1 + SHARED // stage)))


def linear(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    eps: float | None = None,
    gated: bool = False,
    add: bool = False,
) -> Tensor:
    """Write to out [M, N] the linear layer of x [M, K], and return it; both are contiguous.

    weight is [N, K]. gated: it is [2 N, K], gate and up, and silu(gate) * up is written. eps: x is
    normalised first. add: the result is added to `out`.
    """
    rows, k = x.shape
    outputs = out.shape[1]
    blocks = blocks_of(rows, k, outputs, x.element_size(), gated)
    grid = triton.cdiv(outputs, blocks.outputs), triton.cdiv(rows, blocks.rows)
    _linear[grid](
        x, weight, out, rows, outputs, eps or 0.0,
        K=k, NORM=eps is not None, GATED=gated, ADD=add,
        BM=blocks.rows, BN=blocks.outputs, BK=blocks.k, PRECISION=precision(x.dtype),
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    return out


def attend(
    qkv: Tensor,
    rotation: Tensor,
    slots: Tensor,
    bias: Tensor,
    cache: Tensor,
    out: Tensor,
) -> Tensor:
    """Write to out [R, n, heads * d] the values that n nodes attend to, and return it.

    qkv [R, n, 3, heads, d] float32 are not rotated; rotation [R or 1, n, 3, 1, d / 2] is that of
    `llama.rotations`. Keys and values go to `slots` [n] of one layer's cache [R, 2 heads, room, d].
    bias [R or 1, 1, n, S] is added to the scores.
    """
    rows, nodes, _, heads, d = qkv.shape
    turns = torch.view_as_real(rotation)
    _attend[heads, rows](
        qkv, turns, turns.stride(0) if len(turns) > 1 else 0, turns.stride(1), slots,
        bias, bias.stride(0) if len(bias) > 1 else 0, cache, out,
        nodes, bias.shape[-1], cache.shape[2], d**-0.5,
        HEADS=heads, D=d, BQ=max(16, triton.next_power_of_2(nodes)), BS=64,
        PRECISION=precision(cache.dtype), num_warps=4, num_stages=2,
    )  # fmt: skip
    return out


class FusedLayer:
    """A joined `Layer` in kernels, for passes of few nodes with a bias."""

    def __init__(self, layer: Layer) -> None:
        attention = layer.self_attn
        assert attention.qkv is not None and layer.mlp.both is not None
        self.heads = attention.heads
        self.before = None if layer.input_layernorm is None else layer.input_layernorm.eps
        self.qkv = attention.qkv.weight
        self.out = attention.o_proj.weight
        self.after = layer.post_attention_layernorm.eps
        self.gate_up = layer.mlp.both.weight
        self.down = layer.mlp.down_proj.weight

    @guarded
    def __call__(
        self, x: Tensor, rotation: Tensor, bias: Tensor, store: Stored, asked: int
    ) -> Tensor:
        """As `Layer.forward` with all nodes asked for; x [R, n, H], contiguous, is overwritten."""
        rows, nodes, dim = x.shape
        flat = x.view(-1, dim)
        qkv = flat.new_empty(len(flat), len(self.qkv), dtype=torch.float32)
        linear(flat, self.qkv, qkv, self.before)
        attended = torch.empty_like(x)
        heads = qkv.view(rows, nodes, 3, self.heads, -1)
        slab = store.cache.both[store.layer]
        attend(heads, rotation, store.slots, bias, slab, attended)
        linear(attended.view(-1, dim), self.out, flat, add=True)
        gated = flat.new_empty(len(flat), len(self.gate_up) // 2)
        linear(flat, self.gate_up, gated, self.after, gated=True)
        linear(gated, self.down, flat, add=True)
        return x


def fits(layer: Layer) -> bool:
    """Return whether the kernels know all that a joined layer does, and its widths are blocks."""
    attention = layer.self_attn
    dim, ffn = layer.mlp.down_proj.weight.shape
    known = type(attention).normed is Attention.normed
    return known and dim % 64 == 0 and ffn % 16 == 0 and dim // attention.heads in HEAD_DIMS


def fused(layers: Iterable[Any]) -> list[FusedLayer]:
    """Return each `Layer`, joined, in kernels; none if one does not fit."""
    layers = list(layers)
    return [FusedLayer(layer) for layer in layers] if all(map(fits, layers)) else []
