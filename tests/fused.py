"""The fused models for accelerators of LLaMA decoders against the modules that they are made from, once for all families."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from runs import decode
from test_fixed import settings
from torch import Tensor

from lantern_demo.decoding.sampling import Sampling

ROOM = 10  # slots behind the prompt, more than a few nodes take


def same_numbers(modules: tuple[Any, Any], fused: tuple[Any, Any], ids: Tensor, guided: bool, logits: float) -> None:
    """A pass of three nodes by a target and its drafter, and by their fused models; prompts [1, T]. `logits` is how near logits
    must be."""
    (target, drafter), (large, small) = modules, fused
    generator = torch.Generator().manual_seed(2)
    with torch.inference_mode():
        condition = target.condition(ids, None, guided)
        rows = len(condition.features)
        tokens, depths = torch.tensor([3, 9, 11]), torch.tensor([0, 1, 1])
        mask = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()
        caches = [part.new_cache(rows, ROOM) for part in (target, large)]
        for part, cache in zip((target, large), caches, strict=True):
            part.prefill(condition, cache)
        length, width = caches[0].length, caches[0].length + ROOM
        slots = length + torch.arange(3)
        bias = torch.zeros(rows, 1, 3, width) if caches[0].padding is None else caches[0].padding[..., :width].repeat(1, 1, 3, 1)
        bias[..., length:] = -torch.inf
        bias[..., length : length + 3] = torch.where(mask, 0.0, -torch.inf)
        wanted = target.forward(tokens, depths, mask, caches[0])
        found = large.forward_at(tokens, length + depths, slots, bias, caches[1])
        torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(large.head(found), target.head(wanted), atol=logits, rtol=logits)
        filled = [cache.both[:, :, :, : length + 3] for cache in caches]
        torch.testing.assert_close(filled[1], filled[0], atol=1e-4, rtol=1e-4)

        hidden = torch.randn(rows, 3, target.config.dim, generator=generator)
        outputs = []
        for part in (drafter, small):
            cache = part.new_cache(rows, ROOM)
            part.start(torch.ones(rows, length, target.config.dim), tokens[:1], cache, condition)
            at = cache.length + torch.arange(3)
            seen = torch.where(torch.arange(width) <= at[:, None], 0.0, -torch.inf)[None, None]
            outputs.append(part.run_at(tokens, hidden, part.turns_at(at, cache), at, seen, cache))
        torch.testing.assert_close(outputs[1], outputs[0], atol=1e-4, rtol=1e-4)


def same_runs(modules: tuple[Any, Any], fused: tuple[Any, Any], ids: Tensor, method: str, scale: float) -> None:
    """Sixteen tokens of a method by the plain engine with the modules and by the fixed one with the fused ones: guided,
    greedy, and with a row alone."""
    target = modules[0]
    for guidance, temperature in ((scale, 1.0), (scale, 0.0), (1.0, 1.0)):
        with torch.inference_mode():
            condition = target.condition(ids, None, guidance != 1)
        knobs = {
            "num_tokens": 16,
            "seed": 3,
            "sampling": Sampling(temperature, cfg_scale=guidance),
            **settings(method, vocab=target.vocab_size),
        }
        *_, plain = decode(*modules, condition, engine="plain", **knobs)
        *_, fixed = decode(*fused, condition, engine="fixed", **knobs)
        assert (fixed.tokens, fixed.accepted_lengths) == (plain.tokens, plain.accepted_lengths)
        assert (plain.engine, fixed.engine) == ("plain", "fixed")


def weights_once(modules: tuple[Any, Any], make: tuple[Any, Any]) -> list[tuple[Tensor, tuple[Any, ...]]]:
    """Fused models made of modules hold no weight twice -> each whole weight, and the products that are rows of it."""
    target, drafter = modules
    before = deepcopy(target)
    wholes = []
    for layer, block in ((make[0](target).layers[0], target.blocks[0]), (make[1](drafter).layer, drafter.layer)):
        a, m = block.self_attn, block.mlp
        wholes += [(layer.weights.qkv, (a.q_proj, a.k_proj, a.v_proj)), (layer.weights.gate_up, (m.gate_proj, m.up_proj))]
    for whole, rows in wholes:
        assert {part.weight.untyped_storage().data_ptr() for part in rows} == {whole.untyped_storage().data_ptr()}
        assert sum(part.out_features for part in rows) == len(whole)
    assert torch.equal(target.blocks[0].self_attn.k_proj.weight, before.blocks[0].self_attn.k_proj.weight)
    return wholes
