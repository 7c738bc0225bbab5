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
from lantern_demo.models.anole.target import Anole, AnoleAttention
from lantern_demo.models.cuda import FusedSequence, FusedSequenceDrafter, FusedSequenceLayer, half_turned, matmul
from lantern_demo.models.decoder import Layer


@dataclass(frozen=True)
class FusedAnoleLayer(FusedSequenceLayer):
    """One decoder layer, of the target and of its drafter alike."""

    scale: Tensor  # [2, heads, d] float32 of the norms of queries and of keys
    shift: Tensor  # [2, heads, d] float32

    @classmethod
    def of(cls, layer: Layer, eps: float) -> FusedAnoleLayer:
        """A layer fused, whose weights become rows of the fused ones."""
        attention = layer.self_attn
        assert isinstance(attention, AnoleAttention)
        norms = (attention.q_norm, attention.k_norm)
        scale, shift = (torch.stack([getattr(n, name).float() for n in norms]) for name in ("weight", "bias"))
        return cls(*cls.parts(layer), eps, scale, shift)

    def turned(self, qkv: Tensor, turn: Tensor, dtype: torch.dtype) -> Tensor:
        """As `FusedLayer.turned`; queries and keys are normalised first."""
        normed = torch.addcmul(self.shift, F.layer_norm(qkv[:, :, :2], qkv.shape[-1:], eps=1e-5), self.scale)
        return half_turned(normed, qkv, turn, dtype)


class FusedAnole(FusedSequence):
    """An Anole target on an accelerator."""

    original: Anole

    def __init__(self, target: Anole) -> None:
        super().__init__(target, [FusedAnoleLayer.of(block, target.config.eps) for block in target.blocks])

    def head(self, hidden: Tensor) -> Tensor:
        """hidden [R, n, H] -> logits [R, n, V] float32 of the image tokens."""
        return matmul(hidden.flatten(0, 1), self.original.lm_head.weight).view(*hidden.shape[:2], -1)


class FusedAnoleDrafter(FusedSequenceDrafter):
    """A drafter of Anole on an accelerator; implements `decoding.protocols.FixedDrafter`."""

    def __init__(self, drafter: AnoleDrafter) -> None:
        super().__init__(drafter, FusedAnoleLayer.of(drafter.layer, drafter.config.eps))
