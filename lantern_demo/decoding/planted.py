"""Static draft trees in steps of fixed shapes: what `drafting.static_draft` does, in few kernels.

The tree is known before the first step, so everything that is found by place is worked out once: which draw becomes which node,
which nodes a pass is over, which tree slots they see. A step then draws into one row of tokens and picks from it by fixed indices.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .drafting import Draft, Turns
from .protocols import Head
from .sampling import NOTHING, Sampling, draws_in_turn, guide, probabilities
from .trees import Tree


class Passes(Protocol):
    """Runs the drafter over some nodes of one depth."""

    def over(self, nodes: slice, depth: int, tokens: Tensor, hidden: Tensor) -> Tensor:
        """Outputs [R, m, H] of the nodes `inner[1:][nodes]` with tokens [m] behind their parents' outputs [R, m, H]."""
        ...


class _Level(NamedTuple):
    """One level of the tree: P nodes that have children, C draws each."""

    nodes: slice  # the nodes, in `inner` without the root
    parent_rows: Tensor  # [P] rows of their parents in the level above
    tokens: Tensor  # [P] where their own tokens are among all draws
    draws: slice  # their draws among all draws
    each: int  # C
    uniforms: slice  # what they are drawn with


class Planted:
    """A static tree, laid out for steps."""

    def __init__(self, tree: Tree, device: torch.device) -> None:
        """tree lies on the host. Raises ValueError for a tree without levels."""
        if not tree.levels:
            raise ValueError("tree has no levels; it must be a static one with at least one draft")
        self.tree, self.width = tree.to(device), tree.width
        self.levels: list[_Level] = []
        draw_of = {0: 0}  # node -> where its token is among all draws, the root's first
        table = []  # where the draws of each inner node are
        first, used = 1, 0
        for level in tree.levels:
            nodes: list[int] = level.nodes.tolist()
            rows, count = max(len(nodes), 2), level.draws  # a single row is drawn from twice: see `sampling.draws_in_turn`
            places = (level.child_nodes, level.child_rows, level.child_draws)
            for child, row, number in zip(*(place.tolist() for place in places), strict=True):
                draw_of[child] = first + number * rows + row
            table += [[first + number * rows + row for number in range(count)] for row in range(len(nodes))]
            start = level.start - 1
            self.levels.append(
                _Level(
                    slice(start, start + len(nodes)), level.parent_rows.to(device),
                    torch.tensor([draw_of[node] for node in nodes], device=device),
                    slice(first, first + rows * count), count, slice(used, used + len(nodes) * count),
                )
            )  # fmt: skip
            first, used = first + rows * count, used + len(nodes) * count
        self.draws = first  # the root's token and all draws
        # Behind the last draw there is one of nothing, for draw numbers that a level has not got, and for draws that are no nodes:
        # behind all nodes of their parent they change nothing.
        if tree.gapless:
            offered = tree.children.index_select(0, tree.inner) >= 0
            table = [
                [at if is_node else first for at, is_node in zip(row, nodes, strict=False)]
                for row, nodes in zip(table, offered.tolist(), strict=True)
            ]
        padded = [row + [first] * (tree.width - len(row)) for row in table]
        self.table = torch.tensor(padded, device=device).flatten()
        self.nodes = torch.tensor([draw_of[node] for node in range(tree.size)], device=device)
        # [E, E] bool, which slots the inner nodes but the root see, each its own slot
        self.seen = torch.zeros(len(tree.inner) - 1, len(tree.inner) - 1, dtype=torch.bool)
        for at, level in zip(self.levels[1:], tree.levels[1:], strict=True):
            self.seen[at.nodes, : at.nodes.stop] = level.mask
        self.nothing = torch.zeros(1, dtype=torch.float64, device=device)
        self.none = torch.full((), -1, dtype=torch.int64, device=device)

    def draft(self, root: Tensor, output: Tensor, passes: Passes, target: Head, sampling: Sampling, step: Tensor) -> Draft:
        """As `drafting.static_draft`, sampled: root [1] int64, output [R, 1, H], step [W] all uniforms of the step, in
        [`sampling.TINY`, 1), those of the draws last."""
        uniforms = step[len(step) - self.tree.draws :]
        raw = root.new_empty(self.draws + 1)
        raw[:: self.draws] = root  # in its place, and behind the last, where a valid token of no draw is wanted
        laws, masses = [], [self.nothing[None]]
        for depth, level in enumerate(self.levels):
            if depth > 0:
                parents = output.index_select(1, level.parent_rows)
                output = passes.over(level.nodes, depth, raw.index_select(0, level.tokens), parents)
            laws.append(probabilities(guide(target.head(output), sampling.cfg_scale), sampling, spent=True))
            u = uniforms[level.uniforms].view(-1, level.each)
            masses += draws_in_turn(laws[-1], u, self.nothing, raw[level.draws])
        masses.append(masses[0])
        left = torch.cat(masses).flatten().index_select(0, self.table).view(-1, self.width)
        found = raw.index_select(0, self.table).view(-1, self.width)
        live = left >= NOTHING
        drawn = torch.where(live, found, self.none)
        return Draft(self.tree, raw.index_select(0, self.nodes), drawn, tuple(laws), Turns(found, live, left, step))
