"""Drafts without a drafter: the target guesses the next tokens itself, in the pass before (speculative Jacobi decoding, arXiv
2410.01699).

A window of W nodes is a chain behind the last committed token: W - 1 slots hold guesses. One pass gives the target's distribution
p_i at every slot i, given the guesses before it, and with shared noise (see `shared`) its own draw there. Those draws are what
the slots behind the first wrong guess hold next: Jacobi iteration to vanilla's picture. A slot that the pass before has not seen
gets the token to its left.

With the paper's rule the guesses are tried from left to right, each against the probabilities q_i that it was drawn with. Behind
the first rejection the slots are guessed anew from this very pass, and their distributions become q: x_i is the token at which
the sums of p_i reach u, one number u for each place of the picture. The paper says x_i ~ p_i, and not by which random numbers;
with the same one for a place in every pass a guess changes less often. What a slot holds depends on earlier passes only through
tokens that are given when it is tried and on its place's number alone: with the exact rule every token follows p. The
distribution of a guess for a slot that no pass has seen is a point mass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from .sampling import draw
from .trees import Asked, Draft, Drafts, Head, Noisy, Passes, Source, Tree, VerifyOutput, at_least_one, static_tree


@dataclass(frozen=True)
class Window(Drafts):
    """A chain of `nodes` nodes, the root counted, that the target guesses itself. Raises ValueError for fewer than 1."""

    nodes: int = 8

    name: ClassVar[str] = "window"
    reads: ClassVar[dict[str, str]] = {"nodes": "window_asked"}
    asks: ClassVar[dict[str, str]] = {"nodes": "window"}

    def __post_init__(self) -> None:
        at_least_one("window", self.nodes)

    @property
    def width(self) -> int:
        return min(1, self.deepest)

    @property
    def deepest(self) -> int:
        return self.nodes - 1

    def source(self, asked: Asked, vocabulary: int, noisy: Noisy | None) -> Source:
        if self.nodes == 1:
            return super().source(asked, vocabulary, noisy)
        return DrawnWindow(self, asked, vocabulary) if noisy is None else WindowSource(self, asked)

    def words(self) -> str:
        return f"window of {self.nodes}"


class WindowSource(Source):
    """The window of a run with shared noise. All its tensors stay where they are, so that a captured step may hold on to them."""

    def __init__(self, policy: Window, asked: Asked) -> None:
        self.slots = self.depth = policy.nodes - 1
        self.tree: Tree = static_tree([(0,) * depth for depth in range(1, policy.nodes)], asked.torch_device)
        self.number = torch.arange(self.slots, device=asked.torch_device)
        self.tokens = torch.zeros_like(self.number)  # the guesses
        self.state: tuple[Tensor, ...] = (self.tokens,)

    def begin(self, root: Tensor, seed: int) -> None:
        self.tokens.copy_(root.expand(self.slots))

    def draft(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        return Draft(self.tree, torch.cat([root, self.tokens]), self.tokens.unsqueeze(1).clone())

    def observe(self, out: VerifyOutput, scores: Tensor) -> None:
        """Let the target's own draws be the guesses, and its last one stand in every slot behind it."""
        ahead = (self.number + 1 + out.depth).clamp(max=self.slots)
        torch.clamp(out.target_tokens.index_select(0, ahead), min=0, out=self.tokens)


class DrawnWindow(WindowSource):
    """The window of a run with the paper's rule: each guess is kept with the distribution that it was drawn from."""

    def __init__(self, policy: Window, asked: Asked, vocabulary: int) -> None:
        super().__init__(policy, asked)
        self.draws = 2 * self.slots  # nothing reads them: a seed's tokens hang on how many numbers a step has
        self.place = self.number.new_zeros(1)  # of the root
        self.probs = self.number.new_zeros(self.slots, vocabulary, dtype=torch.float32)
        # a number for every place, as fine as the sums that a token is drawn off
        self.uniforms = self.number.new_ones(asked.positions + 2 * policy.nodes, dtype=torch.float64)
        self.state = (self.tokens, self.place, self.probs)

    def begin(self, root: Tensor, seed: int) -> None:
        super().begin(root, seed)
        self.place.zero_()
        self.probs.zero_().scatter_(1, self.tokens.unsqueeze(1), 1.0)
        if not self.uniforms.is_meta:  # which has shapes and no numbers
            # far from the seeds of other runs, which are mostly small and close together
            generator = torch.Generator(self.uniforms.device).manual_seed((2654435761 * seed + 12345) % 2**32)
            self.uniforms.uniform_(generator=generator)

    def draft(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        return replace(super().draft(root, passes, head, uniforms), q=self.probs.clone())

    def observe(self, out: VerifyOutput, scores: Tensor) -> None:
        """Move the window on by what was committed, and guess its slots anew."""
        length = out.depth + 1
        ahead = self.number + length
        probs = scores.index_select(0, ahead.clamp(max=self.slots)).softmax(-1)
        self.place.add_(length)
        u = self.uniforms.index_select(0, self.place + 1 + self.number)
        token = draw(probs, u).clamp_(max=probs.shape[1] - 1)
        last = self.slots - length  # of the slots that this pass gave a distribution; below 0 where there is none
        left = torch.where(last >= 0, token.index_select(0, last.clamp(min=0)), out.bonus)
        known = self.number <= last
        torch.where(known, token, left, out=self.tokens)
        sure = torch.zeros_like(self.probs).scatter_(1, self.tokens.unsqueeze(1), 1.0)
        torch.where(known.unsqueeze(1), probs, sure, out=self.probs)
