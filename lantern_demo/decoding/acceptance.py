"""Acceptance rules: which child of a tree node is accepted, and what law is left when none is. This is the only statement of each
rule; both engines and the measured distortion run it.

    near(x)  = x with the tokens that stand for it beside itself, whose mass is S; by the exact rule there are none
    accept x with probability min(1, (p(x) + S) / q(x)); q(x) = 1 where the prefix fixes the children
    else     p <- norm([p without near(x), minus q]+), q <- norm(q without x), next sibling

With shared noise (see `shared`) the target's own draw y decides instead, where a rule allows it:

    accept x when y lies in near(x); else near(x) leaves p, next sibling

With S = 0 this is lossless speculative sampling from several drafts (Leviathan et al. 2023, EAGLE): the law of every token is p.
A rule is a class that says where it differs from this one.

All functions work on P nodes at once and never read a value back to the host. Laws [P, V] need not be normalised: their sums are kept
beside them. On a GPU a step is as long as its list of kernels, so that what is left of p is worked on in place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

# Mass that counts as nothing left: by one over it a float32 can still be multiplied. Where a law is that sharp fewer siblings are tried.
NOTHING = 2.0**-125
RESIDUALS = ("set", "released", "target")


class Near(NamedTuple):
    """Tokens x, each with k others that may stand for it. For one token a node, or, with a dimension more behind or before P, for several."""

    ids: Tensor  # [P, 1 + k] int64, x first
    mass: Tensor  # [P, 1 + k] p of them
    stays: Tensor  # [P, 1 + k] 0 for what is in near(x) and for x itself, so that it leaves p with x, else 1
    summed: Tensor  # [P, k], running sums of the others' mass, as far as it counts

    @property
    def moved(self) -> Tensor | None:
        """S [P], the last of the sums inside near(x); None where no others may count."""
        if not self.summed.shape[-1]:
            return None
        return self.summed.addcmul(self.summed, self.stays[..., 1:], value=-1.0).amax(-1)


@dataclass(frozen=True)
class Rule:
    """The exact rule, of which all others are kinds. Raises ValueError for values out of range.

    residual="set" takes away from the residual what was offered to the draft. residual="released" does what LANTERN's authors' code does
    (see `Lantern`), and other rules take it for "set". residual="target" leaves p as it is, as Lumina-mGPT 2.0's own decoder does by our
    reading: not exact.
    """

    residual: str = field(default="set", kw_only=True)

    name: ClassVar[str] = "exact"
    reach: ClassVar[int] = 0  # tokens that may stand for a draft beside itself, where no table says which

    def __post_init__(self) -> None:
        if self.residual not in RESIDUALS:
            raise ValueError(f"residual is {self.residual!r}; allowed are {', '.join(RESIDUALS)}")

    @property
    def relaxes(self) -> bool:
        """Whether it may accept what the exact rule would not."""
        return False

    @property
    def released(self) -> bool:
        """Whether it does what LANTERN's authors' code does."""
        return False

    @property
    def mixes(self) -> bool:
        """Whether drafts are held against another law than the target's: see `target`."""
        return False

    @property
    def shares(self) -> bool:
        """Whether the target's own draw can decide: it needs sets of tokens that each stand for one, and nothing of q."""
        return self.residual != "target"

    @property
    def thins(self) -> bool:
        """Whether what its residual takes away hangs on all that q has, so that a rejected token must leave q at once."""
        return self.released

    @property
    def columns(self) -> int:
        """How many columns of the neighbour table it reads, where the table has them."""
        return 0

    @property
    def slack(self) -> float:
        """How much mass may count, as a share: see `limit`."""
        return 0.0

    @property
    def settled(self) -> bool:
        """Whether the measured distortion is the same whatever was drafted."""
        return type(self) is Rule and self.residual != "target"

    @property
    def greedy(self) -> Rule:
        """The rule by which greedy drafts are accepted: the exact one, unless this one counts neighbours."""
        return self if self.columns else Rule()

    def target(self, p: Tensor, q: Tensor | None) -> Tensor:
        """The law [..., V] that drafts are held against, of the target's law p and the law q that they were drawn from; p itself but for rules
        that mix them."""
        return p

    def passing(self, p: Tensor) -> Tensor | None:
        """[..., V] bool, the tokens that are kept under p [..., V] whatever the target draws; None: there is no such thing."""
        return None

    def candidates(self, x: Tensor, neighbours: Tensor | None, p: Tensor) -> Tensor:
        """Tokens x [P, m], each with the tokens behind it that may count: [P, m, 1 + k] int64. neighbours [V, >= k] int32 or int64, rows
        without the token itself; p [P, V]. Raises ValueError where a table is needed and missing."""
        return x.unsqueeze(-1)

    def near(
        self, p: Tensor, ids: Tensor, total: Tensor | float = 1.0, slack: Tensor | float | None = None, into: Near | None = None
    ) -> Near:
        """near(x) under p [P, V] of sums total [P, 1] (or 1); ids as `candidates` gives them, for one token a node or for several. slack
        [P, 1]: the rule's, or 0 for tokens that are not tried, near which nothing that has mass is then. The result goes `into` tensors
        that are there already, whose `stays` of x itself is 1 where x is not tried."""
        flat = ids if ids.dim() == 2 else ids.flatten(1)
        mass = p.gather(1, flat).view(ids.shape) if into is None else torch.gather(p, 1, flat, out=into.mass)
        found = Near(ids, mass, torch.zeros_like(mass), torch.empty_like(mass[..., 1:])) if into is None else into
        if ids.shape[-1] > 1:
            self.limit(found, total, self.slack if slack is None else slack)
        return found

    def limit(self, near: Near, total: Tensor | float, slack: Tensor | float) -> None:
        """Write into `stays` and `summed` which of the others count; as in `near`."""

    def stand_in(self, p: Tensor, x: Tensor, own: Tensor, neighbours: Tensor | None) -> Near | None:
        """near(x) [P, C, 1 + k] of the children x [P, C], -1 for none, where the target's own draws own [P, 1] decide: each token stands in
        the first child's that may have it. None: each child stands for itself alone."""
        return None

    def counts(self, mass: Tensor, moved: Tensor | None, depth: Tensor | float = 0.0) -> Tensor:
        """What is counted for tokens of mass [P, m] in p with S moved [P, m], None for 0; their parents lie at depth [P, 1]."""
        return mass if moved is None else mass + moved

    def drafted(self, q: Tensor, near: Near) -> Tensor:
        """The mass [P] of what is counted for a token in the law q [P, V] that it was drawn from."""
        return q.gather(1, near.ids[..., 0])

    def bar(self, heights: Tensor, u: Tensor, share: Tensor | None, q: Tensor | None, near: Near, p: Tensor) -> Tensor:
        """What has to be exceeded by what is counted for the children that near is about: heights [P, C] = u share q(x), where the uniforms
        u and share are [P, C]; p and q [P, V]."""
        return heights

    def chance(self, p: Tensor, q: Tensor | None, near: Near, depth: Tensor | float = 0.0) -> Tensor:
        """The chance [P, m] float64 that the tokens that near is about are accepted, from p and q [P, V] that sum to 1."""
        counted = self.counts(near.mass[..., 0], near.moved, depth).double()
        return (counted if q is None else counted / self.drafted(q, near).double().clamp(min=1e-300)).clamp(max=1.0)

    def reject(
        self,
        left: Tensor,
        near: Near,
        q: Tensor | None,
        share: Tensor | None,
        neighbours: Tensor | None,
        depth: Tensor | float = 0.0,
    ) -> None:
        """Make left [P, V], the law p so far, what is left of it once the token that near is about was tried and rejected, in place. share
        [P, 1] times q [P, V] is the law of the draw scaled to p's sum, and 0 where nothing was tried; both None for children fixed by the
        prefix."""
        if self.residual == "target":
            return
        if q is None or share is None:
            left.scatter_reduce_(1, near.ids, near.stays, "prod")
            return
        if self.columns:
            left.scatter_reduce_(1, near.ids[:, 1:], near.stays[:, 1:], "prod")
        # nothing of x itself is left, since it had less of p than of q
        left.addcmul_(q, share, value=-1.0).clamp_(min=0.0)


@dataclass(frozen=True)
class Lantern(Rule):
    """LANTERN (arXiv 2410.03355): near(x) has the longest prefix of x's first k codebook neighbours whose mass sums to at most the bound.

    residual="released" does what the authors' code does: all k + 1 nearest tokens leave p (fixed children) or q (sampled children) once
    any of them was counted, and an empty residual becomes uniform; greedy, the longest accepted path wins; and the last token is drafted
    too. Where nothing is relaxed it is the exact rule all the same.
    """

    k: int = 0  # neighbours that may count
    bound: float = 0.0  # delta, 0 to 1

    name: ClassVar[str] = "additive"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.k, int) or self.k < 0:
            raise ValueError(f"rule k is {self.k}; it must be a whole number, 0 or more")
        self.check()

    def check(self) -> None:
        """Raises ValueError for a bound out of range."""
        check_share("delta", self.bound)

    @property
    def relaxes(self) -> bool:
        return self.k > 0 and self.slack > 0

    @property
    def released(self) -> bool:
        return self.residual == "released" and self.relaxes

    @property
    def shares(self) -> bool:
        return super().shares and not self.released

    @property
    def columns(self) -> int:
        return self.k + self.released if self.relaxes else 0

    @property
    def slack(self) -> float:
        return self.bound

    def stand_in(self, p: Tensor, x: Tensor, own: Tensor, neighbours: Tensor | None) -> Near | None:
        if not self.relaxes:
            return None
        tried = x >= 0
        found, children = _in_turn(self, p, x.clamp(min=0), tried, neighbours)
        total: Tensor | float = 1.0
        slack, left = tried * self.slack, p.clone() if len(children) > 1 else p
        for i, here in enumerate(children):
            if i:  # what stood for the child before has left p
                left.scatter_reduce_(1, children[i - 1].ids, children[i - 1].stays, "prod")
                total = left.sum(-1, keepdim=True)
            self.near(left, here.ids, total, slack[:, i : i + 1], here)
        return Near(*(part.transpose(0, 1) for part in found))

    def whole(self, near: Near, total: Tensor | float) -> Tensor | float:
        """What the slack is a share of: here of all mass."""
        return total

    def candidates(self, x: Tensor, neighbours: Tensor | None, p: Tensor) -> Tensor:
        if not self.relaxes:
            return x.unsqueeze(-1)
        if neighbours is None:
            raise ValueError(f"neighbours is None; the {self.name} rule with k = {self.k} needs a neighbour table")
        return torch.cat([x.unsqueeze(-1), neighbours[:, : self.k][x].long()], -1)

    def limit(self, near: Near, total: Tensor | float, slack: Tensor | float) -> None:
        torch.cumsum(near.mass[..., 1:], -1, out=near.summed)
        torch.gt(near.summed, self.whole(near, total) * slack, out=near.stays[..., 1:])

    def reject(
        self,
        left: Tensor,
        near: Near,
        q: Tensor | None,
        share: Tensor | None,
        neighbours: Tensor | None,
        depth: Tensor | float = 0.0,
    ) -> None:
        if not self.released or neighbours is None:
            return super().reject(left, near, q, share, neighbours, depth)
        x, untried = near.ids[:, :1], near.stays[:, :1]
        gone = torch.cat([near.ids[:, 1:], neighbours[:, self.k : self.k + 1][x[:, 0]].long()], 1)
        stays = near.stays[:, 1:].amin(-1, keepdim=True).maximum(untried)
        if q is None or share is None:
            left.scatter_(1, x, near.mass[:, :1] * untried)
            left.scatter_(1, gone, left.gather(1, gone) * stays)
        else:
            left.addcmul_(q.scatter(1, gone, q.gather(1, gone) * stays), share, value=-1.0).clamp_(min=0.0)
        left.masked_fill_(left.sum(-1, keepdim=True) <= 0, 1.0 / left.shape[1])


@dataclass(frozen=True)
class LanternPlusPlus(Lantern):
    """LANTERN++ (arXiv 2502.06352): as LANTERN, but the neighbours' mass is at most (bound - 1) p(x)."""

    bound: float = 1.0  # lambda, 1 or more

    name: ClassVar[str] = "multiplicative"

    def check(self) -> None:
        if not (self.bound >= 1 and math.isfinite(self.bound)):
            raise ValueError(f"lambda is {self.bound}; it must be a finite number, 1 or more")

    @property
    def slack(self) -> float:
        return self.bound - 1

    def whole(self, near: Near, total: Tensor | float) -> Tensor:
        return near.mass[..., :1]


@dataclass(frozen=True)
class Weighted(Rule):
    """COOL-SD (arXiv 2601.09212) reads no neighbours. At depth i it accepts x with probability min(1, w p(x) / q(x)), and else
    p <- norm([p - min(q, w p)]+), where w = bound exp(-0.7 i - mu). The paper does not say whether i begins at 0, as here, or what mu is."""

    bound: float = 1.0  # delta, above 0
    mu: float = 0.0

    name: ClassVar[str] = "weighted"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.bound > 0 and math.isfinite(self.bound) and math.isfinite(self.mu)):
            raise ValueError(f"delta is {self.bound} and mu {self.mu}; they must be finite numbers, delta above 0")

    @property
    def relaxes(self) -> bool:
        return True

    @property
    def shares(self) -> bool:
        return False

    def weight(self, depth: Tensor | float) -> Tensor:
        """w [P, 1] of drafts whose parents lie at depth [P, 1], or all at one."""
        return self.bound * torch.exp(-0.7 * torch.as_tensor(depth) - self.mu)

    @property
    def thins(self) -> bool:
        return True

    def counts(self, mass: Tensor, moved: Tensor | None, depth: Tensor | float = 0.0) -> Tensor:
        return self.weight(depth) * mass

    def reject(
        self,
        left: Tensor,
        near: Near,
        q: Tensor | None,
        share: Tensor | None,
        neighbours: Tensor | None,
        depth: Tensor | float = 0.0,
    ) -> None:
        if q is None or share is None:
            q = torch.zeros_like(left).scatter_(1, near.ids[:, :1], 1.0)
            share = (1.0 - near.stays[:, :1]) * left.sum(-1, keepdim=True)
        left.sub_(torch.minimum(q * share, self.weight(depth) * left)).clamp_(min=0.0)


@dataclass(frozen=True)
class Grouped(Rule):
    """GSD (arXiv 2508.07747) reads no neighbours either: near(x) are up to 13 tokens next to x when all are sorted by p, those of them whose
    mass differs from x's by less than the bound. x is accepted with probability min(1, p(near(x)) / q(near(x))), x counted, and else
    p <- norm([p - q]+). The release asks besides that the tokens' embeddings lie close, which is left out here."""

    bound: float = 0.0  # delta, 0 to 1

    name: ClassVar[str] = "grouped"
    reach: ClassVar[int] = 14

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("delta", self.bound)

    @property
    def relaxes(self) -> bool:
        return self.bound > 0

    @property
    def shares(self) -> bool:
        return super().shares and not self.relaxes

    def candidates(self, x: Tensor, neighbours: Tensor | None, p: Tensor) -> Tensor:
        if not self.relaxes:
            return x.unsqueeze(-1)
        order = p.sort(dim=-1, descending=True, stable=True).indices
        places = torch.empty_like(order).scatter_(1, order, _numbers(p.shape[1], p.device).expand_as(order))
        around = (places.gather(1, x).unsqueeze(-1) + _numbers(14, p.device) - 7).clamp_(0, p.shape[1] - 1)
        return torch.cat([x.unsqueeze(-1), order.gather(1, around.flatten(1)).view(around.shape)], -1)

    def limit(self, near: Near, total: Tensor | float, slack: Tensor | float) -> None:
        x, others, mass = near.ids[..., :1], near.ids[..., 1:], near.mass[..., 1:]
        # at an end of the order its last token stands for those that are not there: each counts once, and x itself not at all
        other = others.diff(dim=-1, prepend=torch.full_like(x, -1)).ne(0) & (others != x)
        alike = other & ((mass - near.mass[..., :1]).abs() < self.bound * total)
        torch.cumsum(mass * alike, -1, out=near.summed)
        torch.logical_not(alike, out=near.stays[..., 1:])

    def drafted(self, q: Tensor, near: Near) -> Tensor:
        mass = q.gather(1, near.ids.flatten(1)).view(near.ids.shape)
        return mass[..., 0] + (mass[..., 1:] * (1 - near.stays[..., 1:])).sum(-1)

    def bar(self, heights: Tensor, u: Tensor, share: Tensor | None, q: Tensor | None, near: Near, p: Tensor) -> Tensor:
        return heights if q is None or share is None else u * share * self.drafted(q, near)


@dataclass(frozen=True)
class Typical(Rule):
    """Medusa's typical acceptance (arXiv 2401.10774): a draft is kept where p(x) > min(e, sqrt(e) exp(-H)), H the entropy of p in nats and e the
    bound, whatever it was drawn from; and else p stays as it is. With shared noise the first draft is kept that passes so or is what the
    target itself drew."""

    bound: float = 0.09  # epsilon, 0 to 1

    name: ClassVar[str] = "typical"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("epsilon", self.bound)

    @property
    def relaxes(self) -> bool:
        return True

    def threshold(self, p: Tensor) -> Tensor:
        """What the mass of a draft has to exceed under p [..., V]: [..., 1]."""
        return torch.special.entr(p).sum(-1, keepdim=True).neg_().exp_().mul_(math.sqrt(self.bound)).clamp_(max=self.bound)

    def passing(self, p: Tensor) -> Tensor:
        return p > self.threshold(p)

    def stand_in(self, p: Tensor, x: Tensor, own: Tensor, neighbours: Tensor | None) -> Near:
        """Beside itself a draft that passes stands for the target's own draw, whatever that is."""
        ids, tried = torch.stack([x.clamp(min=0), own.expand_as(x)], -1), x >= 0
        mass = p.gather(1, ids[..., 0])
        stays = torch.stack([~tried, ~(tried & (mass > self.threshold(p)))], -1).to(p.dtype)
        return Near(ids, mass.unsqueeze(-1).expand(ids.shape), stays, mass.unsqueeze(-1))

    def bar(self, heights: Tensor, u: Tensor, share: Tensor | None, q: Tensor | None, near: Near, p: Tensor) -> Tensor:
        return self.threshold(p).expand_as(heights)

    def chance(self, p: Tensor, q: Tensor | None, near: Near, depth: Tensor | float = 0.0) -> Tensor:
        return (near.mass[..., 0] > self.threshold(p)).double()

    def reject(
        self,
        left: Tensor,
        near: Near,
        q: Tensor | None,
        share: Tensor | None,
        neighbours: Tensor | None,
        depth: Tensor | float = 0.0,
    ) -> None:
        """Nothing leaves p."""


@dataclass(frozen=True)
class Ensemble(Rule):
    """A mixture with the drafter (DIVERSED, arXiv 2604.07622; `assistant_ensemble_weight` of transformers): the exact rule, with
    v = w p + (1 - w) q in place of p, w the bound. With shared noise the token that v and the place's noise give is held against the drafts.
    Where nothing was drafted, and where q is not known, v is p."""

    bound: float = 0.7  # w, 0 to 1

    name: ClassVar[str] = "ensemble"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("weight", self.bound)

    @property
    def relaxes(self) -> bool:
        return self.bound < 1

    @property
    def mixes(self) -> bool:
        return self.relaxes

    @property
    def settled(self) -> bool:
        return self.residual != "target"

    def target(self, p: Tensor, q: Tensor | None) -> Tensor:
        return p if q is None or not self.relaxes else torch.lerp(q, p, self.bound)


def check_share(name: str, value: float) -> None:
    """Raises ValueError for a value that is not between 0 and 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}; it must be between 0 and 1")


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
    p, left = left, rule.target(left, q)
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
        thinned = offered is not None or rule.thins
        q = q.clone() if thinned else q
    found, children = _in_turn(rule, left, x, tried if q is None or rule.released else None, neighbours)
    totals = left.new_ones(count + 1, nodes, 1)
    slack = tried * rule.slack if rule.slack else tried
    for i, here in enumerate(children):
        drawn = slice(i, i + 1)
        near = rule.near(left, here.ids, totals[i], slack[:, drawn], here)
        scaled = None if share is None else share[:, drawn].mul_(totals[i]) if i else share[:, drawn]
        rule.reject(left, near, q, scaled, neighbours, depth)
        if q is not None and thinned:
            q.scatter_(1, near.ids[:, :1], 0.0)  # behind a draw that found nothing there is none that is tried
        torch.sum(left, -1, keepdim=True, out=totals[i + 1])
    before, after = (part[..., 0].t() for part in (totals[:-1], totals[1:]))
    heights = heights * (before if share is None else share)
    found = Near(*(part.transpose(0, 1) for part in found))
    bar = rule.bar(heights, uniforms[:, :count], share, q, found, left)
    mass = found.mass[..., 0]
    stands = rule.counts(mass, found.moved, depth)
    mass = mass if left is p else p.gather(1, x)
    # strictly below: a token of mass 0 is not accepted even at u = 0
    accepted = tried & ((bar < stands) | (after <= 0))
    relaxed = torch.ge(heights, mass, out=torch.empty_like(x)) if rule.relaxes else None
    return Verdict(_first(accepted), left, mass, stands, bar, before, accepted, relaxed)


def _in_turn(rule: Rule, p: Tensor, x: Tensor, tried: Tensor | None, neighbours: Tensor | None) -> tuple[Near, list[Near]]:
    """Room for near(x) of tokens x [P, C], which is found out child by child: [C, P, ...] as a whole, and by child. tried [P, C] bool: of
    the others even x itself stays in p. None: what becomes of x itself is not asked for."""
    ids = rule.candidates(x, neighbours, p).transpose(0, 1)
    mass, stays = p.new_empty(2, *ids.shape)
    found = Near(ids, mass, stays, torch.empty_like(mass[..., 1:]))
    if tried is not None:
        torch.logical_not(tried.t(), out=stays[..., 0])
    return found, [Near(*parts) for parts in zip(*(part.unbind() for part in found), strict=True)]


def decide_shared(
    rule: Rule, p: Tensor | None, tokens: Tensor, own: Tensor, neighbours: Tensor | None
) -> tuple[Tensor, Near | None]:
    """Accept the first of the children tokens [P, C] of P nodes, -1 for none, near which the target's own draw own [P] lies: its draw
    number [P] int64, C for none, and what lies near the children [P, C, 1 + k], None for an exact rule. p [P, V] are the target's laws,
    which only the relaxed rules need to know. Of a token that lies near several the first one decides: it has left p with that."""
    own = own.unsqueeze(1)
    near = None if p is None else rule.stand_in(p, tokens, own, neighbours)
    if near is None:
        return _first(tokens == own), None
    return _first(((near.ids == own.unsqueeze(1)) & (near.stays == 0)).any(-1)), near


def decide_greedy(rule: Rule, p: Tensor, tokens: Tensor, neighbours: Tensor | None) -> Verdict:
    """Greedy acceptance of the children of P nodes, each judged by itself: p [P, V] plain softmax of the guided logits, tokens [P, C],
    -1 for none. Exact: x is the argmax. Relaxed: x is the argmax once its mass is p(x) + S and the others keep theirs; of equals the
    first token wins, as in `argmax`."""
    rule = rule.greedy
    top, best = p.max(-1, keepdim=True)
    best = best.masked_fill(top.isnan(), -2)  # no token
    x = tokens.clamp(min=0)
    near = rule.near(p, rule.candidates(x, neighbours, p))
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
