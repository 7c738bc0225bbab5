"""Anole and its drafter for accelerators: see `models.cuda`.

Against the modules in `target` and `drafter`: query, key and value in one product, gate and up in one, queries and keys
normalised together and turned by one complex product, residual sums inside the products that they follow. Keys lie in the cache
as the modules write them, so that a prompt may be read by the original.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_demo.models.anole.drafter import AnoleDrafter
from lantern_demo.models.anole.target import FIRST, Anole, AnoleCache, AnoleLayer
from lantern_demo.models.cuda import DrafterTwin, FusedLayer, TargetTwin, join, product


@dataclass(frozen=True)
class FusedAnoleLayer(FusedLayer):
    """One decoder layer, of the target and of its drafter alike; turns are [R, n or 1, 1, 1, d / 2]."""

    scale: Tensor  # [2, heads, d] float32 of the norms of queries and of keys
    shift: Tensor  # [2, heads, d] float32

    @classmethod
    def of(cls, layer: AnoleLayer, eps: float) -> FusedAnoleLayer:
        """The twin of a layer, whose weights become those of the twin."""
        a, m = layer.self_attn, layer.mlp
        norms = (a.q_norm, a.k_norm)
        return cls(
            layer.input_layernorm.weight, join(a, "q_proj", "k_proj", "v_proj"), a.o_proj.weight,
            layer.post_attention_layernorm.weight, join(m, "gate_proj", "up_proj"), m.down_proj.weight, a.heads, eps,
            torch.stack([n.weight.float() for n in norms]), torch.stack([n.bias.float() for n in norms]),
        )  # fmt: skip

    def turned(self, qkv: Tensor, turn: Tensor, dtype: torch.dtype) -> Tensor:
        """As `FusedLayer.turned`; queries and keys are normalised first."""
        normed = torch.addcmul(self.shift, F.layer_norm(qkv[:, :, :2], qkv.shape[-1:], eps=1e-5), self.scale)
        # pairs are (i, i + d / 2)
        turned = torch.view_as_real(torch.complex(*normed.chunk(2, -1)) * turn)
        new = qkv.new_empty(qkv.shape, dtype=dtype)
        new[:, :, :2].unflatten(-1, (2, -1)).copy_(turned.transpose(-1, -2))
        new[:, :, 2].copy_(qkv[:, :, 2])
        return new


def turns(rope: Tensor) -> Tensor:
    """A rotary table [P, d / 2, 2] (cos, sin) -> [P, 1, 1, d / 2] complex64."""
    return torch.view_as_complex(rope.float().contiguous())[:, None, None]


class FusedAnole(TargetTwin):
    """An Anole target on an accelerator."""

    original: Anole

    def __init__(self, target: Anole) -> None:
        super().__init__(target, [FusedAnoleLayer.of(block, target.config.eps) for block in target.blocks])
        self.turns = turns(target.rope)

    def embed(self, tokens: Tensor) -> Tensor:
        """As `TargetTwin.embed`."""
        return self.original.embed_tokens(tokens + FIRST)

    def turns_at(self, positions: Tensor, cache: AnoleCache) -> Tensor:
        """[R, n, 1, 1, d / 2] complex64."""
        return self.turns[cache.positions(positions)]

    def head(self, hidden: Tensor) -> Tensor:
        """hidden [R, n, H] -> logits [R, n, V] float32 of the image tokens."""
        return product(hidden.flatten(0, 1), self.original.lm_head.weight).view(*hidden.shape[:2], -1)


class FusedAnoleDrafter(DrafterTwin):
    """A drafter of Anole on an accelerator; implements `decoding.protocols.FixedDrafter`."""

    original: AnoleDrafter

    def __init__(self, drafter: AnoleDrafter) -> None:
        super().__init__(drafter, FusedAnoleLayer.of(drafter.layer, drafter.config.eps))
        self.turns = turns(drafter.rope)

    def turns_at(self, positions: Tensor, cache: AnoleCache) -> Tensor:
        """[R, m, 1, 1, d / 2] complex64; see `decoding.protocols.FixedDrafter.turns_at`."""
        return self.turns[cache.positions(positions)]

    def run_at(self, tokens: Tensor, hidden: Tensor, turn: Tensor, slots: Tensor, bias: Tensor, cache: AnoleCache) -> Tensor:
        """m slots -> outputs [R, m, H]; see `decoding.protocols.FixedDrafter.run_at`. Padding is left out here."""
        original = self.original
        mask = bias if cache.padding is None else bias + cache.padding[..., : bias.shape[-1]]
        embedded = original.embed_tokens(tokens + FIRST).expand(hidden.shape[0], -1, -1)
        x = original.fc(torch.cat((embedded, hidden), -1)).flatten(0, 1)
        return self.layer(x, turn, slots, mask, cache.both[0]).view(hidden.shape)
