"""Anole: the Chameleon transformer, LANTERN's drafter of it, and their files.

Facts that shape this file (leloy/Anole-7b-v0.1-hf; jadohu/LANTERN,
models/kv_variants/modeling_anole_kv.py): a pre-norm decoder with one-dimensional half-rotated
positions normalises queries and keys per head first. Image tokens are words of its vocabulary, and
the prompt is part of the sequence. An unconditional row is the two start marks alone, padded on the
left. It counts its positions from them, so that the two rows turn by different angles. While a
picture is drawn everything but image tokens is masked. So the head is cut to the image tokens,
numbered by their codebook index, which is their id less `FIRST`.
"""

from __future__ import annotations

import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import JanusVQVAEConfig

from lantern_demo.decoding.cache import KVCache
from lantern_demo.decoding.interfaces import Pass
from lantern_demo.models.hub import Located
from lantern_demo.models.llama import (
    BEYOND,
    Attention,
    Condition,
    Decoder,
    DecoderDrafter,
    DecoderTarget,
    angles,
)
from lantern_demo.models.registry import AnoleConfig, AnoleDrafterConfig, Sizes
from lantern_demo.models.tensors import (
    CheckpointError,
    Layout,
    Shapes,
    read_tokenizer_file,
    renaming,
)
from lantern_demo.models.text import PromptIds
from lantern_demo.models.tokenizer import ImageTokenizer

# Ids of the vocabulary: the start of a text, its padding, the first image token, the start of an
# image, the end of a turn.
BOS = 0
PAD = 1
FIRST = 4
BEGIN_IMAGE = 8197
END_OF_TURN = 8710


# -- the networks


class HeadNorm(nn.Module):
    """The weight and the bias, per head, of a LayerNorm over each head."""

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, dim))
        self.bias = nn.Parameter(torch.zeros(heads, dim))


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
        weight, bias = self.stacked()
        self.norms = weight.detach(), bias.detach()

    def normed(self, qkv: Tensor) -> Tensor:
        weight, bias = self.norms or self.stacked()
        both = torch.addcmul(bias, F.layer_norm(qkv[:, :, :2], qkv.shape[-1:], eps=1e-5), weight)
        return torch.cat((both, qkv[:, :, 2:]), 2)


class PaddedCache(KVCache):
    """A cache whose rows may be padded on the left.

    Row r's token in slot s stands at position s - shift[r].
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
        """Map slot numbers [n] to positions [R, n] int64; padding is at 0."""
        return (slots - self.shift[:, None]).clamp(min=0)


class AnoleDecoder(Decoder):
    """What target and drafter share: slot i stands at position i of its row.

    Tokens are codebook indices, 0 to vocab - 1.
    """

    attention = AnoleAttention
    cache_type = PaddedCache

    def rope_table(self) -> Tensor:
        c = self.config
        return angles(c.prefix + c.tokens + BEYOND, c.head_dim, c.rope_base)

    def places(self, positions: Tensor, cache: PaddedCache) -> Tensor:
        return cache.positions(positions)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embed_tokens(tokens + FIRST)


class Anole(AnoleDecoder, DecoderTarget):
    """The target: implements `decoding.interfaces.Target`.

    Its head has the image tokens' rows of the published one.
    """

    config: AnoleConfig

    def __init__(self, config: AnoleConfig) -> None:
        super().__init__(config, config.embeddings)

    def condition(self, ids: Tensor, mask: Tensor | None, guided: bool) -> Condition:
        """Map a prompt's ids [1, T] int64, its marks included, to its rows [R, T] and their mask.

        The unconditional row is the prompt's first and last mark, padded on the left. `mask` is for
        models that pad their prompts; here it is None.
        """
        if not guided:
            return Condition(ids, mask)
        nothing = torch.cat((ids.new_full((1, ids.shape[1] - 2), PAD), ids[:, :1], ids[:, -1:]), 1)
        real = torch.ones(2, ids.shape[1], dtype=torch.bool, device=ids.device)
        real[1, :-2] = False
        return Condition(torch.cat((ids, nothing)), real)

    def read(self, condition: Condition) -> Tensor:
        return self.embed_tokens(condition.features.to(self.rope.device))


class AnoleDrafter(AnoleDecoder, DecoderDrafter):
    """LANTERN's drafter; implements `decoding.interfaces.Drafter`.

    Unlike LlamaGen's drafter it has a norm before its attention, reads the prompt's own tokens, and
    leaves padding out. As in its target, the two rows turn by different angles (jadohu/LANTERN,
    models/drafters/cnets_anole.py).
    """

    config: AnoleDrafterConfig

    def __init__(self, config: AnoleDrafterConfig) -> None:
        super().__init__(config, config.embeddings)

    def prefill(
        self, hidden: Tensor, token: Tensor, cache: PaddedCache, condition: Condition
    ) -> None:
        """As `decoding.interfaces.Drafter.prefill`."""
        ids = condition.features.to(token.device)
        n = ids.shape[1]
        cache.start(n, condition.mask)
        slots = torch.arange(n, device=ids.device)
        # words of the prompt, counted as `embed` counts
        following = torch.cat((ids[:, 1:] - FIRST, token.expand(len(ids), 1)), 1)
        self.forward(Pass(following, slots, slots, None), hidden, cache)


# -- prompts: tokens of its vocabulary between two marks, without a template

MARKS = {"<s>": BOS, "<pad>": PAD, "<racm3:break>": BEGIN_IMAGE, "<reserved08706>": END_OF_TURN}
# of a codebook index, in the name of its image token
LETTERS = str.maketrans("0123456789", "ABCDEFGHIJ")
# A prompt must not contain these: the vocabulary reads them as marks or image tokens.
_NO_TEXT = re.compile(r"IMGIMG[A-J]+Z|<(?:s|pad|/s|eoss|racm3:break|image|reserved\d+)>")


def prompt_reader(target: AnoleConfig, located: Located, _: torch.device) -> PromptIds:
    """Return the reader of a target's prompts, from its published tokenizer.json.

    The order is that of the released code (jadohu/LANTERN, ea_model_anole.py): the start, the text,
    the end of the turn, the start of an image. Raise CheckpointError when it is no such file, or
    when one of its marks or image tokens is not where the target has it.
    """
    path = located.weights[0]
    tokenizer = read_tokenizer_file(path)
    codes = range(target.vocab)
    images = {f"IMGIMG{str(code).translate(LETTERS)}Z": FIRST + code for code in codes}
    known = tokenizer.get_vocab()
    for name, number in (MARKS | images).items():
        if known.get(name) != number:
            raise CheckpointError(
                f"{path} is not Anole's tokenizer: {name} must be {number} in it, "
                f"and is {known.get(name)}"
            )
    return PromptIds(tokenizer, target.prefix, _NO_TEXT, [BOS], [END_OF_TURN, BEGIN_IMAGE])


# -- published files


class ChameleonTokenizer(ImageTokenizer):
    """Chameleon's VQ network (facebookresearch/chameleon, vqgan.py).

    It has attention only in the middle, and a codebook whose vectors are compared and decoded
    unchanged. transformers' own ChameleonVQVAE has an encoder and no decoder; the tests compare
    this encoder with it.
    """

    def __init__(self, config: JanusVQVAEConfig) -> None:
        super().__init__(config)
        for level in (*self.vq.encoder.down, *self.vq.decoder.up):
            level.attn = nn.ModuleList()

    def scaled(self, vectors: Tensor, dim: int) -> Tensor:
        return vectors.float()


def configured(sizes: AnoleConfig, _: str) -> tuple[AnoleConfig, dict[str, Any]]:
    """Return the sizes without config.json, and the other values that it must have."""
    return sizes, {"vocab_size": sizes.embeddings, "swin_norm": False}


def _image_row(name: str, _: Shapes) -> int | None:
    """Return the head's first row of an image token, out of those of the whole vocabulary."""
    return FIRST if name == "lm_head.weight" else None


_VQ_PARTS = "encoder|decoder|quantize|quant_conv|post_quant_conv"
_UP = re.compile(r"vq\.decoder\.up\.(\d+)\.")


def _chameleon_name(name: str, shapes: Shapes) -> str:
    # The library counts the decoder's levels from the codes, Chameleon from the picture.
    last = max(int(found[1]) for found in map(_UP.match, shapes) if found)
    return _UP.sub(lambda match: f"decoder.up.{last - int(match[1])}.", name).removeprefix("vq.")


LAYOUTS = {
    # a Hugging Face Chameleon, its head cut to image tokens, and the image tokenizer
    "anole": Layout(
        renaming((r"^(?!lm_head\.)", "model.")), re.compile(r"model\.vqmodel\..*"), _image_row
    ),
    "anole-vq": Layout(
        lambda name, shapes: f"model.vqmodel.{_chameleon_name(name, shapes)}",
        re.compile(r"(?!model\.vqmodel\.).*"),
    ),
    # The same image tokenizer in the file of its authors. As they do, take the network's tensors
    # alone: other names are unknown.
    "chameleon-vq": Layout(_chameleon_name, re.compile(rf"(?!({_VQ_PARTS})\.).*")),
}
NETWORKS: dict[type[Sizes], Any] = {AnoleConfig: Anole, AnoleDrafterConfig: AnoleDrafter}
TOKENIZER = ChameleonTokenizer
