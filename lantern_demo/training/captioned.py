"""Captions of scenes for training: a text encoder for their words, and captions of stored attributes."""

from __future__ import annotations

import random
from collections.abc import Mapping

from torch import Tensor

from lantern_demo.models.text import TextEncoder, small_t5, word_tokenizer
from lantern_demo.scenes import caption, vocabulary


def scene_reader(width: int, prefix: int) -> TextEncoder:
    """Return a new text encoder for captions of scenes: at most `prefix` - 1 words as features of `width` numbers."""
    words = word_tokenizer(list(vocabulary()))
    return TextEncoder(words, small_t5(words.get_vocab_size(), width), prefix)


def captions(attributes: Mapping[str, Tensor], rows: Tensor, rng: random.Random, omit: float) -> list[str]:
    """Write a caption of each scene in `rows`. `attributes` has the class indices [B] of all scenes by name."""
    return [caption({name: int(values[row]) for name, values in attributes.items()}, rng, omit) for row in rows.tolist()]
