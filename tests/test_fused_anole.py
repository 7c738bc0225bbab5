"""Anole's twins for accelerators against the modules: the same numbers, keys and tokens, whose weights are in memory once."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from published import ANOLE, anole_networks
from runs import decode
from test_fixed import settings

from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.models import cuda
from lantern_demo.models.anole.cuda import FusedAnole, FusedAnoleDrafter
from lantern_demo.models.anole.target import BEGIN_IMAGE, END_OF_TURN

IDS = torch.tensor([[0, 8712, 8713, 8715, END_OF_TURN, BEGIN_IMAGE]])


def shaken() -> tuple[Any, Any]:
    """The small Anole and its drafter; the norms of queries and keys of every head scale and shift, as trained ones do."""
    target, drafter = deepcopy(anole_networks()[:2])
    generator = torch.Generator().manual_seed(5)
    for part in (target, drafter):
        for name, weight in part.named_parameters():
            if "norm" in name:
                weight.data = weight + 0.3 * torch.randn(weight.shape, generator=generator)
    return target, drafter


@pytest.mark.parametrize("guided", [False, True], ids=["one row", "two rows, one padded"])
def test_the_same_numbers(guided: bool) -> None:
    target, drafter = shaken()
    twin, small = FusedAnole(deepcopy(target)), FusedAnoleDrafter(deepcopy(drafter))
    generator = torch.Generator().manual_seed(2)
    with torch.inference_mode():
        condition = target.condition(IDS, None, guided)
        rows = len(condition.features)
        tokens, depths = torch.tensor([3, 9, 11]), torch.tensor([0, 1, 1])
        mask = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
        caches = [part.new_cache(rows, 8) for part in (target, twin)]
        for part, cache in zip((target, twin), caches, strict=True):
            part.prefill(condition, cache)
        length = caches[0].length
        slots = length + torch.arange(3)
        bias = caches[0].padding[..., :16].clone().expand(-1, -1, 3, -1).clone()
        bias[..., length:] = -torch.inf
        bias[..., length : length + 3] = torch.where(mask, 0.0, -torch.inf)
        wanted = target.forward(tokens, depths, mask, caches[0])
        found = twin.forward_at(tokens, length + depths, slots, bias, caches[1])
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(twin.head(found), target.head(wanted), atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(
            caches[1].both[:, :, :, : length + 3], caches[0].both[:, :, :, : length + 3], atol=1e-4, rtol=1e-4
        )

        hidden = torch.randn(rows, 3, ANOLE.dim, generator=generator)
        outputs = []
        for part in (drafter, small):
            cache = part.new_cache(rows, 8)
            part.start(torch.ones(rows, length, ANOLE.dim), tokens[:1], cache, condition)
            at = cache.length + torch.arange(3)
            seen = torch.where(torch.arange(16) <= at[:, None], 0.0, -torch.inf)[None, None]
            outputs.append(part.run_at(tokens, hidden, part.turns_at(at, cache), at, seen, cache))
        torch.testing.assert_close(outputs[1], outputs[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", list(METHODS))
def test_the_same_runs(method: str) -> None:
    target, drafter = shaken()
    twins = FusedAnole(deepcopy(target)), FusedAnoleDrafter(deepcopy(drafter))
    for scale, temperature in ((3.0, 1.0), (3.0, 0.0), (1.0, 1.0)):
        with torch.inference_mode():
            condition = target.condition(IDS, None, scale != 1)
        knobs = {
            "num_tokens": 16,
            "seed": 3,
            "sampling": Sampling(temperature, cfg_scale=scale),
            **settings(method, vocab=ANOLE.vocab),
        }
        *_, plain = decode(target, drafter, condition, engine="plain", **knobs)
        *_, fixed = decode(*twins, condition, engine="fixed", **knobs)
        assert (fixed.tokens, fixed.accepted_lengths) == (plain.tokens, plain.accepted_lengths)
        assert (plain.engine, fixed.engine) == ("plain", "fixed")


def test_weights_are_in_memory_once_and_looked_up_when_they_are_used() -> None:
    target, drafter = shaken()
    before = deepcopy(target)
    parts = [(FusedAnole(target).layers[0], target.blocks[0]), (FusedAnoleDrafter(drafter).layer, drafter.layer)]
    for layer, block in parts:
        a, m = block.self_attn, block.mlp
        for whole, rows in ((layer.qkv, (a.q_proj, a.k_proj, a.v_proj)), (layer.gate_up, (m.gate_proj, m.up_proj))):
            assert {part.weight.untyped_storage().data_ptr() for part in rows} == {whole.untyped_storage().data_ptr()}
            assert sum(part.out_features for part in rows) == len(whole)
            # no tensor but the whole is kept, not even a view: ZeroGPU would pack it as one more
            assert all(value is whole for part in rows for value in part._whole)
            assert not any(list(part.parameters()) or list(part.buffers()) for part in rows)
    assert torch.equal(target.blocks[0].self_attn.k_proj.weight, before.blocks[0].self_attn.k_proj.weight)


def test_sums_are_kept_where_a_device_can() -> None:
    x, weight = torch.randn(3, 8), torch.randn(5, 8)
    assert not cuda.keeps_sums("cpu", torch.bfloat16), "a CPU rounds, and says so"
    for dtype in (torch.float32, torch.bfloat16):
        found = cuda.product(x.to(dtype), weight.to(dtype))
        assert found.dtype == torch.float32 and found.shape == (3, 5)
        torch.testing.assert_close(found, x @ weight.t(), atol=0.1 if dtype == torch.bfloat16 else 1e-5, rtol=0.05)


def test_a_cache_that_is_used_again_reads_like_a_new_one() -> None:
    """What a captured step reads stays in its place and holds the next prompt's numbers."""
    target = anole_networks()[0]
    kept = target.new_cache(2, 4)
    kept.place(None)
    places = kept.shift.data_ptr(), kept.padding.data_ptr()
    for padded in (4, 1, 0, 2):
        real = torch.ones(2, 6, dtype=torch.bool)
        real[1, :padded] = False
        new = target.new_cache(2, 4)
        for cache in (kept, new):
            cache.place(real)
        assert torch.equal(kept.shift, new.shift) and torch.equal(kept.padding, new.padding)
        assert (kept.visible is None) == (new.visible is None) == (padded == 0)
        assert (kept.shift.data_ptr(), kept.padding.data_ptr()) == places
