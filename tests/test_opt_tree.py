"""A tree that is chosen anew in every step: what is checked is what is worth it."""

from __future__ import annotations

from typing import Any

import torch
from runs import decode
from tables import TableDrafter, TableTarget

from lantern_demo.decoding.drafting import RunContext
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.opt_tree import SHARPNESS, OptTree, OptTreeProposer, comb
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.trees import ancestor_mask

VOCAB = 12
TARGET = TableTarget(VOCAB, seed=1)
DRAFTER = TableDrafter(TARGET)
PREFIX = torch.tensor([1, 2, 3])


def steps_of(chance: float, seed: int, **changes: Any) -> list[Any]:
    knobs = {"sampling": Sampling(cfg_scale=2.0), "noise": "shared", **changes}
    method, tree = METHODS["opt-tree"], OptTree(chance)
    return list(decode(TARGET, DRAFTER, PREFIX, num_tokens=18, method=method, seed=seed, tree=tree, **knobs))


def test_fewer_guesses_are_checked_where_they_cost_more() -> None:
    checked = [
        sum(len(step.tree_tokens) - 1 for seed in range(20) for step in steps_of(chance, seed)[1:-1])
        for chance in (0.02, 0.1, 0.3, 0.7)
    ]
    assert checked == sorted(checked, reverse=True) and checked[0] > 2 * checked[-1]


def test_every_guess_has_the_chance_that_was_asked_for() -> None:
    """By the drafter's add_noise scores, worked out here once more, for the first level of a step."""
    noise = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))

    class Passes:
        position = torch.zeros(1, dtype=torch.int64)

        def sync(self) -> torch.Tensor:
            return torch.zeros(1, 1, 4)

        def expand(self, *_: Any) -> torch.Tensor:
            return torch.zeros(1, 1, 4)

    logits = torch.randn(VOCAB, generator=torch.Generator().manual_seed(2))
    run = RunContext(Sampling(), torch.device("cpu"), VOCAB, 18, lambda scored, _: scored + noise)
    for chance in (0.05, 0.15, 0.3):
        policy = OptTree(chance)
        proposer = OptTreeProposer(policy, run)
        root = torch.zeros(1, dtype=torch.int64)
        draft = proposer.propose(root, Passes(), lambda hidden: logits.expand(1, 1, -1), torch.empty(0))
        chances = ((logits + noise[0]) / SHARPNESS).softmax(-1).sort(descending=True)
        first = draft.tokens[1:][draft.tree.depths[1:] == 1] if draft.tree.size > 1 else draft.tokens[:0]
        wanted = [token for token, p in zip(chances.indices.tolist(), chances.values.tolist(), strict=True) if p >= chance][
            : policy.width
        ]
        assert first.tolist() == wanted
        for depth in range(1, draft.tree.depth + 1 if draft.tree.size > 1 else 1):
            above = float(chances.values[0]) ** (depth - 1)
            reached = [above * p for p in chances.values.tolist() if above * p >= chance]
            assert int((draft.tree.depths == depth).sum()) == min(len(reached), policy.width)


def test_the_comb() -> None:
    tree = comb((2, 1, 3), 3, torch.device("cpu"))
    assert tree.parents.tolist() == [0, 0, 0, 1, 3, 3, 3] and tree.depths.tolist() == [0, 1, 1, 2, 3, 3, 3]
    assert tree.children.tolist() == [[1, 2, -1], [3, -1, -1], [-1] * 3, [4, 5, 6], *[[-1] * 3] * 3]
    assert torch.equal(tree.mask, ancestor_mask(tree.parents, 3)) and tree.whole
