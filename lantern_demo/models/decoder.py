"""What the targets have in common that are LLaMA decoders with the prompt in their sequence, Anole and Janus: layers with
one-dimensional half-rotated positions, a cache whose rows may be padded, the passes of a target, and those of a drafter of one
such layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.decoding.cache import KVCache, end_of
from lantern_demo.models.common import BEYOND, Condition, RMSNorm, prefix_mask
from lantern_demo.models.llama import FeedForward, Layer, SplitAttention, Store, turns, unstored


class PaddedCache(KVCache):
    """A cache whose rows may be padded on the left: row r's token in slot s stands at position s - shift[r]."""

    def __init__(self, layers: int, rows: int, *sizes: int, **where: Any) -> None:
        super().__init__(layers, rows, *sizes, **where)
        self.shift = torch.zeros(rows, dtype=torch.int64, device=self.k.device)  # [R]

    def start(self, length: int, real: Tensor | None = None) -> None:
        """As `KVCache.start`."""
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


def sequence_angles(prefix: int, grid: int, head_dim: int, base: float) -> Tensor:
    """`angles` of all positions that a picture's tokens and drafts past its end can have."""
    return angles(prefix + grid * grid + BEYOND, head_dim, base)


def turn(qkv: Tensor, turns: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn the pairs (i, i + d / 2): see `llama.Turn`."""
    turned = torch.view_as_real(torch.complex(*qkv.chunk(2, -1)) * turns)
    return turned.transpose(-1, -2).flatten(-2).to(dtype)


class Attention(SplitAttention):
    """Attention of these families: pairs of halves turn."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads, turn)


class HeadNorm(nn.Module):
    """The weight and the bias, per head, of a LayerNorm of each head by itself."""

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, dim))
        self.bias = nn.Parameter(torch.zeros(heads, dim))


class SequenceLayer(Layer):
    """A decoder layer, of a target and of its drafter alike."""

    attention: type[Attention] = Attention

    def __init__(self, dim: int, heads: int, ffn: int, eps: float) -> None:
        super().__init__(RMSNorm(dim, eps), self.attention(dim, heads), RMSNorm(dim, eps), FeedForward(dim, ffn))


class SequenceTarget(nn.Module, ABC):
    """Implements `decoding.interfaces.Target` but for `head`. A prompt is ids of the text's vocabulary; image tokens are
    places in the codebook, 0 to vocab - 1."""

    rope: Tensor
    feature_layers: tuple[int, ...] = ()  # as of `LlamaGen`; these families' drafters read final states alone

    def __init__(self, config: Any, layer: type[SequenceLayer]) -> None:
        super().__init__()
        self.config = config
        self.vocab_size: int = config.vocab
        self.embed_tokens = nn.Embedding(config.embeddings, config.dim)
        self.layers = nn.ModuleList(layer(config.dim, config.heads, config.ffn, config.eps) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim, config.eps)
        self.register_buffer("rope", config.rope_table(), persistent=False)

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """Image tokens [...] int64 -> their vectors [..., H]."""

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """hidden [R, n, H] -> logits [R, n, V] float32 of the image tokens."""

    @property
    def blocks(self) -> list[SequenceLayer]:
        return cast(list[SequenceLayer], list(self.layers))

    def new_cache(self, rows: int, length: int) -> PaddedCache:
        """As `decoding.interfaces.Target.new_cache`."""
        weight, c = self.norm.weight, self.config
        slots = c.prefix + length
        return PaddedCache(c.layers, rows, c.heads, slots, c.dim // c.heads, dtype=weight.dtype, device=weight.device)

    def prefill(self, condition: Condition, cache: PaddedCache) -> Tensor:
        """The T positions of the prompt -> hidden [R, T, H]. Rows of padding mean nothing, and nothing reads them."""
        ids = condition.features.to(self.rope.device)
        n = ids.shape[1]
        cache.start(n, condition.mask)
        mask = prefix_mask(condition.mask, n, ids.device, "self", self.norm.weight.dtype)
        slots = torch.arange(n, device=ids.device)
        stores = [partial(cache.write, i, slots, n) for i in range(len(self.layers))]
        return self._run(self.embed_tokens(ids), cache.positions(slots), mask, stores)

    def forward(self, tokens: Tensor, positions: Tensor, slots: Tensor, visible: Tensor | None, cache: PaddedCache) -> Tensor:
        """n nodes -> hidden [R, n, H]; see `decoding.interfaces.Target.forward`. tokens may also be [R, n]: rows of their own."""
        x, end = self.embed(tokens).expand(cache.rows, -1, -1), end_of(slots, visible)
        stores = [partial(cache.write, i, slots, end) for i in range(len(self.layers))]
        return self._run(x, cache.positions(positions), cache.bias(visible, end), stores)

    def train_hidden(self, tokens: Tensor, ids: Tensor, mask: Tensor | None) -> Tensor:
        """Teacher forcing: tokens [B, N], prompts' ids [B, T] and their mask [B, T] -> hidden [B, T + N, H].

        The state that predicts token j is at T - 1 + j.
        """
        x = torch.cat((self.embed_tokens(ids), self.embed(tokens)), 1)
        n, t = x.shape[1], ids.shape[1]
        seen = prefix_mask(None if mask is None else F.pad(mask, (0, n - t), value=True), n, x.device, "self", x.dtype)
        # counted from the padding's begin: attention knows positions by their differences alone
        return self._run(x, torch.arange(n, device=x.device)[None], seen, [unstored] * len(self.layers))

    def _run(self, x: Tensor, positions: Tensor, mask: Tensor | None, stores: Sequence[Store]) -> Tensor:
        turn = turns(self.rope[positions])
        for block, store in zip(self.blocks, stores, strict=True):
            x = block(x, turn, (mask, store, x.shape[1]))
        return self.norm(x)


class SequenceDrafter(nn.Module, ABC):
    """Implements `decoding.interfaces.Drafter` but for `prefill`: one decoder layer over pairs of a token and the state before
    it.

    Slot i pairs the target's hidden state at position i with the token at position i + 1, and stands at position i of its row.
    """

    rope: Tensor
    guided = False

    def __init__(self, config: Any, layer: Callable[[int, int, int, float], Layer]) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList([layer(config.dim, config.heads, config.ffn, config.eps)])
        self.register_buffer("rope", config.rope_table(), persistent=False)

    @property
    def layer(self) -> SequenceLayer:
        return cast(SequenceLayer, self.layers[0])

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """As the target's: image tokens [...] int64 -> their vectors [..., H]."""

    @abstractmethod
    def fuse(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Vectors of tokens and hidden states [R, m, H] each -> the layer's input [R, m, H]."""

    def finish(self, x: Tensor) -> Tensor:
        """The layer's output [R, m, H] -> the state that it predicts."""
        return x

    def new_cache(self, rows: int, length: int) -> PaddedCache:
        """As `decoding.interfaces.Drafter.new_cache`."""
        c, weight = self.config, self.layer.input_layernorm.weight
        return PaddedCache(1, rows, c.heads, c.prefix + length, c.dim // c.heads, dtype=weight.dtype, device=weight.device)

    def forward(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, slots: Tensor, visible: Tensor | None, cache: PaddedCache
    ) -> Tensor:
        """n slots -> outputs [R, m, H] of the last m; see `decoding.interfaces.Drafter.forward`."""
        end, asked = end_of(slots, visible), 1 if visible is None else len(visible)
        store = partial(cache.write, 0, slots, end)
        return self.run(self.embed(tokens), hidden, cache.positions(positions), cache.bias(visible, end), store, asked)

    def run(self, embedded: Tensor, hidden: Tensor, positions: Tensor, mask: Tensor | None, store: Store, asked: int) -> Tensor:
        """embedded [n, H] or [R, n, H], hidden [R, n, H], positions [R, n] -> outputs [R, asked, H] of the last so many."""
        x = self.fuse(embedded.expand(hidden.shape[0], -1, -1), hidden)
        return self.finish(self.layer(x, turns(self.rope[positions]), (mask, store, asked)))
