"""LANTERN's target: prefill with its padded rows, cached steps, tree passes, the end of the grid, bfloat16."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from released import Golden, cases, close, lantern_target, listed_paths, step
from torch import Tensor

from lantern_demo.decoding.sampling import guide
from lantern_demo.decoding.trees import static_tree
from lantern_demo.models.common import Condition
from lantern_demo.models.llamagen.target import LlamaGen
from lantern_demo.models.text import left_pad

CASES = cases("target")


def condition_of(golden: dict[str, Tensor]) -> Condition:
    return Condition(golden["cond_combined"], golden["attention_mask"].bool())


def tree_pass(target: LlamaGen, golden: dict[str, Tensor], cache: Any) -> Tensor:
    return target.forward(golden["tree_tokens"][0], golden["tree_position_ids"], golden["tree_mask"][0, 0].bool(), cache)


@pytest.mark.parametrize("case", CASES)
def test_condition(case: Golden) -> None:
    target, golden = lantern_target(case), case.tensors
    condition = target.condition(*left_pad(golden["t5_embeddings"], golden["t5_mask"].bool()), True)
    assert condition.mask is not None
    close(condition.features, golden["cond_combined"])
    assert condition.mask.tolist() == golden["attention_mask"].bool().tolist()
    close(target.rope[: len(golden["freqs_cis"])], golden["freqs_cis"])


@pytest.mark.parametrize("case", CASES)
def test_tree_tensors(case: Golden) -> None:
    """The tree that the passes below are given is the one that this project makes of the same choices."""
    golden, tree = case.tensors, static_tree(case.about["tree_choices"])
    assert torch.equal(tree.mask, golden["tree_mask"][0, 0].bool())
    assert torch.equal(tree.depths, golden["tree_position_ids"])
    assert torch.equal(listed_paths(tree.parents.tolist(), True), golden["tree_retrieve_indices"])


@pytest.mark.parametrize("case", CASES)
def test_steps_and_tree(case: Golden) -> None:
    """Prefill (padded rows too, which drafters read), a step, a tree, its accepted path moved up, a step behind it."""
    target, golden = lantern_target(case), case.tensors
    cache = target.new_cache(2, golden["tree_tokens"].shape[1] + 2)
    hidden = target.prefill(condition_of(golden), cache)
    close(hidden, golden["prefill_hidden"])
    close(target.head(hidden), golden["prefill_logits"])
    hidden = step(target, golden["single_token"], cache)
    close(hidden, golden["single_hidden"])
    close(target.head(hidden), golden["single_logits"])

    assert cache.length == int(golden["tree_position_base"])
    hidden = tree_pass(target, golden, cache)
    logits = target.head(hidden)
    close(hidden, golden["tree_hidden"])
    close(logits, golden["tree_logits"])
    guided = guide(logits, float(golden["cfg_scale"]))
    close(guided[golden["tree_retrieve_indices"]], golden["tree_cfg_logits_by_path"])

    cache.commit(golden["kept_path_nodes"])
    hidden = step(target, golden["after_token"], cache)
    close(hidden, golden["after_hidden"])
    close(target.head(hidden), golden["after_logits"])


@pytest.mark.parametrize("case", CASES)
def test_edge_of_the_grid(case: Golden) -> None:
    """Many tokens in one pass, then a tree that may reach past the last image position, where the rotary rows are zero."""
    target, golden = lantern_target(case), case.tensors
    tokens = golden["long_tokens"][0]
    cache = target.new_cache(2, len(tokens) + golden["tree_tokens"].shape[1])
    target.prefill(condition_of(golden), cache)
    causal = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    hidden = target.forward(tokens, torch.arange(len(tokens)), causal, cache)
    cache.advance(len(tokens))
    close(target.head(hidden[:, ::16]), golden["long_logits_every16"])
    close(hidden[:, -1], golden["long_hidden_last"])
    hidden = tree_pass(target, golden, cache)
    close(hidden, golden["edge_tree_hidden"])
    close(target.head(hidden), golden["edge_tree_logits"])


@pytest.mark.parametrize("case", CASES)
def test_prefill_in_bfloat16(case: Golden) -> None:
    """In bfloat16 padded rows do not see real ones. As close as bfloat16 is: the recording's own error on the real rows says how
    much that is, and is far below what the padded rows' masks make."""
    golden = case.tensors
    target = copy.deepcopy(lantern_target(case)).to(torch.bfloat16)
    target.rope = target.rope.float()
    condition = condition_of(golden)
    real = condition.mask
    assert real is not None
    condition.features = condition.features.to(torch.bfloat16)
    hidden = target.prefill(condition, target.new_cache(2, 1)).float()
    recorded = golden["prefill_hidden_bf16"]
    error = float((recorded - golden["prefill_hidden"])[real].abs().max())
    close(hidden, recorded, atol=3 * error)
    # The prompt's padded rows are zero and see only each other.
    assert not hidden[0][~real[0]].any() and not recorded[0][~real[0]].any()
