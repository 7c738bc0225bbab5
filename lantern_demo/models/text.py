"""Prompts: vocabularies and T5 text encoders.

The encoders are the bundled model's own and that of LlamaGen's captions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor, nn
from transformers import T5Config, T5EncoderModel

from lantern_demo.faults import NotAllowed
from lantern_demo.models.hub import Located
from lantern_demo.models.tensors import (
    CheckpointError,
    Layout,
    load_weights,
    read_config,
    read_tokenizer_file,
    reading,
    renaming,
)

PAD = "<pad>"
UNKNOWN = "<unk>"
END = "</s>"


@dataclass
class Encoded:
    """A prompt as a target's condition, and its unknown words.

    A text has features [1, T, C] and their mask [1, T] bool (left-padded). Without a mask the
    features are a prompt's ids [1, T] int64.
    """

    features: Tensor
    mask: Tensor | None
    unknown: list[str]


class PromptEncoder(Protocol):
    """Turns a prompt into a condition."""

    def check(self, prompt: str) -> None:
        """Raise ValueError with a sentence when a prompt cannot be encoded."""

    def encode(self, prompt: str) -> Encoded:
        """Encode a prompt that passed `check`."""


def unknown_words(tokenizer: Tokenizer, text: str, encoding: Encoding) -> list[str]:
    """Return the words of a text that a vocabulary lacks."""
    unknown = tokenizer.token_to_id(UNKNOWN)
    return [
        text[a:b].strip()
        for token, (a, b) in zip(encoding.ids, encoding.offsets, strict=True)
        if token == unknown
    ]


@dataclass(frozen=True)
class PromptIds:
    """Implements `PromptEncoder` for a target that reads ids, at most `length`.

    `before` and `after` stand around the text. A prompt must not match `marks`, which the
    vocabulary reads as its own signs.
    """

    tokenizer: Tokenizer
    length: int
    marks: re.Pattern[str]
    before: list[int]
    after: list[int]

    def check(self, prompt: str) -> None:
        """Raise NotAllowed for a prompt of too many tokens, or with a mark of the vocabulary."""
        if found := self.marks.search(prompt):
            raise NotAllowed(
                "prompt",
                f"must be plain text, and {found[0]} in it is a mark of the model's own; "
                "leave it out",
            )
        count, own = (self.encode(text).features.shape[1] for text in (prompt, ""))
        if count > self.length:
            raise NotAllowed(
                "prompt",
                f"has {count - own} tokens of the model's vocabulary, "
                f"at most {self.length - own} are allowed: {prompt[:60]!r}...",
            )

    def encode(self, prompt: str) -> Encoded:
        """Return ids [1, T] int64 on the CPU, `before` and `after` included, and no mask."""
        text = prompt.strip()
        # some published files add a start mark, others do not
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        ids = torch.tensor([[*self.before, *encoding.ids, *self.after]])
        return Encoded(ids, None, unknown_words(self.tokenizer, text, encoding))


def left_pad(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Move valid rows of features [B, T, C], mask [B, T] to the end, and zero the rest.

    As LlamaGen's generate.py.
    """
    t = mask.shape[1]
    shift = t - mask.sum(1, keepdim=True)
    index = (torch.arange(t, device=mask.device)[None] - shift) % t
    mask = mask.gather(1, index)
    return features.gather(1, index[..., None].expand_as(features)) * mask[..., None], mask


class TextEncoder(nn.Module):
    """A word vocabulary and a T5 encoder; prompts are padded to `length` positions.

    The end mark counts.
    """

    def __init__(self, tokenizer: Tokenizer, config: T5Config, length: int) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.length = length
        self.encoder = T5EncoderModel(config)

    def ids(self, prompts: list[str]) -> tuple[Tensor, Tensor]:
        """Map prompts to ids [B, T] int64, right-padded, and their mask [B, T] bool.

        Unknown words are left out: the target has learnt none. Raise NotAllowed when a prompt has
        more known words than there are positions.
        """
        vocabulary = self.tokenizer.get_vocab()
        known = [
            [i for i in self.tokenizer.encode(p).ids if i != vocabulary[UNKNOWN]] for p in prompts
        ]
        rows = [[*ids, vocabulary[END]] for ids in known]
        for prompt, row in zip(prompts, rows, strict=True):
            if len(row) > self.length:
                raise NotAllowed(
                    "prompt",
                    f"has {len(row) - 1} words and marks, "
                    f"at most {self.length - 1} are allowed: {prompt[:60]!r}...",
                )
        ids = torch.full((len(rows), self.length), vocabulary[PAD])
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row)
        return ids, torch.arange(self.length)[None] < torch.tensor([len(r) for r in rows])[:, None]

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Map ids [B, T], mask [B, T] to left-padded features [B, T, C] and mask [B, T] bool."""
        features = self.encoder(input_ids=ids, attention_mask=mask.long()).last_hidden_state
        return left_pad(features, mask)

    def check(self, prompt: str) -> None:
        """Raise ValueError when a prompt has more words than there are positions."""
        self.ids([prompt])

    def encode(self, prompt: str) -> Encoded:
        """Encode one prompt on the encoder's device. Raise ValueError when it is too long."""
        ids, mask = self.ids([prompt])
        encoding = self.tokenizer.encode(prompt)
        device = self.encoder.device
        features, mask = self(ids.to(device), mask.to(device))
        return Encoded(features, mask, unknown_words(self.tokenizer, prompt, encoding))


# -- LlamaGen's captions: the published cleaning, and the features of a T5

LENGTH = 120  # positions of a caption, the end mark included

# A whole T5, of which the encoder is taken. The embedding is one tensor with several names.
T5 = Layout(
    renaming((r"^encoder\.embed_tokens\.weight$", "shared.weight")),
    re.compile(r"decoder\..*|lm_head\.weight|encoder\.embed_tokens\.weight"),
)

# What captions were without: marks that are no punctuation, rows of full stops.
_NO_WORDS = re.compile(r"(?:\.{2,}|[#&@~()\[\]{}|\\/*]|\s)+")
_QUOTES = str.maketrans("`\u00b4\u00ab\u00bb\u201c\u201d\u00a8\u2018\u2019", '"' * 7 + "''")


def clean(text: str) -> str:
    """Return a caption as plain ones were in the training of the published models.

    It is in lower case, with straight quotes, and a blank for each run of marks and white space.
    The published cleaning also takes out addresses, markup and part numbers (LlamaGen,
    language/t5.py).
    """
    return _NO_WORDS.sub(" ", text.lower().translate(_QUOTES)).strip()


def read_tokenizer(path: Path) -> Tokenizer:
    """Return a published tokenizer.json, set to pad and cut captions to 120 positions.

    The file is used unchanged: transformers 5 rebuilds a T5 tokenizer from its vocabulary, without
    the file's own normalisation. Raise CheckpointError when it is not a T5's.
    """
    tokenizer = read_tokenizer_file(path)
    pad = tokenizer.token_to_id(PAD)
    if pad is None or tokenizer.encode("").tokens != [END]:
        raise CheckpointError(
            f"{path} is not a T5's tokenizer: it must know {PAD} and end a text with {END}"
        )
    tokenizer.enable_truncation(LENGTH)
    tokenizer.enable_padding(length=LENGTH, pad_id=pad, pad_token=PAD)
    return tokenizer


@dataclass
class CaptionEncoder:
    """Turns a prompt into T5 features of 120 positions, left-padded, the padding zero.

    As LlamaGen's autoregressive/sample/sample_t2i.py.
    """

    tokenizer: Tokenizer
    encoder: T5EncoderModel

    def check(self, prompt: str) -> None:
        """Raise NotAllowed for a prompt without words."""
        if not clean(prompt):
            raise NotAllowed("prompt", f"must describe the picture in words, got {prompt[:60]!r}")

    def encode(self, prompt: str) -> Encoded:
        """Return features [1, 120, C] float32 and mask [1, 120] bool, on the encoder's device.

        Words past the 120 positions are cut off, as published, and reported as unknown.
        """
        text = clean(prompt)
        device = self.encoder.device
        encoding = self.tokenizer.encode(text)
        ids = torch.tensor([encoding.ids], device=device)
        mask = torch.tensor([encoding.attention_mask], device=device)
        features = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        features, valid = left_pad(features, mask.bool())
        cut = text[max(b for _, b in encoding.offsets) :].split() if encoding.overflowing else []
        unread = unknown_words(self.tokenizer, text, encoding) + cut
        return Encoded(features.float(), valid, unread)


def load_text(
    located: Located, width: int, device: torch.device, dtype: torch.dtype
) -> CaptionEncoder:
    """Return a T5's encoder and tokenizer, from the published files.

    Raise CheckpointError when they are not a T5's of that width.
    """
    path = located.beside("config.json")
    said = read_config(path)
    with reading(path):
        config = T5Config.from_dict(said)
    if config.d_model != width:
        raise CheckpointError(
            f"{path} says d_model {config.d_model}, but this model reads features of width {width}"
        )
    with torch.device("meta"):
        blank = T5EncoderModel(config)
    encoder = load_weights(blank, located.weights, T5, device, dtype)
    return CaptionEncoder(read_tokenizer(located.beside("tokenizer.json")), encoder)
