"""Top-k and top-p through runs: target and tree draw from the tokens that they leave, to a
thousandth, and from no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runs import decode
from tables import ChainDrafter, ChainTarget
from torch import Tensor

from lantern_demo.decoding.drafting import DynamicTree, StaticTree
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling

BOTH = ["independent", "shared"]
# Of all probability lies before token 3. Top-p .9 leaves the token where that is no more than .9.
BEFORE = {"more": 0.9005, "less": 0.8995}


def at(before: float) -> Tensor:
    """Logits [5] of which the first three tokens have so much probability."""
    return torch.tensor([0.5, 0.3, before - 0.8, 0.96 - before, 0.04]).log()


def run(target: Tensor, drafted: Tensor, noise: str, sampling: Sampling, **way: Any) -> list[Any]:
    """The steps of 200 tokens with logits [V] that are the same behind all tokens."""
    count = len(target)
    of = ChainTarget(target.expand(count, -1), drafted.expand(count, -1))
    knobs = {"num_tokens": 200, "sampling": sampling, "noise": noise}
    *steps, _ = decode(of, ChainDrafter(of), torch.tensor([0]), **knobs, **way)
    return steps


def tokens(steps: list[Any]) -> set[int]:
    return {token for step in steps for token in step.tokens}


@pytest.mark.parametrize("noise", BOTH)
@pytest.mark.parametrize("before", BEFORE)
def test_the_target_draws_what_top_p_leaves(before: str, noise: str) -> None:
    logits = at(BEFORE[before])
    found = tokens(run(logits, logits, noise, Sampling(top_p=0.9), method=METHODS["vanilla"]))
    assert found == ({0, 1, 2} if before == "more" else {0, 1, 2, 3})


@pytest.mark.parametrize("noise", BOTH)
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("method", ["eagle1", "eagle2"])
def test_the_tree_has_what_top_p_leaves(method: str, before: str, noise: str) -> None:
    """The target always draws token 3, which is accepted where the tree has it. Of shared noise a
    draft behind those that top-p leaves may be any token, so that only the first is looked at."""
    target = torch.full((5,), -torch.inf).index_fill(0, torch.tensor([3]), 0.0)
    drafts = StaticTree([(0,)] if noise == "shared" else [(0,), (1,), (2,), (3,)])
    tree = drafts if method == "eagle1" else DynamicTree(5, 0, 6)
    way = {"method": METHODS[method], "tree": tree}
    steps = run(target, at(BEFORE[before]), noise, Sampling(top_p=0.9), **way)
    accepted = sum(step.accepted_length > 1 for step in steps)
    assert (accepted > 0) == (before == "less")


@pytest.mark.parametrize("noise", BOTH)
@pytest.mark.parametrize("method", ["vanilla", "eagle1", "eagle2"])
def test_ties_at_the_end_of_top_k_all_stay(method: str, noise: str) -> None:
    logits = torch.tensor([1.0, 0.5, 2.0, 1.0, 0.99, 1.0])
    trees = {"eagle1": {"tree": StaticTree([(0,), (1,)])}, "eagle2": {"tree": DynamicTree(2, 0, 3)}}
    way = {"method": METHODS[method], **trees.get(method, {})}
    assert tokens(run(logits, logits, noise, Sampling(top_k=2), **way)) == {0, 2, 3, 5}
