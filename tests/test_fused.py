"""The fused models for accelerators against the modules that they are made from: the same numbers and keys, and weights
that are in memory once. `test_runners` has the same runs."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from published import anole_networks
from small_models import TEXT, model_of, networks
from torch import Tensor

from lantern_demo.models import cuda
from lantern_demo.models.anole.cuda import FusedAnole, FusedAnoleDrafter
from lantern_demo.models.janus.cuda import FusedJanus, FusedJanusDrafter
from lantern_demo.models.llamagen.cuda import FusedDrafter, FusedTarget

FUSED = {"anole": (FusedAnole, FusedAnoleDrafter), "janus": (FusedJanus, FusedJanusDrafter)}
ROOM = 10  # slots behind the prompt, more than a few nodes take


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("model", ["anole", "anole, no guidance", "janus", "janus, padded"])
@torch.inference_mode()
def test_the_same_numbers_and_keys(model: str) -> None:
    """A pass of three nodes by a target and its drafter."""
    of = model_of(model)
    target, drafter, condition = of.target, of.drafter, of.condition
    large, small, _ = of.fused
    rows = len(condition.features)
    tokens, depths = torch.tensor([3, 9, 11]), torch.tensor([0, 1, 1])
    mask = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
    caches = [part.new_cache(rows, ROOM) for part in (target, large)]
    for part, cache in zip((target, large), caches, strict=True):
        part.prefill(condition, cache)
    length, width = caches[0].length, caches[0].length + ROOM
    slots = length + torch.arange(3)
    bias = caches[0].padding[..., :width].repeat(1, 1, 3, 1)
    bias[..., length:] = -torch.inf
    bias[..., length : length + 3] = torch.where(mask, 0.0, -torch.inf)
    wanted = target.forward(tokens, depths, mask, caches[0])
    found = large.forward_at(tokens, length + depths, slots, bias, caches[1])
    close(found, wanted)
    close(large.head(found), target.head(wanted))
    filled = [cache.both[:, :, :, : length + 3] for cache in caches]
    close(filled[1], filled[0])

    hidden, outputs = torch.randn(rows, 3, target.config.dim, generator=torch.Generator().manual_seed(2)), []
    for part in (drafter, small):
        cache = part.new_cache(rows, ROOM)
        part.start(torch.ones(rows, length, target.config.dim), tokens[:1], cache, condition)
        at = cache.length + torch.arange(3)
        seen = torch.where(torch.arange(width) <= at[:, None], 0.0, -torch.inf)[None, None]
        outputs.append(part.run_at(tokens, hidden, part.turns_at(at, cache), at, seen, cache))
    close(outputs[1], outputs[0])


@pytest.mark.parametrize("family", FUSED)
def test_weights_are_in_memory_once_and_looked_up_when_they_are_used(family: str) -> None:
    """No tensor but the whole is kept, not even a view: ZeroGPU would pack it as one more."""
    target, drafter = deepcopy((model_of(family).target, model_of(family).drafter))
    before = target.blocks[0].self_attn.k_proj.weight.clone()
    large, small = (make(part) for make, part in zip(FUSED[family], (target, drafter), strict=True))
    for layer, block in ((large.layers[0], target.blocks[0]), (small.layer, drafter.layer)):
        a, m = block.self_attn, block.mlp
        for whole, rows in (
            (layer.weights.qkv, (a.q_proj, a.k_proj, a.v_proj)),
            (layer.weights.gate_up, (m.gate_proj, m.up_proj)),
        ):
            assert {part.weight.untyped_storage().data_ptr() for part in rows} == {whole.untyped_storage().data_ptr()}
            assert sum(part.out_features for part in rows) == len(whole)
            assert all(value is whole for part in rows for value in part._whole)
            assert not any(list(part.parameters()) or list(part.buffers()) for part in rows)
    assert torch.equal(target.blocks[0].self_attn.k_proj.weight, before)


def test_fused_weights_of_llamagen_are_the_modules_own() -> None:
    target, drafter = networks(TEXT)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    fused, small = FusedTarget(target), FusedDrafter(drafter)
    for block, layer in zip(target.blocks, fused.layers, strict=True):
        storage = layer.weights.gate_up.untyped_storage().data_ptr()
        assert block.feed_forward.w1.weight.untyped_storage().data_ptr() == storage
        assert block.feed_forward.w3.weight.untyped_storage().data_ptr() == storage
        assert layer.weights.qkv is block.attention.wqkv.weight
    attention = drafter.layer.self_attn
    assert attention.v_proj.weight.untyped_storage().data_ptr() == small.layer.weights.qkv.untyped_storage().data_ptr()
    assert all(bool((value == before[name]).all()) for name, value in target.state_dict().items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_half_precision(dtype: torch.dtype) -> None:
    """Close to the modules; not the same tokens, since sums are rounded elsewhere."""
    target, _ = networks(TEXT)
    rope = target.rope
    target.to(dtype)
    target.rope = rope
    cache = target.new_cache(1, 8)
    target.prefill(target.condition(torch.randn(1, 7, 32), None, False), cache)
    tokens, place = torch.tensor([3, 4]), torch.arange(2)
    plain = target.forward(tokens, place, torch.ones(2, 2).tril().bool(), cache)
    bias = torch.full((1, 1, 2, 16), -torch.inf, dtype=dtype)
    bias[..., :8], bias[..., 1, 8] = 0, 0
    fixed = FusedTarget(target).forward_at(tokens, place + 7, place + 7, bias[..., : cache.slots], cache)
    torch.testing.assert_close(fixed, plain, atol=0.15, rtol=0.05)


def test_sums_are_kept_where_a_device_can() -> None:
    x, weight = torch.randn(3, 8), torch.randn(5, 8)
    assert not cuda.keeps_sums("cpu", torch.bfloat16), "a CPU rounds, and says so"
    for dtype in (torch.float32, torch.bfloat16):
        found = cuda.matmul(x.to(dtype), weight.to(dtype))
        assert found.dtype == torch.float32 and found.shape == (3, 5)
        torch.testing.assert_close(found, x @ weight.t(), atol=0.1 if dtype == torch.bfloat16 else 1e-5, rtol=0.05)


def test_a_cache_that_is_used_again_reads_like_a_new_one() -> None:
    """What a captured step reads stays in its place and holds the next prompt's numbers."""
    target = anole_networks()[0]
    kept = target.new_cache(2, 4)
    kept.set_padding(None)
    places = kept.shift.data_ptr(), kept.padding.data_ptr()
    for padded in (4, 1, 0, 2):
        real = torch.ones(2, 6, dtype=torch.bool)
        real[1, :padded] = False
        new = target.new_cache(2, 4)
        for cache in (kept, new):
            cache.set_padding(real)
        assert torch.equal(kept.shift, new.shift) and torch.equal(kept.padding, new.padding)
        assert (kept.visible is None) == (new.visible is None) == (padded == 0)
        assert (kept.shift.data_ptr(), kept.padding.data_ptr()) == places
