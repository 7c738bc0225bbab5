"""Draft trees: the policies, the named static trees, the tensors that describe a tree to target and rule, and a tree with its tokens.

Node 0 is the root, the last committed token that the target has not seen yet. Nodes are numbered level by
level.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor

Path = tuple[int, ...]


def read_paths(text: str) -> tuple[Path, ...]:
    """The paths of a text such as "0 1 00 01", a digit a choice. Raises ValueError for anything else than digits and spaces."""
    return tuple(tuple(int(digit) for digit in word) for word in text.split())


def write_paths(paths: Iterable[Path]) -> str:
    """The text of paths whose choices are below 10: see `read_paths`."""
    return " ".join("".join(map(str, path)) for path in paths)


# The trees of the released LANTERN code; "021" is child 1 of child 2 of child 0 of the root.
STATIC_TREES: dict[str, tuple[Path, ...]] = {
    "mc_sim_7b_63": read_paths("0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"),
    "mc_sim_7b_63_balanced": read_paths(
        "0 1 2 00 01 02 10 11 12 20 21 000 001 002 010 011 100 101 110 111 0000 0001 0002 00000 00001"
    ),
    "naive_extend_57": read_paths(
        "0 1 2 3 4 00 01 02 03 10 11 12 20 21 22 30 31 40 "
        "000 001 002 003 010 011 012 020 021 022 030 031 100 101 110 200 "
        "0000 0001 0002 0003 0010 0011 0012 0020 0021 0030 0100 0101 0110 0200 "
        "00000 00001 00002 00010 00011 00100 00101 00110 00200"
    ),
    "medusa_2_7b_63": read_paths(
        "0 1 2 3 4 5 6 7 8 9 00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 20 21 30 31 40 50 60 70 "
        "000 001 002 003 004 005 006 007 008 010 011 012 013 020 021 030 040 050 100 101 102 110 200 "
        "0000 0001 0002 0003 0010 0020 0100"
    ),
    "reverse_balanced_25": read_paths(
        "0 1 2 00 01 10 20 000 001 002 010 011 100 0000 0001 0002 0010 0011 00000 00001 00002 00003 00010 00011 00012"
    ),
    "chain": read_paths("0 00 000 0000 00000"),
}


COUPLINGS = ("inverse", "gumbel", "maximal", "released")
GUESSES = ("left", "above", "uniform")


@dataclass(frozen=True)
class TreePolicy:
    """How a draft tree comes about; build it with `none`, `static`, `dynamic` or `window`, which check the values.

    Static: `paths`. Dynamic (EAGLE-2): a beam of `top_k` over `depth` drafter passes behind the first level,
    of which the best `nodes` (root included) are kept; the deepest node lies at depth + 1.
    """

    kind: str
    paths: tuple[Path, ...] = ()
    top_k: int = 0
    depth: int = 0
    nodes: int = 1
    coupling: str = "inverse"  # of a window: see `window`
    guess: str = "left"  # of a window

    @classmethod
    def none(cls) -> TreePolicy:
        """The root alone: no drafts."""
        return cls("none")

    @classmethod
    def static(cls, tree: str | Iterable[Sequence[int]]) -> TreePolicy:
        """A named tree of `STATIC_TREES` or a list of paths such as (0,), (0, 0), (0, 1); child i of a node
        is the i-th token drawn there. Raises ValueError for an unknown name or paths that make no tree."""
        if isinstance(tree, str):
            if tree not in STATIC_TREES:
                raise ValueError(f"tree is {tree!r}; allowed are {', '.join(STATIC_TREES)} or a list of paths")
            tree = STATIC_TREES[tree]
        paths = _checked_paths(tree)
        return cls("static", paths=paths, nodes=1 + len(paths))

    @classmethod
    def dynamic(cls, top_k: int = 10, depth: int = 4, nodes: int = 59) -> TreePolicy:
        """An EAGLE-2 tree. Raises ValueError when the beam cannot fill the nodes."""
        if top_k < 1:
            raise ValueError(f"tree top_k is {top_k}; it must be at least 1")
        if depth < 0:
            raise ValueError(f"tree depth is {depth}; it must be 0 or more")
        pool = top_k + depth * top_k * top_k
        if not 2 <= nodes <= 1 + pool:
            raise ValueError(f"tree nodes is {nodes}; with top_k {top_k} and depth {depth} it must be between 2 and {1 + pool}")
        return cls("dynamic", top_k=top_k, depth=depth, nodes=nodes)

    @classmethod
    def window(cls, nodes: int = 8, coupling: str = "inverse", guess: str = "left") -> TreePolicy:
        """A chain of `nodes` nodes, the root counted, that the target guesses itself: see `decoding.window`. Raises ValueError for
        values out of range."""
        if nodes < 1:
            raise ValueError(f"window is {nodes}; it must be at least 1")
        if coupling not in COUPLINGS:
            raise ValueError(f"coupling is {coupling!r}; allowed are {', '.join(COUPLINGS)}")
        if guess not in GUESSES:
            raise ValueError(f"guess is {guess!r}; allowed are {', '.join(GUESSES)}")
        kind = "window" if coupling == "inverse" else "coupled"
        return cls(kind, tuple((0,) * depth for depth in range(1, nodes)), nodes=nodes, coupling=coupling, guess=guess)

    @property
    def width(self) -> int:
        """How many children a node has at most."""
        if self.kind == "dynamic":
            return min(self.top_k, self.nodes - 1)
        return max((path[-1] + 1 for path in self.paths), default=0)

    @property
    def expanded(self) -> int:
        """How many tree slots the drafter fills at most."""
        if self.kind == "dynamic":
            return self.depth * self.top_k
        parents = {path[:-1] for path in self.paths}
        return len(parents - {()})


def _checked_paths(paths: Iterable[Sequence[int]]) -> tuple[Path, ...]:
    ordered = sorted((tuple(path) for path in paths), key=lambda path: (len(path), path))
    known = {(): None, **dict.fromkeys(ordered)}
    if not ordered:
        raise ValueError("tree has no paths; it needs at least one, such as (0,)")
    if len(known) != len(ordered) + 1:
        raise ValueError("tree names a path twice or names the root (); each path must occur once")
    for path in ordered:
        if not all(isinstance(choice, int) and choice >= 0 for choice in path):
            raise ValueError(f"tree has the path {path}; its entries must be whole numbers, 0 or more")
        if path[:-1] not in known:
            raise ValueError(f"tree has the path {path} but not its parent {path[:-1]}; every prefix must be present")
    return tuple(ordered)


@dataclass(frozen=True)
class Level:
    """One drafter pass of a static tree: the P nodes of one depth that have children."""

    nodes: Tensor  # [P] the nodes
    parent_rows: Tensor  # [P] rows of their parents in the level above
    mask: Tensor  # [P, w + P] bool, which tree slots each sees; the root has no tree slot
    draws: int  # C, tokens to draw per node
    own: Tensor  # [P] places of their own tokens in the row of draws
    span: slice  # of the row of draws: their C x max(P, 2) draws, those of one draw number together


@dataclass(frozen=True)
class Tree:
    """A draft tree of `size` nodes on a device.

    `inner` lists the nodes to which the rule is applied, `inner_rows` maps a node to its place there or -1.

    All tokens that the drafter draws for a static tree stand in one row: the root's, those of the levels, and behind them one that
    stands for none. `places` says where there the nodes' tokens are, then the draws of the inner nodes.
    """

    parents: Tensor  # [n] int64, the root's is 0
    depths: Tensor  # [n] int64
    children: Tensor  # [n, width] int64, node by draw number, -1 for none
    mask: Tensor  # [n, n] bool, ancestors and self
    inner: Tensor  # [I] int64
    inner_rows: Tensor  # [n] int64
    nodes: Tensor  # [n] int64, all of them
    size: int
    depth: int  # of the deepest node a path may reach
    width: int
    levels: tuple[Level, ...] = ()  # these and what follows: of static trees only
    places: Tensor | None = None  # [n + I x width] int64
    offered: Tensor | None = (
        None  # [I, width] bool, which draws are nodes; None where those of a node come first, and the others are none
    )

    @property
    def draws(self) -> int:
        """How many tokens the drafter draws for the tree; none for dynamic ones, which take the most likely."""
        return sum(level.nodes.shape[0] * level.draws for level in self.levels)

    @cached_property
    def onward(self) -> Tensor:
        """[n, width + 1] int64, where a walk goes from a node: to the child of a draw number; in the last column, and where there is
        no child, to the node itself."""
        itself = self.nodes.unsqueeze(1)
        return torch.cat([torch.where(self.children < 0, itself, self.children), itself], 1)

    @cached_property
    def rows(self) -> Tensor:
        """[n] int64, `inner_rows` with 0 for the nodes that are not there."""
        return self.inner_rows.clamp(min=0)

    @cached_property
    def inner_depths(self) -> Tensor:
        """[I, 1] int64."""
        return (self.depths if self.whole else self.depths.index_select(0, self.inner)).unsqueeze(1)

    @property
    def whole(self) -> bool:
        """Whether the inner nodes are simply all nodes, in order, as in dynamic trees, where every node may have children."""
        return self.inner.shape[0] == self.size


@dataclass(frozen=True)
class Draft:
    """A draft tree with tokens.

    `drawn` holds per node of `tree.inner` the tokens proposed there, by draw number, -1 for none. `q` holds the laws that they were
    drawn from without replacement; None when the prefix fixes the children. `rest` is what those had left before each draw: where it is
    below `sampling.NOTHING` there was none, and `drawn` holds any token. None: the whole law, drawn from once.
    """

    tree: Tree
    tokens: Tensor  # [n] int64, the root's token first
    drawn: Tensor  # [I, width] int64
    q: Tensor | None = None  # [I, V] float32
    rest: Tensor | None = None  # [I, width] float64


def ancestor_mask(parents: Tensor, depth: int) -> Tensor:
    """[n, n] bool, True where the column is the row or an ancestor of it, from parents [n] (the root's is 0).

    `depth` bounds the depth of the tree. Pointer jumping: each round doubles the distance covered.
    """
    size = parents.shape[0]
    reach = torch.eye(size, device=parents.device).scatter_(1, parents.unsqueeze(1), 1.0)
    covered = 1
    while covered < depth:
        reach = (reach @ reach).clamp_(max=1.0)
        covered *= 2
    return reach > 0


def child_table(parents: Tensor, reachable: Tensor, width: int) -> Tensor:
    """[n, width] int64: each node's reachable children in node order, then -1; parents [n], reachable [n]
    bool.

    No node may have more than `width` of them.
    """
    size = parents.shape[0]
    node = torch.arange(size, device=parents.device)
    offered = reachable & (node > 0)
    rank = ((parents.unsqueeze(1) == parents) & offered).tril(-1).sum(1)
    # what is not a child goes to a column that is cut off
    table = parents.new_full((size, width + 1), -1)
    table[parents, torch.where(offered, rank, rank.new_full((1,), width)).clamp_(max=width)] = node
    return table[:, :width]


def static_tree(paths: Iterable[Sequence[int]], device: torch.device | str = "cpu") -> Tree:
    """The tree of a list of paths (none: the root alone). Raises ValueError for paths that make no tree."""
    return _static_tree(tuple(map(tuple, paths)), torch.device(device))


@lru_cache(maxsize=64)
def _static_tree(paths: tuple[Path, ...], device: torch.device) -> Tree:
    names: list[Path] = [(), *(_checked_paths(paths) if paths else ())]
    index = {name: node for node, name in enumerate(names)}
    parents = [index[name[:-1]] for name in names]
    inner = sorted(set(parents[1:]))
    rows = [inner.index(node) if node in inner else -1 for node in range(len(names))]
    width, depth = max((name[-1] + 1 for name in names[1:]), default=0), len(names[-1])

    def long(values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    children = [[index.get((*name, draw), -1) for draw in range(width)] for name in names]
    gapless = all(sorted(row, key=lambda child: child < 0) == row for row in children)
    mask = ancestor_mask(long(parents), depth)
    levels, first = [], 1  # the next free place in the row of draws
    place_of = {0: 0}  # by node
    draw_places = [[0] * width for _ in inner]
    for level_depth in range(depth):
        nodes = [node for node in inner if len(names[node]) == level_depth]
        above = [node for node in inner if len(names[node]) == level_depth - 1]
        slots = inner[1 : rows[nodes[-1]] + 1]
        draws = max(names[child][-1] for node in nodes for child in children[node] if child >= 0) + 1
        stride = max(len(nodes), 2)  # a single row is drawn from twice: see `sampling.running_sums`
        for row, node in enumerate(nodes):
            places = [first + draw * stride + row for draw in range(draws)]
            place_of |= {child: place for child, place in zip(children[node], places, strict=False) if child >= 0}
            draw_places[rows[node]][:draws] = places
        levels.append(
            Level(
                nodes=long(nodes),
                parent_rows=long([above.index(parents[node]) if above else 0 for node in nodes]),
                mask=mask[long(nodes)][:, long(slots)],
                draws=draws,
                own=long([place_of[node] for node in nodes]),
                span=slice(first, first + draws * stride),
            )
        )
        first += draws * stride
    # the place of no draw: for draw numbers that a level has not got, and for draws that are no nodes and behind all that are
    for row, node in enumerate(inner):
        draw_places[row] = [
            place if place and (child >= 0 or not gapless) else first
            for place, child in zip(draw_places[row], children[node], strict=True)
        ]
    table = long(children).view(len(names), width)
    return Tree(
        parents=long(parents), depths=long([len(name) for name in names]), children=table,
        mask=mask, inner=long(inner), inner_rows=long(rows),
        nodes=long(range(len(names))), size=len(names), depth=depth, width=width, levels=tuple(levels),
        places=long([place_of[node] for node in range(len(names))] + [place for row in draw_places for place in row]),
        offered=None if gapless else table[long(inner)] >= 0,
    )  # fmt: skip
