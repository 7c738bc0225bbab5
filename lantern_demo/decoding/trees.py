"""Draft trees as tensors: `Tree` is the shape, `Draft` a tree with its tokens, `VerifyOutput` the
result of its verification.

Node 0 is the root, the last committed token that the target has not seen yet. Nodes are numbered
level by level.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from .accept import Verdict

Path = tuple[int, ...]


def checked_paths(paths: Iterable[Sequence[int]]) -> tuple[Path, ...]:
    """Return paths by depth, in order. Raise ValueError for paths that form no tree."""
    ordered = sorted((tuple(path) for path in paths), key=lambda path: (len(path), path))
    known = {(), *ordered}
    if not ordered:
        raise ValueError("tree has no paths; it needs at least one, such as (0,)")
    if len(known) != len(ordered) + 1:
        raise ValueError("tree names a path twice or names the root (); each path must occur once")
    for path in ordered:
        if not all(isinstance(choice, int) and choice >= 0 for choice in path):
            raise ValueError(
                f"tree has the path {path}; its entries must be whole numbers, 0 or more"
            )
        if path[:-1] not in known:
            raise ValueError(
                f"tree has the path {path} but not its parent {path[:-1]}; "
                "every prefix must be present"
            )
        before = (*path[:-1], path[-1] - 1)
        if path[-1] > 0 and before not in known:
            raise ValueError(
                f"tree has the path {path} but not its sibling {before}, which is drawn before it; "
                "siblings must be numbered without gaps"
            )
    return tuple(ordered)


class Level(NamedTuple):
    """One drafter pass of a static tree: the P nodes of one depth that have children."""

    rows: slice  # of the P nodes among the inner nodes
    parents: Tensor  # [P], their parents' rows in the level above
    drawn_at: Tensor  # [P], as `Tree.drawn_at`; of the root nothing
    alone: bool  # whether they are all draws of the level above, one of each node there
    mask: Tensor  # [P, w + P] bool, the tree slots that each sees; the root has no tree slot
    draws: int  # C, tokens to draw per node


@dataclass(frozen=True)
class Tree:
    """A draft tree of `size` nodes on a device. All index tensors are int64. An example of four
    nodes, the paths 0, 1 and 00:

        0 - 1 - 3    parents 0 0 0 1, depths 0 1 1 2, inner 0 1, rows 0 1 0 0, drawn_at 0 1 2
        +-- 2        children [1 2] [3 -1] [-1 -1] [-1 -1]
                     onward [1 2 0] [3 1 1] [2 2 2] [3 3 3]
    """

    parents: Tensor  # [n], the root's is 0; padding is its own
    depths: Tensor  # [n]
    children: Tensor  # [n, width], node by draw number, -1 after the last
    mask: Tensor  # [n, n] bool, ancestors and self
    inner: Tensor  # [I], nodes to which the rule is applied
    rows: Tensor  # [n], a node's index in `inner`; 0 for nodes that are not inner
    # [n, width + 1], the next node of a walk from a node, by draw number: the child, or the node
    # itself for a missing child and in the last column
    onward: Tensor
    size: int
    depth: int  # of the deepest node that a path may reach
    width: int
    # of static trees: the passes, and [n - 1] where in `Draft.drawn`, flattened, the token of each
    # node after the root is
    levels: tuple[Level, ...] = ()
    drawn_at: Tensor | None = None

    def of_inner(self, values: Tensor) -> Tensor:
        """Return the rows of the inner nodes in values [n, ...]."""
        return values if self.whole else values.index_select(0, self.inner)

    @property
    def whole(self) -> bool:
        """Whether all nodes are inner ones, in order, as in dynamic trees, where every node may
        have children."""
        return self.inner.shape[0] == self.size


@dataclass(frozen=True)
class Draft:
    """A draft tree with tokens."""

    tree: Tree
    tokens: Tensor  # [n] int64, the root's token first
    # [I, width] int64, tokens proposed at the inner nodes by draw number, -1 for no token
    drawn: Tensor
    # [I, V] float32, the distributions that they were drawn from without replacement; None: the
    # prefix fixes the children
    q: Tensor | None = None
    # [1] bool, whether a score of the drafter is not finite; None: all are finite
    fault: Tensor | None = None


class VerifyOutput(NamedTuple):
    """The outcome of verifying a draft of n nodes, at most D deep. All tensors stay on the
    device."""

    # [D + 1] int64, the accepted nodes, root first; after the end the last one repeats
    path: Tensor
    depth: Tensor  # [1] int64, of the last accepted node: the step commits depth + 1 tokens
    tokens: Tensor  # [D + 1] int64, the accepted tokens, then the bonus token, then any tokens
    bonus: Tensor  # [1] int64; below 0 or V where the target's probabilities are not finite
    # [D] bool, accepted nodes that only the relaxation accepted; None: no node
    relaxed: Tensor | None
    # [n] int64, the target's own token after each node; by rejection the bonus token everywhere
    target_tokens: Tensor
    verdict: Verdict | None = None  # by rejection, on the drafts at the inner nodes


def ancestor_mask(parents: Tensor, depth: int) -> Tensor:
    """Return [n, n] bool, True where the column is the row or an ancestor of it, from parents [n]
    of a tree at most `depth` deep."""
    reach = torch.eye(parents.shape[0], device=parents.device)
    reach.scatter_(1, parents.unsqueeze(1), 1.0)
    covered = 1
    while covered < depth:  # each round doubles the distance covered
        reach = (reach @ reach).clamp_(max=1.0)
        covered *= 2
    return reach > 0


def whole_tree(
    parents: Tensor, depths: Tensor, nodes: Tensor, reachable: Tensor, depth: int, width: int
) -> Tree:
    """Return the tree in which every node may have children: nodes [n] with parents [n] at depths
    [n] of at most `depth`. Only the children that are reachable [n] bool count, at most `width` of
    a node; the others are padding."""
    offered = reachable & (nodes > 0)
    rank = ((parents.unsqueeze(1) == parents) & offered).tril(-1).sum(1)
    # nodes that are no children go to a column that is cut off
    table = parents.new_full((len(nodes), width + 1), -1)
    table[parents, torch.where(offered, rank, rank.new_full((1,), width)).clamp_(max=width)] = nodes
    children = table[:, :width]
    return Tree(
        torch.where(reachable, parents, nodes),
        depths,
        children,
        ancestor_mask(parents, depth),
        inner=nodes,
        rows=nodes,
        onward=onward_of(nodes, children),
        size=len(nodes),
        depth=depth,
        width=width,
    )


def onward_of(nodes: Tensor, children: Tensor) -> Tensor:
    """Return `Tree.onward` of nodes [n] with children [n, width]."""
    itself = nodes.unsqueeze(1)
    return torch.cat([torch.where(children < 0, itself, children), itself], 1)


def static_tree(paths: Iterable[Sequence[int]], device: torch.device | str = "cpu") -> Tree:
    """Return the tree of a list of paths (empty: the root alone). Raise ValueError for paths that
    form no tree."""
    return _static_tree(tuple(map(tuple, paths)), torch.device(device))


@lru_cache(maxsize=64)
def _static_tree(paths: tuple[Path, ...], device: torch.device) -> Tree:
    long = partial(torch.tensor, dtype=torch.int64, device=device)
    names: list[Path] = [(), *(checked_paths(paths) if paths else ())]
    index = {name: node for node, name in enumerate(names)}
    parents = [index[name[:-1]] for name in names]
    inner = sorted(set(parents[1:]))
    width, depth = max((name[-1] + 1 for name in names[1:]), default=0), len(names[-1])
    # a node's row in `inner`, and where in `Draft.drawn` its token is
    rows = [inner.index(node) if node in inner else 0 for node in range(len(names))]
    drawn_at = [rows[index[name[:-1]]] * width + name[-1] for name in names[1:]]
    children = long([[index.get((*name, draw), -1) for draw in range(width)] for name in names])
    mask = ancestor_mask(long(parents), depth)
    levels: list[Level] = []
    first, above = 0, 0  # rows of the first node of this level and of the level above
    for level in range(depth):
        nodes = [node for node in inner if len(names[node]) == level]
        end = first + len(nodes)
        one_each = bool(levels) and levels[-1].draws == 1
        levels.append(
            Level(
                rows=slice(first, end),
                parents=long([rows[parents[node]] - above for node in nodes]),
                drawn_at=long([drawn_at[node - 1] for node in nodes if node > 0]),
                alone=one_each and len(nodes) == first - above,
                mask=mask[long(nodes)][:, long(inner[1:end])],
                draws=1 + max(name[-1] for name in names if len(name) == level + 1),
            )
        )
        first, above = end, first
    return Tree(
        parents=long(parents),
        depths=long([len(name) for name in names]),
        children=children,
        mask=mask,
        inner=long(inner),
        rows=long(rows),
        onward=onward_of(long(range(len(names))), children),
        size=len(names),
        depth=depth,
        width=width,
        levels=tuple(levels),
        drawn_at=long(drawn_at),
    )
