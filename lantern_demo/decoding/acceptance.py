"""Acceptance rules: which child of a tree node is accepted, and what law is left when none is. This is the only statement of each
rule; both engines and the measured distortion run it.

    near(x)  = x with the longest prefix of its first k codebook neighbours whose summed mass S fits the bound
    bound    = 0 (exact), delta (LANTERN, additive), (lambda - 1) p(x) (LANTERN++, multiplicative)
    accept x with probability min(1, (p(x) + S) / q(x)); q(x) = 1 where the prefix fixes the children
    else     p <- norm([p without near(x), minus q]+), q <- norm(q without x), next sibling

COOL-SD (arXiv 2601.09212) reads no neighbours. At depth i it accepts x with probability min(1, w p(x) / q(x)), and else
p <- norm([p - min(q, w p)]+), where w = delta exp(-0.7 i - mu). The paper does not say whether i begins at 0, as here, or what mu is.

GSD (arXiv 2508.07747) reads none either: near(x) are up to 13 tokens next to x when all are sorted by p, those of them whose mass
differs from x's by less than delta. x is accepted with probability min(1, p(near(x)) / q(near(x))), x counted, and else
p <- norm([p - q]+). The release asks besides that the tokens' embeddings lie close, which is left out here.

With shared noise (see `shared`) the target's own draw y decides instead, by an exact rule, LANTERN's or LANTERN++'s:

    accept x when y lies in near(x); else near(x) leaves p, next sibling

With S = 0 this is lossless speculative sampling from several drafts (Leviathan et al. 2023, EAGLE): the law of every token is p.
Sources: LANTERN (arXiv 2410.03355), LANTERN++ (arXiv 2502.06352) and the authors' released code.

All functions work on P nodes at once and never read a value back to the host. Laws [P, V] need not be normalised: their sums are kept
beside them. On a GPU a step is as long as its list of kernels, so that what is left of p is worked on in place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

# Mass that counts as nothing left: by one over it a float32 can still be multiplied. Where a law is that sharp fewer siblings are tried.
NOTHING = 2.0**-125
KINDS = ("exact", "additive", "multiplicative", "weighted", "grouped")
RESIDUALS = ("set", "released", "target")


@dataclass(frozen=True)
class Rule:
    """An acceptance rule. Raises ValueError for values out of range.

    residual="set" takes away from the residual what was offered to the draft. residual="released" does what the authors' code does: all
    k + 1 nearest tokens leave p (fixed children) or q (sampled children) once any of them was counted, and an empty residual becomes
    uniform; greedy, the longest accepted path wins; and the last token is drafted too. A rule that does not relax is the exact one all
    the same. residual="target" leaves p as it is, as Lumina-mGPT 2.0's own decoder does by our reading: not exact either.
    """

    kind: str = "exact"
    k: int = 0  # neighbours that may count
    bound: float = 0.0  # delta (additive, 0 to 1; weighted, above 0) or lambda (multiplicative, 1 or more)
    residual: str = "set"
    mu: float = 0.0  # of the weighted rule

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"rule kind is {self.kind!r}; allowed are {', '.join(KINDS)}")
        if self.residual not in RESIDUALS:
            raise ValueError(f"residual is {self.residual!r}; allowed are {', '.join(RESIDUALS)}")
        if not isinstance(self.k, int) or self.k < 0:
            raise ValueError(f"rule k is {self.k}; it must be a whole number, 0 or more")
        if self.kind in ("additive", "grouped") and not 0 <= self.bound <= 1:
            raise ValueError(f"delta is {self.bound}; it must be between 0 and 1")
        if self.kind == "multiplicative" and not (self.bound >= 1 and math.isfinite(self.bound)):
            raise ValueError(f"lambda is {self.bound}; it must be a finite number, 1 or more")
        if self.kind == "weighted" and not (self.bound > 0 and math.isfinite(self.bound) and math.isfinite(self.mu)):
            raise ValueError(f"delta is {self.bound} and mu {self.mu}; they must be finite numbers, delta above 0")

    @property
    def relaxes(self) -> bool:
        """Whether any neighbour's mass can count."""
        neutral = {"additive": 0.0, "multiplicative": 1.0, "grouped": 0.0}.get(self.kind, math.inf)
        return (self.k > 0 or self.kind == "grouped") and self.bound > neutral

    @property
    def lossy(self) -> bool:
        """Whether it may accept what the exact rule would not."""
        return self.relaxes or self.kind == "weighted"

    @property
    def slack(self) -> float:
        """The bound as a share: of the total mass (additive), of the token's own (multiplicative)."""
        return self.bound - 1 if self.kind == "multiplicative" else self.bound

    @property
    def released(self) -> bool:
        """Whether it does what the authors' code does."""
        return self.residual == "released" and self.relaxes and self.kind != "grouped"

    @property
    def greedy(self) -> Rule:
        """The rule by which greedy drafts are accepted: the exact one, unless this one counts neighbours."""
        return self if self.columns else Rule()

    @property
    def shares(self) -> bool:
        """Whether the target's own draw can decide: it needs sets of tokens that each stand for one, and nothing of q."""
        return self.residual != "target" and (not self.lossy or (self.columns > 0 and not self.released))

    @property
    def columns(self) -> int:
        """How many columns of the neighbour table the rule reads, where the table has them."""
        return (self.k + self.released) if self.relaxes and self.kind != "grouped" else 0


class Near(NamedTuple):
    """Tokens x, each with its first k neighbours where the rule relaxes, else k = 0. For one token a node, or, with a dimension more
    behind or before P, for several."""

    ids: Tensor  # [P, 1 + k] int64, x first
    mass: Tensor  # [P, 1 + k] p of them
    stays: Tensor  # [P, 1 + k] 0 for what is in near(x) and for x itself, so that it leaves p with x, else 1
    summed: Tensor  # [P, k], running sums of the neighbours' mass

    @property
    def moved(self) -> Tensor | None:
        """S [P], the last of the sums inside near(x); None where the rule does not relax."""
        if not self.summed.shape[-1]:
            return None
        return self.summed.addcmul(self.summed, self.stays[..., 1:], value=-1.0).amax(-1)


class Verdict(NamedTuple):
    """What a rule decided at P nodes of C children, and what each child was judged by, as if all before it were rejected."""

    rank: Tensor  # [P] int64, draw number of the accepted child, C for none
    residual: Tensor  # [P, V] law of the bonus token where none was accepted, not normalised
    mass: Tensor  # [P, C] p of the child, without what rejected siblings took along
    counted: Tensor  # [P, C] what the rule counted for it
    height: Tensor  # [P, C] what that had to exceed: the uniform times the drafter's probability; greedy it had to reach the highest one
    total: Tensor  # [P, C] what these three are parts of
    accepted: Tensor  # [P, C] bool
    # [P, C], of the first accepted child: 1 or true where the exact rule would refuse it; None: it never does
    relaxed: Tensor | None


def candidates(rule: Rule, x: Tensor, neighbours: Tensor | None, p: Tensor) -> Tensor:
    """Tokens x [P, m], each with the neighbours that the rule may count behind it: [P, m, 1 + k] int64, k = 0 for rules that do not
    relax. neighbours [V, >= k] int32 or int64, rows without the token itself; p [P, V]. Raises ValueError where a table is needed and
    missing."""
    if not rule.relaxes:
        return x.unsqueeze(-1)
    if rule.kind == "grouped":
        order = p.sort(dim=-1, descending=True, stable=True).indices
        places = torch.empty_like(order).scatter_(1, order, _numbers(p.shape[1], p.device).expand_as(order))
        around = (places.gather(1, x).unsqueeze(-1) + _numbers(14, p.device) - 7).clamp_(0, p.shape[1] - 1)
        return torch.cat([x.unsqueeze(-1), order.gather(1, around.flatten(1)).view(around.shape)], -1)
    if neighbours is None:
        raise ValueError(f"neighbours is None; the {rule.kind} rule with k = {rule.k} needs a neighbour table")
    return torch.cat([x.unsqueeze(-1), neighbours[:, : rule.k][x].long()], -1)


def proximity(
    rule: Rule, p: Tensor, ids: Tensor, total: Tensor | float = 1.0, slack: Tensor | float | None = None, into: Near | None = None
) -> Near:
    """near(x) under p [P, V] of sums total [P, 1] (or 1); ids as `candidates` gives them, for one token a node or for several. slack
    [P, 1]: the rule's, or 0 for tokens that are not tried, near which nothing that has mass is then. The result goes `into` tensors that
    are there already, whose `stays` of x itself is 1 where x is not tried."""
    flat = ids if ids.dim() == 2 else ids.flatten(1)
    mass = p.gather(1, flat).view(ids.shape) if into is None else torch.gather(p, 1, flat, out=into.mass)
    stays = torch.zeros_like(mass) if into is None else into.stays
    if not rule.relaxes:
        return Near(ids, mass, stays, mass[..., 1:]) if into is None else into
    if rule.kind == "grouped":
        # at an end of the order its last token stands for those that are not there: each counts once, and x itself not at all
        other = ids[..., 1:].diff(dim=-1, prepend=torch.full_like(ids[..., :1], -1)).ne(0) & (ids[..., 1:] != ids[..., :1])
        alike = other & ((mass[..., 1:] - mass[..., :1]).abs() < rule.bound * total)
        summed = torch.cumsum(mass[..., 1:] * alike, -1, out=None if into is None else into.summed)
        torch.logical_not(alike, out=stays[..., 1:])
    else:
        summed = torch.cumsum(mass[..., 1:], -1, out=None if into is None else into.summed)
        bound = (mass[..., :1] if rule.kind == "multiplicative" else total) * (rule.slack if slack is None else slack)
        torch.gt(summed, bound, out=stays[..., 1:])
    return Near(ids, mass, stays, summed)


def _in_turn(rule: Rule, p: Tensor, x: Tensor, tried: Tensor | None, neighbours: Tensor | None) -> tuple[Near, list[Near]]:
    """Room for near(x) of tokens x [P, C], which is found out child by child: [C, P, ...] as a whole, and by child. tried [P, C] bool: of
    the others even x itself stays in p. None: what becomes of x itself is not asked for."""
    ids = candidates(rule, x, neighbours, p).transpose(0, 1)
    mass, stays = p.new_empty(2, *ids.shape)
    found = Near(ids, mass, stays, torch.empty_like(mass[..., 1:]) if rule.relaxes else mass[..., 1:])
    if tried is not None:
        torch.logical_not(tried.t(), out=stays[..., 0])
    return found, [Near(*parts) for parts in zip(*(part.unbind() for part in found), strict=True)]


def weight(rule: Rule, depth: Tensor | float) -> Tensor:
    """w [P, 1] of COOL-SD's drafts whose parents lie at depth [P, 1], or all at one."""
    return rule.bound * torch.exp(-0.7 * torch.as_tensor(depth) - rule.mu)


def counted(rule: Rule, mass: Tensor, moved: Tensor | None, depth: Tensor | float = 0.0) -> Tensor:
    """The mass that stands for tokens of p mass [P, m] against their heights, with S moved [P, m]; their parents lie at depth [P, 1]."""
    if rule.kind == "weighted":
        return weight(rule, depth) * mass
    return mass if moved is None else mass + moved


def drafted(rule: Rule, q: Tensor, near: Near) -> Tensor:
    """The mass [P] of what stands for a token in the law q [P, V] that it was drawn from: its own, or that of the group near it."""
    if rule.kind != "grouped" or not rule.relaxes:
        return q.gather(1, near.ids[..., 0])
    mass = q.gather(1, near.ids.flatten(1)).view(near.ids.shape)
    return mass[..., 0] + (mass[..., 1:] * (1 - near.stays[..., 1:])).sum(-1)


def reject(
    rule: Rule, left: Tensor, near: Near, q: Tensor | None, share: Tensor | None, neighbours: Tensor | None,
    depth: Tensor | float = 0.0,
) -> None:  # fmt: skip
    """Make left [P, V], the law p so far, what is left of it once the token that near is about was tried and rejected, in place. share
    [P, 1] times q [P, V] is the law of the draw scaled to p's sum, and 0 where nothing was tried; both None for children fixed by the
    prefix."""
    x, untried = near.ids[:, :1], near.stays[:, :1]
    if rule.residual == "target":
        return
    if rule.released and neighbours is not None:
        gone = torch.cat([near.ids[:, 1:], neighbours[:, rule.k : rule.k + 1][x[:, 0]].long()], 1)
        stays = near.stays[:, 1:].amin(-1, keepdim=True).maximum(untried)
        if q is None or share is None:
            left.scatter_(1, x, near.mass[:, :1] * untried)
            left.scatter_(1, gone, left.gather(1, gone) * stays)
        else:
            left.addcmul_(q.scatter(1, gone, q.gather(1, gone) * stays), share, value=-1.0).clamp_(min=0.0)
        left.masked_fill_(left.sum(-1, keepdim=True) <= 0, 1.0 / left.shape[1])
    elif rule.kind == "weighted":
        if q is None or share is None:
            q, share = torch.zeros_like(left).scatter_(1, x, 1.0), (1.0 - untried) * left.sum(-1, keepdim=True)
        left.sub_(torch.minimum(q * share, weight(rule, depth) * left)).clamp_(min=0.0)
    elif q is None or share is None:
        left.scatter_reduce_(1, near.ids, near.stays, "prod")
    else:
        if rule.columns:
            left.scatter_reduce_(1, near.ids[:, 1:], near.stays[:, 1:], "prod")
        # nothing of x itself is left, since it had less of p than of q
        left.addcmul_(q, share, value=-1.0).clamp_(min=0.0)


def decide(
    rule: Rule, left: Tensor, tokens: Tensor, q: Tensor | None, neighbours: Tensor | None, uniforms: Tensor,
    offered: Tensor | None = None, depth: Tensor | float = 0.0, rest: Tensor | None = None,
) -> Verdict:  # fmt: skip
    """Try the children of P nodes in draw order; see the module's docstring for the rule.

    left [P, V] are the target's laws p, and become the residuals; tokens [P, C] int64 what was drawn at each node, -1 for nothing;
    q [P, V] the law they were drawn from without replacement, None for children fixed by the prefix; uniforms [P, >= C] in [0, 1);
    offered [P, C] bool, which draws are nodes of the tree (default: all), the others only leave q; depth [P, 1] of the nodes; rest
    [P, C] what q had left before each draw, and below NOTHING where there was none (default: worked out). A draft that would leave
    nothing behind is accepted: in exact arithmetic it always is. A law that is none, because it is not made of finite numbers, accepts
    nothing.
    """
    nodes, count = tokens.shape
    if not count:
        nothing = left[:, :0]
        return Verdict(tokens.new_zeros(nodes), left, nothing, nothing, nothing, nothing, tokens >= 0, None)
    tried, x = (tokens >= 0, tokens.clamp(min=0)) if rest is None else (rest >= NOTHING, tokens)
    share, thinned = None, False
    heights = uniforms[:, :count]
    if q is not None:
        qx = q.gather(1, x)
        if rest is None:  # summed from the end: differences from 1 would lose small rests
            qx = qx * tried
            rest = q.scatter_add(1, x, -qx).sum(-1, keepdim=True) + qx.flip(1).cumsum(1).flip(1)
        tried = tried if offered is None else tried & offered
        share = torch.div(tried, rest.clamp(min=NOTHING), out=torch.empty_like(qx))
        heights = heights * qx
        # Where all that is tried comes first and leaves nothing of itself, what it still has of q takes nothing away.
        thinned = offered is not None or rule.kind == "weighted" or rule.released
        q = q.clone() if thinned else q
    found, children = _in_turn(rule, left, x, tried if q is None or rule.released else None, neighbours)
    totals = left.new_ones(count + 1, nodes, 1)
    slack = tried * rule.slack if rule.relaxes else tried
    for i, here in enumerate(children):
        drawn = slice(i, i + 1)
        near = proximity(rule, left, here.ids, totals[i], slack[:, drawn], here)
        scaled = None if share is None else share[:, drawn].mul_(totals[i]) if i else share[:, drawn]
        reject(rule, left, near, q, scaled, neighbours, depth)
        if q is not None and thinned:
            q.scatter_(1, near.ids[:, :1], 0.0)  # behind a draw that found nothing there is none that is tried
        torch.sum(left, -1, keepdim=True, out=totals[i + 1])
    before, after = (part[..., 0].t() for part in (totals[:-1], totals[1:]))
    heights = bar = heights * (before if share is None else share)
    if rule.kind == "grouped" and q is not None and share is not None:
        bar = uniforms[:, :count] * share * drafted(rule, q, Near(*(part.transpose(0, 1) for part in found)))
    mass, moved = found.mass[..., 0].t(), found.moved
    stands = counted(rule, mass, None if moved is None else moved.t(), depth)
    # strictly below: a token of mass 0 is not accepted even at u = 0
    accepted = tried & ((bar < stands) | (after <= 0))
    relaxed = torch.ge(heights, mass, out=torch.empty_like(x)) if rule.lossy else None
    return Verdict(_first(accepted), left, mass, stands, bar, before, accepted, relaxed)


def decide_shared(
    rule: Rule, p: Tensor | None, tokens: Tensor, own: Tensor, neighbours: Tensor | None
) -> tuple[Tensor, Near | None]:
    """Accept the first of the children tokens [P, C] of P nodes, -1 for none, near which the target's own draw own [P] lies: its draw
    number [P] int64, C for none, and what lies near the children [P, C, 1 + k], None for an exact rule. p [P, V] are the target's laws,
    which only the relaxed rules need to know. Of a token that lies near several the first one decides: it has left p with that."""
    own = own.unsqueeze(1)
    if not rule.relaxes or p is None:
        return _first(tokens == own), None
    tried = tokens >= 0
    found, children = _in_turn(rule, p, tokens.clamp(min=0), tried, neighbours)
    total: Tensor | float = 1.0
    slack, left = tried * rule.slack, p.clone() if len(children) > 1 else p
    for i, here in enumerate(children):
        if i:  # what stood for the child before has left p
            left.scatter_reduce_(1, children[i - 1].ids, children[i - 1].stays, "prod")
            total = left.sum(-1, keepdim=True)
        proximity(rule, left, here.ids, total, slack[:, i : i + 1], here)
    near = Near(*(part.transpose(0, 1) for part in found))
    return _first(((near.ids == own.unsqueeze(1)) & (near.stays == 0)).any(-1)), near


def decide_greedy(rule: Rule, p: Tensor, tokens: Tensor, neighbours: Tensor | None) -> Verdict:
    """Greedy acceptance of the children of P nodes, each judged by itself: p [P, V] plain softmax of the guided logits, tokens [P, C],
    -1 for none. Exact: x is the argmax. Relaxed: x is the argmax once its mass is p(x) + S and the others keep theirs; of equals the
    first token wins, as in `argmax`."""
    rule = rule.greedy
    top, best = p.max(-1, keepdim=True)
    best = best.masked_fill(top.isnan(), -2)  # no token
    x = tokens.clamp(min=0)
    near = proximity(rule, p, candidates(rule, x, neighbours, p))
    accepted = tokens == best
    mass, moved, relaxed = near.mass[..., 0], near.moved, None
    reached = mass if moved is None else mass + moved
    if moved is not None:
        relaxed = (tokens >= 0) & ~accepted & ((reached > top) | ((reached == top) & (x < best)))
        accepted = accepted | relaxed
    return Verdict(_first(accepted), p, mass, reached, top.expand(x.shape), torch.ones_like(mass), accepted, relaxed)


def _first(accepted: Tensor) -> Tensor:
    """[P] int64, the first column in which accepted [P, C] is true, C for none."""
    numbers = _numbers(accepted.shape[1] + 1, accepted.device)
    return torch.where(accepted, numbers[:-1], numbers[-1:]).amin(1)


@lru_cache(maxsize=64)
def _numbers(count: int, device: torch.device) -> Tensor:
    return torch.arange(count, device=device)
