"""Anole: the Chameleon transformer, whose image tokens are words of its vocabulary, and whose prompt is part of the sequence.

Facts that shape this file (leloy/Anole-7b-v0.1-hf; jadohu/LANTERN, models/kv_variants/modeling_anole_kv.py): a pre-norm decoder
with one-dimensional half-rotated positions, whose queries and keys are normalised per head first. An unconditional row is the two
start marks alone, padded on the left, and counts its positions from them, so that the two rows turn by different angles.
Everything but an image token is masked when a picture is drawn: the head is cut to the image tokens, and tokens are numbered by
their place in the codebook, which is their id less `FIRST`. Tensor names are those of the Hub conversion, less the "model."
before them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.decoding.cache import KVCache
from lantern_demo.models.common import BEYOND, MLP, Condition, Network, NetworkSizes, RMSNorm, TargetSizes, prefix_mask

# Ids of the vocabulary: the start of a text, its padding, the first image token, the start of an image, the end of a turn.
BOS, PAD, FIRST, BEGIN_IMAGE, END_OF_TURN = 0, 1, 4, 8197, 8710

Store = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # new keys and values [R, heads, n, d] -> all that are attended to


@dataclass(frozen=True)
class AnoleSizes(NetworkSizes[Network]):
    """Sizes that a target and its drafter have in common; the defaults are the published ones."""

    dim: int = 4096
    heads: int = 32
    ffn: int = 11008
    embeddings: int = 65536  # the whole vocabulary
    vocab: int = 8192  # the image tokens in it
    grid: int = 32  # tokens a side
    prefix: int = 256  # positions of the longest prompt, its marks included
    rope_base: float = 10000.0
    eps: float = 1e-5

    def rope_table(self) -> Tensor:
        """As `NetworkSizes.rope_table`: a drafter's slot stands at its target's position."""
        return anole_angles(self.prefix, self.grid, self.head_dim, self.rope_base)


@dataclass(frozen=True)
class AnoleConfig(AnoleSizes["Anole"], TargetSizes["Anole"]):
    """Sizes of an Anole transformer."""

    layers: int = 32

    def build(self) -> Anole:
        """As `TargetSizes.build`."""
        return Anole(self)

    def published_shapes(self) -> dict[str, tuple[int, ...]]:
        """As `TargetSizes.published_shapes`: a published head has a row for every word of the vocabulary."""
        return {"lm_head.weight": (self.embeddings, self.dim)}


class AnoleCache(KVCache):
    """A cache whose rows may be padded on the left: row r's token in slot s stands at position s - shift[r]."""

    shift: Tensor  # [R] int64
    padding: Tensor | None = None  # [R, 1, 1, slots] in the cache's dtype, once placed: -inf for padded slots, 0 for the rest

    def place(self, real: Tensor | None) -> None:
        """Take note of which slots of the prefix are no padding: real [R, T] bool, padded on the left, or None for all of them.
        What steps of fixed shapes read, `shift` and `padding`, stays where it is for as long as the cache lives."""
        rows = self.k.shape[1]
        if self.padding is None:
            self.shift = torch.zeros(rows, dtype=torch.int64, device=self.k.device)
            self.padding = self.k.new_zeros(rows, 1, 1, self.slots)
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

    def store_at(self, layer: int, slots: Tensor, seen: int) -> Store:
        """What writes keys and values to `slots` [n] int64 of a layer and gives the layer's first `seen` slots."""
        both = self.both[layer]
        heads = self.k.shape[2]

        def store(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            both.index_copy_(2, slots, torch.cat((k, v), 1))
            return both[:, :heads, :seen], both[:, heads:, :seen]

        return store


def angles(positions: int, head_dim: int, base: float) -> Tensor:
    """Rotary angles [positions, head_dim / 2, 2] float32, (cos, sin) last."""
    frequency = base ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(positions).float(), frequency)
    return torch.stack((angle.cos(), angle.sin()), -1)


def anole_angles(prefix: int, grid: int, head_dim: int, base: float) -> Tensor:
    """`angles` of all positions that a picture's tokens and drafts past its end can have."""
    return angles(prefix + grid * grid + BEYOND, head_dim, base)


def turn(x: Tensor, rope: Tensor) -> Tensor:
    """Turn the pairs (i, i + d / 2) of x [R, n, heads, d] by rope [R or 1, n, d / 2, 2], in float32, cast back."""
    a, b = x.float().chunk(2, -1)
    cos, sin = rope[:, :, None].unbind(-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).type_as(x)


class HeadNorm(nn.Module):
    """LayerNorm of each head by itself, with a weight and a bias per head."""

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, dim))
        self.bias = nn.Parameter(torch.zeros(heads, dim))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., heads, dim] -> the same shape."""
        return F.layer_norm(x, x.shape[-1:], eps=1e-5) * self.weight + self.bias


class AnoleAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.q_norm = HeadNorm(heads, dim // heads)
        self.k_norm = HeadNorm(heads, dim // heads)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None, store: Store) -> Tensor:
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)) for p in (self.q_proj, self.k_proj, self.v_proj))
        q, k = turn(self.q_norm(q), rope), turn(self.k_norm(k), rope)
        k, v = store(k.transpose(1, 2), v.transpose(1, 2))
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class AnoleLayer(nn.Module):
    """A decoder layer, of the target and of its drafter alike."""

    def __init__(self, dim: int, heads: int, ffn: int, eps: float) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(dim, eps)
        self.self_attn = AnoleAttention(dim, heads)
        self.post_attention_layernorm = RMSNorm(dim, eps)
        self.mlp = MLP(dim, ffn)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None, store: Store) -> Tensor:
        """x [R, n, H], rope [R or 1, n, d / 2, 2], mask [R or 1, 1, n, S] bool or additive, or None -> [R, n, H]."""
        x = x + self.self_attn(self.input_layernorm(x), rope, mask, store)
        return x + self.mlp(self.post_attention_layernorm(x))


class Anole(nn.Module):
    """The target: implements `decoding.protocols.FixedTarget`. Tokens are places in the codebook, 0 to vocab - 1."""

    rope: Tensor

    def __init__(self, config: AnoleConfig) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab
        self.embed_tokens = nn.Embedding(config.embeddings, config.dim)
        self.layers = nn.ModuleList(AnoleLayer(config.dim, config.heads, config.ffn, config.eps) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim, config.eps)
        self.lm_head = nn.Linear(config.dim, config.vocab, bias=False)  # the image tokens' rows of the published one
        self.register_buffer("rope", config.rope_table(), persistent=False)

    @property
    def blocks(self) -> list[AnoleLayer]:
        return cast(list[AnoleLayer], list(self.layers))

    def condition(self, ids: Tensor, mask: Tensor | None, guided: bool) -> Condition:
        """A prompt's ids [1, T] int64, its marks included -> the rows of it [R, T] and which positions are no padding [R, T]
        bool.

        The unconditional row is the prompt's first and last mark, padded on the left. `mask` is there for the sake of models that
        pad their prompts; this one does not, and it is None.
        """
        if not guided:
            return Condition(ids, mask)
        nothing = torch.cat((ids.new_full((1, ids.shape[1] - 2), PAD), ids[:, :1], ids[:, -1:]), 1)
        real = torch.ones(2, ids.shape[1], dtype=torch.bool, device=ids.device)
        real[1, :-2] = False
        return Condition(torch.cat((ids, nothing)), real)

    # -- decoding.protocols.FixedTarget

    def new_cache(self, rows: int, length: int) -> AnoleCache:
        weight, c = self.lm_head.weight, self.config
        slots = c.prefix + length
        return AnoleCache(c.layers, rows, c.heads, slots, c.dim // c.heads, dtype=weight.dtype, device=weight.device)

    def prefill(self, condition: Condition, cache: AnoleCache) -> Tensor:
        """The T positions of the prompt -> hidden [R, T, H]. Rows of padding mean nothing, and nothing reads them."""
        ids = condition.features.to(self.rope.device)
        n = ids.shape[1]
        cache.place(condition.mask)
        mask = prefix_mask(condition.mask, n, ids.device, "self", self.lm_head.weight.dtype)
        positions = cache.positions(torch.arange(n, device=ids.device))
        hidden = self._run(self.embed_tokens(ids), positions, mask, [partial(cache.write, i, 0) for i in range(len(self.layers))])
        cache.advance(n)
        return hidden

    def forward(self, tokens: Tensor, depths: Tensor, mask: Tensor, cache: AnoleCache) -> Tensor:
        """n tree nodes -> hidden [R, n, H]; see `decoding.protocols.Target.forward`."""
        x = self.embed_tokens(tokens + FIRST).expand(cache.k.shape[1], -1, -1)
        stores = [partial(cache.write, i, 0) for i in range(len(self.layers))]
        return self._run(x, cache.positions(cache.length + depths), cache.mask(mask), stores)

    def forward_at(self, tokens: Tensor, positions: Tensor, slots: Tensor, bias: Tensor, cache: AnoleCache) -> Tensor:
        """n tree nodes -> hidden [R, n, H]; see `decoding.protocols.FixedTarget.forward_at`."""
        x = self.embed_tokens(tokens + FIRST).expand(cache.k.shape[1], -1, -1)
        stores = [cache.store_at(i, slots, bias.shape[-1]) for i in range(len(self.layers))]
        return self._run(x, cache.positions(positions), bias, stores)

    def head(self, hidden: Tensor) -> Tensor:
        """hidden [R, n, H] -> logits [R, n, V] float32 of the image tokens."""
        return self.lm_head(hidden).float()

    def _run(self, x: Tensor, positions: Tensor, mask: Tensor | None, stores: Sequence[Store]) -> Tensor:
        rope = self.rope[positions]
        for block, store in zip(self.blocks, stores, strict=True):
            x = block(x, rope, mask, store)
        return self.norm(x)
