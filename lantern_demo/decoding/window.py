"""Speculative Jacobi decoding (SJD, arXiv 2410.01699), by shared noise: no drafter, since the
target's previous pass drafts the next tokens.

A window of W nodes is a chain after the last committed token: W - 1 slots hold drafts. One pass
gives the target's own draw at every slot, given the drafts before it. Those draws fill the slots
after the first wrong draft: Jacobi iteration to vanilla's picture. A slot that no pass has seen
gets the token to its left. The noise of a position is the same in all passes, so that a draft
changes only when a token before it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .drafting import DraftConfig, Head, Passes, Proposer, RunContext, check_at_least_one
from .trees import Draft, Tree, VerifyOutput, static_tree


@dataclass(frozen=True)
class Window(DraftConfig):
    """A chain of `nodes` nodes, the root included, that the target drafts itself. Raises ValueError
    for fewer than 1."""

    nodes: int = 8

    drafts_own_draws: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_at_least_one("window", self.nodes)

    @property
    def width(self) -> int:
        return min(1, self.deepest)

    @property
    def deepest(self) -> int:
        return self.nodes - 1

    def proposer(self, run: RunContext) -> Proposer:
        return super().proposer(run) if self.nodes == 1 else WindowProposer(self, run)


class WindowProposer(Proposer):
    """Fills a `Window`. Its tensor is updated in place, so that a step can be captured."""

    tree: Tree

    def __init__(self, drafts: Window, run: RunContext) -> None:
        chain = [(0,) * depth for depth in range(1, drafts.nodes)]
        self.tree = static_tree(chain, run.device)
        self.slot = torch.arange(drafts.deepest, device=run.device)
        self.tokens = torch.zeros_like(self.slot)  # the drafts
        self.state = (self.tokens,)

    def begin(self, root: Tensor, seed: int) -> None:
        self.tokens.copy_(root.expand_as(self.tokens))

    def propose(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        drawn = self.tokens.unsqueeze(1).clone()
        return Draft(self.tree, torch.cat([root, self.tokens]), drawn)

    def observe(self, out: VerifyOutput, scores: Tensor) -> None:
        """Make the target's own draws the next drafts. The last draw fills every slot after it."""
        ahead = (self.slot + 1 + out.depth).clamp(max=self.tree.depth)
        torch.clamp(out.target_tokens.index_select(0, ahead), min=0, out=self.tokens)
