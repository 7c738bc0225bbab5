"""Prompts of Janus-Pro: a user's turn in its chat template, then the start of a picture."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from lantern_demo.models.files.hub import Located
from lantern_demo.models.files.tensors import CheckpointError, read_tokenizer_file
from lantern_demo.models.janus.target import JanusConfig
from lantern_demo.models.text import Encoded

BOS, PAD, BEGIN_IMAGE = "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5c\u2581pad\u2581\uff5c>", "<begin_of_image>"
# The template "deepseek" of deepseek-ai/Janus, janus/utils/conversation.py, without a system prompt; as in transformers.
TEMPLATE = "<|User|>: {}\n\n<|Assistant|>:"


def read_vocabulary(path: Path, target: JanusConfig) -> Tokenizer:
    """Read a published tokenizer.json of Janus-Pro. Raise CheckpointError when it is no such file, lacks a mark that a prompt
    needs, or has the padding elsewhere than the target."""
    tokenizer = read_tokenizer_file(path)
    known = tokenizer.get_vocab()
    for mark in (BOS, PAD, BEGIN_IMAGE):
        if known.get(mark, target.embeddings) >= target.embeddings:
            raise CheckpointError(
                f"{path} is not Janus-Pro's tokenizer: {mark} must be below {target.embeddings} in it, and is {known.get(mark)}"
            )
    if known[PAD] != target.pad:
        raise CheckpointError(f"{path} is not Janus-Pro's tokenizer: {PAD} must be {target.pad} in it, and is {known[PAD]}")
    return tokenizer


class ChatPrompt:
    """Implements `text.PromptEncoder`: turns a prompt into ids, at most `length` with its template."""

    def __init__(self, tokenizer: Tokenizer, length: int) -> None:
        self.tokenizer, self.length = tokenizer, length
        added = (token.content for token in tokenizer.get_added_tokens_decoder().values())
        # A prompt must not contain these: the vocabulary reads them as marks. Its added tokens include letters, which may stay.
        self.marks = sorted(mark for mark in added if mark.startswith("<") and mark.endswith(">") and len(mark) > 2)
        known = tokenizer.get_vocab()
        self.begin, self.begin_image = known[BOS], known[BEGIN_IMAGE]

    @classmethod
    def of(cls, target: JanusConfig, located: Located, _: torch.device) -> ChatPrompt:
        """Return the reader of a target's prompts, from its published tokenizer.json. Raise CheckpointError as in
        `read_vocabulary`."""
        return cls(read_vocabulary(located.weights[0], target), target.prefix)

    def check(self, prompt: str) -> None:
        """Raise ValueError when a prompt has more tokens than there are positions, or contains a mark of the vocabulary."""
        for mark in self.marks:
            if mark in prompt:
                raise ValueError(f"prompt must be plain text, and {mark} in it is a mark of the model's own; leave it out")
        count, template = len(self._ids(prompt)), len(self._ids(""))
        if count > self.length:
            raise ValueError(
                f"prompt has {count - template} tokens of the model's vocabulary, at most {self.length - template} are allowed: "
                f"{prompt[:60]!r}..."
            )

    def encode(self, prompt: str) -> Encoded:
        """Return ids [1, T] int64 on the CPU, the template included, and no mask: nothing is padded. Bytes stand for unknown
        words, so that `unknown` is empty."""
        return Encoded(torch.tensor([self._ids(prompt)]), None, [])

    def _ids(self, prompt: str) -> list[int]:
        # As in the published code, the start mark is always first, whether or not the file adds one.
        text = TEMPLATE.format(prompt.strip())
        return [self.begin, *self.tokenizer.encode(text, add_special_tokens=False).ids, self.begin_image]
