"""Anole and its drafter on a CPU: see `models.lean`."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_demo.models.anole.target import Anole, AnoleAttention
from lantern_demo.models.cpu import LeanLayer, paired
from lantern_demo.models.decoder import SequenceLayer
from lantern_demo.models.lean import LeanSequence
from lantern_demo.models.machine.matmul import Matmul


class NormedHeads:
    """Map x [M, D] to queries, keys and values [M, 3 D], and normalise each head of queries and
    keys.

    PyTorch normalises each head separately, and scaling and shifting are rounded correctly, so rows
    stay exact.
    """

    def __init__(self, qkv: Matmul, attention: AnoleAttention) -> None:
        norms, heads = (attention.q_norm, attention.k_norm), attention.heads

        # in the order of the matmul's rows -> [2, heads, d]
        def ordered(weights: list[Tensor]) -> Tensor:
            return torch.stack(
                [paired(w.detach().float().flatten(), heads).view(w.shape) for w in weights]
            )

        self.qkv = qkv
        self.scale, self.shift = (
            ordered([norm.weight for norm in norms]),
            ordered([norm.bias for norm in norms]),
        )

    def __call__(self, x: Tensor) -> Tensor:
        found = self.qkv(x)
        both = found.view(len(x), 3, *self.scale.shape[1:])[:, :2]
        both.copy_(F.layer_norm(both, both.shape[-1:], eps=1e-5).mul_(self.scale).add_(self.shift))
        return found


class LeanAnole(LeanSequence):
    original: Anole

    def __init__(
        self, target: Anole, kind: str = "plain", release: bool = False, layers: int | None = None
    ) -> None:
        super().__init__(target, kind, release, layers)
        self.logits_of = self.packing.matmul(target.lm_head)

    def layer(self, block: SequenceLayer) -> LeanLayer:
        layer = super().layer(block)
        layer.qkv = NormedHeads(layer.qkv, cast(AnoleAttention, block.self_attn))
        return layer

    def embed(self, tokens: Tensor) -> Tensor:
        """As `LeanDecoder.embed`: image tokens are words."""
        return self.original.embed(tokens).float()

    def logits(self, hidden: Tensor) -> Tensor:
        return self.logits_of(hidden)
