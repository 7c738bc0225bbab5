"""Protocols of the two models that decoding calls. A batch is one image in R
rows. With guidance row 0 is conditional and row 1 unconditional, both with the same tokens; without
guidance R = 1. Each model gets as `cache` the object that its own `new_cache` returned, so that a
model may return a subclass of `KVCache`.

A target's states may be wider than a drafter's outputs, where the drafter reads more of the target
than its head does. They are passed on and guided at full width, and `Target.head` takes both.

Positions and slots count from 0 at the prefix. A node of a draft tree has the position of its
depth, and a separate slot.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from .cache import KVCache

DEEPEST = 64  # of a draft tree: the positions that a model has past the last token


class Pass(NamedTuple):
    """The n nodes that a model reads at once, and the m of them, the last ones, whose outputs it
    returns. Index tensors are int64."""

    tokens: Tensor  # [n]
    positions: Tensor  # [n], in the sequence
    # [n], of the cache, which get the nodes' keys and values. They follow each other wherever
    # Triton kernels run, which answer others by NaN.
    slots: Tensor
    # [m, S] bool: a node attends to those of the first S slots that its row marks, its own
    # included; the cache masks padding. None: m is 1, and the last node attends to all slots up to
    # its own.
    visible: Tensor | None

    @property
    def outputs(self) -> int:
        """m, the nodes whose outputs are returned."""
        return 1 if self.visible is None else self.visible.shape[0]

    @property
    def end(self) -> int:
        """S, the slots that nodes may attend to. Without `visible` the host reads it, on a CPU
        alone."""
        return int(self.slots[-1]) + 1 if self.visible is None else self.visible.shape[1]


class Target(Protocol):
    """The autoregressive model whose distribution is sampled."""

    vocab_size: int

    def new_cache(self, rows: int, length: int) -> KVCache:
        """Return an empty cache with room for the prefix and `length` further positions."""

    def prefill(self, condition: Any, cache: Any) -> Tensor:
        """Return hidden states [R, T, H] of the T prefix positions. Write the prefix to the cache,
        and call its `start`."""

    def forward(self, nodes: Pass, cache: Any) -> Tensor:
        """Return hidden states [R, n, H] of nodes; m is n. Read tensor values on the host only on a
        CPU."""

    def head(self, hidden: Tensor) -> Tensor:
        """Return logits [R, n, V] float32 of hidden [R, n, H]."""


class Drafter(Protocol):
    """The small model that proposes tokens; its outputs go through the target's head. Its slots
    count like the target's."""

    # Whether it reads one row of guided states, `uncond + scale (cond - uncond)`, whose logits are
    # the guided ones, since the head is linear. Its R is then 1, for any target.
    guided: bool

    def new_cache(self, rows: int, length: int) -> KVCache:
        """Return an empty cache with room for the prefix slots and `length` further ones."""

    def prefill(self, hidden: Tensor, token: Tensor, cache: Any, condition: Any) -> None:
        """Read hidden [R, T, H], the target's states of its prefix, with the tokens that follow
        them: those of the prompt, if the drafter reads it, and the first image token [1]. Write T
        slots; a pass over the last of them follows."""

    def forward(self, nodes: Pass, hidden: Tensor, cache: Any) -> Tensor:
        """Return outputs [R, m, H] of nodes. A slot pairs a node's token with the state before it,
        hidden [R, n, H]: the target's state for committed tokens, the parent's output for nodes of
        a draft tree."""
