"""Drafts without a drafter: the target guesses the next tokens itself, in the pass before (speculative Jacobi decoding).

A window of W nodes is a chain behind the last committed token: W - 1 slots hold guesses. One pass gives the target's distribution
p_i at every slot i, given the guesses before it, and with shared noise (see `shared`) its own draw there. Those draws are what
the slots behind the first wrong guess hold next: Jacobi iteration to vanilla's picture. Slots that the pass before has not seen
get a guess.

With the papers' rules the guesses are tried from left to right, each against the probabilities q_i that it was drawn with. Behind
the first rejection the slots are guessed anew from this very pass, and their distributions become q:

    inverse    x_i = the token at which the sums of p_i reach u, one number u for each place of the picture      SJD (arXiv
    2410.01699) gumbel     x_i = argmax p_i / e, one vector e of exponential numbers for each place of the picture           SCD
    (arXiv 2510.24211) maximal    keep x_i with probability min(1, p_i / q_i), else x_i ~ norm([p_i - q_i]+)                  SCD
    released   as maximal, but a token that is kept keeps its old q_i: what SCD's code does by our reading. Not exact.

SJD says x_i ~ p_i, and not by which random numbers; with the same one for a place in every pass a guess changes less often. What
a slot holds depends on earlier passes only through tokens that are given when it is tried and on numbers of its place alone, and
r is drawn anew: with the exact rule every token follows p. The distribution of a guess for a slot that no pass has seen is a
point mass or flat.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from .sampling import draw
from .trees import Asked, Draft, Drafts, Head, Noisy, Passes, Source, Tree, at_least_one, static_tree

COUPLINGS = ("gumbel", "maximal", "released")
GUESSES = ("left", "above", "uniform")


@dataclass(frozen=True)
class Window(Drafts):
    """A chain of `nodes` nodes, the root counted, that the target guesses itself. Raises ValueError for values out of range."""

    nodes: int = 8
    guess: str = "left"  # what stands in a slot that no pass has seen

    name: ClassVar[str] = "window"
    key: ClassVar[str] = "window"
    reads: ClassVar[dict[str, str]] = {"nodes": "window_asked", "guess": "guess"}
    asks: ClassVar[dict[str, str]] = {"nodes": "window"}
    calibrated: ClassVar[str] = "windows"

    def __post_init__(self) -> None:
        at_least_one("window", self.nodes)
        if self.guess not in GUESSES:
            raise ValueError(f"guess is {self.guess!r}; allowed are {', '.join(GUESSES)}")

    @property
    def coupling(self) -> str:
        """How guesses that are made anew stay what they were."""
        return "inverse"

    @property
    def width(self) -> int:
        return min(1, self.deepest)

    @property
    def deepest(self) -> int:
        return self.nodes - 1

    def source(self, asked: Asked, vocabulary: int, noisy: Noisy | None, probs: bool) -> Source:
        if self.nodes == 1:
            return super().source(asked, vocabulary, noisy, probs)
        return (DrawnWindow if noisy is None else WindowSource)(self, asked, vocabulary)

    def words(self) -> str:
        return f"a window of {self.nodes}"


@dataclass(frozen=True)
class CoupledWindow(Window):
    """A window whose guesses are coupled from pass to pass."""

    coupling: str = "gumbel"

    name: ClassVar[str] = "coupled"
    key: ClassVar[str] = "coupled"
    reads: ClassVar[dict[str, str]] = {**Window.reads, "coupling": "coupling"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coupling not in COUPLINGS:
            raise ValueError(f"coupling is {self.coupling!r}; allowed are {', '.join(COUPLINGS)}")

    @property
    def shares(self) -> bool:
        """Guesses that are kept by a coupling of their distributions are judged by these distributions."""
        return self.coupling == "gumbel"

    def variant(self) -> str:
        return self.coupling


class WindowSource(Source):
    """The window of a run with shared noise. All its tensors stay where they are, so that a captured step may hold on to them."""

    def __init__(self, policy: Window, asked: Asked, vocabulary: int) -> None:
        slots = policy.nodes - 1
        self.policy, self.row, self.slots, self.vocabulary = policy, asked.row_length, slots, vocabulary
        device = asked.torch_device
        self.tree: Tree = static_tree([(0,) * depth for depth in range(1, policy.nodes)], device)
        self.depth, self.draws = slots, 2 * slots
        self.number = torch.arange(slots, device=device)
        self.tokens, self.cursor = torch.zeros_like(self.number), self.number.new_zeros(1)  # the guesses; where the root is
        self.picture = self.number.new_zeros(asked.positions + 2 * policy.nodes)  # what has been committed
        self.state = (self.tokens, self.cursor, self.picture)

    def begin(self, root: Tensor, seed: int) -> None:
        self.cursor.zero_()
        self.picture.zero_()
        self.picture[:1] = root
        self.tokens.copy_(root.expand(self.slots))

    def draft(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        return Draft(self.tree, torch.cat([root, self.tokens]), self.tokens.unsqueeze(1).clone())

    def observe(self, looked: Tensor, own: Tensor, depth: Tensor, bonus: Tensor, uniforms: Tensor) -> None:
        """Move the window on by what was committed, and let the target's own draws be its guesses."""
        length = depth + 1
        ahead = self.number + length
        self._commit(length, bonus)
        token = own.index_select(0, ahead.clamp(max=self.slots)).clamp(min=0)
        self.tokens.copy_(torch.where(ahead <= self.slots, token, self._guesses(token, length, uniforms)))

    def _commit(self, length: Tensor, bonus: Tensor) -> None:
        """Write down what a step committed: the accepted guesses, and behind them the bonus token."""
        path = torch.where(self.number < length - 1, self.tokens, bonus)
        self.picture.index_copy_(0, self.cursor + 1 + self.number, path)
        self.cursor.add_(length)
        self.picture.index_copy_(0, self.cursor, bonus)

    def _guesses(self, token: Tensor, length: Tensor, uniforms: Tensor) -> Tensor:
        """Guesses [W - 1] for slots that no pass has seen; token [W - 1] are those of the others."""
        if self.policy.guess == "uniform":
            return (uniforms[: self.slots] * self.vocabulary).long()
        root = self.picture.index_select(0, self.cursor)
        if self.policy.guess == "above":
            at, known = self.cursor + 1 + self.number - self.row, self.picture
        else:
            at, known = self.slots - length, token  # the last slot that was seen, -1 where none was
        return torch.where(at >= 0, known.index_select(0, at.clamp(min=0)), root).expand(self.slots)


class DrawnWindow(WindowSource):
    """The window of a run with the papers' rules: each guess is kept with the distribution that it was drawn from."""

    def __init__(self, policy: Window, asked: Asked, vocabulary: int) -> None:
        super().__init__(policy, asked, vocabulary)
        self.probs = self.number.new_zeros(self.slots, vocabulary, dtype=torch.float32)
        numbers = {"inverse": 1, "gumbel": vocabulary}.get(self.policy.coupling, 0)
        kind = torch.float64 if numbers == 1 else torch.float32  # as fine as the sums that a token is drawn off
        self.noise = self.number.new_ones(len(self.picture), numbers, dtype=kind)  # of every place
        self.state = (*self.state, self.probs)

    def begin(self, root: Tensor, seed: int) -> None:
        super().begin(root, seed)
        self.probs.zero_().scatter_(1, self.tokens.unsqueeze(1), 1.0)
        if self.noise.numel() and not self.noise.is_meta:  # which has shapes and no numbers
            # far from the seeds of other runs, which are mostly small and close together
            generator = torch.Generator(self.noise.device).manual_seed((2654435761 * seed + 12345) % 2**32)
            if self.policy.coupling == "gumbel":
                self.noise.exponential_(generator=generator).clamp_(min=1e-30)
            else:
                self.noise.uniform_(generator=generator)

    def draft(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        return replace(super().draft(root, passes, head, uniforms), q=self.probs.clone())

    def observe(self, looked: Tensor, own: Tensor, depth: Tensor, bonus: Tensor, uniforms: Tensor) -> None:
        """Move the window on by what was committed, and guess its slots anew."""
        slots, length = self.slots, depth + 1
        ahead = self.number + length
        known = ahead <= slots  # slots that this pass gave a distribution
        probs = looked.index_select(0, ahead.clamp(max=slots))
        held = ahead.clamp(max=slots - 1)
        old, q = self.tokens.index_select(0, held), self.probs.index_select(0, held)
        self._commit(length, bonus)
        token, kept = self._drawn(probs, q, old, ahead < slots, uniforms.view(2, slots))
        self.tokens.copy_(torch.where(known, token, self._guesses(token, length, uniforms)))
        self.probs.copy_(torch.where(kept.unsqueeze(1), q, probs) if self.policy.coupling == "released" else probs)
        self._mark_guesses(~known)

    def _drawn(self, probs: Tensor, q: Tensor, old: Tensor, held: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [W - 1] of slots with probabilities p and q [W - 1, V], and which of them were kept on purpose; old tokens [W -
        1] are there where held; u [2, W - 1]."""
        most, nowhere = probs.shape[1] - 1, held & False
        if self.noise.numel():
            noise = self.noise.index_select(0, self.cursor + 1 + self.number)
            drawn = (probs / noise).argmax(-1) if self.policy.coupling == "gumbel" else draw(probs, noise[:, 0]).clamp_(max=most)
            return drawn, nowhere
        at = old.unsqueeze(1)
        kept = held & (u[0] * q.gather(1, at)[:, 0] < probs.gather(1, at)[:, 0])
        residual = (probs - q * held.unsqueeze(1)).clamp_(min=0.0)
        # nothing is left by a rounding event alone: such a token is always kept
        residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, probs)
        return torch.where(kept, old, draw(residual, u[1]).clamp_(max=most)), kept

    def _mark_guesses(self, guessed: Tensor) -> None:
        """Put the distribution of a guess [W - 1, V] into the slots where guessed [W - 1] is true."""
        flat = self.policy.guess == "uniform"
        probs = torch.zeros_like(self.probs).scatter_(1, self.tokens.unsqueeze(1), 1.0)
        probs = torch.full_like(probs, 1.0 / probs.shape[1]) if flat else probs
        self.probs.copy_(torch.where(guessed.unsqueeze(1), probs, self.probs))
