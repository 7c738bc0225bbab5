"""Targets as the released code has them, LlamaGen's own and LANTERN's."""

from __future__ import annotations

import copy
from typing import Any

import passes
import pytest
import torch
from passes import step
from released import Golden, cases, close, lantern_target, llamagen, parts_like
from runs import decode
from torch import Tensor

from examples.train_drafter.teaching import train_hidden
from lantern_demo.decoding.sampling import Sampling, guide
from lantern_demo.models.llama import Condition
from lantern_demo.models.llamagen import LlamaGen
from lantern_demo.models.text import left_pad

CASES = cases("llamagen")


def condition_of(case: Golden, row: int, masked: bool = True, guided: bool = True) -> Condition:
    """The rows of one prompt or class of a case."""
    golden = case.tensors
    mask = golden["emb_masks"][row : row + 1].bool() if masked and "emb_masks" in golden else None
    return llamagen(case).condition(golden["cond"][row : row + 1], mask, guided)


def teacher_forced(model: LlamaGen, condition: Condition, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the prefix [2, T, V] and of every token [2, N, V], each token but the last fed in a
    step of its own.
    """
    cache = model.new_cache(2, len(tokens))
    prefill = model.head(model.prefill(condition, cache))
    return prefill, torch.cat(
        [prefill[:, -1:], *(model.head(step(model, token, cache)) for token in tokens[:-1])], 1
    )


@pytest.mark.parametrize(("case", "suffix"), cases("llamagen", parts_like("prefill_logits(.*)")))
def test_logits(case: Golden, suffix: str) -> None:
    """With the prompts' masks, and without where the file has that too."""
    model, golden = llamagen(case), case.tensors
    for row in range(len(golden["cond"])):
        # the conditional and the unconditional row of a prompt
        both = slice(row, None, len(golden["cond"]))
        condition = condition_of(case, row, masked=suffix != "_nomask")
        prefill, logits = teacher_forced(model, condition, golden["tf_tokens"][row])
        close(prefill, golden["prefill_logits" + suffix][both])
        close(logits, golden["tf_logits" + suffix][both])


@pytest.mark.parametrize("case", CASES)
def test_training_pass(case: Golden) -> None:
    """The pass over whole pictures that training uses gives what the cached steps give."""
    model, golden = llamagen(case), case.tensors
    for row in range(len(golden["cond"])):
        condition = condition_of(case, row)
        hidden = train_hidden(
            model, golden["tf_tokens"][row, :-1].expand(2, -1), condition.features, condition.mask
        )
        close(
            model.head(hidden[:, model.config.prefix - 1 :]),
            golden["tf_logits"][row :: len(golden["cond"])],
        )


@pytest.mark.parametrize(
    ("case", "scale"), cases("llamagen", parts_like(r"greedy_tokens_cfg([\d.]+)"))
)
def test_greedy_tokens(case: Golden, scale: str) -> None:
    model, wanted = llamagen(case), case.tensors[f"greedy_tokens_cfg{scale}"]
    guided = float(scale) > 1  # the released code runs without an unconditional row up to there
    sampling = Sampling(temperature=0, cfg_scale=float(scale) if guided else 1.0)
    for row, tokens in enumerate(wanted.tolist()):
        condition = condition_of(case, row, guided=guided)
        *_, result = decode(model, None, condition, num_tokens=len(tokens), sampling=sampling)
        assert result.tokens == tokens


# -- LANTERN's

LANTERNS = cases("target")


def rows_of(golden: dict[str, Tensor]) -> Condition:
    return Condition(golden["cond_combined"], golden["attention_mask"].bool())


def tree_pass(target: LlamaGen, golden: dict[str, Tensor], cache: Any) -> Tensor:
    mask = golden["tree_mask"][0, 0].bool()
    return passes.tree_pass(
        target, golden["tree_tokens"][0], golden["tree_position_ids"], mask, cache
    )


@pytest.mark.parametrize("case", LANTERNS)
def test_condition_of_lantern(case: Golden) -> None:
    target, golden = lantern_target(case), case.tensors
    condition = target.condition(*left_pad(golden["t5_embeddings"], golden["t5_mask"].bool()), True)
    close(condition.features, golden["cond_combined"])
    assert condition.mask.tolist() == golden["attention_mask"].bool().tolist()
    close(target.rope[: len(golden["freqs_cis"])], golden["freqs_cis"])


@pytest.mark.parametrize("case", LANTERNS)
def test_steps_and_tree(case: Golden) -> None:
    """Prefill (padded rows too, which drafters read), a step, a tree, its accepted path moved up, a
    step behind it.
    """
    target, golden = lantern_target(case), case.tensors
    cache = target.new_cache(2, golden["tree_tokens"].shape[1] + 2)
    hidden = target.prefill(rows_of(golden), cache)
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
    """Many tokens in one pass, then a tree that may reach past the last image position, where the
    rotary rows are zero.
    """
    target, golden = lantern_target(case), case.tensors
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
    """In bfloat16 padded rows do not see real ones.

    As close as bfloat16 is: the recording's own error on the real rows says how much that is, and
    is far below what the padded rows' masks make.
    """
    golden = case.tensors
    target = copy.deepcopy(lantern_target(case)).to(torch.bfloat16)
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
