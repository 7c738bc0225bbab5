"""Janus-Pro, a drafter of it, both on a CPU, and its files.

A LLaMA decoder reads a prompt in a chat template, and draws a picture with a separate head and
embeddings.

Facts that shape this file (deepseek-ai/Janus, generation_inference.py and
janus/models/modeling_vlm.py; transformers, JanusForConditionalGeneration with
generation_mode="image"): an image token enters as its row of a codebook through an aligner of two
linear layers. The head that draws it is two linear layers with a GELU between them. That head is
not linear: the logits of mixed states are not the mixed logits, so that guidance mixes only logits.
An unconditional row is the prompt with all but its first and last token replaced by padding, which
is read like any other token. So both rows have the same length and positions, and see all of their
prompt.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from lantern_demo.models.cpu import LeanDecoder
from lantern_demo.models.hub import Located
from lantern_demo.models.llama import (
    Condition,
    PaddedCache,
    RMSNorm,
    SequenceDrafter,
    SequenceTarget,
)
from lantern_demo.models.registry import JanusConfig, JanusDrafterConfig
from lantern_demo.models.tensors import (
    CheckpointError,
    Layout,
    check_config,
    eps_and_theta,
    read_config,
    read_tokenizer_file,
    renaming,
)
from lantern_demo.models.text import PromptIds
from lantern_demo.models.tokenizer import VQ_NAMES

# -- the networks


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
        super().__init__(config)
        self.image_embedding = ImageEmbedding(config.vocab, config.code, config.dim)
        self.image_head = ImageHead(config.dim, config.vocab)

    def condition(self, ids: Tensor, mask: Tensor | None, guided: bool) -> Condition:
        """Map the ids [B, T] int64 of B prompts, with their template, to their rows [R, T].

        Conditional rows come first. `mask` [B, T] bool is False for padding on the left, which
        makes prompts of a batch equally long; it is None for a single prompt. The padding of an
        unconditional row does not count as such.
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
        return self.image_head(hidden).float()


class JanusDrafter(SequenceDrafter):
    """A drafter; implements `decoding.interfaces.Drafter`.

    It is one layer of its target's kind that predicts the next hidden state, over the picture
    alone. It follows a published drafter for the 7B (selinyldrm/Deepseek-JanusPro-EAGLE,
    models/drafters/cnets_januspro.py): the state before a token and the token's vector, in this
    order, pass one linear layer and a SiLU into a LLaMA layer, then a norm. It never sees the
    prompt: its slots begin with the picture's first token, at position 0, in training too. The
    prompt's slots exist, as the protocol counts them, and are never seen. The target's head turns
    outputs into logits, each row apart: it is not linear, so `guided` is not possible.
    """

    config: JanusDrafterConfig

    def __init__(self, config: JanusDrafterConfig) -> None:
        super().__init__(config)
        self.image_embedding = ImageEmbedding(config.vocab, config.code, config.dim)
        self.fusion = nn.Linear(2 * config.dim, config.dim, bias=config.bias)
        self.norm = RMSNorm(config.dim, config.eps)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.image_embedding(tokens)

    def fuse(self, embedded: Tensor, before: Tensor) -> Tensor:
        return F.silu(self.fusion(torch.cat((before, embedded), -1)))

    def finish(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def prefill(
        self, hidden: Tensor, token: Tensor, cache: PaddedCache, condition: Condition
    ) -> None:
        """As `decoding.interfaces.Drafter.prefill`; the next pass writes the last slot alone."""
        rows, n = hidden.shape[:2]
        real = torch.zeros(rows, n, dtype=torch.bool, device=hidden.device)
        real[:, -1] = True
        cache.start(n, real)

    # -- training: see `Learner` in `examples/train_drafter/teaching.py`

    lead = 0  # it reads only the picture's slots

    def learn_from(self, target: Janus) -> None:
        """As `Learner.learn_from`.

        Image tokens permanently enter as in its target, and the norm starts as the target's.
        """
        self.image_embedding.load_state_dict(target.image_embedding.state_dict())
        self.image_embedding.requires_grad_(False)
        self.norm.weight.data.copy_(target.norm.weight)


# -- on a CPU


class LeanJanus(LeanDecoder):
    original: Janus

    def __init__(self, target: Janus, kind: str = "plain", release: bool = False) -> None:
        super().__init__(target, kind, release)
        affine = self.packing.affine
        entry, head = target.image_embedding, target.image_head
        self.entry = affine(entry.fc1), affine(entry.fc2)
        self.exit = affine(head.proj_out), affine(head.vision_head)

    def embed(self, tokens: Tensor) -> Tensor:
        """As `LeanDecoder.embed`: a row of the codebook through an aligner."""
        first, second = self.entry
        return second(F.gelu(first(self.original.image_embedding.codes(tokens).float())))

    def logits(self, hidden: Tensor) -> Tensor:
        first, second = self.exit
        return second(F.gelu(first(hidden)))


# -- prompts: a user's turn in its chat template, then the start of a picture

BOS = "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
PAD = "<\uff5c\u2581pad\u2581\uff5c>"
BEGIN_IMAGE = "<begin_of_image>"
# The template "deepseek" of deepseek-ai/Janus, janus/utils/conversation.py, without a system
# prompt; as in transformers.
TEMPLATE = "<|User|>: {}\n\n<|Assistant|>:"


def read_vocabulary(path: Path, target: JanusConfig) -> Tokenizer:
    """Read a published tokenizer.json of Janus-Pro.

    Raise CheckpointError when it is no such file, lacks a mark that a prompt needs, or has the
    padding elsewhere than the target.
    """
    tokenizer = read_tokenizer_file(path)
    known = tokenizer.get_vocab()
    for mark in (BOS, PAD, BEGIN_IMAGE):
        if known.get(mark, target.embeddings) >= target.embeddings:
            raise CheckpointError(
                f"{path} is not Janus-Pro's tokenizer: {mark} must be below {target.embeddings} "
                f"in it, and is {known.get(mark)}"
            )
    if known[PAD] != target.pad:
        raise CheckpointError(
            f"{path} is not Janus-Pro's tokenizer: {PAD} must be {target.pad} in it, "
            f"and is {known[PAD]}"
        )
    return tokenizer


def prompt_reader(target: JanusConfig, located: Located, _: torch.device) -> PromptIds:
    """Return the reader of a target's prompts, from its published tokenizer.json.

    As in the published code, the start mark is always first. Raise CheckpointError as in
    `read_vocabulary`.
    """
    tokenizer = read_vocabulary(located.weights[0], target)
    known = tokenizer.get_vocab()
    added = (token.content for token in tokenizer.get_added_tokens_decoder().values())
    # The vocabulary's added tokens include letters, which may stay in a prompt.
    marks = {BOS, PAD, BEGIN_IMAGE, *(mark for mark in added if re.fullmatch("<.+>", mark))}
    no_text = re.compile("|".join(map(re.escape, sorted(marks))))
    return PromptIds(
        tokenizer, target.prefix, no_text, [known[BOS]], [known[BEGIN_IMAGE]], TEMPLATE
    )


# -- published files (facts: deepseek-ai/Janus, janus/models/*.py; transformers,
# models/janus/convert_janus_weights_to_hf.py)

_AUTHORS_NAMES = (
    (r"^(?!image_)", "language_model.model."),
    (r"^image_embedding\.codes\.", "gen_embed."),
    (r"^image_embedding\.fc1\.", "gen_aligner.layers.0."),
    (r"^image_embedding\.fc2\.", "gen_aligner.layers.2."),
    (r"^image_head\.proj_out\.", "gen_head.output_mlp_projector."),
    (r"^image_head\.", "gen_head."),
)
_LIBRARY_NAMES = (
    (r"^(?!image_)", "language_model."),
    (r"^image_embedding\.codes\.", "generation_embeddings."),
    (r"^image_embedding\.fc1\.", "generation_aligner.fc1."),
    (r"^image_embedding\.fc2\.", "generation_aligner.hidden_layers.0."),
    (r"^image_head\.", "generation_head."),
    (r"^", "model."),
)
_OTHER_PARTS = re.compile(
    r"(vision_model|aligner|gen_vision_model)\..*|language_model\.lm_head\.weight"
)
_NO_TOKENIZER = re.compile(r"(?!gen_vision_model\.).*|gen_vision_model\.quantize\.codebook_used")

LAYOUTS = {
    # DeepSeek's own "multi_modality" files; the image tokenizer has the names of LlamaGen's
    "janus": Layout(renaming(*_AUTHORS_NAMES), _OTHER_PARTS),
    "janus-vq": Layout(renaming(*VQ_NAMES, (r"^", "gen_vision_model.")), _NO_TOKENIZER),
    # transformers' conversion
    "janus-library": Layout(
        renaming(*_LIBRARY_NAMES),
        re.compile(r"model\.(vision_model|aligner|vqmodel)\..*|lm_head\.weight"),
    ),
    "janus-library-vq": Layout(
        renaming((r"^vq\.", "model.vqmodel.")), re.compile(r"(?!model\.vqmodel\.).*")
    ),
}


def target_facts(sizes: JanusConfig, located: Located) -> dict[str, Any]:
    """Return the fields of a target's configuration that its config.json sets.

    Raise CheckpointError for another model's.
    """
    path = located.beside("config.json")
    said = read_config(path)
    # DeepSeek's name and the library's
    found = said.get("language_config") or said.get("text_config")
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{path} says nothing of a language model: it belongs to another model"
        )
    check_config(
        path,
        found,
        sizes.heads,
        hidden_size=sizes.dim,
        num_hidden_layers=sizes.layers,
        vocab_size=sizes.embeddings,
    )
    # DeepSeek's file has neither: the library's LLaMA has those of the sizes
    return eps_and_theta(found, sizes)
