"""Acceptance rules: which child of a tree node is accepted, and what law is left when none is.

    near(x)  = x with the longest prefix of its first k codebook neighbours whose summed mass S fits the bound
    bound    = 0 (exact), delta (LANTERN, additive), (lambda - 1) p(x) (LANTERN++, multiplicative)
    accept x with probability min(1, (p(x) + S) / q(x)); q(x) = 1 where the prefix fixes the children
    else     p <- norm([p with near(x)'s mass moved onto x, minus q]+), q <- norm(q without x), next sibling

COOL-SD (arXiv 2601.09212) reads no neighbours. At depth i it accepts x with probability min(1, w p(x) / q(x)), and else
p <- norm([p - min(q, w p)]+), where w = delta exp(-0.7 i - mu). The paper does not say whether i begins at 0, as here, or what mu is.

With S = 0 this is lossless speculative sampling from several drafts (Leviathan et al. 2023, EAGLE): the law
of every token is p. Sources: LANTERN (arXiv 2410.03355), LANTERN++ (arXiv 2502.06352) and the authors'
released code.

All functions work on P nodes at once, without reading anything back to the host on an accelerator.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from .methods import RuleKind


@dataclass(frozen=True)
class Rule:
    """An acceptance rule. `bound` is delta (additive, 0 to 1) or lambda (multiplicative, 1 or more).

    residual="set" takes away from the residual what was offered to the draft. residual="released" does what
    the authors' code does: all k + 1 nearest tokens leave p (fixed children) or q (sampled children) once any
    of them was counted, and an empty residual becomes uniform; greedy, the longest accepted path wins; and the last token is
    drafted too. It says nothing where the rule does not relax (see `released`). Raises ValueError for values out of range.
    """

    kind: RuleKind = "exact"
    k: int = 0
    bound: float = 0.0
    residual: Literal["set", "released"] = "set"
    mu: float = 0.0  # of the weighted rule

    def __post_init__(self) -> None:
        if self.kind not in get_args(RuleKind):
            raise ValueError(f"rule kind is {self.kind!r}; allowed are {', '.join(get_args(RuleKind))}")
        if self.residual not in ("set", "released"):
            raise ValueError(f"residual is {self.residual!r}; allowed are set, released")
        if not isinstance(self.k, int) or self.k < 0:
            raise ValueError(f"rule k is {self.k}; it must be a whole number, 0 or more")
        if self.kind == "additive" and not 0 <= self.bound <= 1:
            raise ValueError(f"delta is {self.bound}; it must be between 0 and 1")
        if self.kind == "weighted" and not (self.bound > 0 and math.isfinite(self.bound) and math.isfinite(self.mu)):
            raise ValueError(f"delta is {self.bound} and mu {self.mu}; they must be finite numbers, delta above 0")
        if self.kind == "multiplicative" and not (self.bound >= 1 and math.isfinite(self.bound)):
            raise ValueError(f"lambda is {self.bound}; it must be a finite number, 1 or more")

    @property
    def twinned(self) -> bool:
        """Whether the engines have faster twins of `decide` for this rule; any other runs by `decide` itself, everywhere."""
        return self.kind in ("exact", "additive", "multiplicative") and not self.released

    @property
    def relaxes(self) -> bool:
        """Whether any neighbour's mass can count; if not, the rule is the exact one."""
        neutral = {"additive": 0.0, "multiplicative": 1.0}.get(self.kind, math.inf)
        return self.k > 0 and self.bound > neutral

    @property
    def released(self) -> bool:
        """Whether it does what the authors' code does. A rule that does not relax is the exact rule whatever `residual` says."""
        return self.residual == "released" and self.relaxes

    @property
    def columns(self) -> int:
        """How many columns of the neighbour table the rule reads, where the table has them."""
        if not self.relaxes:
            return 0
        return self.k + 1 if self.released else self.k


def weights(rule: Rule, depth: Tensor) -> Tensor | None:
    """w [P, 1] of drafts whose parents lie at depth [P]; None for rules that weigh nothing."""
    return rule.bound * torch.exp(-0.7 * depth - rule.mu).unsqueeze(1) if rule.kind == "weighted" else None


class Proximity(NamedTuple):
    """The proximity sets of m tokens per node."""

    ids: Tensor  # [P, m, k] int64 neighbours, nearest first
    inside: Tensor  # [P, m, k] bool, which of them are in the set
    moved: Tensor  # [P, m] float32, their mass S


class Verdict(NamedTuple):
    """What a rule decided at P nodes."""

    rank: Tensor  # [P] int64, draw number of the accepted child, -1 for none
    residual: Tensor  # [P, V] law of the bonus token where none was accepted
    relaxed: Tensor  # [P] bool, the exact rule would not have accepted at this uniform
    draft_mass: Tensor  # [P] p of the accepted child when it was tried, else 0
    set_mass: Tensor  # [P] mass S of its neighbours that counted, else 0


def proximity(rule: Rule, p: Tensor, x: Tensor, neighbours: Tensor | None) -> Proximity:
    """Proximity sets of tokens x [P, m] under p [P, V]; neighbours [V, >= k], rows without the token itself.

    Raises ValueError when the rule needs a table and none is given.
    """
    nodes, count = x.shape
    if not rule.relaxes:
        none = x.new_empty(nodes, count, 0)
        return Proximity(none, none.bool(), p.new_zeros(nodes, count))
    if neighbours is None:
        raise ValueError(f"neighbours is None; the {rule.kind} rule with k = {rule.k} needs a neighbour table")
    ids = neighbours[:, : rule.k][x].long()
    summed = p.gather(1, ids.flatten(1)).view(ids.shape).cumsum(-1)
    bound: Tensor | float = rule.bound
    if rule.kind == "multiplicative":
        bound = (rule.bound - 1) * p.gather(1, x).unsqueeze(-1)
    inside = summed <= bound
    return Proximity(ids, inside, summed.masked_fill(~inside, 0.0).amax(-1))


def residual(
    rule: Rule, p: Tensor, q: Tensor | None, x: Tensor, near: Proximity, neighbours: Tensor | None, w: Tensor | None = None
) -> Tensor:
    """The law [P, V] that replaces p [P, V] after rejecting tokens x [P] with sets near (m = 1) and weights w [P, 1].

    q [P, V] is the drafter's law without the earlier siblings, None for children fixed by the prefix.
    """
    x = x.unsqueeze(1)
    if rule.released:
        return _released_residual(rule, p, q, x, near, neighbours)
    left = p.scatter(1, x, 0.0)
    if rule.relaxes:
        ids = near.ids[:, 0]
        left.scatter_(1, ids, left.gather(1, ids).masked_fill_(near.inside[:, 0], 0.0))
    if w is not None:
        left = (p - torch.minimum(torch.zeros_like(p).scatter(1, x, 1.0) if q is None else q, w * p)).clamp_(min=0.0)
    elif q is not None:
        left = left.sub_(q).clamp_(min=0.0)
    total, empty, known_full = _mass(left)
    if known_full:
        return left / total
    # An empty residual is a rounding event: in exact arithmetic such a draft is never rejected. What is left
    # of p without x is closest to it; if even that is empty, p is a point mass on x and stays.
    rest = p.scatter(1, x, 0.0)
    rest_total, rest_empty, _ = _mass(rest)
    return torch.where(empty, torch.where(rest_empty, p, rest / rest_total), left / total)


def _released_residual(rule: Rule, p: Tensor, q: Tensor | None, x: Tensor, near: Proximity, neighbours: Tensor | None) -> Tensor:
    """The residual of the authors' code for x [P, 1]: see `Rule`."""
    left = p.scatter(1, x, 0.0) if q is None else q
    if rule.relaxes and neighbours is not None:
        ids = neighbours[:, : rule.k + 1][x[:, 0]].long()
        counted = near.inside.any(-1)
        left = left.scatter(1, ids, left.gather(1, ids).masked_fill(counted, 0.0))
    if q is not None:
        left = (p - left).clamp_(min=0.0)
    total, empty, known_full = _mass(left)
    return left / total if known_full else torch.where(empty, 1.0 / p.shape[1], left / total)


def _mass(law: Tensor) -> tuple[Tensor, Tensor, bool]:
    """Row sums [P, 1] (1 for empty rows), which rows are empty [P, 1], and whether none is known to be.

    The host looks only where that is free, on the CPU.
    """
    total = law.sum(-1, keepdim=True)
    empty = total <= 0
    if law.device.type == "cpu" and not bool(empty.any()):
        return total, empty, True
    return total.masked_fill(empty, 1.0), empty, False


def without(q: Tensor, x: Tensor) -> Tensor:
    """q [P, V] without tokens x [P] (-1: all stay), renormalised; a row that becomes empty is all zero."""
    drawn = (x >= 0).unsqueeze(1)
    at = x.clamp(min=0).unsqueeze(1)
    left = q.scatter(1, at, q.gather(1, at).masked_fill(drawn, 0.0))
    return left / _mass(left)[0]


def decide(
    rule: Rule,
    p: Tensor,
    tokens: Tensor,
    q: Tensor | None,
    neighbours: Tensor | None,
    uniforms: Tensor,
    offered: Tensor | None = None,
    depth: Tensor | None = None,
) -> Verdict:
    """Try the children of P nodes in draw order; see the module's docstring for the rule.

    p [P, V] target laws; tokens [P, C] int64 what was drawn at each node, -1 for nothing; q [P, V] the law
    they were drawn from without replacement, None for children fixed by the prefix; uniforms [P, C] in [0,
    1); offered [P, C] bool, which draws are nodes of the tree (default: all), the others only leave q; depth [P] of the nodes
    (default: 0).
    """
    nodes, count = tokens.shape
    w = weights(rule, p.new_zeros(nodes) if depth is None else depth)
    rank = tokens.new_full((nodes,), -1)
    relaxed = torch.zeros_like(rank, dtype=torch.bool)
    draft_mass, set_mass = p.new_zeros(nodes), p.new_zeros(nodes)
    for i in range(count):
        x = tokens[:, i].clamp(min=0)
        at = x.unsqueeze(1)
        near = proximity(rule, p, at, neighbours)
        px, moved = p.gather(1, at)[:, 0], near.moved[:, 0]
        height = uniforms[:, i] if q is None else uniforms[:, i] * q.gather(1, at)[:, 0]
        tried = (rank < 0) & (tokens[:, i] >= 0)
        if offered is not None:
            tried = tried & offered[:, i]
        # strictly below: a token of mass 0 is not accepted even at u = 0
        accepted = tried & (height < (px + moved if w is None else w[:, 0] * px))
        rank = torch.where(accepted, i, rank)
        relaxed = relaxed | (accepted & (height >= px))
        draft_mass = torch.where(accepted, px, draft_mass)
        set_mass = torch.where(accepted, moved, set_mass)
        if p.device.type == "cpu" and bool((rank >= 0).all()):
            break
        rejected = (tried & ~accepted).unsqueeze(1)
        p = torch.where(rejected, residual(rule, p, q, x, near, neighbours, w), p)
        if q is not None and i + 1 < count:
            q = without(q, tokens[:, i])
    return Verdict(rank, p, relaxed, draft_mass, set_mass)


def decide_greedy(rule: Rule, p: Tensor, tokens: Tensor, neighbours: Tensor | None) -> tuple[Tensor, Tensor]:
    """Greedy acceptance of the children of P nodes, each judged by itself.

    p [P, V] plain softmax of the guided logits, tokens [P, C], -1 for none. Returns accepted [P, C] bool and
    relaxed [P, C] bool. Exact: x is the argmax. Relaxed: x is the argmax once its mass is p(x) + S and the
    others keep theirs; of equals the first token wins, as in `argmax`.
    """
    best = p.argmax(-1, keepdim=True)
    accepted = tokens == best
    if not rule.relaxes:
        return accepted, torch.zeros_like(accepted)
    x = tokens.clamp(min=0)
    mass = p.gather(1, x) + proximity(rule, p, x, neighbours).moved
    top = p.gather(1, best)
    relaxed = (tokens >= 0) & ~accepted & ((mass > top) | ((mass == top) & (x < best)))
    return accepted | relaxed, relaxed
