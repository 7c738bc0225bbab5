"""From logits to probabilities to tokens: guidance, temperature, top-k, top-p, and draws from given
uniforms."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

COLD = 1e-3  # temperatures below it are taken with care
COLDEST = 1e-30  # and below this one as if they were it: a float32 holds no quotient by less
SMALL = 2.0**-16  # a running sum of which less than this share is left is made anew of what is left

NO_DRAFT_LAW = "the drafter's logits are not finite numbers; it may not fit its target"

# Draws on an accelerator.
TINY = 2.0**-100  # stands in for a uniform of 0: no height is 0 but that of nothing
# Mass that counts as nothing left: by one over it a float32 can still be multiplied. Where a law is that sharp fewer siblings are tried.
NOTHING = 2.0**-125


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Raises ValueError for values out of range."""

    temperature: float = 1.0  # 0 means greedy
    top_k: int = 0  # 0 means the whole vocabulary
    top_p: float = 1.0  # 1 means off
    cfg_scale: float = 1.0  # 1 means the conditional row alone

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature is {self.temperature}; it must be a finite number, 0 (greedy) or more")
        if not isinstance(self.top_k, int) or self.top_k < 0:
            raise ValueError(f"top_k is {self.top_k}; it must be a whole number, 0 (whole vocabulary) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1 (off)")
        if not (math.isfinite(self.cfg_scale) and self.cfg_scale >= 0):
            raise ValueError(f"cfg_scale is {self.cfg_scale}; it must be a finite number, 0 or more")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken instead of a draw."""
        return self.temperature == 0


def guide(logits: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance: logits [R, n, V] -> uncond + scale (cond - uncond), [n, V] float32.

    Row 0 is conditional, row 1 unconditional; R = 1 has nothing to guide with and gives row 0.
    Raises ValueError for another R.
    """
    rows = logits.shape[0]
    if rows not in (1, 2):
        raise ValueError(f"logits have {rows} rows; allowed are 1 (no guidance) and 2 (conditional, unconditional)")
    logits = logits.float()
    if rows == 1 or scale == 1:
        return logits[0]
    cond, uncond = logits[0], logits[1]
    if logits.device.type != "cpu":
        return torch.lerp(uncond, cond, scale)  # the same in one kernel; a CPU's tokens stay what they are
    return torch.add(uncond, cond - uncond, alpha=scale)


def probabilities(logits: Tensor, sampling: Sampling, spent: bool = False) -> Tensor:
    """Probabilities [..., V] float32 of guided logits [..., V]: temperature, then top-k, then top-p. spent: nobody reads the logits
    again, so that they may be overwritten.

    The order is LlamaGen's. Ties at the top-k boundary all stay; top-p drops the tokens before which more
    than top_p of the mass lies, so the best always stays. Greedy: the plain softmax at temperature 1, without
    filters, on which the greedy rules and the draft trees work.
    """
    if sampling.greedy:
        return logits.softmax(-1)
    if sampling.temperature != 1:
        if sampling.temperature < COLD:  # the quotient would overflow, and the softmax of it is no law
            logits = logits - logits.amax(-1, keepdim=True)
        logits = logits / max(sampling.temperature, COLDEST)
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = _kth_largest(logits, sampling.top_k)
        cut = logits < smallest
        logits = logits.masked_fill_(cut, -math.inf) if spent else logits.masked_fill(cut, -math.inf)
    probs = logits.softmax(-1)
    if sampling.top_p < 1:
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        kept = torch.zeros_like(probs).scatter(-1, order, ordered.masked_fill(before > sampling.top_p, 0.0))
        probs = kept / kept.sum(-1, keepdim=True)
    return probs


def running_sum(probs: Tensor) -> Tensor:
    """The sums [..., V] that a token is drawn off: its chance is the width of its step over the last sum.

    They are float64 on a CPU, so that a step is as wide as its token's share to 1e-16 of the whole. Sums as coarse as float32
    lose the tails: over 16,384 tokens some 1e-4 of the mass ends up at other tokens.
    """
    return probs.cumsum(-1, dtype=torch.float64) if probs.device.type == "cpu" else running_sums(probs)


def _kth_largest(values: Tensor, k: int) -> Tensor:
    """The k-th largest of each row of values [..., V], [..., 1], in the way that is cheapest on its device."""
    if values.device.type == "cpu":
        return values.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    return values.kthvalue(values.shape[-1] - k + 1, dim=-1, keepdim=True).values


def draw(probs: Tensor, u: Tensor) -> Tensor:
    """Tokens [...] int64 of probs [..., V] (>= 0, any positive sum) at uniforms u [...] in [0, 1): the
    inverse CDF.

    A token of probability 0 is never returned as long as the row has any mass.
    """
    cdf = running_sum(probs)
    total = cdf[..., -1:]
    # No token lies at total or beyond; with the largest u below 1 the product stays below total, also when it is rounded.
    at = u.clamp(max=1 - torch.finfo(u.dtype).eps / 2).unsqueeze(-1) * total
    token = torch.searchsorted(cdf, at, right=True).clamp_(max=probs.shape[-1] - 1)
    if probs.device.type != "cpu":
        # A parallel scan associates the sums differently per entry and may step up at a token of probability
        # 0. The CPU's running sum cannot.
        hit = probs.gather(-1, token) > 0
        token = torch.where(hit, token, probs.argmax(-1, keepdim=True))
    return token.squeeze(-1)


def running_sums(values: Tensor) -> Tensor:
    """Running sums of values [..., V] along the last dimension in float64, the same ones at every run on an accelerator too.

    A GPU sums a single long row by a scan in which each block adds what others have ready, so that the order varies. Of several
    rows each is summed by one block: a single one is summed twice.
    """
    if values.numel() > values.shape[-1]:
        return values.double().cumsum(-1)
    return values.expand(2, *values.shape).double().cumsum(-1)[0]


def draw_raw(law: Tensor, u: Tensor) -> Tensor:
    """As `draw` for laws [m, V] at u [m], on any device in the same way, and without a look at what was found: V where a law is none,
    because it has no mass or is not made of finite numbers."""
    sums = running_sums(law)
    return torch.searchsorted(sums, u.unsqueeze(-1) * sums[:, -1:], right=True).squeeze(-1)


def draw_without_replacement(q: Tensor, u: Tensor) -> Tensor:
    """Tokens [P, C] int64 drawn one after the other without replacement from q [P, V] at uniforms u [P, C] in [0, 1), in draw order.

    A row with fewer than C tokens of positive probability is filled up with -1, which no rule accepts.
    """
    if q.device.type == "cpu":
        urns = map(Urn, q.numpy(), running_sum(q).numpy())
        tokens = [[urn.draw(height) for height in row] for urn, row in zip(urns, u.tolist(), strict=True)]
        return torch.tensor(tokens, dtype=torch.int64).view(u.shape)
    return draws_by_row(q, u)


def draws_by_row(q: Tensor, u: Tensor) -> Tensor:
    """As `draw_without_replacement`, all rows at once and without a host read on any device."""
    rows, count = u.shape
    if count == 0:
        return u.new_empty(rows, 0, dtype=torch.int64)
    # every draw is of its own rows, one behind the other
    tokens = u.new_empty(count * max(rows, 2), dtype=torch.int64)
    left = torch.cat(draws_in_turn(q, u.clamp(min=TINY), q.new_zeros(1, dtype=torch.float64), tokens), 1)[:rows]
    return tokens.view(count, -1).t()[:rows].masked_fill(left < NOTHING, -1)


def draws_in_turn(q: Tensor, u: Tensor, nothing: Tensor, tokens: Tensor) -> list[Tensor]:
    """Draw from all rows of q [P, V] without replacement at u [P, C] in [`TINY`, 1), in four kernels a draw.

    tokens [C * max(P, 2)] int64 takes what was drawn, one draw behind the other, and 0 for none; of a single row there are two
    copies, since a GPU does not sum one long row in the same order every time. nothing [1] float64 holds 0. Returns the mass
    [max(P, 2), 1] float64 that was left before each draw: 0 where nothing was, or where the row was no law.

    What is drawn leaves its row, and the rest is summed anew. A running sum over everything would lose the rest where a token has
    nearly all of the mass: 1e-20 is nothing beside 1, but all that is left once that token is drawn. With float64 no token of
    probability 0 is found by a rounding of the sums.
    """
    rows, count = max(q.shape[0], 2), u.shape[1]
    left = torch.fmax(q.expand(rows, -1), nothing)  # in float64, and 0 for what is not a number
    u = u.expand(rows, -1)
    masses = []
    for i, found in enumerate(tokens.view(count, rows, 1).unbind()):
        sums = left.cumsum(-1)
        masses.append(sums[:, -1:])
        # The first token at which the sums reach a height above 0 has mass; where there is none the height is 0, and so is the token.
        torch.searchsorted(sums, u[:, i : i + 1] * masses[-1], out=found)
        if i + 1 < count:
            left.scatter_(1, found, 0.0)
    return masses


class Urn:
    """A law [V] with its `running_sum` on a CPU, from which tokens are drawn one after the other without replacement, in plain
    numbers.

    The draws share one running sum. What is drawn stays in it and is stepped over: a height at or above where a drawn token
    begins is raised by its share, in the order of the tokens. Beside a last sum of 1 a float64 tells nothing apart that is below
    1e-16, and where the law is sharp that is all that the first draw leaves. So the sum is made anew of what is left once that is
    less than `SMALL` of it. Raises FloatingPointError when the law is none.
    """

    __slots__ = ("_drawn", "_law", "_left", "_steps", "_sums", "_total")

    def __init__(self, law: NDArray[numpy.float32], sums: NDArray[numpy.float64]) -> None:
        self._law = law
        self._drawn: list[int] = []
        self._read(sums)
        if math.isnan(self._total):
            raise FloatingPointError(NO_DRAFT_LAW)

    def draw(self, height: float) -> int:
        """The token at a height in [0, 1), which leaves the urn; -1 where nothing is left."""
        self._settle()
        if self._left <= 0:
            return -1
        at = height * self._left
        for begin, end in self._steps:
            if at < begin:
                break
            at = max(at + (end - begin), end)  # never into the drawn token's own step, however the sum is rounded
        token = int(self._sums.searchsorted(min(at, math.nextafter(self._total, 0.0)), side="right"))
        if token in self._drawn:  # behind all that is left, by the rounding of a height next to 1
            self._renew()
            return self.draw(height)
        self.take(token)
        return token

    def take(self, token: int) -> None:
        """Let a token leave the urn."""
        self._settle()
        begin, end = float(self._sums[token - 1]) if token else 0.0, float(self._sums[token])
        self._steps.append((begin, end))
        self._steps.sort()
        self._left -= end - begin
        self._drawn.append(token)

    def law(self) -> NDArray[numpy.float64]:
        """What the next draw follows, [V]: the widths of the steps that it reads over the mass that it takes to be left."""
        self._settle()
        widths = numpy.diff(self._sums, prepend=0.0)
        widths[self._drawn] = 0.0
        return widths / self._left if self._left > 0 else numpy.zeros_like(widths)

    def _read(self, sums: NDArray[numpy.float64]) -> None:
        """Draw off these sums [V] from now on, which hold nothing of what was drawn."""
        self._sums = sums
        self._total = self._left = float(sums[-1])
        self._steps: list[tuple[float, float]] = []  # where drawn tokens begin and end

    def _settle(self) -> None:
        """Make the sums anew if they are too coarse for what is left."""
        if self._left < SMALL * self._total:
            self._renew()

    def _renew(self) -> None:
        rest = self._law.copy()
        rest[self._drawn] = 0.0
        self._read(running_sum(torch.from_numpy(rest)).numpy())
