"""The two models that decoding works with. Batch of one image; R rows: with guidance row 0 is the conditional and row 1 the
unconditional one, both with the same tokens; without guidance R = 1. `cache` is always what the same object's `new_cache` gave,
so that a model may hand out a subclass of `KVCache`. A target's states may be wider than a drafter's outputs, where the drafter
reads more of the target than its head does: they are handed on, and guided, as they are, and `Target.head` takes both.

A pass reads n tokens at positions of the sequence, and writes their keys and values to slots of the cache. Both count from 0 at
the prefix. A node of a draft tree stands at the position of its depth, in a slot of its own.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from .cache import KVCache


class Target(Protocol):
    """The autoregressive model whose distribution is to be sampled."""

    vocab_size: int

    def new_cache(self, rows: int, length: int) -> KVCache:
        """An empty cache with room for the prefix and `length` further positions."""

    def prefill(self, condition: Any, cache: Any) -> Tensor:
        """Hidden states [R, T, H] of the T prefix positions; writes them, and tells the cache with `start`."""

    def forward(self, tokens: Tensor, positions: Tensor, slots: Tensor, visible: Tensor | None, cache: Any) -> Tensor:
        """Hidden states [R, n, H] of tokens [n] int64 at positions [n] int64, whose keys and values go to slots [n] int64. Node i
        attends to those of the cache's first S slots that visible [n, S] bool says, its own among them; what is padding is for
        the cache to know. None: a lone node attends to all slots up to its own. Reads numbers on a processor alone."""

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [R, n, V] float32 of hidden [R, n, H]."""


class Drafter(Protocol):
    """The small model that proposes tokens; its outputs go through the target's head. Its slots count like the target's."""

    # Whether it works on one row of guided states, `uncond + scale (cond - uncond)`: the head is linear, so that such a state's
    # logits are the guided ones. R is then 1 for it, whatever the target's is.
    guided: bool

    def new_cache(self, rows: int, length: int) -> KVCache:
        """An empty cache with room for the prefix slots and `length` further ones."""

    def prefill(self, hidden: Tensor, token: Tensor, cache: Any, condition: Any) -> None:
        """Read hidden [R, T, H], the target's states of its prefix, with the tokens that follow them: those of the prompt, where
        the drafter reads it, and the first image token [1]. Writes T slots; a pass over the last of them follows."""

    def forward(
        self, tokens: Tensor, hidden: Tensor, positions: Tensor, slots: Tensor, visible: Tensor | None, cache: Any
    ) -> Tensor:
        """Outputs [R, m, H] of the last m of n slots. A slot pairs the state before a token, hidden [R, n, H], with that token,
        tokens [n] int64: the target's state for committed tokens, the parent's output for nodes of a draft tree. positions, slots
        and visible [m, S] are as in `Target.forward`; None: the last slot's output alone, which attends to all up to itself."""
