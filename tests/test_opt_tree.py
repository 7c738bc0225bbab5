"""A tree that is chosen anew in every step: what is checked is what is worth it."""

from __future__ import annotations

from typing import Any

import torch
from test_loop import VOCAB, run

from lantern_demo.decoding.drafting import RunContext
from lantern_demo.decoding.opt_tree import SHARPNESS, OptTree, OptTreeProposer, comb
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.trees import ancestor_mask


def test_fewer_guesses_are_checked_where_they_cost_more() -> None:
    checked = []
    for chance in (0.02, 0.1, 0.3, 0.7):
        runs = [run("opt-tree", 18, seed, tree=OptTree(chance), noise="shared")[0] for seed in range(20)]
        checked.append(sum(len(step.tree_tokens) - 1 for steps in runs for step in steps[1:]))
    assert checked == sorted(checked, reverse=True) and checked[0] > 2 * checked[-1]


def test_every_guess_has_the_chance_that_was_asked_for() -> None:
    """By the drafter's add_noise scores, worked out here once more, for the first level of a step."""
    noise = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))

    class Passes:
        position = torch.zeros(1, dtype=torch.int64)

        def sync(self, *_: Any) -> torch.Tensor:
            return torch.zeros(1, 1, 4)

        expand = sync

    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(2))
    context = RunContext(Sampling(), torch.device("cpu"), VOCAB, 18, lambda scored, _: scored + noise)
    chances = ((logits + noise[0]) / SHARPNESS).softmax(-1).sort(descending=True)
    for chance in (0.05, 0.15, 0.3):
        policy, root = OptTree(chance), torch.zeros(1, dtype=torch.int64)
        propose = OptTreeProposer(policy, context).propose
        draft = propose(root, Passes(), lambda hidden: logits.expand(1, 1, -1), torch.empty(0))
        first = draft.tokens[1:][draft.tree.depths[1:] == 1] if draft.tree.size > 1 else draft.tokens[:0]
        assert first.tolist() == chances.indices[chances.values >= chance][: policy.width].tolist()
        for depth in range(1, draft.tree.depth + 1 if draft.tree.size > 1 else 1):
            above = float(chances.values[0]) ** (depth - 1)
            reached = [above * p for p in chances.values.tolist() if above * p >= chance]
            assert int((draft.tree.depths == depth).sum()) == min(len(reached), policy.width)


def test_the_comb() -> None:
    tree = comb((2, 1, 3), 3, torch.device("cpu"))
    assert tree.parents.tolist() == [0, 0, 0, 1, 3, 3, 3] and tree.depths.tolist() == [0, 1, 1, 2, 3, 3, 3]
    assert tree.children.tolist() == [[1, 2, -1], [3, -1, -1], [-1] * 3, [4, 5, 6], *[[-1] * 3] * 3]
    assert torch.equal(tree.mask, ancestor_mask(tree.parents, 3)) and tree.whole
