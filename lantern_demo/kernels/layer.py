"""A layer of a LLaMA decoder in five Triton kernels, for steps on a GPU.

    linear    queries, keys and values of normalised states
    attend    rotation, write to the cache, attention
    linear    output projection, added to the states in place
    linear    silu(gate) * up of normalised states
    linear    down projection, added to the states in place

Layers are prepared: see `llama.Layer.join`. Blocks are sized for an RTX 3090, which has 99 KiB
of shared memory. Sums are float32, and no sum is split among blocks.

Where the card can (`starts_early`), a kernel starts while the one before it ends. Until its
`gdc_wait` it reads only weights, and cache slots of earlier passes. It lets the next kernel start
only after that wait, so that two kernels on, all that the first wrote is there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from lantern_demo.decoding.cache import Store
from lantern_demo.kernels.launch import LAUNCH, guarded

# The most rows of `_few` and of `_some`; measured on an H100. The library multiplies more.
FEW = 4
SOME = 32
HELD = 10 * 2**10  # bytes of weights that a block of `_few` holds in registers
PARTS = 4  # warps of `_some`, each with its own part of K
WHOLE = 512  # the most slots that `_attend` reads at once
WIDE = 64  # the widest head of which it does: more would not fit
HEAD_DIMS = (32, 64, 128)  # a dot needs 16 numbers of each half


@triton.jit
def _few(
    x, weight, out, outputs, eps,
    M: tl.constexpr, K: tl.constexpr, NORM: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    inside = column < outputs
    w_at = weight + column[:, None] * K + k[None]
    tiles = ()
    for i in tl.static_range(K // BK):  # all are requested at once, before the wait
        tiles += (tl.load(w_at + i * BK, mask=inside[:, None], other=0.0),)
        if GATED:  # rows of the second half of the weight
            tiles += (tl.load(w_at + outputs * K + i * BK, mask=inside[:, None], other=0.0),)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    for m in tl.static_range(M):
        sums = tl.zeros((BN, BK), tl.float32)
        gated_by = tl.zeros((BN, BK), tl.float32)
        squares = tl.zeros((1, BK), tl.float32)
        for i in tl.static_range(K // BK):
            # [1, BK] is laid out as a weight's row, so that no number moves between threads
            part = tl.load(x + m * K + i * BK + k[None]).to(tl.float32)
            squares += part * part
            if GATED:
                sums += tiles[2 * i].to(tl.float32) * part
                gated_by += tiles[2 * i + 1].to(tl.float32) * part
            else:
                sums += tiles[i].to(tl.float32) * part
        total = tl.sum(sums, 1)
        by = tl.sum(gated_by, 1)
        if NORM:  # it scales each row by one number
            length = tl.rsqrt(tl.sum(squares, 1) / K + eps)
            total *= length
            by *= length
        if GATED:
            total = total * tl.sigmoid(total) * by
        at = out + m * outputs + column
        if ADD:
            total += tl.load(at, mask=inside, other=0.0).to(tl.float32)
        tl.store(at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _some(
    x, weight, out, rows, outputs,
    K: tl.constexpr, GATED: tl.constexpr, ADD: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, S: tl.constexpr, STAGES: tl.constexpr,
    PRECISION: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    row = tl.arange(0, BM)
    column = tl.program_id(0) * BN + tl.arange(0, BN)
    # [S, *, BK]: each of S warps has its own BK numbers of K
    k = tl.arange(0, S)[:, None, None] * BK + tl.arange(0, BK)[None, None]
    in_rows = row < rows
    in_columns = column < outputs
    x_at = x + row[None, :, None] * K + k
    w_at = weight + column[None, :, None] * K + k
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    sums = tl.zeros((S, BN, BM), tl.float32)
    gated_by = tl.zeros((S, BN, BM), tl.float32)
    for first in tl.range(0, K, S * BK, num_stages=STAGES):
        w = tl.load(w_at + first, mask=in_columns[None, :, None], other=0.0)
        part = tl.load(x_at + first, mask=in_rows[None, :, None], other=0.0)
        part = tl.permute(part, (0, 2, 1))
        sums = tl.dot(w, part, sums, input_precision=PRECISION)
        if GATED:
            w = tl.load(w_at + outputs * K + first, mask=in_columns[None, :, None], other=0.0)
            gated_by = tl.dot(w, part, gated_by, input_precision=PRECISION)
    total = tl.sum(sums, 0)
    if GATED:
        total = total * tl.sigmoid(total) * tl.sum(gated_by, 0)
    at = out + row[None] * outputs + column[:, None]
    inside = in_rows[None] & in_columns[:, None]
    if ADD:
        total += tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _norm(x, out, eps, K: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    k = tl.arange(0, BLOCK)
    at = tl.program_id(0) * K + k
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.load(x + at, mask=k < K, other=0.0).to(tl.float32)
    row *= tl.rsqrt(tl.sum(row * row, 0) / K + eps)
    tl.store(out + at, row.to(out.dtype.element_ty), mask=k < K)


@triton.jit
def _gated(gate_up, out, F: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr):
    f = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1)
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()
    gate = tl.load(gate_up + row * 2 * F + f, mask=f < F, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * F + f, mask=f < F, other=0.0).to(tl.float32)
    tl.store(out + row * F + f, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=f < F)


@triton.jit
def _attended(q1, q2, k1, k2, v, bias, highest, total, sums, scale, PRECISION: tl.constexpr):
    """Add keys and values to a running softmax."""
    scores = tl.dot(q1, k1.T, input_precision=PRECISION)
    scores = tl.dot(q2, k2.T, scores, input_precision=PRECISION) * scale + bias.to(tl.float32)
    higher = tl.maximum(highest, tl.max(scores, 1))
    level = tl.where(higher == -float("inf"), 0.0, higher)  # nothing is visible so far
    weights = tl.exp(scores - level[:, None])
    before = tl.exp(highest - level)
    total = total * before + tl.sum(weights, 1)
    sums = sums * before[:, None]
    sums = tl.dot(weights.to(v.dtype), v, sums, input_precision=PRECISION)
    return higher, total, sums


@triton.jit
def _attend(
    qkv, turns, turn_row, turn_node, slots, bias, bias_row, cache, out, nodes, end, room, scale,
    HEADS: tl.constexpr, D: tl.constexpr, BQ: tl.constexpr, BS: tl.constexpr, WHOLE: tl.constexpr,
    PRECISION: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(0)
    row = tl.program_id(1)
    half: tl.constexpr = D // 2
    dtype = cache.dtype.element_ty
    node = tl.arange(0, BQ)
    pair = tl.arange(0, half)[None]
    d = tl.arange(0, D)[None]
    here = node[:, None] < nodes
    keys = cache + (row * 2 * HEADS + head) * room * D
    values = keys + HEADS * room * D
    slot = tl.load(slots + node, mask=node < nodes, other=0)
    first = tl.load(slots).to(tl.int32)  # earlier passes wrote those before it
    gaps = tl.sum(((slot - first != node) & (node < nodes)).to(tl.int32), 0)
    seen = bias + row * bias_row + node[:, None] * end
    turn = turns + row * turn_row + node[:, None] * turn_node + 2 * pair
    cos = tl.load(turn, mask=here, other=0.0)
    sin = tl.load(turn + 1, mask=here, other=0.0)
    new_bias = tl.load(seen + slot[None], mask=here & (node[None] < nodes), other=-float("inf"))
    at = tl.arange(0, BS)
    if WHOLE:
        old = at < first
        k1 = tl.load(keys + at[:, None] * D + pair, mask=old[:, None], other=0.0)
        k2 = tl.load(keys + at[:, None] * D + half + pair, mask=old[:, None], other=0.0)
        v = tl.load(values + at[:, None] * D + d, mask=old[:, None], other=0.0)
        old_bias = tl.load(seen + at[None], mask=here & old[None], other=-float("inf"))
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()

    read = qkv + ((row * nodes + node[:, None]) * 3 * HEADS + head) * D
    a = tl.load(read + pair, mask=here, other=0.0)
    b = tl.load(read + half + pair, mask=here, other=0.0)
    q1 = (a * cos - b * sin).to(dtype)
    q2 = (a * sin + b * cos).to(dtype)
    read += HEADS * D
    a = tl.load(read + pair, mask=here, other=0.0)
    b = tl.load(read + half + pair, mask=here, other=0.0)
    new1 = (a * cos - b * sin).to(dtype)
    new2 = (a * sin + b * cos).to(dtype)
    new = tl.load(read + HEADS * D + d, mask=here, other=0.0).to(dtype)
    write = slot[:, None] * D
    tl.store(keys + write + pair, new1, mask=here)
    tl.store(keys + write + half + pair, new2, mask=here)
    tl.store(values + write + d, new, mask=here)

    highest = tl.full((BQ,), -float("inf"), tl.float32)
    total = tl.zeros((BQ,), tl.float32)
    sums = tl.zeros((BQ, D), tl.float32)
    # the new keys and values are still in registers
    highest, total, sums = _attended(
        q1, q2, new1, new2, new, new_bias, highest, total, sums, scale, PRECISION
    )
    if WHOLE:
        highest, total, sums = _attended(
            q1, q2, k1, k2, v, old_bias, highest, total, sums, scale, PRECISION
        )
    else:
        for start in range(0, first, BS):
            here_at = start + at
            old = here_at < first
            k1 = tl.load(keys + here_at[:, None] * D + pair, mask=old[:, None], other=0.0)
            k2 = tl.load(keys + here_at[:, None] * D + half + pair, mask=old[:, None], other=0.0)
            v = tl.load(values + here_at[:, None] * D + d, mask=old[:, None], other=0.0)
            old_bias = tl.load(seen + here_at[None], mask=here & old[None], other=-float("inf"))
            highest, total, sums = _attended(
                q1, q2, k1, k2, v, old_bias, highest, total, sums, scale, PRECISION
            )
    # old slots between the new ones are not read, so that no number would be right
    sums = tl.where(gaps == 0, sums / total[:, None], float("nan"))
    to = out + (row * nodes + node[:, None]) * HEADS * D + head * D + d
    tl.store(to, sums.to(out.dtype.element_ty), mask=here)


def _launched(early: bool) -> dict[str, Any]:
    """Return the options of a launch; early: it may start before the previous kernel ends."""
    return LAUNCH | ({"DEPENDENT": True, "launch_pdl": True} if early else {"DEPENDENT": False})


def _precision(dtype: torch.dtype) -> str:
    """Return how dots are computed: those of float32 by three of TF32."""
    return "tf32x3" if dtype == torch.float32 else "tf32"


def linear(
    x: Tensor,
    weight: Tensor,
    eps: float | None = None,
    gated: bool = False,
    onto: Tensor | None = None,
    early: bool = False,
) -> Tensor:
    """Return the linear layer of x [M, K] with weight [N, K], both contiguous: [M, N] float32.

    eps: x is normalised first. gated: the weight is that of gate and up, and the result is silu
    (gate) * up [M, N / 2] in the dtype of x. onto [M, N]: the result is added to it in place.
    """
    rows, k = x.shape
    if rows > FEW and eps is not None:
        x, eps = norm(x, eps, early), None
    if rows > SOME:
        return _by_library(x, weight, gated, onto, early)
    size = x.element_size()
    outputs = len(weight) // 2 if gated else len(weight)
    out = onto
    if out is None:
        out = x.new_empty(rows, outputs, dtype=x.dtype if gated else torch.float32)
    shared: dict[str, Any] = {"K": k, "GATED": gated, "ADD": onto is not None, **_launched(early)}
    if rows <= FEW:
        most = 2 if onto is not None else 4
        held = max(1, min(most, HELD // (k * size * (2 if gated else 1))))
        block = 1 << held.bit_length() - 1
        _few[(triton.cdiv(outputs, block),)](
            x, weight, out, outputs, eps or 0.0,
            M=rows, NORM=eps is not None, BN=block, BK=min(512 // size, k & -k),
            num_warps=1, **shared,
        )  # fmt: skip
        return out
    part = k // PARTS
    wide, stages = (16, 3) if size == 4 else (32, 3) if onto is None else (16, 4)
    _some[(triton.cdiv(outputs, wide),)](
        x, weight, out, rows, outputs,
        BM=max(8, triton.next_power_of_2(rows)), BN=wide, BK=min(128 // size, part & -part),
        S=PARTS, STAGES=stages, PRECISION=_precision(x.dtype), num_warps=PARTS, **shared,
    )  # fmt: skip
    return out


def _by_library(x: Tensor, weight: Tensor, gated: bool, onto: Tensor | None, early: bool) -> Tensor:
    """As `linear`, for many rows, by the library's matmuls."""
    if onto is not None:
        return onto.addmm_(x, weight.t())
    if not gated and x.dtype == torch.float32:
        return x @ weight.t()
    if not gated:
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    gate_up = x @ weight.t()
    width = gate_up.shape[1] // 2
    out = gate_up.new_empty(len(gate_up), width)
    _gated[triton.cdiv(width, 1024), len(gate_up)](
        gate_up, out, F=width, BLOCK=1024, **_launched(early)
    )
    return out


def norm(x: Tensor, eps: float, early: bool = False) -> Tensor:
    """Return the RMSNorm of x [M, K], contiguous, without a scale."""
    rows, k = x.shape
    out = torch.empty_like(x)
    _norm[(rows,)](x, out, eps, K=k, BLOCK=triton.next_power_of_2(k), **_launched(early))
    return out


def attend(
    qkv: Tensor,
    rotation: Tensor,
    slots: Tensor,
    bias: Tensor,
    cache: Tensor,
    early: bool = False,
) -> Tensor:
    """Return the values [R, n, heads * d] that n nodes attend to.

    qkv [R, n, 3, heads, d] float32 are not rotated; rotation [R or 1, n, 3, 1, d / 2] is that of
    `llama.rotations`. Keys and values go to `slots` [n] of one layer's cache [R, 2 heads, room, d].
    The slots follow each other, or the values are NaN; nodes see none after them. bias [R or 1, 1,
    n, S] is added to the scores.
    """
    rows, nodes, _, heads, d = qkv.shape
    end = bias.shape[-1]
    turns = torch.view_as_real(rotation)
    out = cache.new_empty(rows, nodes, heads * d)
    half = cache.element_size() == 2
    whole = half and nodes <= 16 and end <= WHOLE and d <= WIDE
    _attend[heads, rows](
        qkv, turns, turns.stride(0) if len(turns) > 1 else 0, turns.stride(1), slots,
        bias, bias.stride(0) if len(bias) > 1 else 0, cache, out,
        nodes, end, cache.shape[2], d**-0.5,
        HEADS=heads, D=d, BQ=max(16, triton.next_power_of_2(nodes)),
        BS=max(64, triton.next_power_of_2(end)) if whole else 64 if half else 32, WHOLE=whole,
        PRECISION=_precision(cache.dtype), num_warps=8, num_stages=2, **_launched(early),
    )  # fmt: skip
    return out


class FusedLayer:
    """A prepared `llama.Layer` in kernels, for passes of few nodes with a bias.

    early: its kernels start early, which `starts_early` allows.
    """

    def __init__(self, layer: Any, early: bool) -> None:
        attention = layer.self_attn
        self.heads = attention.heads
        self.before = None if layer.input_layernorm is None else layer.input_layernorm.eps
        self.qkv = attention.qkv.weight
        self.out = attention.o_proj.weight
        self.after = layer.post_attention_layernorm.eps
        self.gate_up = layer.mlp.gate_up_proj.weight
        self.down = layer.mlp.down_proj.weight
        self.early = early

    @guarded
    def __call__(
        self, x: Tensor, rotation: Tensor, bias: Tensor, store: Store, outputs: int
    ) -> Tensor:
        """As `llama.Layer.forward` for all nodes; x [R, n, H] is overwritten."""
        rows, nodes, dim = x.shape
        flat = x.view(-1, dim)
        qkv = linear(flat, self.qkv, self.before, early=self.early)
        heads = qkv.view(rows, nodes, 3, self.heads, -1)
        attended = attend(heads, rotation, store.slots, bias, store.layer_cache, self.early)
        linear(attended.view(-1, dim), self.out, onto=flat, early=self.early)
        gated = linear(flat, self.gate_up, self.after, gated=True, early=self.early)
        linear(gated, self.down, onto=flat, early=self.early)
        return x


def fits(layer: Any) -> bool:
    """Return whether the widths of a prepared layer are blocks."""
    dim, ffn = layer.mlp.down_proj.weight.shape
    return dim % 64 == 0 == ffn % 64 and dim // layer.self_attn.heads in HEAD_DIMS


def fused(layers: Iterable[Any], early: bool) -> list[FusedLayer]:
    """Return each prepared layer in kernels; none if one does not fit."""
    layers = list(layers)
    return [FusedLayer(layer, early) for layer in layers] if all(map(fits, layers)) else []


def starts_early(device: torch.device) -> bool:
    """Return whether a GPU can start a kernel while the one before it ends."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)
