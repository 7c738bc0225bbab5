"""Janus-Pro: a LLaMA decoder that reads a prompt in a chat template and draws a picture with a
separate head and embeddings.

Facts that shape this file (deepseek-ai/Janus, generation_inference.py and
janus/models/modeling_vlm.py; transformers, JanusForConditionalGeneration with
generation_mode="image"): an image token enters as its row of a codebook through an aligner of two
linear layers. The head that draws it is two linear layers with a GELU between them. That head is
not linear: the logits of mixed states are not the mixed logits, so that guidance mixes only logits.
An unconditional row is the prompt with all but its first and last token replaced by padding, which
is read like any other token. So both rows have the same length and positions, and see all of their
prompt. Positions, layers and their tensors' names are a LLaMA's; `weights.py` has the other names.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.models.common import Condition, Network, TargetSizes
from lantern_demo.models.decoder import SequenceLayer, SequenceSizes, SequenceTarget

# the padding's id in the published vocabulary, and the vocabulary's size
PAD, TEXT_VOCABULARY = 100002, 102400
# The published files also hold a SigLIP that reads pictures, mostly 24 layers of width 1024.
READS_PICTURES = {"vision_model": (24, 12, 1024, 1024)}


@dataclass(frozen=True)
class JanusSizes(SequenceSizes[Network]):
    """Sizes that a target and its drafter share; the defaults are those of Janus-Pro-7B."""

    dim: int = 4096
    heads: int = 32
    ffn: int = 11008
    vocab: int = 16384  # image tokens
    code: int = 8  # numbers of an image token's row of the codebook
    grid: int = 24  # tokens a side
    prefix: int = 256  # positions of the longest prompt, its template included
    rope_base: float = 10000.0
    eps: float = 1e-6


@dataclass(frozen=True)
class JanusConfig(JanusSizes["Janus"], TargetSizes["Janus"]):
    layers: int = 30
    embeddings: int = TEXT_VOCABULARY  # the text's vocabulary
    pad: int = PAD  # id of the padding of unconditional rows

    def build(self) -> Janus:
        return Janus(self)

    def published_shapes(self) -> dict[str, tuple[int, ...]]:
        """As `TargetSizes.published_shapes`: the files also hold the head for text, and the parts
        that read pictures.
        """
        return {"lm_head.weight": (self.embeddings, self.dim), **READS_PICTURES}


class ImageEmbedding(nn.Module):
    """Image tokens to model width: a codebook's rows through an aligner."""

    def __init__(self, vocab: int, code: int, dim: int) -> None:
        super().__init__()
        self.codes = nn.Embedding(vocab, code)
        self.fc1 = nn.Linear(code, dim)
        self.fc2 = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens [...] int64 to vectors [..., H]."""
        return self.fc2(F.gelu(self.fc1(self.codes(tokens))))


class ImageHead(nn.Module):
    """States to logits of image tokens. It is not linear."""

    def __init__(self, dim: int, vocab: int) -> None:
        super().__init__()
        self.proj_out = nn.Linear(dim, dim)
        self.vision_head = nn.Linear(dim, vocab)

    def forward(self, hidden: Tensor) -> Tensor:
        """Map hidden [..., H] to logits [..., V]."""
        return self.vision_head(F.gelu(self.proj_out(hidden)))


class Janus(SequenceTarget):
    """The target: implements `decoding.interfaces.Target`."""

    config: JanusConfig

    def __init__(self, config: JanusConfig) -> None:
        super().__init__(config, SequenceLayer)
        self.image_embedding = ImageEmbedding(config.vocab, config.code, config.dim)
        self.image_head = ImageHead(config.dim, config.vocab)

    def condition(self, ids: Tensor, mask: Tensor | None, guided: bool) -> Condition:
        """Map the ids [B, T] int64 of B prompts, their template included, to their rows [R, T],
        conditional ones first.

        `mask` [B, T] bool is False for padding on the left, which makes prompts of a batch equally
        long; it is None for a single prompt. The padding of an unconditional row does not count as
        such.
        """
        if not guided:
            return Condition(ids, mask)
        index = torch.arange(ids.shape[1], device=ids.device)
        first = 0 if mask is None else (~mask).sum(1, keepdim=True)
        inside = (index > first) & (index < ids.shape[1] - 1)
        nothing = ids.masked_fill(inside, self.config.pad)
        return Condition(torch.cat((ids, nothing)), None if mask is None else mask.repeat(2, 1))

    def embed(self, tokens: Tensor) -> Tensor:
        return self.image_embedding(tokens)

    def head(self, hidden: Tensor) -> Tensor:
        """Map hidden [R, n, H] to logits [R, n, V] float32."""
        return self.image_head(hidden).float()
