"""Acceptance rules: which child of a tree node is accepted, and what law is left when none is. This is the only statement of each
rule; both engines and the measured distortion run it.

    near(x)  = x with the longest prefix of its first k codebook neighbours whose summed mass S fits the bound
    bound    = 0 (exact), delta (LANTERN, additive), (lambda - 1) p(x) (LANTERN++, multiplicative)
    accept x with probability min(1, (p(x) + S) / q(x)); q(x) = 1 where the prefix fixes the children
    else     p <- norm([p without near(x), minus q]+), q <- norm(q without x), next sibling

COOL-SD (arXiv 2601.09212) reads no neighbours. At depth i it accepts x with probability min(1, w p(x) / q(x)), and else
p <- norm([p - min(q, w p)]+), where w = delta exp(-0.7 i - mu). The paper does not say whether i begins at 0, as here, or what mu is.

With S = 0 this is lossless speculative sampling from several drafts (Leviathan et al. 2023, EAGLE): the law
of every token is p. Sources: LANTERN (arXiv 2410.03355), LANTERN++ (arXiv 2502.06352) and the authors'
released code.

All functions work on P nodes at once and never read a value back to the host. Laws [P, V] need not be normalised: their sums are
kept beside them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .sampling import NOTHING

KINDS = ("exact", "additive", "multiplicative", "weighted")


@dataclass(frozen=True)
class Rule:
    """An acceptance rule. `bound` is delta (additive, 0 to 1; weighted, above 0) or lambda (multiplicative, 1 or more).

    residual="set" takes away from the residual what was offered to the draft. residual="released" does what
    the authors' code does: all k + 1 nearest tokens leave p (fixed children) or q (sampled children) once any
    of them was counted, and an empty residual becomes uniform; greedy, the longest accepted path wins; and the last token is
    drafted too. It says nothing where the rule does not relax (see `released`). Raises ValueError for values out of range.
    """

    kind: str = "exact"
    k: int = 0
    bound: float = 0.0
    residual: str = "set"
    mu: float = 0.0  # of the weighted rule

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"rule kind is {self.kind!r}; allowed are {', '.join(KINDS)}")
        if self.residual not in ("set", "released"):
            raise ValueError(f"residual is {self.residual!r}; allowed are set, released")
        if not isinstance(self.k, int) or self.k < 0:
            raise ValueError(f"rule k is {self.k}; it must be a whole number, 0 or more")
        if self.kind == "additive" and not 0 <= self.bound <= 1:
            raise ValueError(f"delta is {self.bound}; it must be between 0 and 1")
        if self.kind == "multiplicative" and not (self.bound >= 1 and math.isfinite(self.bound)):
            raise ValueError(f"lambda is {self.bound}; it must be a finite number, 1 or more")
        if self.kind == "weighted" and not (self.bound > 0 and math.isfinite(self.bound) and math.isfinite(self.mu)):
            raise ValueError(f"delta is {self.bound} and mu {self.mu}; they must be finite numbers, delta above 0")

    @property
    def relaxes(self) -> bool:
        """Whether any neighbour's mass can count."""
        neutral = {"additive": 0.0, "multiplicative": 1.0}.get(self.kind, math.inf)
        return self.k > 0 and self.bound > neutral

    @property
    def released(self) -> bool:
        """Whether it does what the authors' code does. A rule that does not relax is the exact rule whatever `residual` says."""
        return self.residual == "released" and self.relaxes

    @property
    def columns(self) -> int:
        """How many columns of the neighbour table the rule reads, where the table has them."""
        return (self.k + self.released) if self.relaxes else 0


class Near(NamedTuple):
    """What the rule looks at for tokens: each token x and, where the rule relaxes, its first k neighbours. For one token a node, or,
    with a dimension more behind P, for several."""

    ids: Tensor  # [P, 1 + k] int64, x first
    mass: Tensor  # [P, 1 + k] p of them
    inside: Tensor | None = None  # [P, k] bool, which neighbours are in near(x); None where the rule does not relax
    summed: Tensor | None = None  # [P, k], running sums of the neighbours' mass

    @property
    def moved(self) -> Tensor | None:
        """S [P]; None where the rule does not relax."""
        return None if self.inside is None or self.summed is None else (self.summed * self.inside).amax(-1)


class Trials(NamedTuple):
    """What each child was judged by, as if all before it were rejected; [P, C] by draw number."""

    mass: Tensor  # p of the child, without what rejected siblings took along
    moved: Tensor | None  # S; None where the rule does not relax
    height: Tensor  # the uniform times the drafter's probability; greedy: the highest probability
    total: Tensor  # what these three are parts of
    accepted: Tensor  # bool
    relaxed: Tensor | None  # bool, the exact rule would not have accepted it; None where it never accepts more


class Verdict(NamedTuple):
    """What a rule decided at P nodes."""

    rank: Tensor  # [P] int64, draw number of the accepted child, -1 for none
    residual: Tensor  # [P, V] law of the bonus token where none was accepted, not normalised
    trials: Trials


def candidates(rule: Rule, x: Tensor, neighbours: Tensor | None) -> Tensor:
    """Tokens x [P, m] and the neighbours that the rule may count, [P, m, 1 + k] int64, each token first; k is 0 for rules that do not
    relax. neighbours [V, >= k] int32 or int64, rows without the token itself. Raises ValueError when the rule needs a table and none is
    given."""
    if not rule.relaxes:
        return x.unsqueeze(-1)
    if neighbours is None:
        raise ValueError(f"neighbours is None; the {rule.kind} rule with k = {rule.k} needs a neighbour table")
    return torch.cat([x.unsqueeze(-1), neighbours[:, : rule.k][x]], -1).long()


def proximity(rule: Rule, p: Tensor, ids: Tensor, total: Tensor | float = 1.0) -> Near:
    """near(x) under p [P, V] of sums total [P, 1] (or 1); ids as `candidates` gives them, for one token a node or for several."""
    mass = p.gather(1, ids) if ids.dim() == 2 else p.gather(1, ids.flatten(1)).view(ids.shape)
    if not rule.relaxes:
        return Near(ids, mass)
    summed = mass[..., 1:].cumsum(-1)
    bound = (rule.bound - 1) * mass[..., :1] if rule.kind == "multiplicative" else rule.bound * total
    return Near(ids, mass, summed <= bound, summed)


def weights(rule: Rule, depth: Tensor) -> Tensor | None:
    """w [P, 1] of drafts whose parents lie at depth [P, 1]; None for rules that weigh nothing."""
    return rule.bound * torch.exp(-0.7 * depth - rule.mu) if rule.kind == "weighted" else None


def counted(mass: Tensor, moved: Tensor | None, w: Tensor | None) -> Tensor:
    """The mass that stands for tokens of p mass [P, m] against their heights, with S moved [P, m] and weights w [P, 1]."""
    if w is not None:
        return w * mass
    return mass if moved is None else mass + moved


def residual(
    rule: Rule, p: Tensor, q: Tensor | None, near: Near, tried: Tensor, neighbours: Tensor | None, w: Tensor | None = None
) -> Tensor:
    """What is left [P, V] of p [P, V] once the token that near is about was tried [P, 1] bool and rejected, not normalised.

    q [P, V] is the law of the draw scaled to p's sum, and 0 where nothing was tried; None for children fixed by the prefix.
    """
    ids, mass, inside, _ = near
    if rule.released and inside is not None and neighbours is not None:
        gone = torch.cat([ids[:, 1:], neighbours[:, rule.k : rule.k + 1][ids[:, 0]].long()], 1)
        stays = ~(inside.any(-1, keepdim=True) & tried)
        left = p.scatter(1, ids[:, :1], mass[:, :1] * ~tried) if q is None else q
        left = left.scatter(1, gone, left.gather(1, gone) * stays)
        left = left if q is None else (p - left).clamp_(min=0.0)
        return torch.where(left.sum(-1, keepdim=True) <= 0, 1.0 / p.shape[1], left)
    if w is not None:
        if q is None:
            q = torch.zeros_like(p).scatter_(1, ids, tried * p.sum(-1, keepdim=True))
        return (p - torch.minimum(q, w * p)).clamp_(min=0.0)
    if q is None:
        leaves = tried if inside is None else torch.cat([tried, inside & tried], 1)
        return p.scatter(1, ids, mass.masked_fill(leaves, 0.0))
    # Nothing of x itself is left, since it had less of p than of q.
    left = p if inside is None else p.scatter(1, ids[:, 1:], mass[:, 1:].masked_fill(inside & tried, 0.0))
    return (left - q).clamp_(min=0.0)


def decide(
    rule: Rule, p: Tensor, tokens: Tensor, q: Tensor | None, neighbours: Tensor | None, uniforms: Tensor,
    offered: Tensor | None = None, depth: Tensor | None = None,
) -> Verdict:  # fmt: skip
    """Try the children of P nodes in draw order; see the module's docstring for the rule.

    p [P, V] target laws; tokens [P, C] int64 what was drawn at each node, -1 for nothing; q [P, V] the law
    they were drawn from without replacement, None for children fixed by the prefix; uniforms [P, >= C] in [0,
    1); offered [P, C] bool, which draws are nodes of the tree (default: all), the others only leave q; depth [P] of the nodes
    (default: 0). A draft that would leave nothing behind is accepted: in exact arithmetic it always is. A law that is none, because
    it is not made of finite numbers, accepts nothing.
    """
    nodes, count = tokens.shape
    drawn, x = tokens >= 0, tokens.clamp(min=0)
    tried = drawn if offered is None else drawn & offered
    if not count:
        return Verdict(tokens.new_full((nodes,), -1), p, Trials(p[:, :0], None, p[:, :0], p[:, :0], tried, None))
    w = weights(rule, p.new_zeros(nodes, 1) if depth is None else depth.unsqueeze(1))
    heights = uniforms[:, :count]
    if q is not None:
        qx = q.gather(1, x) * drawn
        # what is left of q before each draw, summed from the end: differences from 1 would lose small rests
        rest = q.scatter_add(1, x, -qx).sum(-1, keepdim=True) + qx.flip(1).cumsum(1).flip(1)
        share = tried / rest.clamp_(min=NOTHING)
        heights, q = heights * (qx * share), q.clone()
    total = p.new_ones(nodes, 1)
    nears, totals = [], [total]
    for i, (ids, here) in enumerate(zip(candidates(rule, x, neighbours).unbind(1), tried.split(1, 1), strict=True)):
        near = proximity(rule, p, ids, total)
        taken = None
        if q is not None:
            taken = q * (share[:, i : i + 1] * total)
            q.scatter_(1, ids[:, :1], 0.0)  # behind a draw that found nothing there is none that is tried
        p = residual(rule, p, taken, near, here, neighbours, w)
        total = p.sum(-1, keepdim=True)
        nears.append(near)
        totals.append(total)
    before, after = torch.cat(totals[:-1], 1), torch.cat(totals[1:], 1)
    mass = torch.cat([near.mass[:, :1] for near in nears], 1)
    parts = [(near.inside, near.summed) for near in nears if near.inside is not None and near.summed is not None]
    inside, summed = (torch.stack(part, 1) for part in zip(*parts, strict=True)) if parts else (None, None)
    moved = Near(x, mass, inside, summed).moved
    heights = heights * before
    # strictly below: a token of mass 0 is not accepted even at u = 0
    passed = heights < counted(mass, moved, w)
    accepted = tried & (passed | (after <= 0))
    relaxed = tried & passed & (heights >= mass) if rule.relaxes or w is not None else None
    return Verdict(_first(accepted), p, Trials(mass, moved, heights, before, accepted, relaxed))


def decide_greedy(rule: Rule, p: Tensor, tokens: Tensor, neighbours: Tensor | None) -> Verdict:
    """Greedy acceptance of the children of P nodes, each judged by itself.

    p [P, V] plain softmax of the guided logits, tokens [P, C], -1 for none. Exact: x is the argmax. Relaxed: x is the argmax once
    its mass is p(x) + S and the others keep theirs; of equals the first token wins, as in `argmax`.
    """
    top, best = p.max(-1, keepdim=True)
    best = best.masked_fill(top.isnan(), -2)  # no token
    x = tokens.clamp(min=0)
    near = proximity(rule, p, candidates(rule, x, neighbours))
    accepted = tokens == best
    mass, moved, relaxed = near.mass[..., 0], near.moved, None
    if moved is not None:
        reached = mass + moved
        relaxed = (tokens >= 0) & ~accepted & ((reached > top) | ((reached == top) & (x < best)))
        accepted = accepted | relaxed
    trials = Trials(mass, moved, top.expand(x.shape), torch.ones_like(mass), accepted, relaxed)
    return Verdict(_first(accepted), p, trials)


def _first(accepted: Tensor) -> Tensor:
    """[P] int64, the first column in which accepted [P, C] is true, -1 for none."""
    count = accepted.shape[1]
    numbers = torch.arange(count, device=accepted.device)
    found = torch.where(accepted, numbers, count).amin(1)
    return torch.where(found < count, found, -1)
