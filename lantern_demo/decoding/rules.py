"""Acceptance rules: what counts for a draft, and what a rejected one leaves of the target's probabilities. Here are the exact
rule and LANTERN's. `deciding` runs them for both engines, and `bench.tvd` measures the very same.

    near(x)  = x with the tokens that stand for it beside itself, whose mass is S; by the exact rule there are none
    accept x with probability min(1, (p(x) + S) / q(x)); q(x) = 1 where the prefix fixes the children
    else     p <- norm([p without near(x), minus q]+), q <- norm(q without x), next sibling

With shared noise (see `shared`) the target's own draw y decides instead. Of a relaxed rule it does so where the prefix fixes the
children, since there the distribution stays the rule's own:

    accept x when y lies in near(x); else near(x) leaves p, next sibling

With S = 0 this is lossless speculative sampling from several drafts (Leviathan et al. 2023, EAGLE): the distribution of every
token is p. A rule is a class that says where it differs from this one.

All functions work on P nodes at once and never read a value back to the host. Distributions [P, V] need not be normalised: their
sums are kept beside them. On a GPU a step is as long as its list of kernels, so that what is left of p is worked on in place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor


class Near(NamedTuple):
    """Tokens x, each with k others that may stand for it. For one token a node, or, with a dimension more behind or before P, for
    several."""

    ids: Tensor  # [P, 1 + k] int64, x first
    mass: Tensor  # [P, 1 + k] p of them
    kept_mask: Tensor  # [P, 1 + k] 0 for what is in near(x) and for x itself, so that it leaves p with x, else 1
    summed: Tensor  # [P, k], running sums of the others' mass, as far as it counts

    @property
    def near_mass(self) -> Tensor | None:
        """S [P], the last of the sums inside near(x); None where no others may count."""
        if not self.summed.shape[-1]:
            return None
        return self.summed.addcmul(self.summed, self.kept_mask[..., 1:], value=-1.0).amax(-1)

    @staticmethod
    def room(ids: Tensor, p: Tensor, tried: Tensor | None) -> tuple[Near, list[Near]]:
        """Room for near(x) of tokens ids [P, C, 1 + k], which is found out child by child: [C, P, ...] as a whole, and by child.
        tried [P, C] bool: of the others even x itself stays in p. None: what becomes of x itself is not asked for."""
        ids = ids.transpose(0, 1)
        mass, kept_mask = p.new_empty(2, *ids.shape)
        near = Near(ids, mass, kept_mask, torch.empty_like(mass[..., 1:]))
        if tried is not None:
            torch.logical_not(tried.t(), out=kept_mask[..., 0])
        return near, [Near(*parts) for parts in zip(*(part.unbind() for part in near), strict=True)]

    def by_node(self) -> Near:
        """What has room for its children first, with its nodes first: [P, C, ...]."""
        return Near(*(part.transpose(0, 1) for part in self))


@dataclass(frozen=True)
class Children:
    """C children of each of P nodes, and all that rules may ask about them but p."""

    tokens: Tensor  # [P, C] int64, what was drawn at each node in draw order, -1 for nothing
    # [P, V], the distributions they were drawn from without replacement; None where the prefix fixes the children
    q: Tensor | None = None
    neighbours: Tensor | None = None  # [V, >= k] int32 or int64, each token's nearest others
    depth: Tensor | float = 0.0  # [P, 1] of the nodes, or of all of them
    offered: Tensor | None = None  # [P, C] bool, which draws are nodes of the tree; the others only leave q. None: all
    # [P, C], what q had left before each draw: below `sampling.NOTHING` nothing was drawn, and `tokens` has any token. None:
    # worked out
    rest: Tensor | None = None


class Verdict(NamedTuple):
    """What was decided at P nodes of C children, and what each child was judged by, as if all before it were rejected."""

    rank: Tensor  # [P] int64, draw number of the accepted child, C for none
    residual: Tensor  # [P, V] distribution of the bonus token where none was accepted, not normalised
    mass: Tensor  # [P, C] p of the child, without what rejected siblings took along
    counted: Tensor  # [P, C] what the rule counted for it
    threshold: Tensor  # [P, C] what that had to exceed: the uniform times the drafter's probability; greedy the highest one
    total: Tensor  # [P, C] what these three are parts of
    accepted: Tensor  # [P, C] bool
    # [P, C], of the first accepted child: 1 or true where the exact rule would refuse it; None: it never does
    relaxed: Tensor | None


class Explained(NamedTuple):
    """What a rule says to people of the drafts that it tried; as it stands here, what is true of any. In `counts`, labels and
    values beside the target's probability, {counted} stands for what the rule counted and {extra} for what is over in that."""

    heading: str = "a guess that only a looser rule accepts"  # over a draft that the exact rule would have refused
    because: str = "The method's looser rule accepted it."
    only: str = "by the looser rule"
    bar: str = "The dark part of the bar is the model's probability of the guess, the striped one what the method adds."
    counts: tuple[tuple[str, str], ...] = (("the method counts", "{counted}"),)
    note: str = ""  # behind what is said of the bar


@dataclass(frozen=True)
class Rule:
    """The exact rule, of which all others are kinds. Raises ValueError for values out of range."""

    name: ClassVar[str] = "exact"
    # Whether a draft stands for a set of tokens, and a rejection takes that set out of p and nothing else. The target's own draw
    # can then decide on children that the prefix fixes; where nothing is relaxed it always can.
    shares: ClassVar[bool] = False
    # Whether what its residual takes away hangs on all that q has, so that a rejected token must leave q at once.
    thins: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raises ValueError for fields of its own that are out of range."""

    @property
    def relaxes(self) -> bool:
        """Whether it may accept what the exact rule would not."""
        return False

    @property
    def table_columns(self) -> int:
        """How many columns of the neighbour table it reads, where the table has them."""
        return 0

    @property
    def slack(self) -> float:
        """How much mass may count, as a share: see `limit`."""
        return 0.0

    @property
    def greedy(self) -> Rule:
        """The rule by which greedy drafts are accepted: the exact one, unless this one counts neighbours."""
        return self if self.table_columns else Rule()

    # -- for people

    def explain(self) -> Explained:
        """Why it keeps what it keeps."""
        return Explained(bar="The bar is the model's chance of the guess.", counts=()) if type(self) is Rule else Explained()

    # -- what counts

    def target(self, p: Tensor, q: Tensor | None) -> Tensor:
        """The probabilities [..., V] that drafts are held against, of the target's probabilities p and the probabilities q that
        they were drawn from; p itself but for rules that mix them."""
        return p

    def candidates(self, x: Tensor, neighbours: Tensor | None) -> Tensor:
        """Tokens x [P, m], each with the tokens behind it that may count: [P, m, 1 + k] int64. Raises ValueError where a table is
        needed and missing."""
        return x.unsqueeze(-1)

    def near(self, p: Tensor, x: Tensor, neighbours: Tensor | None) -> Near:
        """near(x) under p [P, V] that sum to 1, of one token a node, x [P], or of several, x [P, m]."""
        ids = self.candidates(x, neighbours) if x.dim() == 2 else self.candidates(x.unsqueeze(1), neighbours)[:, 0]
        mass = p.gather(1, ids.flatten(1)).view(ids.shape)
        near = Near(ids, mass, torch.zeros_like(mass), torch.empty_like(mass[..., 1:]))
        if ids.shape[-1] > 1:
            self.limit(near, 1.0, self.slack)
        return near

    def fill(self, room: Near, p: Tensor, total: Tensor | float, slack: Tensor | float) -> None:
        """Write near(x) under p [P, V] of sums total [P, 1] into its room, whose `kept_mask` of x itself is said already. slack
        [P, 1]: the rule's, or 0 for tokens that are not tried, near which nothing that has mass is then."""
        torch.gather(p, 1, room.ids, out=room.mass)
        if room.ids.shape[-1] > 1:
            self.limit(room, total, slack)

    def limit(self, near: Near, total: Tensor | float, slack: Tensor | float) -> None:
        """Write into `kept_mask` and `summed` which of the others count; as in `fill`."""

    def counts(self, mass: Tensor, near_mass: Tensor | None, depth: Tensor | float = 0.0) -> Tensor:
        """What is counted for tokens of mass [P, m] in p whose neighbours have near_mass [P, m], None for 0; their parents lie at
        depth [P, 1]."""
        return mass if near_mass is None else mass + near_mass

    # -- what that has to exceed

    def least(self, p: Tensor) -> Tensor | None:
        """What has to be exceeded by what is counted for any child under p [..., V], whatever it was drawn from: [..., 1]. None:
        the uniform times the drafter's probability."""
        return None

    # -- what a rejection leaves

    def reject(self, residual: Tensor, near: Near, share: Tensor | None, children: Children) -> None:
        """Make residual [P, V], the probabilities p so far, what is left of it once the token that near is about was tried and
        rejected, in place. share [P, 1] times q is the distribution of the draw scaled to p's sum, and 0 where nothing was tried;
        None for children fixed by the prefix."""
        if children.q is None or share is None:
            residual.scatter_reduce_(1, near.ids, near.kept_mask, "prod")
            return
        if self.table_columns:
            residual.scatter_reduce_(1, near.ids[:, 1:], near.kept_mask[:, 1:], "prod")
        # nothing of x itself is left, since it had less of p than of q
        residual.addcmul_(children.q, share, value=-1.0).clamp_(min=0.0)


@dataclass(frozen=True)
class Lantern(Rule):
    """LANTERN (arXiv 2410.03355): near(x) has the longest prefix of x's first k codebook neighbours whose mass sums to at most
    the bound."""

    k: int = 0  # neighbours that may count
    bound: float = 0.0  # delta, 0 to 1

    name: ClassVar[str] = "additive"
    shares: ClassVar[bool] = True

    def check(self) -> None:
        if not isinstance(self.k, int) or self.k < 0:
            raise ValueError(f"rule k is {self.k}; it must be a whole number, 0 or more")
        self.check_bound()

    def check_bound(self) -> None:
        """Raises ValueError for a bound out of range."""
        check_share("delta", self.bound)

    @property
    def relaxes(self) -> bool:
        return self.k > 0 and self.slack > 0

    @property
    def table_columns(self) -> int:
        return self.k if self.relaxes else 0

    @property
    def slack(self) -> float:
        return self.bound

    def explain(self) -> Explained:
        return Explained(
            "a near miss that was accepted",
            "Its neighbours in the codebook lent it their probability, and with that it was accepted.",
            "because its neighbours count with it",
            "The dark part of the bar is the model's probability of the guess, the striped one what its neighbours lend.",
            (("its neighbours lend", "{extra}"), ("they may lend at most", self.most())),
        )

    def most(self) -> str:
        """The bound, for people."""
        return f"{self.bound:g} (delta)"

    def whole(self, near: Near, total: Tensor | float) -> Tensor | float:
        """What the slack is a share of: here of all mass."""
        return total

    def candidates(self, x: Tensor, neighbours: Tensor | None) -> Tensor:
        if not self.relaxes:
            return x.unsqueeze(-1)
        if neighbours is None:
            raise ValueError(f"neighbours is None; the {self.name} rule with k = {self.k} needs a neighbour table")
        return torch.cat([x.unsqueeze(-1), neighbours[:, : self.k][x].long()], -1)

    def limit(self, near: Near, total: Tensor | float, slack: Tensor | float) -> None:
        torch.cumsum(near.mass[..., 1:], -1, out=near.summed)
        torch.gt(near.summed, self.whole(near, total) * slack, out=near.kept_mask[..., 1:])


@dataclass(frozen=True)
class LanternPlusPlus(Lantern):
    """LANTERN++ (arXiv 2502.06352): as LANTERN, but the neighbours' mass is at most (bound - 1) p(x)."""

    bound: float = 1.0  # lambda, 1 or more

    name: ClassVar[str] = "multiplicative"

    def check_bound(self) -> None:
        if not (self.bound >= 1 and math.isfinite(self.bound)):
            raise ValueError(f"lambda is {self.bound}; it must be a finite number, 1 or more")

    @property
    def slack(self) -> float:
        return self.bound - 1

    def most(self) -> str:
        return f"{self.slack:g} times its own probability (lambda \u2212 1)"

    def whole(self, near: Near, total: Tensor | float) -> Tensor:
        return near.mass[..., :1]


def check_share(name: str, value: float) -> None:
    """Raises ValueError for a value that is not between 0 and 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}; it must be between 0 and 1")
