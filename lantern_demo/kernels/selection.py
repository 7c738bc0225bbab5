"""The operations of the law, `Fused`: each is one Triton kernel.

They are for steps on a GPU. One block holds a row in its registers. A cut gives the numbers of
PyTorch's, and the top its tokens. Draws have the law of `sampling`, from the same uniforms, and
decisions are those of `accept.decide`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lantern_demo.decoding.accept import LIFT, Children, Verdict
from lantern_demo.decoding.ops import KernelError, Ops
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule, columns
from lantern_demo.kernels.launch import LAUNCH, guarded, why_off

WIDEST = 2**14  # scores of a row
CHUNK = 128  # tokens that `_draw` sums first


# k is a visitor's: its divisors must not compile another kernel in the time of a run
@triton.jit(do_not_specialize=["k"])
def _cut(x, k, V: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    known = i < V
    at = x + tl.program_id(0) * V + i
    values = tl.load(at, mask=known, other=0.0)
    bits = values.to(tl.int32, bitcast=True)
    order = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # whole numbers in the order of the values
    low = tl.min(tl.where(known, order, 0x7FFFFFFF), 0)
    high = tl.max(tl.where(known, order, -0x80000000), 0)
    order = tl.where(known, order, -0x80000000)
    # At least k values reach low. Fewer than k reach high, unless it is still the highest.
    many = V
    middle = (low & high) + ((low ^ high) >> 1)  # between them, and without an overflow
    while (many > k) & (middle > low):
        reach = tl.sum((order >= middle).to(tl.int32), 0)
        up = reach >= k
        low = tl.where(up, middle, low)
        many = tl.where(up, reach, many)
        high = tl.where(up, high, middle)
        middle = (low & high) + ((low ^ high) >> 1)
    reach = tl.sum((order >= high).to(tl.int32), 0)
    low = tl.where((many > k) & (reach >= k), high, low)
    least = (low ^ ((low >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    tl.store(at, tl.where(values < least, -float("inf"), values), mask=known)


@triton.jit
def _top(x, tokens, best, V: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    values = tl.load(x + row * V + i, mask=i < V, other=-float("inf"))
    unsound = tl.max((values != values).to(tl.int32), 0) == 1
    for c in tl.static_range(C):
        value, index = tl.max(values, 0, return_indices=True)
        index = tl.minimum(index, V - 1)  # padding may win against NaN
        tl.store(tokens + row * C + c, index.to(tl.int64))
        if c == 0:
            tl.store(best + row, tl.where(unsound, float("nan"), value))
        values = tl.where(i == index, -float("inf"), values)


@triton.jit
def _draw(
    q, u, u_row, tokens,
    V: tl.constexpr, C: tl.constexpr, CHUNKS: tl.constexpr, SIZE: tl.constexpr,
    STRICT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    i = tl.arange(0, CHUNKS)
    j = tl.arange(0, SIZE)
    index = i[:, None] * SIZE + j[None]
    left = tl.load(q + row * V + index, mask=index < V, other=0.0).to(tl.float64)
    unsound = tl.sum(tl.sum((left - left != 0).to(tl.int32), 1), 0)  # not finite
    left = tl.where(left > 0, left, 0.0)  # NaN counts as 0
    heap = tl.sum(left, 1)
    drawn = ()
    for c in tl.static_range(C):
        # the chunk in which the sums reach the height, then the token in it
        running = tl.cumsum(heap, 0)
        mass = tl.max(running, 0)
        height = tl.load(u + row * u_row + c).to(tl.float64) * mass
        chunk = tl.min(tl.where((running >= height) & (heap > 0), i, CHUNKS - 1), 0)
        behind = tl.max(tl.where(i < chunk, running, 0.0), 0)
        token = chunk * SIZE + j
        part = tl.load(q + row * V + token, mask=token < V, other=0.0).to(tl.float64)
        part = tl.where(part > 0, part, 0.0)
        for t in tl.static_range(c):
            part = tl.where(token == drawn[t], 0.0, part)
        # the chunk's last one if rounding lets none reach the height
        last = tl.max(tl.where(part > 0, token, 0), 0)
        reached = (behind + tl.cumsum(part, 0) >= height) & (part > 0)
        found = tl.min(tl.where(reached, token, V), 0)
        found = tl.where(found == V, last, found)
        if STRICT:
            found = tl.where((mass > 0) & (unsound == 0), found, V)
        tl.store(tokens + row * C + c, found.to(tl.int64))
        heap = tl.where(i == chunk, tl.sum(tl.where(token == found, 0.0, part), 0), heap)
        drawn += (found,)


@triton.jit(do_not_specialize=["k"])
def _decide(
    p, q, tokens, u, u_row, near, near_row, k, bound,
    left, accepted, masses, scores, thresholds, tries, relaxed,
    V: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, NEAR: tl.constexpr,
    DRAWN: tl.constexpr, PLUS: tl.constexpr, LIFTED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    n = tl.arange(0, NEAR)
    at = left + row * V
    known = i < V
    values = tl.load(p + row * V + i, mask=known, other=0.0)
    tl.store(at + i, values, mask=known)  # for the loads of single tokens
    if DRAWN:
        own = tl.load(q + row * V + i, mask=known, other=0.0) * LIFTED
    tl.debug_barrier()
    for c in tl.static_range(C):
        place = row * C + c
        x = tl.load(tokens + place)
        height = tl.load(u + row * u_row + c)
        tried = x >= 0
        x = tl.where(tried, x, 0)
        if DRAWN:
            rest = tl.sum(own, 0)  # without the draws before
            weight = tl.where(tried, 1.0 / tl.maximum(rest, 1.1754943508222875e-38), 0.0)
            height *= tl.load(q + row * V + x) * LIFTED * weight
        mass = tl.load(at + x)
        score = mass
        if NEAR > 1:
            some = n < tl.where(tried, k, 0)
            other = tl.load(near + x * near_row + n, mask=some, other=0).to(tl.int64)
            by = tl.load(at + other, mask=some, other=0.0)
            most = mass * (bound - 1.0) if PLUS else bound
            inside = (tl.cumsum(by, 0) <= most) & some
            score += tl.sum(tl.where(inside, by, 0.0), 0)
        score = tl.where(tried, score, 0.0)
        tl.debug_barrier()  # all have read
        if NEAR > 1:
            tl.store(at + other, tl.zeros((NEAR,), tl.float32), mask=inside)
        if (NEAR > 1) or (not DRAWN):  # the exact rule's x goes with q
            tl.store(at + x, 0.0, mask=tried)
        tl.debug_barrier()
        values = tl.load(at + i, mask=known, other=0.0)
        if DRAWN:
            values -= own * weight
            values = tl.where(values < 0, 0.0, values)  # NaN stays, unlike in a maximum
            own = tl.where(i == x, 0.0, own)
        total = tl.sum(values, 0)
        # strictly above: a token of probability 0 is not accepted even at u = 0
        tl.store(accepted + place, tried & ((score > height) | (total <= 0)))
        tl.store(masses + place, mass)
        tl.store(scores + place, score)
        tl.store(thresholds + place, height)
        tl.store(tries + place, tried)
        tl.store(relaxed + place, height >= mass)
        if c + 1 < C:
            values = values / total
        tl.store(at + i, values, mask=known)
        tl.debug_barrier()


def _sizes(rows: Tensor) -> dict[str, Any]:
    width = rows.shape[-1]
    block = triton.next_power_of_2(width)
    warps = min(16, max(4, block // 1024))
    return {"V": width, "BLOCK": block, "num_warps": warps, **LAUNCH}


@guarded
def cut(logits: Tensor, top_k: int, overwrite: bool) -> Tensor:
    """Cut as `sampling.cut`."""
    kept = logits.contiguous()
    if kept is logits and not overwrite:
        kept = logits.clone()
    rows = kept.view(-1, kept.shape[-1])
    _cut[(len(rows),)](rows, top_k, **_sizes(rows))
    return kept


@guarded
def top(scored: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the same as `sampling.top`."""
    scored = scored.contiguous()
    best = scored.new_empty(len(scored))
    tokens = scored.new_empty(len(scored), count, dtype=torch.int64)
    _top[(len(scored),)](scored, tokens, best, C=count, **_sizes(scored))
    return best, tokens


@guarded
def draw_in_turn(q: Tensor, u: Tensor, strict: bool = False) -> Tensor:
    """Draw as `sampling.draw_in_turn`; strict: V from a row that is empty or not finite."""
    q = q.contiguous()
    u = u.contiguous()
    tokens = torch.empty(u.shape, dtype=torch.int64, device=q.device)
    width = q.shape[-1]
    chunks = max(2, triton.next_power_of_2(width) // CHUNK)
    _draw[(len(q),)](
        q, u, u.stride(0), tokens,
        V=width, C=u.shape[1], CHUNKS=chunks, SIZE=CHUNK, STRICT=strict, num_warps=8,
        **LAUNCH,
    )  # fmt: skip
    return tokens


def draw(probs: Tensor, u: Tensor) -> Tensor:
    """Draw as `sampling.draw`."""
    return draw_in_turn(probs, u.unsqueeze(-1), strict=True)[:, 0]


def judges(rule: Rule, children: Children) -> bool:
    """Return whether `decide` knows a rule and such drafts."""
    known = type(rule) in (Rule, Lantern, LanternPlusPlus)
    return known and (children.neighbours is not None or not columns(rule))


@guarded
def decide(rule: Rule, p: Tensor, children: Children, u: Tensor) -> Verdict:
    """Judge as `accept.decide`, for what `judges` allows. Nodes are judged at the same time."""
    p = p.contiguous()
    tokens = children.tokens.contiguous()
    q = p if children.q is None else children.q.contiguous()
    near = tokens if children.neighbours is None else children.neighbours
    k = min(columns(rule), near.shape[1])  # few tokens have few neighbours
    left = torch.empty_like(p)
    masses, scores, thresholds = p.new_empty(3, *tokens.shape)
    accepted, tried, relaxed = torch.empty(3, *tokens.shape, dtype=torch.bool, device=p.device)
    _decide[(len(tokens),)](
        p, q, tokens, u, u.stride(0), near, near.stride(0),
        k, getattr(rule, "bound", 0.0),
        left, accepted, masses, scores, thresholds, tried, relaxed,
        C=tokens.shape[1], NEAR=max(2, triton.next_power_of_2(k)) if k else 1,
        DRAWN=children.q is not None,
        PLUS=isinstance(rule, LanternPlusPlus), LIFTED=LIFT, **_sizes(p),
    )  # fmt: skip
    found = relaxed if rule.relaxes else None
    return Verdict(accepted, left, masses, scores, thresholds, tried, found)


class Fused(Ops):
    """`Ops` by kernels, until one fails.

    networks: those whose layers are kernels too, their attribute `fused`.
    """

    def __init__(self, networks: Sequence[Any] = ()) -> None:
        super().__init__()
        self.networks = networks

    def refuse(self, error: KernelError) -> None:
        if self.reason:
            raise error
        self.reason = why_off(error)
        for network in self.networks:
            network.fused = ()

    def fits(self, rows: Tensor) -> bool:
        """Return whether kernels read rows [..., V]."""
        return not self.reason and rows.dtype == torch.float32 and rows.shape[-1] <= WIDEST

    def cut(self, logits: Tensor, top_k: int, overwrite: bool) -> Tensor:
        by = cut if self.fits(logits) else super().cut
        return by(logits, top_k, overwrite)

    def top(self, scored: Tensor, count: int) -> tuple[Tensor, Tensor]:
        by = top if self.fits(scored) else super().top
        return by(scored, count)

    def draw(self, probs: Tensor, u: Tensor) -> Tensor:
        by = draw if self.fits(probs) else super().draw
        return by(probs, u)

    def draw_in_turn(self, q: Tensor, u: Tensor) -> Tensor:
        by = draw_in_turn if self.fits(q) else super().draw_in_turn
        return by(q, u)

    def decide(self, rule: Rule, p: Tensor, children: Children, u: Tensor) -> Verdict:
        by = decide if self.fits(p) and judges(rule, children) else super().decide
        return by(rule, p, children, u)
