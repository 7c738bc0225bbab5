"""What the decoding loop asks of a target and of a drafter. Batch of one image; R rows: with guidance row 0 is the conditional
and row 1 the unconditional one, both with the same tokens; without guidance R = 1. `cache` is always what the same object's
`new_cache` gave, so that a model may hand out a subclass of `KVCache`. A target's states may be wider than a drafter's outputs,
where the drafter reads more of the target than its head does: they are handed on, and guided, as they are, and `Target.head`
takes both."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from .cache import KVCache


class Target(Protocol):
    """The autoregressive model whose distribution is to be sampled."""

    vocab_size: int

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [R, n, V] float32 of hidden [R, n, H]."""

    def new_cache(self, rows: int, length: int) -> KVCache:
        """An empty cache with room for the prefix and `length` further positions."""

    def prefill(self, condition: Any, cache: Any) -> Tensor:
        """Hidden states [R, T, H] of the T prefix positions; writes them and advances the cache to T."""

    def forward(self, tokens: Tensor, depths: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """Hidden states [R, n, H] of n tree nodes: tokens [n] and depths [n] int64, mask [n, n] bool (ancestors and self). Node i
        sits at position cache.length + depths[i] and sees all committed positions and the nodes of its mask row. Its K/V go to
        slot cache.length + i; the cache is not advanced."""


class Drafter(Protocol):
    """The small model that proposes tokens; its outputs go through the target's head."""

    # Whether it works on one row of guided states, `uncond + scale (cond - uncond)`: the head is linear, so that such a state's
    # logits are the guided ones. R is then 1 for it, whatever the target's is.
    guided: bool

    def new_cache(self, rows: int, length: int) -> KVCache:
        """An empty cache with room for the prefix slots and `length` further ones."""

    def start(self, hidden: Tensor, token: Tensor, cache: Any, condition: Any) -> Tensor:
        """First stable pass: hidden [R, T, H] of the target's prefix, the first image token [1], and the condition that the
        target was prefilled with, for drafters that read the prompt themselves. Commits T slots; returns the last output [R, 1,
        H], which stands for the tree's root."""

    def extend(self, tokens: Tensor, hidden: Tensor, cache: Any) -> Tensor:
        """Stable pass over m new slots: slot i pairs the target's hidden state [R, i, H] with the token that follows. tokens [m]
        are the step's accepted tokens and its bonus token, hidden [R, m, H] the states of the root and the accepted nodes.
        Commits m slots; returns the last output [R, 1, H]."""

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor, cache: Any) -> Tensor:
        """Tree pass over m nodes of one depth (1 = the root's children); returns their outputs [R, m, H]. tokens [m] are the
        nodes' tokens, hidden [R, m, H] their parents' outputs. mask [m, w + m] bool says which tree slots a node sees: the w
        written by earlier passes of this tree, then its own pass. All stable slots are seen. K/V go to slots cache.length + w
        onwards; the cache is not advanced."""


@runtime_checkable
class FixedTarget(Target, Protocol):
    """A target for steps of fixed shapes and for nodes out of order: it reads where it stands from tensors on the device, never
    from `cache.length`."""

    def forward_at(self, tokens: Tensor, positions: Tensor, slots: Tensor, bias: Tensor, cache: Any) -> Tensor:
        """Hidden states [R, n, H] of tokens [n] int64 at positions [n] int64. K/V go to `slots` [n] int64. Node i attends to the
        cache's first S slots, its own among them, with the additive bias [R or 1, 1, n, S] in the cache's dtype: 0 for what it
        sees, -inf for the rest."""


@runtime_checkable
class FixedDrafter(Drafter, Protocol):
    """A drafter for steps of fixed shapes; `start` is as ever, since it runs once. Its slots count like the target's: T behind
    the prefix, then one per committed token."""

    def turns_at(self, positions: Tensor, cache: Any) -> Tensor:
        """By how much slots at positions [m] are turned, slot numbers on the rotary grid -> [R or 1, m, ...], to be cut along
        m."""

    def run_at(self, tokens: Tensor, hidden: Tensor, turn: Tensor, slots: Tensor, bias: Tensor, cache: Any) -> Tensor:
        """Outputs [R, m, H] of m slots that pair tokens [m] with states [R, m, H], for stable and tree passes alike. turn is what
        `turns_at` gave for m positions, or for one that all have; slots and bias are as in `FixedTarget.forward_at`."""
