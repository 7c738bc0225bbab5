"""Anole: the Chameleon transformer.

Its image tokens are words of its vocabulary, and its prompt is part of the sequence.

Facts that shape this file (leloy/Anole-7b-v0.1-hf; jadohu/LANTERN,
models/kv_variants/modeling_anole_kv.py): a pre-norm decoder with one-dimensional half-rotated
positions normalises queries and keys per head first. An unconditional row is the two start marks
alone, padded on the left. It counts its positions from them, so that the two rows turn by different
angles. While a picture is drawn everything but image tokens is masked. So the head is cut to the
image tokens, numbered by their codebook index, which is their id less `FIRST`. Tensor names are
those of the Hub conversion, without "model." in front.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.models.common import Condition, Network, TargetSizes
from lantern_demo.models.decoder import (
    Attention,
    HeadNorm,
    SequenceLayer,
    SequenceSizes,
    SequenceTarget,
)
from lantern_demo.models.llama import wide

# Ids of the vocabulary: the start of a text, its padding, the first image token, the start of an
# image, the end of a turn.
BOS, PAD, FIRST, BEGIN_IMAGE, END_OF_TURN = 0, 1, 4, 8197, 8710


@dataclass(frozen=True)
class AnoleSizes(SequenceSizes[Network]):
    """Sizes that a target and its drafter share; the defaults are the published ones."""

    dim: int = 4096
    heads: int = 32
    ffn: int = 11008
    embeddings: int = 65536  # the whole vocabulary
    vocab: int = 8192  # the image tokens in it
    grid: int = 32  # tokens a side
    prefix: int = 256  # positions of the longest prompt, its marks included
    rope_base: float = 10000.0
    eps: float = 1e-5


@dataclass(frozen=True)
class AnoleConfig(AnoleSizes["Anole"], TargetSizes["Anole"]):
    layers: int = 32

    def build(self) -> Anole:
        return Anole(self)

    def published_shapes(self) -> dict[str, tuple[int, ...]]:
        """As `TargetSizes.published_shapes`: a published head has a row for every word of the
        vocabulary.
        """
        return {"lm_head.weight": (self.embeddings, self.dim)}


class AnoleAttention(Attention):
    norms: tuple[Tensor, Tensor] | None = None  # `stacked`, once the layer is joined

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads)
        self.q_norm = HeadNorm(heads, dim // heads)
        self.k_norm = HeadNorm(heads, dim // heads)

    def stacked(self) -> tuple[Tensor, Tensor]:
        """Weights and biases [2, heads, d] float32 of the norms of queries and keys."""
        q, k = self.q_norm, self.k_norm
        return torch.stack((q.weight, k.weight)).float(), torch.stack((q.bias, k.bias)).float()

    def join(self) -> None:
        super().join()
        self.norms = tuple(part.detach() for part in self.stacked())  # type: ignore[assignment]

    def normed(self, qkv: Tensor) -> Tensor:
        weight, bias = self.norms or self.stacked()
        both = torch.addcmul(bias, F.layer_norm(qkv[:, :, :2], qkv.shape[-1:], eps=1e-5), weight)
        return torch.cat((both, qkv[:, :, 2:]), 2)


class AnoleLayer(SequenceLayer):
    attention = AnoleAttention


class Anole(SequenceTarget):
    """The target: implements `decoding.interfaces.Target`.

    Tokens are codebook indices, 0 to vocab - 1.
    """

    config: AnoleConfig

    def __init__(self, config: AnoleConfig) -> None:
        super().__init__(config, AnoleLayer)
        # the image tokens' rows of the published one
        self.lm_head = nn.Linear(config.dim, config.vocab, bias=False)

    def condition(self, ids: Tensor, mask: Tensor | None, guided: bool) -> Condition:
        """Map a prompt's ids [1, T] int64, its marks included, to its rows [R, T] and the positions
        without padding [R, T] bool.

        The unconditional row is the prompt's first and last mark, padded on the left. `mask` is for
        models that pad their prompts; here it is None.
        """
        if not guided:
            return Condition(ids, mask)
        nothing = torch.cat((ids.new_full((1, ids.shape[1] - 2), PAD), ids[:, :1], ids[:, -1:]), 1)
        real = torch.ones(2, ids.shape[1], dtype=torch.bool, device=ids.device)
        real[1, :-2] = False
        return Condition(torch.cat((ids, nothing)), real)

    def embed(self, tokens: Tensor) -> Tensor:
        """As `SequenceTarget.embed`: image tokens are words of the vocabulary."""
        return self.embed_tokens(tokens + FIRST)

    def head(self, hidden: Tensor) -> Tensor:
        """Map hidden [R, n, H] to logits [R, n, V] float32 of the image tokens."""
        return wide(self.lm_head, hidden)
