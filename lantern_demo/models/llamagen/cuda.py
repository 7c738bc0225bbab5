"""LlamaGen and its drafter for accelerators: see `models.cuda`.

Against the modules in `target` and `drafter`: query, key and value in one product, gate and up in one, queries and keys turned by
one complex product, keys and values written by one copy, residual sums inside the products that they follow.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lantern_demo.models.cuda import FusedDrafterBase, FusedLayer, FusedTargetBase, Weights, join, matmul
from lantern_demo.models.llamagen.drafter import Drafter
from lantern_demo.models.llamagen.target import LlamaGen


def turns(rope: Tensor) -> Tensor:
    """A rotary table [P, d / 2, 2] (cos, sin) -> [P, 3, 1, d / 2] complex64 for queries, keys and values; values do not turn."""
    turn = torch.view_as_complex(rope.float().contiguous())
    return torch.stack((turn, turn, torch.ones_like(turn)), 1).unsqueeze(2)


class FusedLlamaGenLayer(FusedLayer):
    """What `Block` and `DrafterLayer` compute; turns are [n, 3, 1, d / 2] or [1, n or 1, 3, 1, d / 2]."""

    def turned(self, qkv: Tensor, turn: Tensor, dtype: torch.dtype) -> Tensor:
        """As `FusedLayer.turned`."""
        # complex products exist in float32 only; turning values by 1 keeps them as they are
        pairs = torch.view_as_complex(qkv.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * turn).flatten(-2).to(dtype)


class FusedTarget(FusedTargetBase):
    """A LlamaGen target on an accelerator."""

    original: LlamaGen

    def __init__(self, target: LlamaGen) -> None:
        layers = [
            Weights(
                b.attention_norm.weight,
                b.attention.wqkv.weight,
                b.attention.wo.weight,
                b.ffn_norm.weight,
                join(b.feed_forward, "w1", "w3"),
                b.feed_forward.w2.weight,
                target.config.heads,
                target.config.eps,
            )
            for b in target.blocks
        ]
        super().__init__(target, [FusedLlamaGenLayer(weights) for weights in layers])
        self.turns = turns(target.rope)

    def embed(self, tokens: Tensor) -> Tensor:
        """As `FusedTargetBase.embed`."""
        return self.original.tok_embeddings(tokens)

    def turns_at(self, positions: Tensor, cache: Any) -> Tensor:
        """[n, 3, 1, d / 2] complex64."""
        return self.turns.index_select(0, positions)

    def head(self, hidden: Tensor) -> Tensor:
        """hidden [R, n, H] -> logits [R, n, V] float32."""
        final = self.original.final(hidden)
        return matmul(final.flatten(0, 1), self.original.output.weight).view(*hidden.shape[:2], -1)


class FusedDrafter(FusedDrafterBase):
    """A drafter of LlamaGen on an accelerator; implements `decoding.protocols.FixedDrafter`."""

    original: Drafter

    def __init__(self, drafter: Drafter) -> None:
        c, a, m = drafter.config, drafter.layer.self_attn, drafter.layer.mlp
        weights = Weights(
            None,
            join(a, "q_proj", "k_proj", "v_proj"),
            a.o_proj.weight,
            drafter.layer.post_attention_layernorm.weight,
            join(m, "gate_proj", "up_proj"),
            m.down_proj.weight,
            c.heads,
            c.eps,
        )
        super().__init__(drafter, FusedLlamaGenLayer(weights))
        self.turns = turns(drafter.rope)

    def turns_at(self, positions: Tensor, cache: Any) -> Tensor:
        """[1, m, 3, 1, d / 2] complex64; see `decoding.protocols.FixedDrafter.turns_at`."""
        return self.turns.index_select(0, positions)[None]

    def run_at(self, tokens: Tensor, hidden: Tensor, turn: Tensor, slots: Tensor, bias: Tensor, cache: Any) -> Tensor:
        """m slots -> outputs [R, m, H]; see `decoding.protocols.FixedDrafter.run_at`."""
        original = self.original
        embedded = original.embed_tokens(tokens).expand(hidden.shape[0], -1, -1)
        x = original.fuse(embedded, hidden).flatten(0, 1)
        return self.layer.forward(x, turn, (slots, bias, cache.both[0])).view(*hidden.shape[:2], -1)
