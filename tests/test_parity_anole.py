"""LANTERN's Anole: its target over a prompt and a tree, its drafter over two calls, and its trees,
as the released code (jadohu/LANTERN@3a56e45) has them on small random weights. What the padded
positions of its unconditional row hold nobody reads: they are not compared.
"""

from __future__ import annotations

from typing import Any

import passes
import pytest
import torch
import torch.nn.functional as F
from released import (
    Golden,
    anole,
    anole_drafter,
    cases,
    close,
    golden,
    listed_paths,
    parts_like,
    same_neighbours,
)
from released_rule import as_released
from runs import dynamic_draft
from test_parity_drafter import Spy, stable_pass
from test_parity_end_to_end import VANILLA, decoded, same_steps
from torch import Tensor

from lantern_demo.decoding.drafting import DynamicTree
from lantern_demo.decoding.interfaces import Pass
from lantern_demo.decoding.sampling import Sampling, guide
from lantern_demo.decoding.trees import Draft
from lantern_demo.models.anole import FIRST, Anole, PaddedCache
from lantern_demo.models.llama import Condition

CASES = cases("anole")


def prefilled(case: Golden) -> tuple[Anole, Condition, PaddedCache, Tensor]:
    """The target behind a case's prompt, its condition, its cache and the states of the prompt."""
    target, golden = anole(case), case.tensors
    condition = target.condition(golden["input_ids"][:1], None, True)
    cache = target.new_cache(2, 64)
    return target, condition, cache, target.prefill(condition, cache)


@pytest.mark.parametrize("case", CASES)
def test_prompt(case: Golden) -> None:
    """The unconditional row and the positions are made as the released code makes them; so are
    states and logits. Without guidance the prompt's row has the same states.
    """
    golden = case.tensors
    target, condition, cache, hidden = prefilled(case)
    real = golden["input_mask"].bool()
    assert condition.features.tolist() == golden["input_ids"].tolist()
    assert condition.mask is not None and condition.mask.tolist() == real.tolist()
    assert cache.positions(torch.arange(real.shape[1])).tolist() == golden["position_ids"].tolist()
    close(hidden[real], golden["prefill_hidden"][real])
    image = slice(FIRST, FIRST + target.vocab_size)
    close(target.head(hidden)[real], golden["prefill_logits"][real][:, image])
    alone = target.condition(golden["input_ids"][:1], None, False)
    close(target.prefill(alone, target.new_cache(1, 64)), golden["prefill_hidden"][:1])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("fixed", [False, True])
def test_verification(case: Golden, fixed: bool) -> None:
    """A tree behind the prompt, by both ways to run one; the head's rows are the released one's
    with everything else masked.
    """
    golden = case.tensors
    target, _, cache, hidden = prefilled(case)
    tokens, depths = golden["draft_tokens"][0] - FIRST, golden["tree_position_ids"]
    mask = golden["tree_mask"][0, 0].bool()
    n, t = len(tokens), cache.length
    assert cache.positions(t + depths).tolist() == golden["tree_position_ids_both"].tolist()
    visible = F.pad(mask, (t, 7 if fixed else 0), value=True)  # some slots more, as a bucket has
    visible[:, t + n :] = False
    cache.storage[:, :, :, t + n :] = 7.0  # what lies there must not matter
    hidden = target.forward(Pass(tokens, t + depths, t + torch.arange(n), visible), cache)
    close(hidden, golden["tree_hidden"])
    guided = guide(target.head(hidden), float(golden["cfg_scale"]))
    masked = golden["tree_cfg_logits_unmasked"][0].clone()
    masked[:, golden["non_image_tokens"]] = torch.finfo(masked.dtype).min
    close(guided, masked[:, FIRST : FIRST + target.vocab_size])
    assert masked.argmax(-1).tolist() == (guided.argmax(-1) + FIRST).tolist()


@pytest.mark.parametrize("case", CASES)
def test_drafter_and_its_trees(case: Golden) -> None:
    """Two calls: from the prompt, then behind some accepted nodes."""
    golden, drafter = case.tensors, anole_drafter(case)
    target, condition, _, _ = prefilled(case)
    drafts = DynamicTree(
        case.about["top_k"], case.about["depth"], case.about["total_tokens_argument"]
    )
    sampling = Sampling(temperature=0, cfg_scale=float(golden["cfg_scale"]))
    cache, spy = drafter.new_cache(2, 64), Spy(drafter)

    first = golden["drafter_input_ids"][0, -1:] - FIRST
    output = passes.begin(drafter, golden["prefill_hidden"], first, cache, condition)
    close(output, golden["drafter_out_hidden_stable"][:, -1:])
    draft = dynamic_draft(drafts, first, output, spy, target, cache, sampling)
    positions = cache.positions(torch.full_like(spy.tokens[0], spy.slots[0]))
    assert positions.tolist() == golden["drafter_positions_level1"].tolist()
    close(spy.outputs[0], golden["drafter_out_hidden_level1"])
    assert torch.equal(draft.tree.mask, golden["tree_mask"][0, 0].bool())
    same_tree(draft, golden, "")

    tokens = golden["c2_input_ids"][0, -golden["c2_hidden_states"].shape[1] :] - FIRST
    assert (
        cache.positions(cache.length + torch.arange(len(tokens))).tolist()
        == golden["c2_positions_stable"].tolist()
    )
    output, every = stable_pass(drafter, tokens, golden["c2_hidden_states"], cache)
    close(every, golden["c2_out_hidden_stable"])
    close(output, golden["c2_out_hidden_stable"][:, -1:])
    same_tree(
        dynamic_draft(drafts, tokens[-1:], output, spy, target, cache, sampling), golden, "c2_"
    )


def same_tree(draft: Draft, golden: dict[str, Tensor], call: str) -> None:
    assert (draft.tokens + FIRST).tolist() == golden[f"{call}draft_tokens"][0].tolist()
    assert draft.tree.depths.tolist() == golden[f"{call}tree_position_ids"].tolist()
    paths = listed_paths(draft.tree.parents.tolist(), ordered=False)
    assert paths.tolist() == golden[f"{call}retrieve_indices"].tolist()


# -- whole greedy pictures by the released loop, whose neighbour table counts from the first image
# token


def models_of(case: Golden, prompt: str) -> tuple[Any, Any, Any]:
    made = golden("anole_a")
    target = anole(made)
    return (
        target,
        anole_drafter(made),
        target.condition(case.tensors[f"{prompt}.ids"][None], None, True),
    )


@pytest.mark.parametrize(("case", "run"), cases("anole pictures", parts_like(r"(.*)\.tokens")))
def test_tokens_and_steps(case: Golden, run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method's, of a prompt as long as the model takes and of a short one."""
    as_released(monkeypatch)
    same_steps(case, run, models_of(case, run.split(".")[0]))


@pytest.mark.parametrize("case", cases("anole pictures"))
def test_tokens_without_drafts(case: Golden) -> None:
    """Vanilla draws what the exact methods do, there and here."""
    golden = case.tensors
    for prompt in parts_like(r"(.*)\.ids")(case):
        *_, result = decoded(case, models_of(case, prompt), VANILLA, case.about["max_length"])
        assert (
            result.tokens
            == golden[f"{prompt}.eagle2.tokens"].tolist()
            == golden[f"{prompt}.static_exact.tokens"].tolist()
        )
    same_neighbours(golden["latents"], golden["nearest"])
