"""Janus-Pro and its drafter for accelerators: see `models.cuda`.

Against the modules in `target` and `drafter`: query, key and value in one product, gate and up in one, queries and keys turned by
one complex product, residual sums inside the products that they follow, the head's last product kept in float32.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from lantern_demo.models.cuda import FusedSequence, FusedSequenceDrafter, FusedSequenceLayer, matmul
from lantern_demo.models.janus.drafter import JanusDrafter
from lantern_demo.models.janus.target import Janus


class FusedJanus(FusedSequence):
    """A Janus-Pro on an accelerator."""

    original: Janus

    def __init__(self, target: Janus) -> None:
        super().__init__(target, [FusedSequenceLayer(block, target.config.eps) for block in target.blocks])

    def head(self, hidden: Tensor) -> Tensor:
        """hidden [R, n, H] -> logits [R, n, V] float32; the rows of hidden are not mixed before."""
        head = self.original.image_head
        wide = F.gelu(head.proj_out(hidden.flatten(0, 1)))
        return matmul(wide, head.vision_head.weight).add_(head.vision_head.bias).view(*hidden.shape[:2], -1)


class FusedJanusDrafter(FusedSequenceDrafter):
    """A drafter of Janus-Pro on an accelerator; implements `decoding.protocols.FixedDrafter`."""

    def __init__(self, drafter: JanusDrafter) -> None:
        super().__init__(drafter, FusedSequenceLayer(drafter.layer, drafter.config.eps))
