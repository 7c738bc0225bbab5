"""Speculative Jacobi decoding (SJD, arXiv 2410.01699): no drafter, since the target's previous pass drafts the next tokens.

A window of W nodes is a chain after the last committed token: W - 1 slots hold drafts. One pass gives the target's distribution
p_i at every slot i, given the drafts before it, and with shared noise the target's own draw there. Those draws fill the slots
after the first wrong draft: Jacobi iteration to vanilla's picture. A slot that the last pass has not seen gets the token to its
left.

By the paper's rule drafts are tried from left to right, each against the distribution q_i that it was drawn from. The slots
after the first rejection are drawn again from this pass, and its p_i become their q_i. The paper states x_i ~ p_i, but not by
which random numbers. Here x_i is the token at which the cumulative p_i reaches u. Each position has one u for all passes, so
that a draft changes less often. A draft depends on earlier passes only through tokens that are fixed when it is tried, and on
its position's u. So with the exact rule every token follows p. A slot that no pass has seen has a one-hot distribution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .drafting import DraftConfig, Head, Passes, Proposer, RunContext, check_at_least_one
from .sampling import draw
from .trees import Draft, Tree, VerifyOutput, static_tree


@dataclass(frozen=True)
class Window(DraftConfig):
    """A chain of `nodes` nodes, the root included, that the target drafts itself. Raises ValueError for fewer than 1."""

    nodes: int = 8

    def __post_init__(self) -> None:
        check_at_least_one("window", self.nodes)

    @property
    def width(self) -> int:
        return min(1, self.deepest)

    @property
    def deepest(self) -> int:
        return self.nodes - 1

    def proposer(self, run: RunContext) -> Proposer:
        if self.nodes == 1:
            return super().proposer(run)
        return SampledWindowProposer(self, run) if run.add_noise is None else WindowProposer(self, run)


class WindowProposer(Proposer):
    """Fills the window of a run with shared noise. Its tensors are updated in place, so that a step can be captured."""

    def __init__(self, policy: Window, run: RunContext) -> None:
        self.count = self.depth = policy.nodes - 1
        self.tree: Tree = static_tree([(0,) * depth for depth in range(1, policy.nodes)], run.device)
        self.number = torch.arange(self.count, device=run.device)
        self.tokens = torch.zeros_like(self.number)  # the drafts
        self.state: tuple[Tensor, ...] = (self.tokens,)

    def begin(self, root: Tensor, seed: int) -> None:
        self.tokens.copy_(root.expand(self.count))

    def propose(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        return Draft(self.tree, torch.cat([root, self.tokens]), self.tokens.unsqueeze(1).clone())

    def observe(self, out: VerifyOutput, scores: Tensor) -> None:
        """Make the target's own draws the next drafts. The last draw fills every slot after it."""
        ahead = (self.number + 1 + out.depth).clamp(max=self.count)
        torch.clamp(out.target_tokens.index_select(0, ahead), min=0, out=self.tokens)


class SampledWindowProposer(WindowProposer):
    """Fills the window of a run by the paper's rule, and keeps the distribution that each draft was drawn from."""

    def __init__(self, policy: Window, run: RunContext) -> None:
        super().__init__(policy, run)
        self.draws = 2 * self.count  # nothing reads these, but a seed's tokens depend on the uniforms per step
        self.place = self.number.new_zeros(1)  # position of the root's token
        self.probs = self.number.new_zeros(self.count, run.vocabulary, dtype=torch.float32)
        # one number per position, as fine as the sums that tokens are drawn from
        self.uniforms = self.number.new_ones(run.positions + 2 * policy.nodes, dtype=torch.float64)
        self.state = (self.tokens, self.place, self.probs)

    def begin(self, root: Tensor, seed: int) -> None:
        super().begin(root, seed)
        self.place.zero_()
        self.probs.zero_().scatter_(1, self.tokens.unsqueeze(1), 1.0)
        if not self.uniforms.is_meta:  # meta tensors have no numbers
            # far from other runs' seeds, which are mostly small and close together
            generator = torch.Generator(self.uniforms.device).manual_seed((2654435761 * seed + 12345) % 2**32)
            self.uniforms.uniform_(generator=generator)

    def propose(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        return replace(super().propose(root, passes, head, uniforms), q=self.probs.clone())

    def observe(self, out: VerifyOutput, scores: Tensor) -> None:
        """Move the window on by the committed tokens, and draft its slots again."""
        length = out.depth + 1
        ahead = self.number + length
        probs = scores.index_select(0, ahead.clamp(max=self.count)).softmax(-1)
        self.place.add_(length)
        u = self.uniforms.index_select(0, self.place + 1 + self.number)
        token = draw(probs, u).clamp_(max=probs.shape[1] - 1)
        last = self.count - length  # the last slot with a distribution from this pass; below 0: no slot
        left = torch.where(last >= 0, token.index_select(0, last.clamp(min=0)), out.bonus)
        known = self.number <= last
        torch.where(known, token, left, out=self.tokens)
        sure = torch.zeros_like(self.probs).scatter_(1, self.tokens.unsqueeze(1), 1.0)
        torch.where(known.unsqueeze(1), probs, sure, out=self.probs)
