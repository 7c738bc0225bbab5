"""Janus-Pro's twins for accelerators against the modules: the same numbers, keys and tokens, whose weights are in memory once."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from published import JANUS, janus_drafter, janus_target
from runs import decode
from test_fixed import settings

from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.models.janus.cuda import FusedJanus, FusedJanusDrafter

IDS = torch.tensor([[0, 23, 20, 24, 22, 10, 11, 12, 25, 23, 21, 24, 22, 3]])


@pytest.fixture(scope="module")
def made() -> tuple[Any, Any]:
    return janus_target(), janus_drafter()


@pytest.mark.parametrize("guided", [False, True], ids=["one row", "two rows"])
def test_the_same_numbers(made: tuple[Any, Any], guided: bool) -> None:
    target, drafter = made
    twin, small = FusedJanus(deepcopy(target)), FusedJanusDrafter(deepcopy(drafter))
    generator = torch.Generator().manual_seed(2)
    with torch.inference_mode():
        condition = target.condition(IDS, None, guided)
        rows = len(condition.features)
        tokens, depths = torch.tensor([3, 9, 11]), torch.tensor([0, 1, 1])
        mask = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
        caches = [part.new_cache(rows, 16) for part in (target, twin)]
        for part, cache in zip((target, twin), caches, strict=True):
            part.prefill(condition, cache)
        length = caches[0].length
        slots = length + torch.arange(3)
        bias = torch.full((1, 1, 3, 24), -torch.inf)
        bias[..., :length] = 0.0
        bias[..., length : length + 3] = torch.where(mask, 0.0, -torch.inf)
        wanted = target.forward(tokens, depths, mask, caches[0])
        found = twin.forward_at(tokens, length + depths, slots, bias, caches[1])
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(twin.head(found), target.head(wanted), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(
            caches[1].both[:, :, :, : length + 3], caches[0].both[:, :, :, : length + 3], atol=1e-4, rtol=1e-4
        )

        hidden = torch.randn(rows, 3, JANUS.dim, generator=generator)
        outputs = []
        for part in (drafter, small):
            cache = part.new_cache(rows, 16)
            part.start(torch.ones(rows, length, JANUS.dim), tokens[:1], cache, condition)
            at = cache.length + torch.arange(3)
            seen = torch.where(torch.arange(24) <= at[:, None], 0.0, -torch.inf)[None, None]
            outputs.append(part.run_at(tokens, hidden, part.turns_at(at, cache), at, seen, cache))
        torch.testing.assert_close(outputs[1], outputs[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", list(METHODS))
def test_the_same_runs(made: tuple[Any, Any], method: str) -> None:
    target, drafter = made
    twins = FusedJanus(deepcopy(target)), FusedJanusDrafter(deepcopy(drafter))
    for scale, temperature in ((5.0, 1.0), (5.0, 0.0), (1.0, 1.0)):
        with torch.inference_mode():
            condition = target.condition(IDS, None, scale != 1)
        knobs = {
            "num_tokens": 16, "seed": 3, "sampling": Sampling(temperature, cfg_scale=scale), **settings(method, vocab=JANUS.vocab),
        }  # fmt: skip
        *_, plain = decode(target, drafter, condition, engine="plain", **knobs)
        *_, fixed = decode(*twins, condition, engine="fixed", **knobs)
        assert (fixed.tokens, fixed.accepted_lengths) == (plain.tokens, plain.accepted_lengths)
        assert (plain.engine, fixed.engine) == ("plain", "fixed")


def test_weights_are_in_memory_once() -> None:
    target, drafter = janus_target(), janus_drafter()
    before = deepcopy(target)
    parts = [(FusedJanus(target).layers[0], target.blocks[0]), (FusedJanusDrafter(drafter).layer, drafter.layer)]
    for layer, block in parts:
        a, m = block.self_attn, block.mlp
        for whole, rows in ((layer.qkv, (a.q_proj, a.k_proj, a.v_proj)), (layer.gate_up, (m.gate_proj, m.up_proj))):
            assert {part.weight.untyped_storage().data_ptr() for part in rows} == {whole.untyped_storage().data_ptr()}
            assert sum(part.out_features for part in rows) == len(whole)
    assert torch.equal(target.blocks[0].self_attn.k_proj.weight, before.blocks[0].self_attn.k_proj.weight)
