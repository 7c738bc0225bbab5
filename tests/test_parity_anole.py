"""LANTERN's Anole: its target over a prompt and a tree, its drafter over two calls, and its trees,
as the released code (jadohu/LANTERN@3a56e45) has them on small random weights. What the padded
positions of its unconditional row hold nobody reads: they are not compared.
"""

import passes
import pytest
import torch
import torch.nn.functional as F
from released import Golden, anole, anole_drafter, cases, close
from test_parity_drafter import NO_UNIFORMS, Behind, same_tree, stable_pass

from lantern_demo.decoding.drafting import DynamicProposer, DynamicTree
from lantern_demo.decoding.interfaces import Pass
from lantern_demo.decoding.sampling import Sampling, guide
from lantern_demo.models.anole import FIRST

CASES = cases("anole")


@pytest.mark.parametrize("case", CASES)
def test_prompt_and_tree(case: Golden) -> None:
    """The unconditional row, positions, states and logits. Without guidance the prompt's row has
    the same states. The head's rows are the released one's with everything else masked.
    """
    target, golden = anole(), case.tensors
    condition = target.condition(golden["input_ids"][:1], None, True)
    cache = target.new_cache(2, 64)
    real = golden["input_mask"].bool()
    assert condition.features.tolist() == golden["input_ids"].tolist()
    assert condition.mask is not None and condition.mask.tolist() == real.tolist()
    hidden = target.prefill(condition, cache)
    assert cache.positions(torch.arange(real.shape[1])).tolist() == golden["position_ids"].tolist()
    close(hidden[real], golden["prefill_hidden"][real])
    image = slice(FIRST, FIRST + target.vocab_size)
    close(target.head(hidden)[real], golden["prefill_logits"][real][:, image])
    alone = target.condition(golden["input_ids"][:1], None, False)
    close(target.prefill(alone, target.new_cache(1, 64)), golden["prefill_hidden"][:1])

    tokens, depths = golden["draft_tokens"][0] - FIRST, golden["tree_position_ids"]
    n, t = len(tokens), cache.length
    assert cache.positions(t + depths).tolist() == golden["tree_position_ids_both"].tolist()
    masked = golden["tree_cfg_logits_unmasked"][0].clone()
    masked[:, golden["non_image_tokens"]] = torch.finfo(masked.dtype).min
    for more in (0, 7):  # slots behind the tree, as a bucket has
        visible = F.pad(golden["tree_mask"][0, 0].bool(), (t, more), value=True)
        visible[:, t + n :] = False
        cache.storage[:, :, :, t + n :] = 7.0  # what lies there must not matter
        hidden = target.forward(Pass(tokens, t + depths, t + torch.arange(n), visible), cache)
        close(hidden, golden["tree_hidden"])
        guided = guide(target.head(hidden), float(golden["cfg_scale"]))
        close(guided, masked[:, image])
        assert masked.argmax(-1).tolist() == (guided.argmax(-1) + FIRST).tolist()


@pytest.mark.parametrize("case", CASES)
def test_drafter_and_its_trees(case: Golden) -> None:
    """Two calls: from the prompt, then behind some accepted nodes."""
    golden, drafter, target = case.tensors, anole_drafter(), anole()
    condition = target.condition(golden["input_ids"][:1], None, True)
    sizes = [case.about[name] for name in ("top_k", "depth", "total_tokens_argument")]
    sampling = Sampling(temperature=0, cfg_scale=float(golden["cfg_scale"]))
    propose, cache = (
        DynamicProposer(DynamicTree(*sizes), sampling).propose,
        drafter.new_cache(2, 64),
    )

    first = golden["drafter_input_ids"][0, -1:] - FIRST
    output = passes.begin(drafter, golden["prefill_hidden"], first, cache, condition)
    close(output, golden["drafter_out_hidden_stable"][:, -1:])
    behind = Behind(output, drafter, cache)
    draft = propose(first, behind, target.head, NO_UNIFORMS)
    close(behind.levels[0], golden["drafter_out_hidden_level1"])
    assert torch.equal(draft.tree.mask, golden["tree_mask"][0, 0].bool())
    same_tree(draft, golden, "", first=FIRST)

    tokens = golden["c2_input_ids"][0, -golden["c2_hidden_states"].shape[1] :] - FIRST
    output, every = stable_pass(drafter, tokens, golden["c2_hidden_states"], cache)
    close(every, golden["c2_out_hidden_stable"])
    draft = propose(tokens[-1:], Behind(output, drafter, cache), target.head, NO_UNIFORMS)
    same_tree(draft, golden, "c2_", first=FIRST)
