"""Verify a draft tree: judge all nodes at once, walk from the root along accepted children, and
draw the token after the last one.

Two verifiers do so without a host read. Both return a `VerifyOutput`, which `results.pack_step`
packs for the host. `RejectionVerifier` is the papers' rejection sampling, or their greedy rule; see
`accept` and `rules`.

`SharedNoiseVerifier` compares tokens, for exact rules. Position i of the picture has one vector of
Gumbel noise G_i for all models and methods (see `noise`):

    target     draws y_i = argmax(scores + G_i); at temperature 0 there is no noise.
    vanilla    draws y_i.
    drafter    drafts the top of the drafter's scores + G_i; dynamic trees keep their drafts.
    verifier   accepts a child that equals y_i, else y_i is the bonus token.

So every exact method draws vanilla's tokens, whatever the tree and the drafter: drafter-invariant
speculative decoding (Daliri et al., arXiv 2408.07978) with several drafts (Gumbel-max list
sampling, arXiv 2506.05632).
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from .accept import Children, decide_greedy
from .config import Config
from .noise import gumbel_
from .sampling import numbers
from .trees import Draft, Tree, VerifyOutput


class Verifier(Protocol):
    """Draws a run's tokens and verifies its drafts. `scores` come from `sampling.warp`; `uniforms`
    are the step's."""

    draws: int  # uniforms per step

    def begin(self, seed: int) -> None:
        """Prepare for a run."""

    def sample(self, scores: Tensor, positions: Tensor, uniforms: Tensor) -> Tensor:
        """Draw tokens [n] int64 from scores [n, V] at positions [n] int64 of the picture; below 0
        or V if no token can be drawn."""

    def verify(
        self, draft: Draft, scores: Tensor, position: Tensor, uniforms: Tensor
    ) -> VerifyOutput:
        """Verify a draft of n nodes by the target's scores [n, V]. position [1] int64 is that of
        the token that the root draws."""


class SharedNoiseVerifier:
    """Accepts a draft that equals the target's own draw with the noise of its position."""

    draws = 0

    def __init__(self, config: Config, vocabulary: int) -> None:
        # drafts may reach beyond the picture's end
        positions = 0 if config.sampling.greedy else config.positions + config.drafts.deepest + 1
        self.noise = torch.empty(positions, vocabulary, device=config.torch_device)

    def begin(self, seed: int) -> None:
        gumbel_(self.noise, seed)

    def add_noise(self, scores: Tensor, positions: Tensor) -> Tensor:
        """Add to scores [n, V] the noise of positions [n] or [1] int64."""
        return scores + self.noise.index_select(0, positions) if len(self.noise) else scores

    def sample(self, scores: Tensor, positions: Tensor, uniforms: Tensor) -> Tensor:
        return argmax_or_invalid(self.add_noise(scores, positions))

    def verify(
        self, draft: Draft, scores: Tensor, position: Tensor, uniforms: Tensor
    ) -> VerifyOutput:
        tree = draft.tree
        if tree.size == 1:
            return root_alone(tree, self.sample(scores, position, uniforms))
        target = self.sample(scores, position + tree.depths, uniforms)
        accepted = draft.drawn == tree.of_inner(target).unsqueeze(1)
        path = walk(tree, next_node(tree, first(accepted)))
        tokens = target.index_select(0, path)  # past the end of the path the bonus token again
        return VerifyOutput(path, depth_of(tree, path), tokens, tokens[-1:], None, target)


class RejectionVerifier:
    """Verifies by the papers' rejection sampling; at temperature 0 by their greedy rule."""

    def __init__(self, config: Config, vocabulary: int) -> None:
        self.ops = config.ops
        self.rule = config.rule
        self.neighbours = config.neighbours
        self.greedy = config.sampling.greedy
        self.width = config.drafts.width
        self.draws = config.drafts.nodes * (self.width + 1)

    def begin(self, seed: int) -> None:
        """Do nothing: the uniforms are the run's."""

    def sample(self, scores: Tensor, positions: Tensor, uniforms: Tensor) -> Tensor:
        probs = scores.softmax(-1)
        if self.greedy:
            return argmax_or_invalid(probs)
        return self.ops.draw(probs, uniforms[: len(probs)])

    def verify(
        self, draft: Draft, scores: Tensor, position: Tensor, uniforms: Tensor
    ) -> VerifyOutput:
        """uniforms [at least n (width + 1)] in [0, 1): per node one for each child, and one for the
        bonus token after it."""
        tree = draft.tree
        if tree.size == 1:
            return root_alone(tree, self.sample(scores, position, uniforms))
        p = scores.softmax(-1)
        u = uniforms[: tree.size * (self.width + 1)].view(tree.size, -1)
        inner_p = tree.of_inner(p)
        depths = tree.of_inner(tree.depths).unsqueeze(1)
        children = Children(draft.drawn, draft.q, self.neighbours, depths)
        if self.greedy:
            verdict = decide_greedy(self.rule, inner_p, children)
        else:
            verdict = self.ops.decide(self.rule, inner_p, children, tree.of_inner(u))
        rank = first(verdict.accepted)
        path = walk(tree, next_node(tree, rank))
        last = path[-1:]
        if self.greedy:
            bonus = argmax_or_invalid(p.index_select(0, last))
        else:
            residual = verdict.residual
            if not tree.whole:
                residual = p.index_copy(0, tree.inner, residual)
            bonus = self.ops.draw(residual.index_select(0, last), u[:, -1].index_select(0, last))
        relaxed = None
        if verdict.relaxed is not None:  # a node has at most one accepted child
            column = rank.unsqueeze(1).clamp(max=tree.width - 1)
            of_inner = verdict.relaxed.gather(1, column)[:, 0]
            rows = path[:-1] if tree.whole else tree.rows.index_select(0, path[:-1])
            relaxed = of_inner.index_select(0, rows)
        depth = depth_of(tree, path)
        # the accepted drafts, with the bonus token after the last one
        tokens = torch.cat([draft.tokens.index_select(0, path[1:]), bonus])
        tokens.scatter_(0, depth, bonus)
        return VerifyOutput(path, depth, tokens, bonus, relaxed, bonus.expand(tree.size), verdict)


# -- the walk


def first(accepted: Tensor) -> Tensor:
    """Return the first column, [P] int64, in which accepted [P, C] is true, or C."""
    at = numbers(accepted.shape[1] + 1, accepted.device)
    return torch.where(accepted, at[:-1], at[-1:]).amin(1)


def next_node(tree: Tree, rank: Tensor) -> Tensor:
    """Return the next node of a walk from each node, [n] int64: the child of draw number rank [I],
    or the node itself for C and for a missing child."""
    at = rank.unsqueeze(1)
    return tree.onward.gather(1, at if tree.whole else at.index_select(0, tree.rows))[:, 0]


def walk(tree: Tree, following: Tensor) -> Tensor:
    """Return the path [D + 1] from the root along following [n]; after its end the last node
    repeats."""
    path = [tree.parents[:1], following[:1]]
    for _ in range(tree.depth - 1):
        path.append(following.index_select(0, path[-1]))
    return torch.cat(path)


def depth_of(tree: Tree, path: Tensor) -> Tensor:
    """Return the depth [1] of a path's last node."""
    return tree.depths.index_select(0, path[-1:])


def root_alone(tree: Tree, token: Tensor) -> VerifyOutput:
    """Return the output for a tree of the root alone, after which the target drew token [1]."""
    return VerifyOutput(tree.parents, tree.depths, token, token, None, token)


def argmax_or_invalid(scores: Tensor) -> Tensor:
    """Return the likeliest tokens [m] of scores or probabilities [m, V]; -2 where no finite number
    is the highest."""
    top, best = scores.max(-1)
    return torch.where(top.abs() < torch.inf, best, -2)
