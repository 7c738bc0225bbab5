"""Prompts: encoders that turn one into features for a target, and a vocabulary for targets that
read its ids themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

import torch
from tokenizers import Encoding, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import T5Config, T5EncoderModel

PAD, UNKNOWN, END = "<pad>", "<unk>", "</s>"


@dataclass
class Encoded:
    """A prompt as a target's condition, and its unknown words.

    A text has features [1, T, C] and their mask [1, T] bool (left-padded). Without a mask the
    features are a class id [1] or a prompt's ids [1, T] int64.
    """

    features: Tensor
    mask: Tensor | None
    unknown: list[str]


class PromptEncoder(Protocol):
    """Turns a prompt into a condition: a text encoder, or a list of classes."""

    def check(self, prompt: str) -> None:
        """Raise ValueError with a sentence when a prompt cannot be encoded."""

    def encode(self, prompt: str) -> Encoded:
        """Encode a prompt that passed `check`."""


def word_tokenizer(words: list[str]) -> Tokenizer:
    """Return a vocabulary of whole words: lower case, split at white space and punctuation; any
    other word is unknown.
    """
    vocabulary = {w: i for i, w in enumerate((PAD, UNKNOWN, END, *words))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def unknown_words(tokenizer: Tokenizer, text: str, encoding: Encoding) -> list[str]:
    """Return the words of a text that a vocabulary lacks."""
    unknown = tokenizer.token_to_id(UNKNOWN)
    return [
        text[a:b].strip()
        for token, (a, b) in zip(encoding.ids, encoding.offsets, strict=True)
        if token == unknown
    ]


class PromptIds:
    """Implements `PromptEncoder` for a target that reads ids: at most `length`, with `before` and
    `after` around the text.

    `template` has the text in place of {}. A prompt must not match `marks`, which the vocabulary
    reads as its own signs.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        length: int,
        marks: re.Pattern[str],
        before: list[int],
        after: list[int],
        template: str = "{}",
    ) -> None:
        self.tokenizer, self.length, self.marks = tokenizer, length, marks
        self.before, self.after, self.template = before, after, template

    def check(self, prompt: str) -> None:
        """Raise ValueError when a prompt has more tokens than there are positions, or contains a
        mark of the vocabulary.
        """
        if found := self.marks.search(prompt):
            raise ValueError(
                f"prompt must be plain text, and {found[0]} in it is a mark of the model's own; leave it out"
            )
        count, own = (self.encode(text).features.shape[1] for text in (prompt, ""))
        if count > self.length:
            raise ValueError(
                f"prompt has {count - own} tokens of the model's vocabulary, at most {self.length - own} are allowed: "
                f"{prompt[:60]!r}..."
            )

    def encode(self, prompt: str) -> Encoded:
        """Return ids [1, T] int64 on the CPU, `before` and `after` included, and no mask: nothing
        is padded.
        """
        text = self.template.format(prompt.strip())
        # some published files add a start mark, others do not
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        ids = torch.tensor([[*self.before, *encoding.ids, *self.after]])
        return Encoded(ids, None, unknown_words(self.tokenizer, text, encoding))


def left_pad(features: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Move the valid rows of right-padded features [B, T, C], mask [B, T] to the end and zero the
    rest (LlamaGen generate.py).
    """
    t = mask.shape[1]
    shift = t - mask.sum(1, keepdim=True)
    index = (torch.arange(t, device=mask.device)[None] - shift) % t
    mask = mask.gather(1, index)
    return features.gather(1, index[..., None].expand_as(features)) * mask[..., None], mask


class TextEncoder(nn.Module):
    """A word vocabulary and a T5 encoder; prompts are padded to `length` positions, the end mark
    included.
    """

    def __init__(self, tokenizer: Tokenizer, config: T5Config, length: int) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.length = length
        self.encoder = T5EncoderModel(config)

    def ids(self, prompts: list[str]) -> tuple[Tensor, Tensor]:
        """Map prompts to ids [B, T] int64, right-padded, and their mask [B, T] bool.

        Unknown words are left out: the target has learnt none. Raise ValueError when a prompt has
        more known words than there are positions.
        """
        vocabulary = self.tokenizer.get_vocab()
        known = [
            [i for i in self.tokenizer.encode(p).ids if i != vocabulary[UNKNOWN]] for p in prompts
        ]
        rows = [[*ids, vocabulary[END]] for ids in known]
        for prompt, row in zip(prompts, rows, strict=True):
            if len(row) > self.length:
                raise ValueError(
                    f"prompt has {len(row) - 1} words and marks, at most {self.length - 1} are allowed: {prompt[:60]!r}..."
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


def small_t5(vocabulary: int, width: int = 256, layers: int = 2) -> T5Config:
    """Return the configuration of the bundled text encoder."""
    return T5Config(
        vocab_size=vocabulary,
        d_model=width,
        d_kv=64,
        num_heads=width // 64,
        d_ff=2 * width,
        num_layers=layers,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu",
        use_cache=False,
        pad_token_id=0,
        eos_token_id=2,
    )
