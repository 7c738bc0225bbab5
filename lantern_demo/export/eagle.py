"""An EAGLE-1 drafter for models of transformers: one LLaMA layer over pairs of a token and the state before it.

Slot i pairs the target's state at position i with the token at position i + 1: fc([embedding; state]), one decoder layer, and
the target's head behind it. Its inputs' norm, the norms of queries and keys, biases and embeddings of its own are there where
its file has them: EAGLE's own drafters have none of the norms, LANTERN's drafter of Anole has all. Facts: SafeAILab/EAGLE,
eagle/model/cnets.py; jadohu/LANTERN, models/drafters/cnets_anole.py."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lantern_demo.export.cached import Prompt
from lantern_demo.export.readers import TextReader
from lantern_demo.models.common import RMSNorm, prefix_mask
from lantern_demo.models.decoder import HeadNorm, PaddedCache, SequenceDrafter, angles, turn
from lantern_demo.models.llama import FeedForward, Layer, SplitAttention


@dataclass(frozen=True)
class EagleSizes:
    """Sizes of a drafter, and which of its optional parts it has."""

    dim: int  # H, the target's
    heads: int
    shared: int  # heads of keys and values
    head_dim: int
    ffn: int
    eps: float
    theta: float  # the rotary base
    vocabulary: int  # rows of its own embeddings; 0: it reads the target's
    bias: bool  # of fc
    biased: bool  # whether queries, keys and values have biases
    before: bool  # whether there is a norm before attention
    normed: bool  # whether queries and keys are normalised by head
    prefix: int  # positions of the prompt
    rows: int
    positions: int  # rows of the rotary table

    def rope_table(self) -> Tensor:
        """The rotary table [positions, head_dim / 2, 2] float32, (cos, sin) last."""
        return angles(self.positions, self.head_dim, self.theta)

    def layer(self, *_: Any) -> Layer:
        """The decoder layer."""
        before = RMSNorm(self.dim, self.eps) if self.before else None
        return Layer(before, EagleAttention(self), RMSNorm(self.dim, self.eps), FeedForward(self.dim, self.ffn))


class EagleAttention(SplitAttention):
    """Attention whose heads may share keys and values."""

    def __init__(self, sizes: EagleSizes) -> None:
        super().__init__(sizes.dim, sizes.heads, turn)
        own, shared = sizes.heads * sizes.head_dim, sizes.shared * sizes.head_dim
        self.shared, self.by_head = sizes.shared, sizes.normed
        self.q_proj = nn.Linear(sizes.dim, own, bias=sizes.biased)
        self.k_proj = nn.Linear(sizes.dim, shared, bias=sizes.biased)
        self.v_proj = nn.Linear(sizes.dim, shared, bias=sizes.biased)
        self.o_proj = nn.Linear(own, sizes.dim, bias=False)
        if sizes.normed:
            self.q_norm = HeadNorm(sizes.heads, sizes.head_dim)
            self.k_norm = HeadNorm(sizes.shared, sizes.head_dim)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As `Attention.read`: keys and values are repeated for the heads that share them."""
        q = self.q_proj(x).unflatten(-1, (self.heads, -1))
        k, v = (p(x).unflatten(-1, (self.shared, -1)) for p in (self.k_proj, self.v_proj))
        if self.by_head:
            q, k = self.q_norm(q), self.k_norm(k)
        k, v = (x.repeat_interleave(self.heads // self.shared, 2) for x in (k, v))
        return torch.cat((q, k), 2), v


class EagleDrafter(SequenceDrafter):
    """Implements `decoding.protocols.Drafter` behind a `cached.ModelTarget`, whose states it takes apart into rows."""

    config: EagleSizes

    def __init__(self, sizes: EagleSizes) -> None:
        super().__init__(sizes, sizes.layer)
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.dim) if sizes.vocabulary else None
        self.fc = nn.Linear(2 * sizes.dim, sizes.dim, bias=sizes.bias)

    def bind(self, reader: TextReader) -> None:
        """Read tokens as the target's reader does, which is no part of the weights."""
        self.reader = reader

    def table(self, ids: Tensor) -> Tensor:
        """Ids of the vocabulary [...] -> their vectors [..., H]."""
        own = self.embed_tokens
        return (self.reader.model.get_input_embeddings() if own is None else own)(ids)

    def embed(self, tokens: Tensor) -> Tensor:
        """As `SequenceDrafter.embed`."""
        return self.reader.embed(tokens, self.table)

    def fuse(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """As `SequenceDrafter.fuse`."""
        return self.fc(torch.cat((embedded, hidden), -1))

    def new_cache(self, rows: int, length: int) -> PaddedCache:
        """As `decoding.protocols.Drafter.new_cache`; rows are the reader's."""
        c, weight = self.config, self.fc.weight
        return PaddedCache(1, c.rows, c.heads, c.prefix + length, c.head_dim, dtype=weight.dtype, device=weight.device)

    def start(self, hidden: Tensor, token: Tensor, cache: PaddedCache, condition: Prompt) -> Tensor:
        """The prompt with its states and the first token [1] -> last output [rows, 1, H]; commits T slots."""
        assert condition.states is not None
        n = condition.ids.shape[1]
        cache.set_padding(condition.real)
        drawn = self.embed(token).expand(len(condition.ids), 1, -1)
        following = torch.cat((self.table(condition.ids[:, 1:]), drawn), 1)
        mask = prefix_mask(condition.real, n, token.device, "self", drawn.dtype)
        turns = self.turns_at(torch.arange(n, device=token.device), cache)
        out = self.run(following, condition.states.type_as(drawn), turns, mask, partial(cache.write, 0, 0))
        cache.advance(n)
        return out[:, -1:]

    def extend(self, tokens: Tensor, hidden: Tensor, cache: PaddedCache) -> Tensor:
        """As `decoding.protocols.Drafter.extend`, of the target's states [1, m, V + rows * H]."""
        rows, dim = self.config.rows, self.config.dim
        states = hidden[0, :, -rows * dim :].unflatten(-1, (rows, dim)).transpose(0, 1)
        return super().extend(tokens, states.type_as(self.fc.weight), cache)
