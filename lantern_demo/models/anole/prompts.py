"""Prompts of Anole: tokens of its vocabulary between two marks, without a template."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from tokenizers import Tokenizer

from lantern_demo.models.anole.target import BEGIN_IMAGE, BOS, END_OF_TURN, FIRST, PAD, AnoleConfig
from lantern_demo.models.files.hub import Located
from lantern_demo.models.files.tensors import CheckpointError, read_tokenizer_file
from lantern_demo.models.text import UNKNOWN, Encoded

MARKS = {"<s>": BOS, "<pad>": PAD, "<racm3:break>": BEGIN_IMAGE, "<reserved08706>": END_OF_TURN}
LETTERS = str.maketrans("0123456789", "ABCDEFGHIJ")  # of a codebook index, in the name of its image token
# A prompt must not contain these: the vocabulary reads them as marks or image tokens.
_NO_TEXT = re.compile(r"IMGIMG[A-J]+Z|<(?:s|pad|/s|eoss|racm3:break|image|reserved\d+)>")


def read_vocabulary(path: Path, codes: int) -> Tokenizer:
    """Read a published tokenizer.json of Chameleon. Raise CheckpointError when it is no such file. Raise it too when one of its
    marks, or of the image tokens of `codes` codebook entries, is not where the target has it."""
    tokenizer = read_tokenizer_file(path)
    wanted = MARKS | {f"IMGIMG{str(code).translate(LETTERS)}Z": FIRST + code for code in range(codes)}
    known = tokenizer.get_vocab()
    for name, number in wanted.items():
        if known.get(name) != number:
            raise CheckpointError(f"{path} is not Anole's tokenizer: {name} must be {number} in it, and is {known.get(name)}")
    return tokenizer


class PromptTokens:
    """Implements `text.PromptEncoder`: turns a prompt into ids, at most `length` with its three marks."""

    def __init__(self, tokenizer: Tokenizer, length: int) -> None:
        self.tokenizer, self.length = tokenizer, length

    @classmethod
    def of(cls, target: AnoleConfig, located: Located, _: torch.device) -> PromptTokens:
        """Return the reader of a target's prompts, from its published tokenizer.json. Raise CheckpointError as in
        `read_vocabulary`."""
        return cls(read_vocabulary(located.weights[0], target.vocab), target.prefix)

    def check(self, prompt: str) -> None:
        """Raise ValueError when a prompt has more tokens than there are positions, or contains a mark of the vocabulary."""
        found = _NO_TEXT.search(prompt)
        if found:
            raise ValueError(f"prompt must be plain text, and {found[0]} in it is a mark of the model's own; leave it out")
        count, most = len(self._ids(prompt)), self.length - 3
        if count > most:
            raise ValueError(
                f"prompt has {count} tokens of the model's vocabulary, at most {most} are allowed: {prompt[:60]!r}..."
            )

    def encode(self, prompt: str) -> Encoded:
        """Return ids [1, T] int64 on the CPU, the marks included, and no mask: nothing is padded.

        The order is that of the released code (jadohu/LANTERN, ea_model_anole.py): the start, the text, the end of the turn,
        the start of an image.
        """
        encoding = self.tokenizer.encode(prompt, add_special_tokens=False)
        unknown = [prompt[a:b] for token, (a, b) in zip(encoding.tokens, encoding.offsets, strict=True) if token == UNKNOWN]
        return Encoded(torch.tensor([[BOS, *encoding.ids, END_OF_TURN, BEGIN_IMAGE]]), None, unknown)

    def _ids(self, prompt: str) -> list[int]:
        # The Hub's file adds a start mark, the authors' file does not.
        return self.tokenizer.encode(prompt, add_special_tokens=False).ids
