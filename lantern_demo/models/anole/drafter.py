"""LANTERN's drafter of Anole: one layer of its target's kind over pairs of a token and the hidden state before it.

Against LlamaGen's drafter (see `llamagen.drafter`) it has a norm before its attention, reads the prompt's own tokens, leaves
padding out, and turns the two rows by different angles, as its target does (jadohu/LANTERN, models/drafters/cnets_anole.py).
Tensor names are those of the published pytorch_model.bin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from lantern_demo.models.anole.target import FIRST, AnoleCache, AnoleLayer, AnoleSizes, Store
from lantern_demo.models.common import Condition, DrafterSizes, prefix_mask


@dataclass(frozen=True)
class AnoleDrafterConfig(AnoleSizes["AnoleDrafter"], DrafterSizes["AnoleDrafter"]):
    """Sizes of an Anole drafter; all but ffn and bias are its target's."""

    bias: bool = True  # of fc

    def build(self) -> AnoleDrafter:
        """As `DrafterSizes.build`."""
        return AnoleDrafter(self)


class AnoleDrafter(nn.Module):
    """Implements `decoding.protocols.FixedDrafter`.

    Slot i pairs the target's hidden state at position i with the token at position i + 1, and stands at position i of its row.
    """

    rope: Tensor
    guided = False

    def __init__(self, config: AnoleDrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.embeddings, config.dim)
        self.fc = nn.Linear(2 * config.dim, config.dim, bias=config.bias)
        self.layers = nn.ModuleList([AnoleLayer(config.dim, config.heads, config.ffn, config.eps)])
        self.register_buffer("rope", config.rope_table(), persistent=False)

    @property
    def layer(self) -> AnoleLayer:
        return cast(AnoleLayer, self.layers[0])

    def new_cache(self, rows: int, length: int) -> AnoleCache:
        c, weight = self.config, self.fc.weight
        return AnoleCache(1, rows, c.heads, c.prefix + length, c.dim // c.heads, dtype=weight.dtype, device=weight.device)

    def start(self, hidden: Tensor, token: Tensor, cache: AnoleCache, condition: Condition) -> Tensor:
        """Prefix hidden [R, T, H], the first image token [1] and the prompt's rows -> last output [R, 1, H]; commits T slots."""
        ids = condition.features.to(token.device)
        n = ids.shape[1]
        cache.place(condition.mask)
        following = torch.cat((ids[:, 1:], (token + FIRST).expand(len(ids), 1)), 1)
        mask = prefix_mask(condition.mask, n, ids.device, "self", hidden.dtype)
        out = self._run(
            following, hidden, self.turns_at(torch.arange(n, device=ids.device), cache), mask, partial(cache.write, 0, 0)
        )
        cache.advance(n)
        return out[:, -1:]

    def extend(self, tokens: Tensor, hidden: Tensor, cache: AnoleCache) -> Tensor:
        """m new slots, tokens [m] and hidden [R, m, H] -> last output [R, 1, H]; commits them."""
        m = tokens.shape[0]
        slots = cache.length + torch.arange(m, device=tokens.device)
        mask = cache.mask(torch.ones(m, m, dtype=torch.bool, device=tokens.device).tril())
        out = self._run(tokens + FIRST, hidden, self.turns_at(slots, cache), mask, partial(cache.write, 0, 0))
        cache.advance(m)
        return out[:, -1:]

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor, cache: AnoleCache) -> Tensor:
        """A tree pass over nodes of one depth; see `decoding.protocols.Drafter.expand`."""
        width = mask.shape[1] - tokens.shape[0]
        slots = tokens.new_full(tokens.shape, cache.length + depth - 1)
        return self._run(tokens + FIRST, hidden, self.turns_at(slots, cache), cache.mask(mask), partial(cache.write, 0, width))

    def turns_at(self, positions: Tensor, cache: AnoleCache) -> Tensor:
        """[R, m, d / 2, 2]; see `decoding.protocols.FixedDrafter.turns_at`."""
        return self.rope[cache.positions(positions)]

    def run_at(self, tokens: Tensor, hidden: Tensor, turn: Tensor, slots: Tensor, bias: Tensor, cache: AnoleCache) -> Tensor:
        """m slots -> outputs [R, m, H]; see `decoding.protocols.FixedDrafter.run_at`. Padding is left out here."""
        seen = bias.shape[-1]
        mask = bias if cache.padding is None else bias + cache.padding[..., :seen]
        return self._run(tokens + FIRST, hidden, turn, mask, cache.store_at(0, slots, seen))

    def _run(self, ids: Tensor, hidden: Tensor, turn: Tensor, mask: Tensor | None, store: Store) -> Tensor:
        """ids [m] or [R, m] of the vocabulary, hidden [R, m, H], turn [R, m or 1, d / 2, 2] -> outputs [R, m, H]."""
        embedded = self.embed_tokens(ids).expand(hidden.shape[0], -1, -1)
        x = self.fc(torch.cat((embedded, hidden), -1))
        return self.layer(x, turn, mask, store)
