"""Drafters that read some blocks of their target: what they read, and what is refused."""

from __future__ import annotations

import pytest
import torch
from passes import chain_pass
from runs import decode
from small_models import FEATURE_LAYERS, PADDED, TEXT, condition_of, networks, settings
from torch import Tensor

from lantern_demo.decoding.sampling import Sampling
from lantern_demo.models.llamagen import LeanDrafter, LeanTarget

WIDTH = 128 * (1 + len(FEATURE_LAYERS))


@torch.inference_mode()
def test_states_carry_the_outputs_of_feature_layers() -> None:
    target, _ = networks(TEXT)
    condition, tokens = condition_of(target, PADDED), torch.tensor([3, 9, 11])
    seen: dict[int, list[Tensor]] = {1: [], 3: []}
    for layer, outputs in seen.items():
        keep = lambda *given, to=outputs: to.append(given[-1].clone())  # noqa: E731
        target.layers[layer - 1].register_forward_hook(keep)

    def states() -> Tensor:
        cache = target.new_cache(2, 8)
        return torch.cat((target.prefill(condition, cache), chain_pass(target, tokens, cache)), 1)

    plain = states()
    for outputs in seen.values():
        outputs.clear()
    target.feature_layers = (1, 3)
    wide = states()
    outputs = [torch.cat(of_layer, 1) for of_layer in seen.values()]
    assert torch.equal(wide, torch.cat((plain, *outputs), -1))
    # a drafter's outputs are as wide as final states
    assert torch.equal(target.head(wide), target.head(plain))


@torch.inference_mode()
def test_a_stable_slot_reads_feature_layers_and_a_node_its_parents_output() -> None:
    _, drafter = networks(TEXT, feature_layers=FEATURE_LAYERS)
    embedded, before = torch.randn(2, 3, 128), 3 * torch.randn(2, 3, WIDTH)
    state, features = before.split((128, WIDTH - 128), -1)
    joined = drafter.fc(torch.cat((embedded, state), -1))
    normed = features.unflatten(-1, (2, 128))
    normed = normed / normed.square().mean(-1, keepdim=True).add(1e-6).sqrt()
    taps = drafter.fc_taps(normed.flatten(-2))
    for read, own in ((before, taps), (state, drafter.fc_own(state))):
        found = drafter.fuse(embedded, read)
        torch.testing.assert_close(found, joined + own, atol=1e-5, rtol=1e-5)


def test_a_target_that_was_not_told_is_refused() -> None:
    target, drafter = networks(TEXT, feature_layers=FEATURE_LAYERS)
    target.feature_layers = ()
    knobs = {"num_tokens": 4, "sampling": Sampling(cfg_scale=2.0), **settings("eagle1")}
    with torch.inference_mode():
        condition = condition_of(target, PADDED)
    for fused in ((LeanTarget(target), LeanDrafter(drafter)), (target, drafter)):
        with pytest.raises(ValueError, match=r"128 wide; a drafter with feature layers \[1, 3\]"):
            list(decode(*fused, condition, **knobs))
