"""LANTERN's drafter of Anole: one layer of its target's kind over pairs of a token and the hidden state before it.

Against LlamaGen's drafter (see `llamagen.drafter`) it has a norm before its attention, reads the prompt's own tokens, leaves
padding out, and turns the two rows by different angles, as its target does (jadohu/LANTERN, models/drafters/cnets_anole.py).
Tensor names are those of the published pytorch_model.bin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from lantern_demo.models.anole.target import FIRST, AnoleLayer, AnoleSizes
from lantern_demo.models.common import Condition, DrafterSizes, prefix_mask
from lantern_demo.models.decoder import PaddedCache, SequenceDrafter


@dataclass(frozen=True)
class AnoleDrafterConfig(AnoleSizes["AnoleDrafter"], DrafterSizes["AnoleDrafter"]):
    """Sizes of an Anole drafter; all but ffn and bias are its target's."""

    bias: bool = True  # of fc

    def build(self) -> AnoleDrafter:
        """As `DrafterSizes.build`."""
        return AnoleDrafter(self)


class AnoleDrafter(SequenceDrafter):
    """Implements `decoding.protocols.FixedDrafter`."""

    config: AnoleDrafterConfig

    def __init__(self, config: AnoleDrafterConfig) -> None:
        super().__init__(config, AnoleLayer)
        self.embed_tokens = nn.Embedding(config.embeddings, config.dim)
        self.fc = nn.Linear(2 * config.dim, config.dim, bias=config.bias)

    def embed(self, tokens: Tensor) -> Tensor:
        """As `SequenceDrafter.embed`."""
        return self.embed_tokens(tokens + FIRST)

    def fuse(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """As `SequenceDrafter.fuse`."""
        return self.fc(torch.cat((embedded, hidden), -1))

    def start(self, hidden: Tensor, token: Tensor, cache: PaddedCache, condition: Condition) -> Tensor:
        """Prefix hidden [R, T, H], the first image token [1] and the prompt's rows -> last output [R, 1, H]; commits T slots."""
        ids = condition.features.to(token.device)
        n = ids.shape[1]
        cache.set_padding(condition.mask)
        following = torch.cat((ids[:, 1:], (token + FIRST).expand(len(ids), 1)), 1)
        mask = prefix_mask(condition.mask, n, ids.device, "self", hidden.dtype)
        turns = self.turns_at(torch.arange(n, device=ids.device), cache)
        out = self.run(self.embed_tokens(following), hidden, turns, mask, partial(cache.write, 0, 0))
        cache.advance(n)
        return out[:, -1:]
