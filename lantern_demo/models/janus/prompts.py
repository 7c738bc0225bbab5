"""Prompts of Janus-Pro: a user's turn in its chat template, then the start of a picture."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from tokenizers import Tokenizer

from lantern_demo.models.files.hub import Located
from lantern_demo.models.files.tensors import CheckpointError, read_tokenizer_file
from lantern_demo.models.janus.target import JanusConfig
from lantern_demo.models.text import PromptIds

BOS, PAD, BEGIN_IMAGE = (
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    "<\uff5c\u2581pad\u2581\uff5c>",
    "<begin_of_image>",
)
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
                f"{path} is not Janus-Pro's tokenizer: {mark} must be below {target.embeddings} in it, and is {known.get(mark)}"
            )
    if known[PAD] != target.pad:
        raise CheckpointError(
            f"{path} is not Janus-Pro's tokenizer: {PAD} must be {target.pad} in it, and is {known[PAD]}"
        )
    return tokenizer


def prompt_reader(target: JanusConfig, located: Located, _: torch.device) -> PromptIds:
    """Return the reader of a target's prompts, from its published tokenizer.json.

    Raise CheckpointError as in `read_vocabulary`.

    As in the published code, the start mark is always first.
    """
    tokenizer = read_vocabulary(located.weights[0], target)
    known, added = (
        tokenizer.get_vocab(),
        (token.content for token in tokenizer.get_added_tokens_decoder().values()),
    )
    # The vocabulary's added tokens include letters, which may stay in a prompt.
    marks = {BOS, PAD, BEGIN_IMAGE, *(mark for mark in added if re.fullmatch("<.+>", mark))}
    no_text = re.compile("|".join(map(re.escape, sorted(marks))))
    return PromptIds(
        tokenizer, target.prefix, no_text, [known[BOS]], [known[BEGIN_IMAGE]], TEMPLATE
    )
