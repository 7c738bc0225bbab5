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

from lantern_demo.decoding.cache import KVCache
from lantern_demo.models.common import BEYOND, Condition, RMSNorm, prefix_mask
from lantern_demo.models.llama import FeedForward, Layer, SplitAttention, Store, unstored


class PaddedCache(KVCache):
    """A cache whose rows may be padded on the left: row r's token in slot s stands at position s - shift[r]."""

    padding: Tensor | None = None  # [R, 1, 1, slots] in the cache's dtype, once placed: -inf for padded slots, 0 for the rest

    def __init__(self, layers: int, rows: int, *sizes: int, **where: Any) -> None:
        super().__init__(layers, rows, *sizes, **where)
        self.shift = torch.zeros(rows, dtype=torch.int64, device=self.k.device)  # [R]

    def set_padding(self, real: Tensor | None) -> None:
        """Take note of which slots of the prefix are no padding: real [R, T] bool, padded on the left, or None for all of them.
        What steps of fixed shapes read, `shift` and `padding`, stays where it is for as long as the cache lives."""
        if self.padding is None:
            self.padding = self.k.new_zeros(self.k.shape[1], 1, 1, self.slots)
        self.visible = None
        self.shift.zero_()
        self.padding.zero_()
        if real is not None and not bool(real.all()):
            real = real.to(self.k.device)
            self.visible = real[:, None, None]
            self.shift.copy_((~real).sum(1))
            self.padding[..., : real.shape[1]].masked_fill_(~self.visible, -torch.inf)

    def positions(self, slots: Tensor) -> Tensor:
        """Slot numbers [n] -> positions [R, n] int64; padding is at 0."""
        return (slots - self.shift[:, None]).clamp(min=0)

    def mask(self, seen: Tensor) -> Tensor | None:
        """seen [n, m] bool over the last m of the slots up to length + m, all before them being seen -> [R or 1, 1, n, length +
        m] bool, padding left out; None where everything is seen."""
        if self.visible is None and seen.shape[1] == 1:
            return None
        full = F.pad(seen, (self.length, 0), value=True)[None, None]
        if self.visible is None:
            return full
        return full & F.pad(self.visible, (0, full.shape[-1] - self.visible.shape[-1]), value=True)


def angles(positions: int, head_dim: int, base: float) -> Tensor:
    """Rotary angles [positions, head_dim / 2, 2] float32, (cos, sin) last."""
    frequency = base ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(positions).float(), frequency)
    return torch.stack((angle.cos(), angle.sin()), -1)


def sequence_angles(prefix: int, grid: int, head_dim: int, base: float) -> Tensor:
    """`angles` of all positions that a picture's tokens and drafts past its end can have."""
    return angles(prefix + grid * grid + BEYOND, head_dim, base)


def turn(x: Tensor, rope: Tensor) -> Tensor:
    """Turn the pairs (i, i + d / 2) of x [R, n, heads, d] by rope [R or 1, n, d / 2, 2], in float32, cast back."""
    a, b = x.float().chunk(2, -1)
    cos, sin = rope[:, :, None].unbind(-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).type_as(x)


class Attention(SplitAttention):
    """Attention of these families: pairs of halves turn."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads, turn)


class HeadNorm(nn.Module):
    """LayerNorm of each head by itself, with a weight and a bias per head."""

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, dim))
        self.bias = nn.Parameter(torch.zeros(heads, dim))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., heads, dim] -> the same shape."""
        return F.layer_norm(x, x.shape[-1:], eps=1e-5) * self.weight + self.bias


class SequenceLayer(Layer):
    """A decoder layer, of a target and of its drafter alike."""

    attention: type[Attention] = Attention

    def __init__(self, dim: int, heads: int, ffn: int, eps: float) -> None:
        super().__init__(RMSNorm(dim, eps), self.attention(dim, heads), RMSNorm(dim, eps), FeedForward(dim, ffn))


class SequenceTarget(nn.Module, ABC):
    """Implements `decoding.protocols.FixedTarget` but for `head`. A prompt is ids of the text's vocabulary; image tokens are
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
        """As `decoding.protocols.Target.new_cache`."""
        weight, c = self.norm.weight, self.config
        slots = c.prefix + length
        return PaddedCache(c.layers, rows, c.heads, slots, c.dim // c.heads, dtype=weight.dtype, device=weight.device)

    def prefill(self, condition: Condition, cache: PaddedCache) -> Tensor:
        """The T positions of the prompt -> hidden [R, T, H]. Rows of padding mean nothing, and nothing reads them."""
        ids = condition.features.to(self.rope.device)
        n = ids.shape[1]
        cache.set_padding(condition.mask)
        mask = prefix_mask(condition.mask, n, ids.device, "self", self.norm.weight.dtype)
        positions = cache.positions(torch.arange(n, device=ids.device))
        hidden = self._run(self.embed_tokens(ids), positions, mask, [partial(cache.write, i, 0) for i in range(len(self.layers))])
        cache.advance(n)
        return hidden

    def forward(self, tokens: Tensor, depths: Tensor, mask: Tensor, cache: PaddedCache) -> Tensor:
        """n tree nodes -> hidden [R, n, H]; see `decoding.protocols.Target.forward`. tokens may also be [R, n]: rows of their
        own."""
        x = self.embed(tokens).expand(cache.k.shape[1], -1, -1)
        stores = [partial(cache.write, i, 0) for i in range(len(self.layers))]
        return self._run(x, cache.positions(cache.length + depths), cache.mask(mask), stores)

    def forward_at(self, tokens: Tensor, positions: Tensor, slots: Tensor, bias: Tensor, cache: PaddedCache) -> Tensor:
        """n tree nodes -> hidden [R, n, H]; see `decoding.protocols.FixedTarget.forward_at`."""
        x = self.embed(tokens).expand(cache.k.shape[1], -1, -1)
        stores = [partial(cache.write_at, i, slots, bias.shape[-1]) for i in range(len(self.layers))]
        return self._run(x, cache.positions(positions), bias, stores)

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
        rope = self.rope[positions]
        for block, store in zip(self.blocks, stores, strict=True):
            x = block(x, rope, (mask, store))
        return self.norm(x)


class SequenceDrafter(nn.Module, ABC):
    """Implements `decoding.protocols.FixedDrafter` but for `start`: one decoder layer over pairs of a token and the state before
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
        """As `decoding.protocols.Drafter.new_cache`."""
        c, weight = self.config, self.layer.input_layernorm.weight
        return PaddedCache(1, rows, c.heads, c.prefix + length, c.dim // c.heads, dtype=weight.dtype, device=weight.device)

    def extend(self, tokens: Tensor, hidden: Tensor, cache: PaddedCache) -> Tensor:
        """m new slots, tokens [m] and hidden [R, m, H] -> last output [R, 1, H]; commits them."""
        m = tokens.shape[0]
        slots = cache.length + torch.arange(m, device=tokens.device)
        mask = cache.mask(torch.ones(m, m, dtype=torch.bool, device=tokens.device).tril())
        out = self.run(self.embed(tokens), hidden, self.turns_at(slots, cache), mask, partial(cache.write, 0, 0))
        cache.advance(m)
        return out[:, -1:]

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor, cache: PaddedCache) -> Tensor:
        """A tree pass over nodes of one depth; see `decoding.protocols.Drafter.expand`."""
        width = mask.shape[1] - tokens.shape[0]
        slots = tokens.new_full(tokens.shape, cache.length + depth - 1)
        turns = self.turns_at(slots, cache)
        return self.run(self.embed(tokens), hidden, turns, cache.mask(mask), partial(cache.write, 0, width))

    def turns_at(self, positions: Tensor, cache: PaddedCache) -> Tensor:
        """[R, m, d / 2, 2]; see `decoding.protocols.FixedDrafter.turns_at`."""
        return self.rope[cache.positions(positions)]

    def run_at(self, tokens: Tensor, hidden: Tensor, turn: Tensor, slots: Tensor, bias: Tensor, cache: PaddedCache) -> Tensor:
        """m slots -> outputs [R, m, H]; see `decoding.protocols.FixedDrafter.run_at`. Padding is left out here."""
        return self.run(
            self.embed(tokens), hidden, turn, cache_bias(bias, cache), partial(cache.write_at, 0, slots, bias.shape[-1])
        )

    def run(self, embedded: Tensor, hidden: Tensor, turn: Tensor, mask: Tensor | None, store: Store) -> Tensor:
        """embedded [m, H] or [R, m, H], hidden [R, m, H], turn [R, m or 1, d / 2, 2] -> outputs [R, m, H]."""
        x = self.fuse(embedded.expand(hidden.shape[0], -1, -1), hidden)
        return self.finish(self.layer(x, turn, (mask, store)))


def cache_bias(bias: Tensor, cache: PaddedCache) -> Tensor:
    """An additive bias [R or 1, 1, m, S] with a cache's padding left out."""
    return bias if cache.padding is None else bias + cache.padding[..., : bias.shape[-1]]
