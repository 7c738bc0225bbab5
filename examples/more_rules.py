"""Five acceptance rules from outside the package: a rule is a class, and a method is a row of
drafts and a rule.

Run `python examples/more_rules.py` to race them against vanilla on the bundled model. Its options
are those of `python -m lantern_demo.bench speed`, such as `--prompts 12`. `register` adds them to
one process, under their ids in `Pipeline.generate` and `Pipeline.compare`. A program that shows the
page registers before it builds one. Parameters are the fields of the rules.

All five are lossy, and docs/methods.md has their speedups and look-alikes. All need random numbers
independent of vanilla's: with shared noise a draft could only equal the target's own draw.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lantern_demo import Method, register
from lantern_demo.bench import __main__ as bench
from lantern_demo.decoding.drafting import DynamicTree, StaticTree
from lantern_demo.decoding.rules import Members, Rule, mass_of
from lantern_demo.shutdown import stoppable


@dataclass(frozen=True)
class Weighted(Rule):
    """COOL-SD (arXiv 2601.09212).

    At depth i it accepts x with probability min(1, w p(x) / q(x)), w = delta exp(-0.7 i - mu).

    After a rejection p <- norm([p - min(q, w p)]+). The paper specifies neither the first i, here
    0, nor mu. Weights of at most 1 leave the distribution unchanged.
    """

    delta: float = 2.0
    mu: float = 0.0

    def __post_init__(self) -> None:
        if not (self.delta > 0 and math.isfinite(self.delta) and math.isfinite(self.mu)):
            raise ValueError(
                f"delta is {self.delta} and mu {self.mu}; they must be finite numbers, delta above "
                "0"
            )

    @property
    def relaxes(self) -> bool:
        return True

    def weight(self, depth: Tensor | float) -> Tensor:
        """Return w [P, 1] of drafts whose parents have depth [P, 1], or all the same."""
        return self.delta * torch.exp(-0.7 * torch.as_tensor(depth) - self.mu)

    def score(self, members: Members, depth: Tensor | float) -> Tensor:
        return self.weight(depth) * members.mass[..., 0]

    def reject(
        self, p: Tensor, q: Tensor | None, members: Members, depth: Tensor | float
    ) -> Tensor:
        if q is None:  # drafts that the prefix fixes: all of q is at x
            q = torch.zeros_like(p).scatter(1, members.ids[:, 0], members.member[:, 0].float())
        return (p - torch.minimum(q, self.weight(depth) * p)).clamp(min=0.0)


@dataclass(frozen=True)
class Typical(Rule):
    """Medusa's typical acceptance (arXiv 2401.10774): accept a draft if p(x) > min(e, sqrt(e)
    exp(-H)), independent of q.

    H is the entropy of p in nats. A rejection leaves p unchanged. Medusa keeps the longest accepted
    path and draws its first token greedily. Here the first accepted child counts, as in all rules,
    and the token after a rejection is drawn from p."""

    epsilon: float = 0.09

    def __post_init__(self) -> None:
        check_share("epsilon", self.epsilon)

    @property
    def relaxes(self) -> bool:
        return True

    def threshold(self, u: Tensor, q: Tensor | None, p: Tensor) -> Tensor:
        bound = math.sqrt(self.epsilon) * torch.special.entr(p).sum(-1, keepdim=True).neg().exp()
        return bound.clamp(max=self.epsilon)

    def reject(
        self, p: Tensor, q: Tensor | None, members: Members, depth: Tensor | float
    ) -> Tensor:
        return p


@dataclass(frozen=True)
class Ensemble(Rule):
    """A mixture with the drafter (DIVERSED, arXiv 2604.07622; `assistant_ensemble_weight` of
    transformers).

    It is the exact rule with v = w p + (1 - w) q instead of p. Without a draft v is p."""

    weight: float = 0.7

    def __post_init__(self) -> None:
        check_share("weight", self.weight)

    @property
    def relaxes(self) -> bool:
        return self.weight < 1

    def target(self, p: Tensor, q: Tensor | None) -> Tensor:
        return p if q is None or not self.relaxes else torch.lerp(q, p, self.weight)


@dataclass(frozen=True)
class Entropy(Rule):
    """The acceptance of ARsample (arXiv 2510.09012): it forgives more, the surer the model is.

    It accepts x with probability min(1, p(x) / (w q(x))), w = H / ln V + floor, at most 1; H is the
    entropy of p in nats, V the number of tokens. The residual is the exact rule's. The released
    code has H / 9 + 0.05 for Lumina-mGPT, whose 8,192 tokens have ln V = 9. For LlamaGen its last
    word is w = 0.5. Its temperature by entropy is left out: a rule gets p after the temperature.
    """

    floor: float = 0.05

    def __post_init__(self) -> None:
        check_share("floor", self.floor)

    @property
    def relaxes(self) -> bool:
        return self.floor < 1

    def threshold(self, u: Tensor, q: Tensor | None, p: Tensor) -> Tensor:
        share = torch.special.entr(p).sum(-1, keepdim=True) / math.log(p.shape[-1])
        return super().threshold(u, q, p) * (share + self.floor).clamp(max=1.0)


@dataclass(frozen=True)
class Grouped(Rule):
    """GSD (arXiv 2508.07747): accept x if the cluster of x is likely enough.

    The cluster is x and those of its k nearest in the codebook that are about as likely: at most
    `ranks` ranks away in the order of p, with a p that differs by less than `gap`. The released
    code has 7 ranks below and 6 above, and a distance of the target's embeddings instead of k.

    GSD accepts x with probability min(1, p(cluster) / q(cluster)). A rule gets q(x) alone, which is
    q(cluster) where the prefix fixes the drafts: so the tree is dynamic. GSD drafts as `sjd` does.
    After a rejection only x leaves p, as in the exact rule."""

    k: int = 100
    ranks: int = 7
    gap: float = 0.15

    @property
    def relaxes(self) -> bool:
        return min(self.k, self.ranks, self.gap) > 0

    def members(self, p: Tensor, ids: Tensor, drafted: Tensor) -> Members:
        mass, rank = mass_of(p, ids), mass_of(p.argsort(-1).argsort(-1), ids)
        near = ((rank - rank[..., :1]).abs() <= self.ranks) & (
            (mass - mass[..., :1]).abs() < self.gap
        )
        return Members(ids, mass, near & drafted.unsqueeze(-1))

    def score(self, members: Members, depth: Tensor | float) -> Tensor:
        return (members.mass * members.member).sum(-1)

    def reject(
        self, p: Tensor, q: Tensor | None, members: Members, depth: Tensor | float
    ) -> Tensor:
        return super().reject(p, q, Members(*(part[..., :1] for part in members)), depth)


def check_share(name: str, value: float) -> None:
    """Raise ValueError for a value that is not between 0 and 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}; it must be between 0 and 1")


MORE = (
    Method(
        "cool-sd",
        "COOL-SD",
        StaticTree,
        Weighted(),
        False,
        "A guess counts for more, the less the deeper it lies.",
        False,
    ),
    Method(
        "typical",
        "Typical",
        StaticTree,
        Typical(),
        False,
        "A guess is kept that is likely enough for its place.",
        False,
    ),
    Method(
        "ensemble",
        "Ensemble",
        StaticTree,
        Ensemble(),
        False,
        "Exact against the model mixed with the drafter.",
        False,
    ),
    Method(
        "entropy",
        "Entropy",
        StaticTree,
        Entropy(),
        False,
        "A guess counts for more, the surer the model is of the place.",
        False,
    ),
    Method(
        "gsd",
        "GSD",
        DynamicTree,
        Grouped(),
        False,
        "The probability of look-alikes that are about as likely as a guess counts too.",
        False,
    ),
)


def main(argv: Sequence[str]) -> None:
    """Race them as `python -m lantern_demo.bench speed` does, with that command's options."""
    for method in MORE:
        register(method)
    bench.main(["speed", "--methods", "vanilla", *(method.id for method in MORE), *argv])


if __name__ == "__main__":
    with stoppable():
        main(sys.argv[1:])
