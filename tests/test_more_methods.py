"""The draft source of examples/more_methods.py: registered from outside, raced beside vanilla, and
held to its rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from examples.more_methods import OPT_TREE, SHARPNESS, OptTree, OptTreeProposer
from lantern_demo import Pipeline, Result, register
from lantern_demo.decoding.drafting import RunContext
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.runs.result import record_of

VOCABULARY = 32


@pytest.fixture
def registered() -> Iterator[None]:
    register(OPT_TREE)
    yield
    del METHODS[OPT_TREE.id]


def test_it_races_beside_vanilla_and_draws_its_tokens(registered: None, pipe: Pipeline) -> None:
    raced = pipe.compare("a lantern", ["vanilla", "opt-tree"], seed=3)
    done = {name: event for name, event in raced if isinstance(event, Result)}
    assert done["opt-tree"].tokens == done["vanilla"].tokens
    record = record_of(done.values())
    assert list(record["methods"]) == ["vanilla", "opt-tree"]


def test_every_draft_has_the_chance_that_was_asked_for() -> None:
    """By the drafter's noisy scores, worked out here once more."""
    noise = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(1))

    class Passes:
        position = torch.zeros(1, dtype=torch.int64)

        def sync(self, *_: Any) -> torch.Tensor:
            return torch.zeros(1, 1, 4)

        expand = sync

    logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(2))
    context = RunContext(
        Sampling(), torch.device("cpu"), VOCABULARY, 18, lambda scored, _: scored + noise
    )
    chances = ((logits + noise[0]) / SHARPNESS).softmax(-1).sort(descending=True)
    for chance in (0.05, 0.15, 0.3):
        policy, root = OptTree(chance), torch.zeros(1, dtype=torch.int64)
        propose = OptTreeProposer(policy, context).propose
        draft = propose(root, Passes(), lambda hidden: logits.expand(1, 1, -1), torch.empty(0))
        for depth in range(1, draft.tree.depth + 1):
            above = float(chances.values[0]) ** (depth - 1)
            reached = [above * p for p in chances.values.tolist() if above * p >= chance][
                : policy.width
            ]
            level = draft.tokens[draft.tree.depths == depth]
            assert level.tolist() == chances.indices[: len(reached)].tolist()


@pytest.mark.parametrize("chance", [0, 1, -0.1, float("nan")])
def test_a_chance_out_of_range_is_refused(chance: float) -> None:
    with pytest.raises(ValueError, match=r"chance is .*; it must be between 0 and 1, both"):
        OptTree(chance)
