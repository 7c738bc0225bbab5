"""The LlamaGen transformer: an autoregressive model over a grid of image tokens after a condition prefix.

Facts of the published model that shape this file (FoundationVision/LlamaGen, autoregressive/models/gpt.py):
the rotary table of the prefix is all zero (cos = sin = 0), so prefix queries and keys vanish, prefix queries attend uniformly,
and a picture's tokens see the prompt only as a uniform average of its values.
Tensor names are those of the published .pt files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.decoding.cache import KVCache, end_of
from lantern_demo.models.common import BEYOND, Condition, RMSNorm, TargetSizes, prefix_mask, with_features
from lantern_demo.models.llama import Attention, FeedForward, Layer, Store, turns, unstored, wide


@dataclass(frozen=True)
class LlamaGenConfig(TargetSizes["LlamaGen"]):
    """Sizes of a LlamaGen transformer."""

    dim: int = 256
    layers: int = 12
    heads: int = 4
    ffn: int = 768  # width of the SwiGLU; published: 2/3 of 4 dim, rounded up to a multiple of 256
    vocab: int = 2048  # image tokens
    grid: int = 16  # tokens a side
    prefix: int = 24  # condition positions: 120 published for text, 1 for a class
    caption_dim: int = 256  # width of the text features
    classes: int = 0  # number of classes of a class-conditional model; 0 for text
    rope_base: float = 10000.0
    eps: float = 1e-5
    # What padded prompt positions attend to. The published classes differ, and drafters read these rows:
    # "self" LlamaGen; "released" LANTERN's target, where it depends on the dtype.
    padding: Literal["self", "released"] = "self"

    def build(self) -> LlamaGen:
        """As `TargetSizes.build`."""
        return LlamaGen(self)

    def rope_table(self) -> Tensor:
        """As `TargetSizes.rope_table`."""
        return rope_table(self.prefix, self.grid, self.head_dim, self.rope_base)


def rope_table(prefix: int, grid: int, head_dim: int, base: float = 10000.0, beyond: int = BEYOND) -> Tensor:
    """Rotary angles [prefix + grid * grid + beyond, head_dim / 2, 2], (cos, sin) last.

    Half of the pairs turn with the row, half with the column. The rows of the prefix and past the end are zero, not the
    identity: see the head of this file.
    """
    half = head_dim // 2
    frequency = base ** (-torch.arange(0, half, 2)[: half // 2].float() / half)
    angle = torch.outer(torch.arange(grid).float(), frequency)
    rows = angle[:, None].expand(grid, grid, -1)
    columns = angle[None].expand(grid, grid, -1)
    both = torch.cat((rows, columns), -1).flatten(0, 1)
    table = torch.stack((both.cos(), both.sin()), -1)
    return torch.cat((table.new_zeros(prefix, *table.shape[1:]), table, table.new_zeros(beyond, *table.shape[1:])))


def rotate(qkv: Tensor, turns: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn adjacent pairs: see `llama.Turn`."""
    return torch.view_as_real(torch.view_as_complex(qkv.unflatten(-1, (-1, 2))) * turns).flatten(-2).to(dtype)


class JoinedAttention(Attention):
    """Queries, keys and values by one weight."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__(config.heads, rotate)
        self.wqkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=False)

    def read(self, x: Tensor) -> Tensor:
        """As `Attention.read`."""
        return wide(self.wqkv, x)

    @property
    def last(self) -> nn.Module:
        """As `Attention.last`."""
        return self.wo


class LlamaGenFeedForward(FeedForward):
    names = ("w1", "w3", "w2")
    w1: nn.Linear
    w3: nn.Linear
    w2: nn.Linear


class Block(Layer):
    names = ("attention_norm", "attention", "ffn_norm", "feed_forward")
    attention_norm: RMSNorm
    attention: JoinedAttention
    ffn_norm: RMSNorm
    feed_forward: LlamaGenFeedForward

    def __init__(self, config: LlamaGenConfig) -> None:
        norms = RMSNorm(config.dim, config.eps), RMSNorm(config.dim, config.eps)
        super().__init__(norms[0], JoinedAttention(config), norms[1], LlamaGenFeedForward(config.dim, config.ffn))


class CaptionEmbedding(nn.Module):
    """Text features to model width, and the learnt features of "no caption"."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        self.cap_proj = nn.ModuleDict(
            {"fc1": nn.Linear(config.caption_dim, config.dim, bias=False), "fc2": nn.Linear(config.dim, config.dim, bias=False)}
        )
        self.uncond_embedding = nn.Parameter(torch.randn(config.prefix, config.caption_dim) / config.caption_dim**0.5)

    def forward(self, features: Tensor) -> Tensor:
        return self.cap_proj["fc2"](F.gelu(self.cap_proj["fc1"](features), approximate="tanh"))


class ClassEmbedding(nn.Module):
    """Class ids to model width; the last row stands for "no class"."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(config.classes + 1, config.dim)

    def forward(self, classes: Tensor) -> Tensor:
        return self.embedding_table(classes)[:, None]


class LlamaGen(nn.Module):
    """The target: implements `decoding.interfaces.Target`, and `train_hidden` for training."""

    rope: Tensor

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab
        # Blocks, counted from 1, whose outputs stand behind the final state in every hidden state, for a drafter that reads them
        # (`DrafterConfig.feature_layers`): hidden states are then [R, n, (1 + F) H].
        self.feature_layers: tuple[int, ...] = ()
        self.tok_embeddings = nn.Embedding(config.vocab, config.dim)
        self.cls_embedding = ClassEmbedding(config) if config.classes else CaptionEmbedding(config)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim, config.eps)
        self.output = nn.Linear(config.dim, config.vocab, bias=False)
        self.register_buffer("rope", config.rope_table(), persistent=False)

    @property
    def blocks(self) -> list[Block]:
        return cast(list[Block], list(self.layers))

    # -- conditions

    def no_caption(self) -> Tensor:
        """The learnt features of "no caption" [T, C]. Raises ValueError for a class-conditional model."""
        if not isinstance(self.cls_embedding, CaptionEmbedding):
            raise ValueError("a class-conditional model has no caption features; its null is the class id after the last")
        return self.cls_embedding.uncond_embedding

    def condition(self, features: Tensor, mask: Tensor | None, guided: bool) -> Condition:
        """The features [B, T, C] and mask [B, T] of B prompts (or class ids [B], None) -> their rows, conditional ones first.

        An unconditional row keeps the prompt's mask, as published (LlamaGen generate.py).
        """
        if not guided:
            return Condition(features, mask)
        if isinstance(self.cls_embedding, ClassEmbedding):
            return Condition(torch.cat((features, torch.full_like(features, self.config.classes))))
        nothing = self.no_caption().to(features.dtype).expand_as(features)
        return Condition(torch.cat((features, nothing)), None if mask is None else mask.repeat(2, 1))

    def embed_condition(self, condition: Condition) -> Tensor:
        """A condition's rows -> the inputs [R, T, H] of its prefix positions."""
        features = condition.features.to(self.rope.device)
        return self.cls_embedding(features if self.config.classes else features.to(self.no_caption().dtype))

    # -- decoding.interfaces.Target

    def new_cache(self, rows: int, length: int) -> KVCache:
        weight, c = self.output.weight, self.config
        slots = c.prefix + length
        return KVCache(c.layers, rows, c.heads, slots, c.dim // c.heads, dtype=weight.dtype, device=weight.device)

    def prefill(self, condition: Condition, cache: KVCache) -> Tensor:
        """The T prefix positions -> hidden [R, T, H]."""
        x = self.embed_condition(condition)
        n = x.shape[1]
        mask = prefix_mask(condition.mask, n, x.device, self.config.padding, x.dtype)
        cache.start(n, condition.mask)
        return self.run(x, self.rope[:n], mask, self._stores(cache, torch.arange(n, device=x.device), n))

    def forward(self, tokens: Tensor, positions: Tensor, slots: Tensor, visible: Tensor | None, cache: KVCache) -> Tensor:
        """n nodes -> hidden [R, n, H]; see `decoding.interfaces.Target.forward`. tokens may also be [R, n]: rows of their own."""
        x, end = self.tok_embeddings(tokens).expand(cache.rows, -1, -1), end_of(slots, visible)
        return self.run(x, self.rope[positions], cache.bias(visible, end), self._stores(cache, slots, end))

    def _stores(self, cache: KVCache, slots: Tensor, end: int) -> list[Store]:
        return [partial(cache.write, i, slots, end) for i in range(len(self.layers))]

    def head(self, hidden: Tensor) -> Tensor:
        """hidden [R, n, H] -> logits [R, n, V] float32."""
        return wide(self.output, self.final(hidden))

    def final(self, hidden: Tensor) -> Tensor:
        """The final states [R, n, H] alone, of hidden states or of a drafter's outputs."""
        return hidden[..., : self.config.dim] if self.feature_layers else hidden

    # -- training

    def train_hidden(self, tokens: Tensor, features: Tensor, mask: Tensor | None) -> Tensor:
        """Teacher forcing: tokens [B, N], features [B, T, C] and mask [B, T] (or class ids [B], None) -> hidden [B, T + N, H].

        The state that predicts token j is at T - 1 + j.
        """
        prefix = self.cls_embedding(features)
        x = torch.cat((prefix, self.tok_embeddings(tokens).type_as(prefix)), 1)
        n, t = x.shape[1], prefix.shape[1]
        full = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        if mask is None:
            return self.run(x, self.rope[:n], full, None)
        full = full & F.pad(mask, (0, n - t), value=True)[:, None, None]
        full[:, :, :t, :t] = prefix_mask(mask, t, x.device, self.config.padding, self.output.weight.dtype)
        return self.run(x, self.rope[:n], full, None)

    def run(self, x: Tensor, rope: Tensor, mask: Tensor | None, stores: list[Store] | None) -> Tensor:
        """The blocks and the final norm over x [B, n, H] -> hidden. rope [n, d / 2, 2] are the rotary table's rows; stores: None
        where nothing is kept."""
        features: list[Tensor] = []
        turn = turns(rope)[None]
        for i, block in enumerate(self.blocks):
            x = block(x, turn, (mask, unstored if stores is None else stores[i], x.shape[1]))
            if i + 1 in self.feature_layers:
                features.append(x)
        return with_features(self.norm(x), features)
