"""The rules of LANTERN's successors and rivals, which read no table of neighbours: COOL-SD's, GSD's, Medusa's and mixtures with
the drafter. `rules` says what a rule answers; what a class does not say here is as in the exact one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .rules import Children, Explained, Near, Rule, check_share
from .sampling import numbers


@dataclass(frozen=True)
class Weighted(Rule):
    """COOL-SD (arXiv 2601.09212). At depth i it accepts x with probability min(1, w p(x) / q(x)), and else p <- norm([p - min(q,
    w p)]+), where w = bound exp(-0.7 i - mu). The paper does not say whether i begins at 0, as here, or what mu is."""

    bound: float = 1.0  # delta, above 0
    mu: float = 0.0

    name: ClassVar[str] = "weighted"

    def check(self) -> None:
        if not (self.bound > 0 and math.isfinite(self.bound) and math.isfinite(self.mu)):
            raise ValueError(f"delta is {self.bound} and mu {self.mu}; they must be finite numbers, delta above 0")

    @property
    def relaxes(self) -> bool:
        return True

    @property
    def shares(self) -> bool:
        return False

    @property
    def thins(self) -> bool:
        return True

    def explain(self) -> Explained:
        first = self.bound * math.exp(-self.mu)
        return Explained(
            "a guess kept because guesses count for more",
            "This method lets a guess count for more than its chance, and with that it was kept: the piece may not be what the "
            "model would have drawn.",
            "because its chance is weighed up",
            "The dark part of the bar is the model's chance of the guess, the striped one what weighing adds.",
            (("weighed, it counts as", "{counted}"),),
            f" The weight is {first:.3g} for a step's first guess, and about half of that for each one behind it.",
        )

    def weight(self, depth: Tensor | float) -> Tensor:
        """w [P, 1] of drafts whose parents lie at depth [P, 1], or all at one."""
        return self.bound * torch.exp(-0.7 * torch.as_tensor(depth) - self.mu)

    def counts(self, mass: Tensor, near_mass: Tensor | None, depth: Tensor | float = 0.0) -> Tensor:
        return self.weight(depth) * mass

    def reject(self, residual: Tensor, near: Near, share: Tensor | None, children: Children) -> None:
        q = children.q
        if q is None or share is None:
            q = torch.zeros_like(residual).scatter_(1, near.ids[:, :1], 1.0)
            share = (1.0 - near.kept_mask[:, :1]) * residual.sum(-1, keepdim=True)
        residual.sub_(torch.minimum(q * share, self.weight(children.depth) * residual)).clamp_(min=0.0)


@dataclass(frozen=True)
class Grouped(Rule):
    """GSD (arXiv 2508.07747): near(x) are up to 13 tokens next to x when all are sorted by p, those of them whose mass differs
    from x's by less than the bound. x is accepted with probability min(1, p(near(x)) / q(near(x))), x counted, and else p <-
    norm([p - q]+). The release asks besides that the tokens' embeddings lie close, which is left out here."""

    bound: float = 0.0  # delta, 0 to 1

    name: ClassVar[str] = "grouped"
    reach: ClassVar[int] = 14

    def check(self) -> None:
        check_share("delta", self.bound)

    @property
    def relaxes(self) -> bool:
        return self.bound > 0

    @property
    def shares(self) -> bool:
        return super().shares and not self.relaxes

    def explain(self) -> Explained:
        return Explained(
            "a guess kept with others about as likely",
            "It counted together with pieces that are about as likely, and with these it was kept: the piece may not be what "
            "the model would have drawn.",
            "because pieces about as likely count with it",
            "The dark part of the bar is the model's chance of the guess, the striped one that of pieces about as likely; the "
            "line is for all of them.",
            (
                ("pieces about as likely add", "{extra}"),
                ("whose chances differ from its own by less than", f"{self.bound:g} (delta)"),
            ),
        )

    def needless(self, own: float, limit: float) -> bool:
        return own > limit

    def candidates(self, x: Tensor, neighbours: Tensor | None, p: Tensor) -> Tensor:
        if not self.relaxes:
            return x.unsqueeze(-1)
        order = p.sort(dim=-1, descending=True, stable=True).indices
        ranks = torch.empty_like(order).scatter_(1, order, numbers(p.shape[1], p.device).expand_as(order))
        around = (ranks.gather(1, x).unsqueeze(-1) + numbers(14, p.device) - 7).clamp_(0, p.shape[1] - 1)
        return torch.cat([x.unsqueeze(-1), order.gather(1, around.flatten(1)).view(around.shape)], -1)

    def limit(self, near: Near, total: Tensor | float, slack: Tensor | float) -> None:
        x, others, mass = near.ids[..., :1], near.ids[..., 1:], near.mass[..., 1:]
        # at an end of the order its last token stands for those that are not there: each counts once, and x itself not at all
        other = others.diff(dim=-1, prepend=torch.full_like(x, -1)).ne(0) & (others != x)
        alike = other & ((mass - near.mass[..., :1]).abs() < self.bound * total)
        torch.cumsum(mass * alike, -1, out=near.summed)
        torch.logical_not(alike, out=near.kept_mask[..., 1:])

    def drafted(self, q: Tensor, near: Near) -> Tensor:
        mass = q.gather(1, near.ids.flatten(1)).view(near.ids.shape)
        return mass[..., 0] + (mass[..., 1:] * (1 - near.kept_mask[..., 1:])).sum(-1)

    def bar(self, thresholds: Tensor, u: Tensor, share: Tensor | None, near: Near, p: Tensor, children: Children) -> Tensor:
        return thresholds if children.q is None or share is None else u * share * self.drafted(children.q, near)


@dataclass(frozen=True)
class Typical(Rule):
    """Medusa's typical acceptance (arXiv 2401.10774): a draft is kept where p(x) > min(e, sqrt(e) exp(-H)), H the entropy of p in
    nats and e the bound, whatever it was drawn from; and else p stays as it is. With shared noise the first draft is kept that
    passes so or is what the target itself drew."""

    bound: float = 0.09  # epsilon, 0 to 1

    name: ClassVar[str] = "typical"

    def check(self) -> None:
        check_share("epsilon", self.bound)

    @property
    def relaxes(self) -> bool:
        return True

    def explain(self) -> Explained:
        return Explained(
            "a guess kept because it is likely enough",
            "It was likely enough for how sure the model is here: the piece may not be what the model would have drawn.",
            "because it is likely enough",
            "The bar is the model's chance of the guess; the line is lower where the model is less sure.",
            (),
        )

    def threshold(self, p: Tensor) -> Tensor:
        """What the mass of a draft has to exceed under p [..., V]: [..., 1]."""
        return torch.special.entr(p).sum(-1, keepdim=True).neg_().exp_().mul_(math.sqrt(self.bound)).clamp_(max=self.bound)

    def bar(self, thresholds: Tensor, u: Tensor, share: Tensor | None, near: Near, p: Tensor, children: Children) -> Tensor:
        return self.threshold(p).expand_as(thresholds)

    def reject(self, residual: Tensor, near: Near, share: Tensor | None, children: Children) -> None:
        """Nothing leaves p."""

    def passing(self, p: Tensor) -> Tensor:
        return p > self.threshold(p)

    def stand_in(self, p: Tensor, x: Tensor, own: Tensor, neighbours: Tensor | None) -> Near:
        """Beside itself a draft that passes stands for the target's own draw, whatever that is."""
        ids, tried = torch.stack([x.clamp(min=0), own.expand_as(x)], -1), x >= 0
        mass = p.gather(1, ids[..., 0])
        kept_mask = torch.stack([~tried, ~(tried & (mass > self.threshold(p)))], -1).to(p.dtype)
        return Near(ids, mass.unsqueeze(-1).expand(ids.shape), kept_mask, mass.unsqueeze(-1))


@dataclass(frozen=True)
class Ensemble(Rule):
    """A mixture with the drafter (DIVERSED, arXiv 2604.07622; `assistant_ensemble_weight` of transformers): the exact rule, with
    v = w p + (1 - w) q in place of p, w the bound. With shared noise the token that v and the place's noise give is held against
    the drafts. Where nothing was drafted, and where q is not known, v is p."""

    bound: float = 0.7  # w, 0 to 1

    name: ClassVar[str] = "ensemble"

    def check(self) -> None:
        check_share("weight", self.bound)

    @property
    def relaxes(self) -> bool:
        return self.bound < 1

    @property
    def mixes(self) -> bool:
        return self.relaxes

    def explain(self) -> Explained:
        return Explained(
            "a guess kept by mixed odds",
            "The drafter's odds count too, and with these it was kept: the piece may not be what the model would have drawn.",
            "because the drafter's odds count too",
            counts=(("mixed with the drafter's, it counts as", "{counted}"),),
            note=f" The model's share in the mixture is {self.bound:g}.",
        )

    def target(self, p: Tensor, q: Tensor | None) -> Tensor:
        return p if q is None or not self.relaxes else torch.lerp(q, p, self.bound)
