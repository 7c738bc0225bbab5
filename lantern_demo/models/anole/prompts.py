"""Prompts of Anole: tokens of its vocabulary between two marks, without a template."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from tokenizers import Tokenizer

from lantern_demo.models.anole.target import BEGIN_IMAGE, BOS, END_OF_TURN, FIRST, PAD, AnoleConfig
from lantern_demo.models.files.hub import Located
from lantern_demo.models.files.tensors import CheckpointError, read_tokenizer_file
from lantern_demo.models.text import PromptIds

MARKS = {"<s>": BOS, "<pad>": PAD, "<racm3:break>": BEGIN_IMAGE, "<reserved08706>": END_OF_TURN}
# of a codebook index, in the name of its image token
LETTERS = str.maketrans("0123456789", "ABCDEFGHIJ")
# A prompt must not contain these: the vocabulary reads them as marks or image tokens.
_NO_TEXT = re.compile(r"IMGIMG[A-J]+Z|<(?:s|pad|/s|eoss|racm3:break|image|reserved\d+)>")


def read_vocabulary(path: Path, codes: int) -> Tokenizer:
    """Read a published tokenizer.json of Chameleon.

    Raise CheckpointError when it is no such file. Raise it too when one of its marks, or of the
    image tokens of `codes` codebook entries, is not where the target has it.
    """
    tokenizer = read_tokenizer_file(path)
    wanted = MARKS | {
        f"IMGIMG{str(code).translate(LETTERS)}Z": FIRST + code for code in range(codes)
    }
    known = tokenizer.get_vocab()
    for name, number in wanted.items():
        if known.get(name) != number:
            raise CheckpointError(
                f"{path} is not Anole's tokenizer: {name} must be {number} in it, and is {known.get(name)}"
            )
    return tokenizer


def prompt_reader(target: AnoleConfig, located: Located, _: torch.device) -> PromptIds:
    """Return the reader of a target's prompts, from its published tokenizer.json.

    Raise CheckpointError as in `read_vocabulary`.

    The order is that of the released code (jadohu/LANTERN, ea_model_anole.py): the start, the text,
    the end of the turn, the start of an image.
    """
    vocabulary = read_vocabulary(located.weights[0], target.vocab)
    return PromptIds(vocabulary, target.prefix, _NO_TEXT, [BOS], [END_OF_TURN, BEGIN_IMAGE])
