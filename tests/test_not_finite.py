"""Steps of every size end with one sentence where numbers that count are not finite."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from runs import OF_EACH_KIND, decode
from small_models import STATIC, of_llamagen, settings
from torch import Tensor

from lantern_demo.decoding import graphs
from lantern_demo.decoding.drafting import DynamicTree, StaticTree
from lantern_demo.decoding.interfaces import Pass
from lantern_demo.decoding.sampling import NO_DRAFT_PROBS, NO_PROBS, Sampling

Spoil = Callable[[Tensor], Tensor]


def every(value: float) -> Spoil:
    return lambda numbers: torch.full_like(numbers, value)


def filled(dim: int, at: int, value: float) -> Spoil:
    """A value at one place of a dimension."""
    return lambda numbers: numbers.index_fill(dim, torch.tensor([at]), value)


class Spoilt:
    """A target or a drafter of which some numbers are spoilt; the rest is its own."""

    def __init__(self, own: Any, spoil: Spoil, after: int, above: int = 0) -> None:
        self.own, self.spoil, self.after, self.above = own, spoil, after, above
        self.passes = self.level = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


class SpoiltTarget(Spoilt):
    """The logits of the tree are spoilt from its `after`-th forward on."""

    next = False

    def forward(self, *args: Any) -> Tensor:
        self.passes += 1
        self.next = self.passes >= self.after
        return self.own.forward(*args)

    def head(self, hidden: Tensor) -> Tensor:
        spoilt, self.next = self.next, False
        logits = self.own.head(hidden)
        return self.spoil(logits) if spoilt else logits


class SpoiltDrafter(Spoilt):
    """The outputs below the `above` top levels are spoilt from the `after`-th tree on."""

    def forward(self, nodes: Pass, *args: Any) -> Tensor:
        self.level = 0 if nodes.positions is nodes.slots else self.level + 1
        self.passes += self.level == 0  # a stable pass
        output = self.own.forward(nodes, *args)
        spoilt = self.passes >= self.after and self.level >= self.above
        return self.spoil(output) if spoilt else output


def runs(method: str, target: Any = None, drafter: Any = None, **changes: Any) -> list[Any]:
    """The tokens of steps of exact and of padded sizes, and what these say at the end."""
    knobs = {"num_tokens": 16, "seed": 5, "sampling": Sampling(cfg_scale=2.0)}
    knobs |= settings(method) | changes
    of, found = of_llamagen(guidance=knobs["sampling"].cfg_scale), []
    for padded in (False, True):
        one = of.target if target is None else SpoiltTarget(of.target, *target)
        two = of.drafter if drafter is None else SpoiltDrafter(of.drafter, *drafter)
        steps, said = list[Any](), ""
        try:
            for event in decode(one, two, of.condition, padded=padded, **knobs):
                steps.append((event.tokens, getattr(event, "tree_tokens", None)))
        except FloatingPointError as error:
            said = str(error)
        found.append((steps, said))
    return found


SAMPLINGS = {
    "guided": Sampling(cfg_scale=2.0),
    "greedy": Sampling(0, cfg_scale=2.0),
    "top-k": Sampling(0.7, 20),
    "top-p": Sampling(1.0, 0, 0.9),
}
# Filters are the target's, whatever drafts.
SPOILT = [(method, name) for method in OF_EACH_KIND for name in ("guided", "greedy")]
SPOILT += [("lantern++", "top-k"), ("lantern++", "top-p")]


@pytest.mark.parametrize(("method", "name"), SPOILT)
def test_whatever_comes_between_logits_and_distribution(method: str, name: str) -> None:
    """At the first step, and mid run. A target that spoils nothing runs to the end."""
    sampling = SAMPLINGS[name]
    cases = [(filled(-1, 7, torch.nan), 3), (filled(-1, 7, torch.inf), 1)]
    cases += [(every(torch.nan), 1), (every(-torch.inf), 1)]
    for noise, (number, case) in product(("independent", "shared"), enumerate(cases)):
        plain, fixed = runs(method, case, sampling=sampling, noise=noise)
        assert plain == fixed and fixed[1] == NO_PROBS and len(fixed[0]) == case[1], number
    plain, fixed = runs(method, (lambda x: x, 1), (lambda x: x, 1), sampling=sampling)
    assert plain == fixed and fixed[1] == ""


# Of outputs [R, m, H]: in one row with guidance or without, at one token, of which a step of fixed
# shape reads more than it has, and in one entry.
SPOILS = every(torch.nan), filled(0, 1, torch.nan), filled(1, -1, torch.nan)
SPOILS += filled(2, 3, -torch.inf), filled(1, -1, torch.inf)
HOW: list[dict[str, Any]] = [{"noise": noise} for noise in ("independent", "shared")]
HOW += [{"noise": "shared", "sampling": Sampling(1.0, 3, 0.9, 2.0)}]
HOW += [{"sampling": Sampling(0.0, cfg_scale=2.0)}]  # the target alone decides
TREES = [("eagle1", StaticTree(STATIC)), ("eagle1", StaticTree([(0,)]))]
TREES += [("lantern++", StaticTree([(0,), (1,), (1, 0), (1, 0, 0)][:count])) for count in (3, 4)]
TREES += [("eagle2", DynamicTree(3, 0, 3)), ("lantern", DynamicTree(2, 1, 4))]
TREES += [("lantern", DynamicTree(3, 2, 9))]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("method", "drafts"), TREES)
def test_a_drafter_that_fails_is_named(method: str, drafts: Any, how: dict[str, Any]) -> None:
    """At the first draft and at a later one, at every level, by one number or all."""
    cases = [(every(torch.nan), 1, 0), *((spoil, 2, 0) for spoil in SPOILS)]
    cases += [(every(torch.nan), 2, above) for above in range(1, drafts.deepest)]
    for number, case in enumerate(cases):
        for steps, said in runs(method, drafter=case, drafts=drafts, **how):
            assert said == NO_DRAFT_PROBS and len(steps) == case[1], number


@pytest.mark.parametrize("method", OF_EACH_KIND)
def test_steps_in_flight_change_nothing(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = property(lambda runner: 1 if runner.steps.exact else 4)
    monkeypatch.setattr(graphs.Runner, "ahead", ahead)
    cases = (None, 16, ""), (None, 3, ""), ((every(torch.nan), 2), 16, NO_PROBS)
    for target, count, said in cases:
        plain, fixed = runs(method, target, num_tokens=count)
        assert plain == fixed and fixed[1] == said
