"""Acceptance rules: the decision whether a draft is accepted, and the distribution after a
rejection. `reference` has the same for one node and one token at a time in plain Python; read it
first.

    near(x)  = x and the tokens that stand for it, which have probability S in all;
               with the exact rule S = 0.
    accept x with probability min(1, (p(x) + S) / q(x));
               q(x) = 1 where the prefix fixes the children.
    else     p <- norm([p without near(x), minus q]+), q <- norm(q without x), next sibling.

With S = 0 this is lossless speculative sampling from several drafts (Leviathan et al. 2023; EAGLE,
Li et al. 2024): every token follows p. A rule is a class that overrides the methods in which it
differs; `examples/more_rules.py` has more.

`verify` runs the rules at P nodes with C drafts each, and never reads a value back to the host. p
and q [P, V] float32 are the target's and the drafter's distributions, and sum to 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor


class Members(NamedTuple):
    """The sets near(x) of drafts x [P, C]."""

    ids: Tensor  # [P, C, 1 + k] int64, x first, then its k nearest neighbours
    mass: Tensor  # [P, C, 1 + k] float32, their p
    member: Tensor  # [P, C, 1 + k] bool, which ids are in near(x); no id if there is no draft


@dataclass(frozen=True)
class Rule:
    """The exact rule, and the base class of all others."""

    # neighbours that may stand for a draft; if any, a rejection removes only near(x)
    k: ClassVar[int] = 0

    @property
    def relaxes(self) -> bool:
        """Whether it may accept drafts that the exact rule refuses."""
        return False

    def target(self, p: Tensor, q: Tensor | None) -> Tensor:
        """Return the distributions [P, V] that drafts are compared with, from p and from the q that
        the drafts were drawn from (None: the prefix fixes the drafts)."""
        return p

    def members(self, p: Tensor, ids: Tensor, drafted: Tensor) -> Members:
        """Return near(x) under p of drafts with neighbours, ids [P, C, 1 + k]; drafted [P, C] bool
        marks the drafts."""
        return Members(ids, mass_of(p, ids), drafted.unsqueeze(-1))

    def score(self, members: Members, depth: Tensor | float) -> Tensor:
        """Return the score of each draft, [P, C]; depth [P, 1] is that of the nodes, one above
        their drafts."""
        return members.mass[..., 0]

    def threshold(self, u: Tensor, q: Tensor | None, p: Tensor) -> Tensor:
        """Return the threshold that a score must exceed, [P, C] or [P, 1], from uniforms u [P, C]
        and the drafts' probabilities q [P, C] (None: the prefix fixes them); p comes from
        `target`."""
        return u if q is None else u * q

    def reject(
        self, p: Tensor, q: Tensor | None, members: Members, depth: Tensor | float
    ) -> Tensor:
        """Return the residual of p after the rejection of one draft per node (C = 1), [P, V], at
        least 0, not normalised. q is the draft's distribution, all 0 without a draft."""
        # p(x) < q(x) for a rejected x, so that x is removed too
        return without(p, members) if q is None else (p - q).clamp_(min=0.0)


@dataclass(frozen=True)
class Lantern(Rule):
    """LANTERN (arXiv 2410.03355): near(x) is x and the longest prefix of its first k codebook
    neighbours whose probabilities sum to at most delta. Raises ValueError for values out of
    range."""

    k: int = 0  # type: ignore[misc]  # the base class has a constant
    bound: float = 0.0  # delta, 0 to 1

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or self.k < 0:
            raise ValueError(f"rule k is {self.k}; it must be a whole number, 0 or more")
        self.check_bound()

    def check_bound(self) -> None:
        """Raise ValueError for a bound out of range."""
        if not 0 <= self.bound <= 1:
            raise ValueError(f"delta is {self.bound}; it must be between 0 and 1")

    @property
    def relaxes(self) -> bool:
        return self.k > 0 and self.bound > 0

    def budget(self, mass: Tensor) -> Tensor | float:
        """Return the highest probability that neighbours may add, from the drafts' own: `mass` [P,
        C, 1]."""
        return self.bound

    def members(self, p: Tensor, ids: Tensor, drafted: Tensor) -> Members:
        mass, drafted = mass_of(p, ids), drafted.unsqueeze(-1)
        inside = mass[..., 1:].cumsum(-1) <= self.budget(mass[..., :1])
        return Members(ids, mass, torch.cat([drafted, inside & drafted], -1))

    def score(self, members: Members, depth: Tensor | float) -> Tensor:
        return (members.mass * members.member).sum(-1)

    def reject(
        self, p: Tensor, q: Tensor | None, members: Members, depth: Tensor | float
    ) -> Tensor:
        left = without(p, members)
        return left if q is None else super().reject(left, q, members, depth)


@dataclass(frozen=True)
class LanternPlusPlus(Lantern):
    """LANTERN++ (arXiv 2502.06352): as LANTERN, but the neighbours' probability is at most (lambda
    - 1) p(x)."""

    bound: float = 1.0  # lambda, 1 or more

    def check_bound(self) -> None:
        if not (self.bound >= 1 and math.isfinite(self.bound)):
            raise ValueError(f"lambda is {self.bound}; it must be a finite number, 1 or more")

    @property
    def relaxes(self) -> bool:
        return self.k > 0 and self.bound > 1

    def budget(self, mass: Tensor) -> Tensor | float:
        return mass * (self.bound - 1)


def columns(rule: Rule) -> int:
    """Return how many columns of the neighbour table a rule reads."""
    return rule.k if rule.relaxes else 0


def with_neighbours(rule: Rule, x: Tensor, neighbours: Tensor | None) -> Tensor:
    """Return tokens x [P, C] int64 with the neighbours that may stand for them under a rule, [P, C,
    1 + k]; neighbours [V, >= k], or None where the rule reads none."""
    k = columns(rule)
    if not k:
        return x.unsqueeze(-1)
    assert neighbours is not None
    return torch.cat([x.unsqueeze(-1), neighbours[:, :k][x].long()], -1)


def mass_of(p: Tensor, ids: Tensor) -> Tensor:
    """Return p [P, V] of ids [P, ...]."""
    return p.gather(1, ids.flatten(1)).view(ids.shape)


def without(p: Tensor, members: Members) -> Tensor:
    """Return p [P, V] without the members of one draft per node."""
    return p.scatter(
        1, members.ids[:, 0], members.mass[:, 0].masked_fill(members.member[:, 0], 0.0)
    )
