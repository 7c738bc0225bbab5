"""Rules and a draft source of examples: registered, raced, and held against their formulas."""

import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tables import emitted_at, neighbour_table, orders_of, random_probs
from test_loop import NEIGHBOURS, run
from torch import Tensor

from examples import more_rules as more
from examples.more_methods import OPT_TREE, SHARPNESS, OptTree, OptTreeProposer
from lantern_demo import Method, Pipeline, Result, register
from lantern_demo.decoding.drafting import DraftConfig, RunContext, StaticTree
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.rules import LanternPlusPlus, Rule
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.window import Window

IDS = ("cool-sd", "typical", "ensemble", "entropy", "gsd", OPT_TREE.id)
VOCAB = 8
P, Q = random_probs(1, VOCAB, 3)[0], random_probs(1, VOCAB, 4)[0]
NEAR = neighbour_table(VOCAB)


@pytest.fixture
def registered() -> Iterator[None]:
    for method in (*more.MORE, OPT_TREE):
        register(method)
    yield
    for name in IDS:
        del METHODS[name]


def test_they_race_beside_vanilla(registered: None, pipe: Pipeline) -> None:
    assert not set(IDS) & set(pipe.default_methods)
    raced = pipe.compare("a lantern", [*IDS, "vanilla"], tree="small", seed=3)
    done = {name: event for name, event in raced if isinstance(event, Result)}
    assert set(done) == {"vanilla", *IDS}
    for name in IDS:
        assert (done[name].noise == "shared") == METHODS[name].lossless == (name == OPT_TREE.id)
    assert done[OPT_TREE.id].tokens == done["vanilla"].tokens
    # as when a notebook's cell runs twice
    row = replace(METHODS["typical"], summary="Other words.")
    assert register(row) is row is METHODS["typical"]


RELAXED = {"rule": LanternPlusPlus(2, 3.0), "lossless": False}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"id": "vanilla"}, "which there is already"),
        ({"id": "Not an id"}, "must be 1 to 40 of"),
        ({"drafts": StaticTree([(0,)])}, "a class of DraftConfig"),
        ({"rule": Rule}, "a Rule with its values"),
        ({"rule": LanternPlusPlus(2, 3.0)}, "said to be lossless"),
        (RELAXED | {"drafts": DraftConfig}, "no guess"),
        (RELAXED | {"drafts": Window}, "drafts from a window"),
    ],
)
def test_what_is_no_method_is_refused(change: dict[str, Any], complaint: str) -> None:
    row = Method("mine", "Mine", StaticTree, Rule(), True, "A row.")
    with pytest.raises(ValueError, match=complaint):
        register(replace(row, **change))
    assert "mine" not in METHODS


def law(rule: Rule, count: int, depth: float = 0.0) -> Tensor:
    """The law of the token that comes out behind so many drafts at a node of some depth."""
    return emitted_at(rule, P, Q, *orders_of(Q, count), None, depth).float()


def fixed(rule: Rule, x: int) -> Tensor:
    """The law behind one draft that the prefix fixes."""
    return emitted_at(rule, P, None, torch.tensor([[x]]), torch.ones(1).double(), NEAR).float()


def after(x: int, chance: float) -> Tensor:
    """The law behind a draft that is accepted with a chance, and else leaves P."""
    left = P.index_fill(0, torch.tensor([x]), 0.0)
    return (1 - chance) * left / left.sum() + chance * torch.eye(VOCAB)[x]


def assert_law(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


def off(found: Tensor) -> float:
    """How far a law is from the target's."""
    return float((found - P).abs().sum()) / 2


@pytest.mark.parametrize("depth", [0.0, 3.0])
@pytest.mark.parametrize("rule", [more.Weighted(1.1), more.Weighted(0.6, 0.5)], ids=str)
def test_a_weighted_draft_follows_the_formula(rule: Any, depth: float) -> None:
    accepted = torch.minimum(Q, rule.delta * math.exp(-0.7 * depth - rule.mu) * P)
    left = (P - accepted).clamp(min=0)
    assert_law(law(rule, 1, depth), accepted + (1 - accepted.sum()) * left / left.sum())


@pytest.mark.parametrize("epsilon", [0.02, 0.09, 0.3])
def test_typical_keeps_what_is_likely_enough(epsilon: float) -> None:
    entropy = -float((P * P.log()).sum())
    passes = min(epsilon, math.sqrt(epsilon) * math.exp(-entropy)) < P
    assert 0 < int(passes.sum()) < VOCAB
    assert_law(law(more.Typical(epsilon), 1), Q * passes + (1 - (Q * passes).sum()) * P)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("weight", [0.1, 0.3, 1.0])
def test_an_ensemble_draws_from_the_mixture(weight: float, count: int) -> None:
    assert_law(law(more.Ensemble(weight), count), weight * P + (1 - weight) * Q)


@pytest.mark.parametrize("depth", [0.0, 3.0])
def test_a_weight_of_one_and_below_is_exact(depth: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: a weight above one, and the exact rule's residual below one."""
    assert_law(law(more.Weighted(0.8), 3, depth), P)
    assert off(law(more.Weighted(6.0), 3)) > 0.05
    monkeypatch.setattr(more.Weighted, "reject", Rule.reject)
    assert off(law(more.Weighted(0.8), 3, depth)) > 0.01


@pytest.mark.parametrize("floor", [0.0, 0.05, 1.0])
def test_entropy_forgives_by_the_entropy(floor: float) -> None:
    entropy = -float((P * P.log()).sum())
    weight = min(1.0, entropy / math.log(VOCAB) + floor)
    rule, left = more.Entropy(floor), (P - Q).clamp(min=0)
    accepted = torch.minimum(Q, P / weight)
    assert_law(law(rule, 1), accepted + (1 - accepted.sum()) * left / left.sum())
    assert (off(law(rule, 1)) > 0.01) == rule.relaxes == (weight < 1)
    for x in range(VOCAB):
        assert_law(fixed(rule, x), after(x, min(1.0, float(P[x]) / weight)))


@pytest.mark.parametrize(("ranks", "gap"), [(2, 0.1), (7, 0.04), (1, 0.5), (0, 0.5)])
def test_gsd_accepts_by_the_cluster_and_rejects_the_draft_alone(ranks: int, gap: float) -> None:
    p, rank = P.tolist(), P.argsort(descending=True).argsort().tolist()
    rule = more.Grouped(4, ranks, gap)
    sizes = set()
    for x in range(VOCAB):
        near = x, *NEAR[x, :4].tolist()
        cluster = [y for y in near if abs(rank[y] - rank[x]) <= ranks and abs(p[y] - p[x]) < gap]
        sizes.add(len(cluster))
        assert_law(fixed(rule, x), after(x, min(1.0, float(P[cluster].sum()))))
    assert (max(sizes) > 1) == rule.relaxes == (ranks > 0) and min(sizes) < 5


@pytest.mark.parametrize("rule", [method.rule for method in more.MORE], ids=str)
def test_padded_steps_agree_and_greedy_is_vanillas(rule: Rule) -> None:
    """Without neighbours: those of a likely draft make it the likeliest, as LANTERN's do."""
    given = {"rule": rule, "neighbours": NEIGHBOURS}
    assert run("eagle1", **given, padded=True)[1].tokens == run("eagle1", **given)[1].tokens
    greedy = {"sampling": Sampling(0.0), "tokens": 60}
    if not rule.k:
        assert run("eagle1", **given, **greedy)[1].tokens == run("vanilla", **greedy)[1].tokens


def test_every_draft_has_the_chance_that_was_asked_for() -> None:
    noise = torch.randn(1, 32, generator=torch.Generator().manual_seed(1))
    logits = 2 * torch.randn(32, generator=torch.Generator().manual_seed(2))
    output, root = Mock(return_value=torch.zeros(1, 1, 4)), torch.zeros(1, dtype=torch.int64)
    passes: Any = SimpleNamespace(position=root, sync=output, expand=output)
    context = RunContext(Sampling(), torch.device("cpu"), 32, 18, lambda scored, _: scored + noise)
    chances = ((logits + noise[0]) / SHARPNESS).softmax(-1).sort(descending=True)
    best, *_ = likeliest = chances.values.tolist()
    depths = []
    for chance in (0.05, 0.15, 0.3):
        drafts = OptTree(chance)
        propose = OptTreeProposer(drafts, context).propose
        draft = propose(root, passes, lambda hidden: logits.expand(1, 1, -1), torch.empty(0))
        for depth in range(1, draft.tree.depth + 1):
            count = sum(best ** (depth - 1) * p >= chance for p in likeliest[: drafts.width])
            level = draft.tokens[draft.tree.depths == depth]
            assert level.tolist() == chances.indices[:count].tolist()
        depths.append(draft.tree.depth)
    assert max(depths) > 2, "a chance is a product along the path"
