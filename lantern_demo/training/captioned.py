"""The text encoder for captions of lantern scenes."""

from __future__ import annotations

from lantern_demo.models.text import TextEncoder, small_t5, word_tokenizer
from lantern_demo.scenes import vocabulary


def scene_reader(width: int, prefix: int) -> TextEncoder:
    """Return a new text encoder for captions of scenes: at most `prefix` words as features of `width` numbers."""
    words = word_tokenizer(vocabulary())
    return TextEncoder(words, small_t5(words.get_vocab_size(), width), prefix)
