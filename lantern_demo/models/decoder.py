"""The forward passes of targets and drafters that are LLaMA decoders, implemented once for all
families.

`DecoderTarget` and `DecoderDrafter` hold these passes. The Sequence classes add what Anole and
Janus share: the prompt is part of the sequence, positions have one dimension, halves of a head
rotate as pairs, and rows of a cache may be padded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.decoding.cache import KVCache, end_of
from lantern_demo.models.common import (
    BEYOND,
    Condition,
    Network,
    NetworkSizes,
    RMSNorm,
    attend,
    prefix_mask,
    with_features,
)
from lantern_demo.models.llama import FeedForward, Layer, SplitAttention, Store, rotations, unstored


class PaddedCache(KVCache):
    """A cache whose rows may be padded on the left: row r's token in slot s stands at position s -
    shift[r].
    """

    def __init__(self, layers: int, rows: int, *sizes: int, **where: Any) -> None:
        super().__init__(layers, rows, *sizes, **where)
        self.shift = torch.zeros(rows, dtype=torch.int64, device=self.k.device)  # [R]

    def start(self, length: int, real: Tensor | None = None) -> None:
        super().start(length, real)
        self.shift.zero_()
        if real is not None:
            self.shift.copy_((~real).sum(1))

    def positions(self, slots: Tensor) -> Tensor:
        """Slot numbers [n] -> positions [R, n] int64; padding is at 0."""
        return (slots - self.shift[:, None]).clamp(min=0)


def angles(positions: int, head_dim: int, base: float) -> Tensor:
    """Rotary angles [positions, head_dim / 2, 2] float32, (cos, sin) last."""
    frequency = base ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(positions).float(), frequency)
    return torch.stack((angle.cos(), angle.sin()), -1)


class SequenceSizes(NetworkSizes[Network]):
    """The configuration of a target or a drafter of these families: a drafter's slot stands at its
    target's position.
    """

    def rope_table(self) -> Tensor:
        return angles(self.prefix + self.grid * self.grid + BEYOND, self.head_dim, self.rope_base)


def rotate_halves(qkv: Tensor, rotation: Tensor, dtype: torch.dtype) -> Tensor:
    """Rotate the pairs (i, i + d / 2): see `llama.Rotate`."""
    rotated = torch.view_as_real(torch.complex(*qkv.chunk(2, -1)) * rotation)
    return rotated.transpose(-1, -2).flatten(-2).to(dtype)


class Attention(SplitAttention):
    """Attention of these families, which rotates pairs of halves."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads, rotate_halves)


class HeadNorm(nn.Module):
    """The weight and the bias, per head, of a LayerNorm over each head."""

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, dim))
        self.bias = nn.Parameter(torch.zeros(heads, dim))


class SequenceLayer(Layer):
    """A decoder layer of a target or of its drafter."""

    attention: type[Attention] = Attention

    def __init__(self, dim: int, heads: int, ffn: int, eps: float) -> None:
        super().__init__(
            RMSNorm(dim, eps), self.attention(dim, heads), RMSNorm(dim, eps), FeedForward(dim, ffn)
        )


class Decoder(nn.Module, ABC):
    """LLaMA layers with a cache and a rotary table, which a subclass builds."""

    config: Any
    rope: Tensor
    layers: nn.ModuleList
    cache_type: type[KVCache] = KVCache

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """Return the vectors [..., H] of image tokens [...] int64."""

    def new_cache(self, rows: int, length: int) -> Any:
        """Return an empty cache with slots for the prefix and `length` further positions."""
        c, weight = self.config, next(self.layers.parameters())
        sizes = len(self.layers), rows, c.heads, c.prefix + length, c.head_dim
        return self.cache_type(*sizes, dtype=weight.dtype, device=weight.device)

    def rope_at(self, positions: Tensor, cache: Any) -> Tensor:
        """Return the rotary table's rows [R or 1, n, d / 2, 2] for positions [n] of a cache's
        sequence.
        """
        return self.rope[positions][None]


class Padded(Decoder):
    """A decoder whose cache may have rows with padding on the left."""

    cache_type = PaddedCache

    def rope_at(self, positions: Tensor, cache: PaddedCache) -> Tensor:
        return self.rope[cache.positions(positions)]


class DecoderTarget(Decoder):
    """Implement `decoding.interfaces.Target` for a LLaMA decoder, except `head`, and teacher
    forcing.

    A subclass adds the vectors of prompts and image tokens.
    """

    norm: RMSNorm
    # the positions that a padded position of the prompt sees: see `common.prefix_mask`
    padding = "self"
    # Blocks, counted from 1, whose outputs follow the final state in every hidden state, for a
    # drafter that reads them (`DrafterConfig.feature_layers`): hidden states are then [R, n, (1 +
    # F) H].
    feature_layers: tuple[int, ...] = ()

    @abstractmethod
    def read(self, condition: Condition) -> Tensor:
        """Return the inputs [R, T, H] of the prefix positions."""

    @property
    def blocks(self) -> list[Any]:
        return list(self.layers)

    def prefill(self, condition: Condition, cache: Any) -> Tensor:
        """Read the T prefix positions and return their hidden states [R, T, H]."""
        x = self.read(condition)
        n = x.shape[1]
        mask = prefix_mask(condition.mask, n, x.device, self.padding, x.dtype)
        cache.start(n, condition.mask)
        slots = torch.arange(n, device=x.device)
        return self.run(x, self.rope_at(slots, cache), mask, self._stores(cache, slots, n))

    def forward(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, visible: Tensor | None, cache: Any
    ) -> Tensor:
        """Return hidden [R, n, H] of n nodes; see `decoding.interfaces.Target.forward`. tokens may
        also be [R, n].
        """
        x, end = self.embed(tokens).expand(cache.rows, -1, -1), end_of(slots, visible)
        return self.run(
            x,
            self.rope_at(positions, cache),
            cache.bias(visible, end),
            self._stores(cache, slots, end),
        )

    def _stores(self, cache: KVCache, slots: Tensor, end: int) -> list[Store]:
        return [partial(cache.write, i, slots, end) for i in range(len(self.layers))]

    def train_hidden(self, tokens: Tensor, features: Tensor, mask: Tensor | None) -> Tensor:
        """Run teacher forcing: tokens [B, N] and the rows of a condition, features and mask [B, T]
        -> hidden [B, T + N, H].

        The state that predicts token j is at T - 1 + j. Positions count from a row's first one,
        padded or not: attention depends on their differences alone.
        """
        prefix = self.read(Condition(features, mask))
        x = torch.cat((prefix, self.embed(tokens).type_as(prefix)), 1)
        n, t = x.shape[1], prefix.shape[1]
        seen = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        if mask is not None:
            seen = seen & F.pad(mask, (0, n - t), value=True)[:, None, None]
            seen[:, :, :t, :t] = prefix_mask(
                mask, t, x.device, self.padding, self.norm.weight.dtype
            )
        return self.run(x, self.rope[:n][None], seen, None)

    def run(
        self, x: Tensor, rope: Tensor, mask: Tensor | None, stores: Sequence[Store] | None
    ) -> Tensor:
        """Apply the blocks and the final norm to x [B, n, H] -> hidden. rope [B or 1, n, d / 2, 2]
        holds rows of the rotary table. Without stores the pass keeps no keys and values.
        """
        features: list[Tensor] = []
        rotation = rotations(rope)
        for i, block in enumerate(self.layers):
            x = block(x, rotation, (mask, unstored if stores is None else stores[i], x.shape[1]))
            if i + 1 in self.feature_layers:
                features.append(x)
        return with_features(self.norm(x), features)


class SequenceTarget(Padded, DecoderTarget):
    """A target whose prompt is ids of the text's vocabulary.

    Image tokens are codebook indices, 0 to vocab - 1.
    """

    def __init__(self, config: Any, layer: type[SequenceLayer]) -> None:
        super().__init__()
        self.config = config
        self.vocab_size: int = config.vocab
        self.embed_tokens = nn.Embedding(config.embeddings, config.dim)
        self.layers = nn.ModuleList(
            layer(config.dim, config.heads, config.ffn, config.eps) for _ in range(config.layers)
        )
        self.norm = RMSNorm(config.dim, config.eps)
        self.register_buffer("rope", config.rope_table(), persistent=False)

    def read(self, condition: Condition) -> Tensor:
        return self.embed_tokens(condition.features.to(self.rope.device))


class DecoderDrafter(Decoder):
    """Implement `decoding.interfaces.Drafter` for one LLaMA layer over pairs of a token and the
    state before it, except `prefill`.

    Slot i pairs the target's hidden state at position i with the token at position i + 1.
    """

    @abstractmethod
    def fuse(self, embedded: Tensor, before: Tensor) -> Tensor:
        """Join tokens' vectors [R, m, H] with the states before them [R, m, H] to the layer's input
        [R, m, H].
        """

    def finish(self, x: Tensor) -> Tensor:
        """Turn the layer's output [R, m, H] into the state that it predicts."""
        return x

    @property
    def layer(self) -> Any:
        return self.layers[0]

    def forward(
        self,
        tokens: Tensor,
        hidden: Tensor,
        positions: Tensor,
        slots: Tensor,
        visible: Tensor | None,
        cache: Any,
    ) -> Tensor:
        """Return outputs [R, m, H] of the last m of n slots; see
        `decoding.interfaces.Drafter.forward`.
        """
        end, asked = end_of(slots, visible), 1 if visible is None else len(visible)
        store = partial(cache.write, 0, slots, end)
        return self.run(
            self.embed(tokens),
            hidden,
            self.rope_at(positions, cache),
            cache.bias(visible, end),
            store,
            asked,
        )

    def run(
        self,
        embedded: Tensor,
        hidden: Tensor,
        rope: Tensor,
        mask: Tensor | None,
        store: Store,
        asked: int,
    ) -> Tensor:
        """Run embedded [n, H] or [R, n, H], hidden [R, n, H] and rope [R or 1, n, d / 2, 2] ->
        outputs [R, asked, H].
        """
        x = self.fuse(embedded.expand(hidden.shape[0], -1, -1), hidden)
        return self.finish(self.layer(x, rotations(rope), (mask, store, asked)))

    def train_passes(self, tokens: Tensor, hidden: Tensor, passes: int) -> list[Tensor]:
        """Run teacher forcing with the inputs of drafting. Output i imitates the final state at
        position i + 1. `examples/train_drafter/teaching.py` has the shapes.

        Pass 0 reads the target's states, as the stable slots do. Pass t reads the output of pass t
        - 1 one slot before, as a tree node at depth t does: it attends to the stable slots up to i
        - t, to its t - 1 ancestors and to itself. Its first t slots have no such ancestors and are
        invalid.
        """
        embedded, rotation = (
            self.embed(tokens).type_as(hidden),
            rotations(self.rope[None, : tokens.shape[1]]),
        )
        slot = torch.arange(hidden.shape[1], device=hidden.device)
        back = slot[:, None] - slot[None]  # how many slots key j precedes query i by
        keys: list[Tensor] = []
        values: list[Tensor] = []
        outputs: list[Tensor] = []
        for t in range(passes):
            x = self.fuse(embedded, hidden if t == 0 else F.pad(outputs[-1], (0, 0, 1, 0))[:, :-1])
            q, k, v = (
                self.layer.self_attn.rotated(self.layer.norm_before(x), rotation)
                .transpose(1, 3)
                .unbind(2)
            )
            keys.append(k)
            values.append(v)
            seen = torch.cat([back >= t, *(back == t - u for u in range(1, t + 1))], 1)
            attended = attend(q, torch.cat(keys, 2), torch.cat(values, 2), seen)
            outputs.append(self.finish(self.layer.finish(x, attended.transpose(1, 2).flatten(2))))
        return outputs


class SequenceDrafter(Padded, DecoderDrafter):
    """A drafter whose slot i stands at position i of its row."""

    guided = False

    def __init__(self, config: Any, layer: Callable[[int, int, int, float], Layer]) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList([layer(config.dim, config.heads, config.ffn, config.eps)])
        self.register_buffer("rope", config.rope_table(), persistent=False)
