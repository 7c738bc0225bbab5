"""Janus-Pro and its drafter on a CPU: see `models.lean`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lantern_demo.models.janus.target import Janus
from lantern_demo.models.lean import LeanSequence


class LeanJanus(LeanSequence):
    original: Janus

    def __init__(
        self, target: Janus, kind: str = "plain", release: bool = False, layers: int | None = None
    ) -> None:
        super().__init__(target, kind, release, layers)
        entry, head, packing = target.image_embedding, target.image_head, self.packing
        self.entry = packing.affine(entry.fc1), packing.affine(entry.fc2)
        self.exit = packing.affine(head.proj_out), packing.affine(head.vision_head)

    def embed(self, tokens: Tensor) -> Tensor:
        """As `LeanDecoder.embed`: a row of the codebook through an aligner."""
        first, second = self.entry
        return second(F.gelu(first(self.original.image_embedding.codes(tokens).float())))

    def logits(self, hidden: Tensor) -> Tensor:
        first, second = self.exit
        return second(F.gelu(first(hidden)))
