"""Three acceptance rules from outside the package: a rule is a class, and a method is a row of
drafts and a rule.

Run `python examples/more_rules.py` to race them against vanilla on the bundled model. `register`
adds them to one process, under their ids in `Pipeline.generate` and `Pipeline.compare`. A program
that shows the page registers before it builds the page. Parameters are the fields of the rules. All
three need random numbers independent of vanilla's, since they weigh p against q or mix them: no set
of tokens stands for a guess.

Measured while the package had them: bundled model, 12 prompts, one thread of an AMD EPYC, PyTorch
2.13, float32, fitted trees, 2026-11-24. The speedup is the median over vanilla in the same rounds
with its 95 % interval. TVD is the mean total variation distance of a token's distribution from the
model's own. Typical and Ensemble shared their noise with vanilla in that run, through a variant of
their rules that was removed.

    COOL-SD, delta 2        2.35 tokens a step    1.22x (1.08 to 1.27)    TVD 0.06
    Typical, epsilon 0.09   3.15 tokens a step    1.27x (1.17 to 1.32)    TVD 0.12
    Ensemble, weight 0.7    2.20 tokens a step    1.16x (1.09 to 1.23)    TVD 0.08
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from lantern_demo import Method, Result, load, register
from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.rules import Members, Rule


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

    H is the entropy of p in nats. A rejection leaves p unchanged."""

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
)


def main() -> None:
    for method in MORE:
        register(method)
    pipe = load("lantern-scenes")
    methods = ["vanilla", *(method.id for method in MORE)]
    raced = pipe.compare("three red round lanterns over a lake at dusk", methods, tree="small")
    done = {name: event for name, event in raced if isinstance(event, Result)}
    for name, stats in done.items():
        speedup = done["vanilla"].decode_seconds / stats.decode_seconds
        print(f"{name:10} {stats.mean_accepted_length:.2f} tokens a step  {speedup:.2f}x")


if __name__ == "__main__":
    main()
