"""From logits to tokens: guidance, temperature, top-k and top-p, probabilities, and draws from
given uniforms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

# `cut` or one that gives the same: logits, k, and whether these may be overwritten
Cut = Callable[[Tensor, int, bool], Tensor]

COLDEST = 1e-30  # lower temperatures count as this one: a smaller divisor overflows a float32

NO_PROBS = (
    "the target's logits are not finite numbers; its weights or its number format may be at fault"
)
NO_DRAFT_PROBS = "the drafter's logits are not finite numbers; it may not fit its target"

TINY = 2.0**-100  # the smallest uniform, above 0: u * q(x) is 0 only where q(x) is


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Raises ValueError for values out of range."""

    temperature: float = 1.0  # 0 means greedy
    top_k: int = 0  # 0 means the whole vocabulary
    top_p: float = 1.0  # 1 means off
    cfg_scale: float = 1.0  # 1 means the conditional row alone

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(
                f"temperature is {self.temperature}; it must be a finite number, 0 (greedy) or more"
            )
        if not isinstance(self.top_k, int) or self.top_k < 0:
            raise ValueError(
                f"top_k is {self.top_k}; it must be a whole number, 0 (whole vocabulary) or more"
            )
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1 (off)")
        if not (math.isfinite(self.cfg_scale) and self.cfg_scale >= 0):
            raise ValueError(
                f"cfg_scale is {self.cfg_scale}; it must be a finite number, 0 or more"
            )

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken instead of a draw."""
        return self.temperature == 0


def guide(logits: Tensor, scale: float) -> Tensor:
    """Apply classifier-free guidance: logits [R, n, V] -> uncond + scale (cond - uncond), [n, V]
    float32. Row 0 is conditional, row 1 unconditional; R = 1 returns row 0 without guidance. Raises
    ValueError for another R."""
    rows = logits.shape[0]
    if rows not in (1, 2):
        raise ValueError(
            f"logits have {rows} rows; "
            "allowed are 1 (no guidance) and 2 (conditional, unconditional)"
        )
    logits = logits.float()
    if rows == 1 or scale == 1:
        return logits[0]
    cond, uncond = logits[0], logits[1]
    if logits.device.type != "cpu":
        # one kernel; on a CPU its rounding would change tokens
        return torch.lerp(uncond, cond, scale)
    return torch.add(uncond, cond - uncond, alpha=scale)


def cut(logits: Tensor, top_k: int, overwrite: bool) -> Tensor:
    """Return logits [..., V] with -inf for all below the top_k highest, 0 < top_k < V. Ties all
    stay. overwrite: the logits may be overwritten."""
    if logits.device.type == "cpu":  # the cheapest way on each device
        smallest = logits.topk(top_k, sorted=False).values.amin(-1, keepdim=True)
    else:
        smallest = logits.kthvalue(logits.shape[-1] - top_k + 1, keepdim=True).values
    below = logits < smallest
    fill = logits.masked_fill_ if overwrite else logits.masked_fill
    return fill(below, -math.inf)


def warp(logits: Tensor, sampling: Sampling, cut: Cut = cut) -> Tensor:
    """Return the `scores` [n, V] of logits [R, n, V], which may be overwritten."""
    return scores(guide(logits, sampling.cfg_scale), sampling, overwrite=True, cut=cut)


def scores(logits: Tensor, sampling: Sampling, overwrite: bool = False, cut: Cut = cut) -> Tensor:
    """Return the scores to which a draw adds Gumbel noise: guided logits [..., V] over the
    temperature, -inf for the tokens that top-k and then top-p drop, as in LlamaGen. Ties at the
    top-k boundary all stay. Top-p drops the tokens before which more than top_p of the probability
    lies, so the best always stays. Unless the temperature is 1, the highest score is 0, since a
    float32 holds the differences of large numbers badly. Greedy: the logits, without filters.
    overwrite: the logits may be overwritten."""
    if sampling.greedy:
        return logits
    if sampling.temperature != 1:
        logits = (logits - logits.amax(-1, keepdim=True)) / max(sampling.temperature, COLDEST)
        overwrite = True
    if 0 < sampling.top_k < logits.shape[-1]:
        logits = cut(logits, sampling.top_k, overwrite)
    if sampling.top_p < 1:
        logits = logits.masked_fill(_behind(logits.softmax(-1), sampling.top_p), -math.inf)
    return logits


def probabilities(
    logits: Tensor, sampling: Sampling, overwrite: bool = False, cut: Cut = cut
) -> Tensor:
    """Return probabilities [..., V] float32 of guided logits [..., V]: the softmax of their
    `scores`. Greedy: the plain softmax at temperature 1, without filters, for the greedy rules and
    the draft trees. overwrite: as in `scores`."""
    return scores(logits, sampling, overwrite, cut).softmax(-1)


def top(scored: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the highest of scores [n, V], [n], and the tokens of the `count` highest, [n, count]
    int64. A NaN counts as the highest."""
    found = scored.topk(count)
    return found.values[:, 0], found.indices


def _behind(probs: Tensor, top_p: float) -> Tensor:
    """Return the tokens that top-p drops, [..., V] bool."""
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    return torch.zeros_like(probs, dtype=torch.bool).scatter(-1, order, before > top_p)


def not_finite(values: Sequence[Tensor]) -> Tensor:
    """Return whether any value of some tensors [m] float is not finite, [1] bool."""
    total = torch.cat(list(values)).sum(0, keepdim=True)
    return total - total != 0


def running_sums(values: Tensor) -> Tensor:
    """Return float64 running sums of values [..., V] along the last dimension. A token's chance is
    the width of its step over the last sum. float32 would lose the tails: over 16,384 tokens some
    1e-4 of the probability moves to other tokens."""
    if values.numel() > values.shape[-1] or values.device.type == "cpu":
        return values.double().cumsum(-1)
    # A GPU scans a single long row in blocks, in an order of additions that varies from run to run.
    # Of several rows each is summed by one block, so a single row is summed twice.
    return values.expand(2, *values.shape).double().cumsum(-1)[0]


def draw(probs: Tensor, u: Tensor) -> Tensor:
    """Draw tokens [m] int64 by inverse CDF, one from each row of probabilities [m, V] (>= 0, any
    positive sum) at uniforms u [m] in [0, 1). Never draw a token of probability 0. Return V or a
    number below 0 for a row whose sum is 0 or not finite."""
    sums = running_sums(probs)
    return torch.searchsorted(sums, u.unsqueeze(-1) * sums[:, -1:], right=True).squeeze(-1)


def draw_in_turn(q: Tensor, u: Tensor) -> Tensor:
    """Draw C tokens [P, C] int64 in turn, without replacement, from each row of probabilities q [P,
    V] at uniforms u [P, C] in [TINY, 1). Return any valid token where nothing is left to draw: once
    all tokens with a probability above 0 are drawn, or at once in a row that is NaN."""
    # a single row is drawn from twice: see `running_sums`
    rows = len(q) if q.device.type == "cpu" else max(2, len(q))
    left, u = torch.fmax(q.expand(rows, -1), zero(q.device)), u.expand(rows, -1)  # NaN counts as 0
    drawn: list[Tensor] = []
    for height in u.split(1, 1):
        if drawn:
            left.scatter_(1, drawn[-1], 0.0)
        # summed again: 1e-20 vanishes next to 1, but may be all that is left after a draw
        sums = left.cumsum(-1)
        # The first token at which the sums reach a height above 0 has a probability above 0.
        drawn.append(torch.searchsorted(sums, height * sums[:, -1:]))
    return torch.cat(drawn, 1)[: len(q)]


@cache
def zero(device: torch.device) -> Tensor:
    """Return 0, [1] float64. Kept for good, since captured steps read it."""
    return torch.zeros(1, dtype=torch.float64, device=device)


@cache
def numbers(count: int, device: torch.device) -> Tensor:
    """Return 0 to count - 1, int64. Kept for good, since captured steps read them: there are no
    more than a tree has nodes."""
    return torch.arange(count, device=device)


def uniform_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype of a run's uniforms on a device."""
    return torch.float64 if device.type == "cpu" else torch.float32


def uniforms_of(seed: int, device: torch.device, steps: int, count: int) -> Tensor:
    """Return the uniforms of a run [steps, count] in [TINY, 1), float64 on a CPU and float32
    elsewhere. All are drawn at once from the seed. A step reads only its row: first the verifier's,
    then the proposer's."""
    generator = torch.Generator(device).manual_seed(seed)
    rows = torch.rand(steps, count, generator=generator, device=device)
    # float32 uniforms have 24 bits: every chance is a multiple of 6e-8, and over 16,384 tokens some
    # 1e-4 of the probability moves. Here they are multiples of 2^-48.
    if device.type == "cpu":
        rows = rows.double().add_(
            torch.rand(rows.shape, generator=generator, device=device), alpha=2.0**-24
        )
    return rows.clamp_(min=TINY)
