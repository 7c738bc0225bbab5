"""Targets as the released code has them, LlamaGen's own and LANTERN's."""

import copy
from typing import Any

import passes
import pytest
import torch
from passes import step
from released import Golden, cases, close, lantern_target, llamagen, parts_like
from runs import decode
from torch import Tensor

from lantern_demo.decoding.sampling import Sampling, guide
from lantern_demo.models.llama import Condition
from lantern_demo.models.llamagen import LlamaGen
from lantern_demo.models.text import left_pad


def condition_of(case: Golden, row: int, masked: bool = True, guided: bool = True) -> Condition:
    golden, one = case.tensors, slice(row, row + 1)
    mask = golden["emb_masks"][one].bool() if masked else None
    return llamagen().condition(golden["cond"][one], mask, guided)


@pytest.mark.parametrize(("case", "suffix"), cases("llamagen", parts_like("prefill_logits(.*)")))
def test_logits(case: Golden, suffix: str) -> None:
    """With the prompts' masks and without, each token but the last fed in a step of its own."""
    model, golden = llamagen(), case.tensors
    for row, tokens in enumerate(golden["tf_tokens"]):
        # the conditional and the unconditional row of a prompt
        both = slice(row, None, len(golden["cond"]))
        cache = model.new_cache(2, len(tokens))
        hidden = model.prefill(condition_of(case, row, masked=suffix != "_nomask"), cache)
        close(model.head(hidden), golden["prefill_logits" + suffix][both])
        states = [hidden[:, -1:], *(step(model, token, cache) for token in tokens[:-1])]
        close(model.head(torch.cat(states, 1)), golden["tf_logits" + suffix][both])


@pytest.mark.parametrize(
    ("case", "scale"), cases("llamagen", parts_like(r"greedy_tokens_cfg([\d.]+)"))
)
def test_greedy_tokens(case: Golden, scale: str) -> None:
    model, wanted = llamagen(), case.tensors[f"greedy_tokens_cfg{scale}"]
    guided = float(scale) > 1  # the released code runs without an unconditional row up to there
    sampling = Sampling(temperature=0, cfg_scale=float(scale) if guided else 1.0)
    for row, tokens in enumerate(wanted.tolist()):
        condition = condition_of(case, row, guided=guided)
        *_, result = decode(model, None, condition, num_tokens=len(tokens), sampling=sampling)
        assert result.tokens == tokens


LANTERNS = cases("target")


def rows_of(golden: dict[str, Tensor]) -> Condition:
    mask = golden["t5_mask"].bool()
    return lantern_target().condition(*left_pad(golden["t5_embeddings"], mask), True)


def tree_pass(target: LlamaGen, golden: dict[str, Tensor], cache: Any) -> Tensor:
    tokens, mask = golden["tree_tokens"][0], golden["tree_mask"][0, 0].bool()
    return passes.tree_pass(target, tokens, golden["tree_position_ids"], mask, cache)


@pytest.mark.parametrize("case", LANTERNS)
def test_steps_and_tree(case: Golden) -> None:
    """Prefill, with the padded rows that drafters read, a step, a tree, and a step behind it."""
    target, golden = lantern_target(), case.tensors
    condition = rows_of(golden)
    close(condition.features, golden["cond_combined"])
    assert condition.mask.tolist() == golden["attention_mask"].bool().tolist()
    close(target.rope[: len(golden["freqs_cis"])], golden["freqs_cis"])

    cache = target.new_cache(2, golden["tree_tokens"].shape[1] + 2)
    hidden = target.prefill(condition, cache)
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

    passes.commit(cache, golden["kept_path_nodes"])
    hidden = step(target, golden["after_token"], cache)
    close(hidden, golden["after_hidden"])
    close(target.head(hidden), golden["after_logits"])


@pytest.mark.parametrize("case", LANTERNS)
def test_edge_of_the_grid(case: Golden) -> None:
    """Many tokens in one pass, then a tree that may reach past the last image position."""
    target, golden = lantern_target(), case.tensors
    tokens = golden["long_tokens"][0]
    cache = target.new_cache(2, len(tokens) + golden["tree_tokens"].shape[1])
    target.prefill(rows_of(golden), cache)
    hidden = passes.chain_pass(target, tokens, cache)
    cache.length += len(tokens)
    close(target.head(hidden[:, ::16]), golden["long_logits_every16"])
    close(hidden[:, -1], golden["long_hidden_last"])
    hidden = tree_pass(target, golden, cache)
    close(hidden, golden["edge_tree_hidden"])
    close(target.head(hidden), golden["edge_tree_logits"])


@pytest.mark.parametrize("case", LANTERNS)
def test_prefill_in_bfloat16(case: Golden) -> None:
    """As close as bfloat16 is, by the recording's own error on real rows, which is far below what
    padded rows' masks make: there these do not see real ones.
    """
    golden = case.tensors
    target = copy.deepcopy(lantern_target()).to(torch.bfloat16)
    target.rope = target.rope.float()
    condition = rows_of(golden)
    real = condition.mask
    condition.features = condition.features.to(torch.bfloat16)
    hidden = target.prefill(condition, target.new_cache(2, 1)).float()
    recorded = golden["prefill_hidden_bf16"]
    error = float((recorded - golden["prefill_hidden"])[real].abs().max())
    close(hidden, recorded, atol=3 * error)
    # The prompt's padded rows are zero and see only each other.
    assert not hidden[0][~real[0]].any() and not recorded[0][~real[0]].any()
