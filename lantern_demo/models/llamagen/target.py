"""The LlamaGen transformer: an autoregressive model over a grid of image tokens after a condition
prefix.

A fact of the published model shapes this file (FoundationVision/LlamaGen,
autoregressive/models/gpt.py). The rotary table of the prefix is all zero (cos = sin = 0), so prefix
queries and keys vanish, and prefix queries attend uniformly. A picture's tokens see the prompt only
as a uniform average of its values. Tensor names are those of the published .pt files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.models.common import BEYOND, Condition, RMSNorm, TargetSizes
from lantern_demo.models.decoder import DecoderTarget
from lantern_demo.models.llama import Attention, FeedForward, Layer, wide


@dataclass(frozen=True)
class LlamaGenConfig(TargetSizes["LlamaGen"]):
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
    # Positions that padded prompt positions attend to. The published classes differ, and drafters
    # read these rows: "self" LlamaGen; "released" LANTERN's target, where it depends on the dtype.
    padding: Literal["self", "released"] = "self"

    def build(self) -> LlamaGen:
        return LlamaGen(self)

    def rope_table(self) -> Tensor:
        return rope_table(self.prefix, self.grid, self.head_dim, self.rope_base)


def rope_table(prefix: int, grid: int, head_dim: int, base: float = 10000.0) -> Tensor:
    """Return rotary angles [prefix + grid * grid + BEYOND, head_dim / 2, 2], (cos, sin) last.

    Half of the pairs turn with the row, half with the column. Rows of the prefix and past the end
    are zero, not the identity: see the module's docstring.
    """
    half = head_dim // 2
    frequency = base ** (-torch.arange(0, half, 2)[: half // 2].float() / half)
    angle = torch.outer(torch.arange(grid).float(), frequency)
    rows = angle[:, None].expand(grid, grid, -1)
    columns = angle[None].expand(grid, grid, -1)
    both = torch.cat((rows, columns), -1).flatten(0, 1)
    table = torch.stack((both.cos(), both.sin()), -1)
    return torch.cat(
        (
            table.new_zeros(prefix, *table.shape[1:]),
            table,
            table.new_zeros(BEYOND, *table.shape[1:]),
        )
    )


def rotate_pairs(qkv: Tensor, rotation: Tensor, dtype: torch.dtype) -> Tensor:
    """Rotate adjacent pairs: see `llama.Rotate`."""
    return (
        torch.view_as_real(torch.view_as_complex(qkv.unflatten(-1, (-1, 2))) * rotation)
        .flatten(-2)
        .to(dtype)
    )


class JoinedAttention(Attention):
    """Queries, keys and values by one weight."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__(config.heads, rotate_pairs)
        self.wqkv = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=False)

    def read(self, x: Tensor) -> Tensor:
        return wide(self.wqkv, x)

    @property
    def last(self) -> nn.Module:
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
        super().__init__(
            norms[0], JoinedAttention(config), norms[1], LlamaGenFeedForward(config.dim, config.ffn)
        )


class CaptionEmbedding(nn.Module):
    """Maps text features to model width; has the learnt features of "no caption"."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        self.cap_proj = nn.ModuleDict(
            {
                "fc1": nn.Linear(config.caption_dim, config.dim, bias=False),
                "fc2": nn.Linear(config.dim, config.dim, bias=False),
            }
        )
        self.uncond_embedding = nn.Parameter(
            torch.randn(config.prefix, config.caption_dim) / config.caption_dim**0.5
        )

    def forward(self, features: Tensor) -> Tensor:
        return self.cap_proj["fc2"](F.gelu(self.cap_proj["fc1"](features), approximate="tanh"))


class ClassEmbedding(nn.Module):
    """Maps class ids to model width; the last row is "no class"."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(config.classes + 1, config.dim)

    def forward(self, classes: Tensor) -> Tensor:
        return self.embedding_table(classes)[:, None]


class LlamaGen(DecoderTarget):
    """The target; implements `decoding.interfaces.Target`."""

    config: LlamaGenConfig

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        self.config = config
        self.vocab_size = config.vocab
        self.padding = config.padding
        self.tok_embeddings = nn.Embedding(config.vocab, config.dim)
        self.cls_embedding = ClassEmbedding(config) if config.classes else CaptionEmbedding(config)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim, config.eps)
        self.output = nn.Linear(config.dim, config.vocab, bias=False)
        self.register_buffer("rope", config.rope_table(), persistent=False)

    # -- conditions

    def no_caption(self) -> Tensor:
        """The learnt features of "no caption" [T, C].

        Raise ValueError for a class-conditional model.
        """
        if not isinstance(self.cls_embedding, CaptionEmbedding):
            raise ValueError(
                "a class-conditional model has no caption features; its null is the class id after the last"
            )
        return self.cls_embedding.uncond_embedding

    def condition(self, features: Tensor, mask: Tensor | None, guided: bool) -> Condition:
        """Map the features [B, T, C] and mask [B, T] of B prompts (or class ids [B], None) to their
        rows, conditional ones first.

        An unconditional row keeps the prompt's mask, as published (LlamaGen generate.py).
        """
        if not guided:
            return Condition(features, mask)
        if isinstance(self.cls_embedding, ClassEmbedding):
            return Condition(torch.cat((features, torch.full_like(features, self.config.classes))))
        nothing = self.no_caption().to(features.dtype).expand_as(features)
        return Condition(
            torch.cat((features, nothing)), None if mask is None else mask.repeat(2, 1)
        )

    def read(self, condition: Condition) -> Tensor:
        features = condition.features.to(self.rope.device)
        return self.cls_embedding(
            features if self.config.classes else features.to(self.no_caption().dtype)
        )

    def embed(self, tokens: Tensor) -> Tensor:
        return self.tok_embeddings(tokens)

    def head(self, hidden: Tensor) -> Tensor:
        """Map hidden [R, n, H] to logits [R, n, V] float32."""
        return wide(self.output, self.final(hidden))

    def final(self, hidden: Tensor) -> Tensor:
        """Return the final states [R, n, H] alone, from hidden states or a drafter's outputs."""
        return hidden[..., : self.config.dim] if self.feature_layers else hidden
