"""Anole and its drafter for accelerators: see `models.cuda`.

Against the modules in `target` and `drafter`: query, key and value in one product, gate and up in one, queries and keys
normalised together and turned by one complex product, residual sums inside the products that they follow. Keys lie in the cache
as the modules write them, so that a prompt may be read by the original.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_demo.models.anole.drafter import AnoleDrafter
from lantern_demo.models.anole.target import Anole, AnoleAttention
from lantern_demo.models.cuda import FusedSequence, FusedSequenceDrafter, FusedSequenceLayer, half_turned, matmul
from lantern_demo.models.decoder import SequenceLayer


class FusedAnoleLayer(FusedSequenceLayer):
    """One decoder layer, of the target and of its drafter alike."""

    def __init__(self, layer: SequenceLayer, eps: float) -> None:
        """As `FusedSequenceLayer`; scale and shift [2, heads, d] float32 are of the norms of queries and of keys."""
        super().__init__(layer, eps)
        attention = cast(AnoleAttention, layer.self_attn)
        norms = (attention.q_norm, attention.k_norm)
        self.scale, self.shift = (torch.stack([getattr(n, name).float() for n in norms]) for name in ("weight", "bias"))

    def turned(self, qkv: Tensor, turn: Tensor, dtype: torch.dtype) -> Tensor:
        """As `FusedLayer.turned`; queries and keys are normalised first."""
        normed = torch.addcmul(self.shift, F.layer_norm(qkv[:, :, :2], qkv.shape[-1:], eps=1e-5), self.scale)
        return half_turned(normed, qkv, turn, dtype)


class FusedAnole(FusedSequence):
    """An Anole target on an accelerator."""

    original: Anole

    def __init__(self, target: Anole) -> None:
        super().__init__(target, [FusedAnoleLayer(block, target.config.eps) for block in target.blocks])

    def head(self, hidden: Tensor) -> Tensor:
        """hidden [R, n, H] -> logits [R, n, V] float32 of the image tokens."""
        return matmul(hidden.flatten(0, 1), self.original.lm_head.weight).view(*hidden.shape[:2], -1)


class FusedAnoleDrafter(FusedSequenceDrafter):
    """A drafter of Anole on an accelerator; implements `decoding.protocols.FixedDrafter`."""

    def __init__(self, drafter: AnoleDrafter) -> None:
        super().__init__(drafter, FusedAnoleLayer(drafter.layer, drafter.config.eps))
