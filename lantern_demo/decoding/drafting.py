"""Drafts: a tree filled with the drafter's tokens, and what the acceptance rule needs to know about how it
was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .cache import KVCache
from .growth import grow
from .protocols import Expander, Head
from .sampling import Sampling, draw_without_replacement, guide, probabilities
from .trees import Tree, TreePolicy

Draws = Callable[[Tensor, Tensor], Tensor]


class Turns(NamedTuple):
    """What is known of the draws of a static tree's inner nodes once they are drawn; [I, width] by draw number."""

    tokens: Tensor  # int64, always valid ones
    live: Tensor  # bool, whether there was anything to draw
    left: Tensor  # float64, the mass that was left of the drafter's law before the draw
    step: Tensor  # [W] all uniforms of the step


@dataclass(frozen=True)
class Draft:
    """A draft tree with tokens.

    `drawn` holds per node of `tree.inner` the tokens proposed there, by draw number, -1 for none. `q` holds,
    level by level, the laws [m, V] they were drawn from; empty when the prefix fixes the children.
    """

    tree: Tree
    tokens: Tensor  # [n] int64, the root's token first
    drawn: Tensor  # [I, width] int64
    q: tuple[Tensor, ...] = ()
    turns: Turns | None = None  # in steps of fixed shapes

    def q_row(self, depth: int, row: int) -> Tensor | None:
        """The law [1, V] behind the children of the node at `row` of `tree.inner`, which lies at `depth`."""
        if not self.q:
            return None
        row -= self.tree.levels[depth].start
        return self.q[depth][row : row + 1]

    def all_q(self) -> Tensor | None:
        """The laws [I, V] of all nodes of `tree.inner`."""
        return torch.cat(self.q) if self.q else None


def bare_draft(tree: Tree, root: Tensor) -> Draft:
    """No drafts: the root-only tree with its token [1]."""
    return Draft(tree, root, root.new_empty(tree.inner.shape[0], tree.width))


def static_draft(
    tree: Tree, root: Tensor, output: Tensor, drafter: Expander, target: Head, cache: KVCache,
    sampling: Sampling, uniforms: Tensor, draws: Draws = draw_without_replacement,
) -> Draft:  # fmt: skip
    """Fill a static tree: at each node that has children draw tokens without replacement, or take the most
    likely ones when greedy. root [1] int64 is the root's token, output [R, 1, H] the drafter's last stable
    output, uniforms [tree.draws] what is drawn with, level by level, by `draws`."""
    tokens = root.new_zeros(tree.size)
    tokens[:1] = root
    laws, proposals, used = [], [], 0
    for depth, level in enumerate(tree.levels):
        if depth > 0:
            parents = output.index_select(1, level.parent_rows)
            output = drafter.expand(tokens[level.nodes], parents, depth, level.mask, cache)
        logits = guide(target.head(output), sampling.cfg_scale)
        if sampling.greedy:
            drawn = logits.topk(level.draws).indices
        else:
            laws.append(probabilities(logits, sampling))
            count = level.nodes.shape[0] * level.draws
            drawn = draws(laws[-1], uniforms[used : used + count].view(-1, level.draws))
            used += count
        # a draw that found no token leaves a node that is never accepted; its token only has to be a valid
        # one
        tokens[level.child_nodes] = drawn[level.child_rows, level.child_draws].clamp(min=0)
        proposals.append(torch.nn.functional.pad(drawn, (0, tree.width - level.draws), value=-1))
    drawn = torch.cat(proposals)
    if sampling.greedy:
        drawn = drawn.masked_fill(tree.children[tree.inner] < 0, -1)
    return Draft(tree, tokens, drawn, tuple(laws))


def dynamic_draft(
    policy: TreePolicy, root: Tensor, output: Tensor, drafter: Expander, target: Head, cache: KVCache,
    sampling: Sampling,
) -> Draft:  # fmt: skip
    """Grow an EAGLE-2 tree; root and output as in `static_draft`."""

    def log_probs(outputs: Tensor) -> Tensor:
        return probabilities(guide(target.head(outputs), sampling.cfg_scale), sampling).log()

    beam = output

    def expand(tokens: Tensor, parent_rows: Tensor, depth: int, mask: Tensor) -> Tensor:
        nonlocal beam
        beam = drafter.expand(tokens, beam.index_select(1, parent_rows), depth, mask, cache)
        return log_probs(beam)

    tree, tokens = grow(log_probs(output)[0], expand, policy)
    tokens[:1] = root
    drawn = tokens[tree.children.clamp(min=0)].masked_fill(tree.children < 0, -1)
    return Draft(tree, tokens, drawn)
