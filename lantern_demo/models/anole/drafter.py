"""LANTERN's drafter of Anole: one layer of its target's kind over pairs of a token and the hidden
state before it.

Compared with LlamaGen's drafter (see `llamagen.drafter`) it has a norm before its attention, reads
the prompt's own tokens, and leaves padding out. As in its target, the two rows turn by different
angles (jadohu/LANTERN, models/drafters/cnets_anole.py). Tensor names are those of the published
pytorch_model.bin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from lantern_demo.models.anole.target import FIRST, AnoleLayer, AnoleSizes
from lantern_demo.models.common import Condition, DrafterSizes
from lantern_demo.models.decoder import PaddedCache, SequenceDrafter


@dataclass(frozen=True)
class AnoleDrafterConfig(AnoleSizes["AnoleDrafter"], DrafterSizes["AnoleDrafter"]):
    """Sizes of an Anole drafter; all but ffn and bias are its target's."""

    bias: bool = True  # of fc

    def build(self) -> AnoleDrafter:
        return AnoleDrafter(self)


class AnoleDrafter(SequenceDrafter):
    """Implements `decoding.interfaces.Drafter`."""

    config: AnoleDrafterConfig

    def __init__(self, config: AnoleDrafterConfig) -> None:
        super().__init__(config, AnoleLayer)
        self.embed_tokens = nn.Embedding(config.embeddings, config.dim)
        self.fc = nn.Linear(2 * config.dim, config.dim, bias=config.bias)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embed_tokens(tokens + FIRST)

    def fuse(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        return self.fc(torch.cat((embedded, hidden), -1))

    def prefill(
        self, hidden: Tensor, token: Tensor, cache: PaddedCache, condition: Condition
    ) -> None:
        """Prefix hidden [R, T, H], the first image token [1] and the prompt's rows; see
        `decoding.interfaces.Drafter.prefill`.
        """
        ids = condition.features.to(token.device)
        n = ids.shape[1]
        cache.start(n, condition.mask)
        following = torch.cat((ids[:, 1:], (token + FIRST).expand(len(ids), 1)), 1)
        slots = torch.arange(n, device=ids.device)
        store = partial(cache.write, 0, slots, n)
        self.run(
            self.embed_tokens(following),
            hidden,
            self.rope_at(slots, cache),
            cache.bias(None, n),
            store,
            1,
        )
