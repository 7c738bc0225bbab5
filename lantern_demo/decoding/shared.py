"""Shared noise: everybody draws with the same numbers, and verification is a comparison. Of each place i of the picture, with one
vector of Gumbel noise G_i (see `noise`):

    target     its own draw there is y_i = argmax(logits / T + G_i) over what top-k and top-p leave; no noise at temperature 0
    vanilla    draws y_i
    drafter    a node's children are the top of its own logits / T + G_i; a dynamic tree's, and a window's, are what they are
    exact      a child that equals y_i is accepted, else y_i is the bonus token
    relaxed    the first child x in whose set near(x) y_i lies is accepted; near(x) is that of `rules`, and each token belongs to
               the first child's set that has it

So the tokens of every exact method are vanilla's, whatever the tree and the drafter: speculative decoding that does not depend on
its drafter (Daliri and others, arXiv 2408.07978), with several drafts (Gumbel-max list sampling, arXiv 2506.05632). LANTERN draws
by its own published distribution from children that the prefix fixes, as those of a dynamic tree. Where children are drawn that
would be another rule than the published one, so that relaxed rules are judged by rejection there.

The other way, `noise="independent"`, is the papers' rejection sampling: see `rejection`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .config import Config
from .deciding import decide_shared
from .noise import gumbel_
from .rules import Near
from .sampling import guide, scores
from .trees import Draft
from .verify import Compared, Found, Judge, Step, likeliest, onward, tried


class SharedNoise(Judge):
    """How a run with shared noise draws and judges. All its tensors stay where they are, so that a captured step may hold on to
    them."""

    def __init__(self, config: Config, vocabulary: int) -> None:
        rule = config.rule.greedy if config.sampling.greedy else config.rule
        super().__init__(rule, config.sampling, config.neighbours, vocabulary)
        # drafts may reach behind the picture's end
        positions = 0 if self.sampling.greedy else config.positions + config.tree.deepest + 1
        self.noise = torch.empty(positions, vocabulary, device=config.torch_device)
        self.next = torch.zeros(1, dtype=torch.int64, device=config.torch_device)  # the place that the root draws
        self.state = (self.next,)

    def begin(self, seed: int) -> None:
        self.next.zero_()
        gumbel_(self.noise, seed)

    def look(self, logits: Tensor) -> Tensor:
        """Their scores."""
        return scores(guide(logits, self.sampling.cfg_scale), self.sampling, spent=True)

    def noisy(self, scored: Tensor, depths: Tensor | int) -> Tensor:
        """Scores [m, V] of nodes at these depths, with the noise of the places that they draw."""
        return scored if self.sampling.greedy else scored + self.noise.index_select(0, self.next + depths)

    def each(self, looked: Tensor, positions: Tensor | None, uniforms: Tensor) -> Tensor:
        if self.sampling.greedy:
            return likeliest(looked)
        return likeliest(looked + self.noise.index_select(0, self.next if positions is None else positions))

    def choose(self, draft: Draft, looked: Tensor, uniforms: Tensor) -> Found:
        """Hold the draft against the target's own draws."""
        tree, p = draft.tree, None
        own = likeliest(self.noisy(looked, tree.depths))
        if self.rule.relaxes:
            p = (looked if tree.whole else looked.index_select(0, tree.inner)).softmax(-1)
        at_inner = own if tree.whole else own.index_select(0, tree.inner)
        rank, near = decide_shared(self.rule, p, draft.drawn, at_inner, self.neighbours)
        return Found(own, onward(tree, rank), tried=near)

    def evidence(self, step: Step, draft: Draft, found: Found) -> Step:
        compared = []
        if draft.tree.size > 1:
            own, drawn, near = found.own.tolist(), draft.drawn.tolist(), found.tried
            inside = None if not isinstance(near, Near) else near.ids.masked_fill(near.kept_mask > 0, -1).tolist()
            for node, row, i, child in tried(draft.tree, step.path):
                if drawn[row][i] >= 0:
                    set_of = [drawn[row][i]] if inside is None else [token for token in inside[row][i] if token >= 0]
                    at = set_of.index(own[node]) if own[node] in set_of else -1
                    compared.append(Compared(child, own[node], at, len(set_of)))
        return replace(step, compared=compared)

    def move(self, depth: Tensor | int) -> None:
        if isinstance(depth, int):
            self.next.add_(depth + 1)
        else:
            self.next.add_(depth).add_(1)
