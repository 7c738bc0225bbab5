"""Draft trees: the tensors that describe a tree to target and rule, a tree with its tokens, and what kinds of drafts are asked. A
kind of drafts (`Drafts`) is a value: what a run is asked for, how it is asked for, what suits a machine. Its source (`Source`)
fills a draft tree in every step, for both engines in the same way: shapes are fixed, and nothing is read back to the host.

Node 0 is the root, the last committed token that the target has not seen yet. Nodes are numbered level by level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing import Self  # which Python 3.10 lacks

Path = tuple[int, ...]


def at_least_one(name: str, value: int) -> None:
    """Raises ValueError for a value below 1."""
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1")


def checked_paths(paths: Iterable[Sequence[int]]) -> tuple[Path, ...]:
    """Paths by depth, in order. Raises ValueError for paths that make no tree."""
    ordered = sorted((tuple(path) for path in paths), key=lambda path: (len(path), path))
    known = {(), *ordered}
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
    own: Tensor  # [P] where their own tokens stand in the row of draws: see `Tree.drawn_at`
    span: slice  # of the row of draws: their C x max(P, 2) draws, those of one draw number together


@dataclass(frozen=True)
class Tree:
    """A draft tree of `size` nodes on a device. All index tensors are int64."""

    parents: Tensor  # [n], the root's is 0
    depths: Tensor  # [n]
    children: Tensor  # [n, width], node by draw number, -1 for none
    mask: Tensor  # [n, n] bool, ancestors and self
    inner: Tensor  # [I], nodes to which the rule is applied
    inner_rows: Tensor  # [n], a node's place in `inner` or -1
    nodes: Tensor  # [n], all of them
    size: int
    depth: int  # of the deepest node a path may reach
    width: int
    levels: tuple[Level, ...] = ()  # these and what follows: of static trees only
    # [n + I x width]. What the drafter draws stands in one row: the root's token, the draws of the levels, and behind them a
    # token that stands for none. These are the indices in it of the nodes' tokens, then of what was drawn at the
    # inner nodes.
    drawn_at: Tensor | None = None
    offered: Tensor | None = None  # [I, width] bool, which draws are nodes; None: those always come first

    @cached_property
    def onward(self) -> Tensor:
        """[n, width + 1], where a walk goes from a node: to the child of a draw number; in the last column, and where there is no
        child, to the node itself."""
        itself = self.nodes.unsqueeze(1)
        return torch.cat([torch.where(self.children < 0, itself, self.children), itself], 1)

    @cached_property
    def rows(self) -> Tensor:
        """[n], `inner_rows` with 0 for the nodes that are not there."""
        return self.inner_rows.clamp(min=0)

    @cached_property
    def inner_depths(self) -> Tensor:
        """[I, 1] int64."""
        return self.of_inner(self.depths).unsqueeze(1)

    def of_inner(self, values: Tensor) -> Tensor:
        """The rows of the inner nodes in values [n, ...]."""
        return values if self.whole else values.index_select(0, self.inner)

    @property
    def whole(self) -> bool:
        """Whether the inner nodes are simply all nodes, in order, as in dynamic trees, where every node may have children."""
        return self.inner.shape[0] == self.size


@dataclass(frozen=True)
class Draft:
    """A draft tree with tokens."""

    tree: Tree
    tokens: Tensor  # [n] int64, the root's token first
    drawn: Tensor  # [I, width] int64, tokens proposed at the inner nodes by draw number, -1 for none
    # [I, V] float32, the distributions they were drawn from without replacement; None when the prefix fixes the children
    q: Tensor | None = None
    # [I, width] float64, what the distributions had left before each draw: below `sampling.NOTHING` there was none, and `drawn`
    # has any token. None: the whole distribution, drawn from once.
    rest: Tensor | None = None
    fault: Tensor | None = None  # [1] bool, whether a score of the drafter is not finite; None: none is


class VerifyOutput(NamedTuple):
    """What verification of a draft of n nodes, at most D deep, accepted. All stay on the device."""

    path: Tensor  # [D + 1] int64, the accepted nodes, root first; behind the end the last one again
    depth: Tensor  # [1] int64, of the last accepted node: the step commits depth + 1 tokens
    tokens: Tensor  # [D + 1] int64, the accepted tokens, then the bonus token; behind it anything
    bonus: Tensor  # [1] int64; below 0 or V where the target's probabilities are not finite
    relaxed: Tensor | None  # [D] bool, which accepted nodes the relaxation alone accepted; None: none
    target_tokens: Tensor  # [n] int64, the target's own token behind each node; by rejection the bonus token everywhere


def ancestor_mask(parents: Tensor, depth: int) -> Tensor:
    """[n, n] bool, True where the column is the row or an ancestor of it, from parents [n] of a tree at most `depth` deep."""
    reach = torch.eye(parents.shape[0], device=parents.device).scatter_(1, parents.unsqueeze(1), 1.0)
    covered = 1
    while covered < depth:  # each round doubles the distance covered
        reach = (reach @ reach).clamp_(max=1.0)
        covered *= 2
    return reach > 0


def child_table(parents: Tensor, reachable: Tensor, width: int) -> Tensor:
    """[n, width] int64: each node's reachable children in node order, at most `width`, then -1; parents [n], reachable [n]
    bool."""
    size = parents.shape[0]
    node = torch.arange(size, device=parents.device)
    offered = reachable & (node > 0)
    rank = ((parents.unsqueeze(1) == parents) & offered).tril(-1).sum(1)
    # what is not a child goes to a column that is cut off
    table = parents.new_full((size, width + 1), -1)
    table[parents, torch.where(offered, rank, rank.new_full((1,), width)).clamp_(max=width)] = node
    return table[:, :width]


def whole_tree(parents: Tensor, depths: Tensor, nodes: Tensor, reachable: Tensor, depth: int, width: int) -> Tree:
    """The tree in which every node may have children: nodes [n] with parents [n] at depths [n] of at most `depth`; of the
    children those count that are reachable [n] bool, `width` of a node at most."""
    children, mask = child_table(parents, reachable, width), ancestor_mask(parents, depth)
    return Tree(
        parents, depths, children, mask, inner=nodes, inner_rows=nodes, nodes=nodes, size=len(nodes), depth=depth, width=width
    )


def static_tree(paths: Iterable[Sequence[int]], device: torch.device | str = "cpu") -> Tree:
    """The tree of a list of paths (none: the root alone). Raises ValueError for paths that make no tree."""
    return _static_tree(tuple(map(tuple, paths)), torch.device(device))


@lru_cache(maxsize=64)
def _static_tree(paths: tuple[Path, ...], device: torch.device) -> Tree:
    long = partial(torch.tensor, dtype=torch.int64, device=device)
    names: list[Path] = [(), *(checked_paths(paths) if paths else ())]
    index = {name: node for node, name in enumerate(names)}
    parents = [index[name[:-1]] for name in names]
    inner = sorted(set(parents[1:]))
    width, depth = max((name[-1] + 1 for name in names[1:]), default=0), len(names[-1])
    children = [[index.get((*name, draw), -1) for draw in range(width)] for name in names]
    mask, table = ancestor_mask(long(parents), depth), long(children)
    levels, above = [], [0]
    drawn_at: dict[Path, int] = {(): 0}  # of each draw in their row, by the path that it makes
    end = 1
    for level in range(depth):
        nodes = [node for node in inner if len(names[node]) == level]
        draws = 1 + max(name[-1] for name in names if len(name) == level + 1)
        stride = max(len(nodes), 2)  # a single row is drawn from twice: see `sampling.running_sums`
        drawn_at |= {(*names[node], i): end + i * stride + row for row, node in enumerate(nodes) for i in range(draws)}
        slots = inner[1 : inner.index(nodes[-1]) + 1]
        parent_rows, own = long([above.index(parents[node]) for node in nodes]), long([drawn_at[names[node]] for node in nodes])
        sees, span = mask[long(nodes)][:, long(slots)], slice(end, end + draws * stride)
        levels.append(Level(nodes=long(nodes), parent_rows=parent_rows, mask=sees, draws=draws, own=own, span=span))
        above, end = nodes, end + draws * stride
    # Where the draws that are nodes always come first, those behind them are as if they were not made.
    gapless = all(sorted(row, key=lambda child: child < 0) == row for row in children)
    found = {name: drawn_at[name] for name in names} if gapless else drawn_at
    proposed = [found.get((*names[node], draw), end) for node in inner for draw in range(width)]
    return Tree(
        parents=long(parents),
        depths=long([len(name) for name in names]),
        children=table,
        mask=mask,
        inner=long(inner),
        inner_rows=long([inner.index(node) if node in inner else -1 for node in range(len(names))]),
        nodes=long(range(len(names))),
        size=len(names),
        depth=depth,
        width=width,
        levels=tuple(levels),
        drawn_at=long([drawn_at[name] for name in names] + proposed),
        offered=None if gapless else table[long(inner)] >= 0,
    )


# -- where drafts come from

Head = Callable[[Tensor], Tensor]  # hidden states [R, n, H] -> logits [R, n, V] float32, the target's


class Passes(Protocol):
    """One step's way to the drafter."""

    position: Tensor  # [1] int64, the position of the picture whose token the root draws

    def stable(self) -> Tensor:
        """Read what has been committed since the step before; the last output [R, 1, H], which stands for the root."""

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor) -> Tensor:
        """Read m nodes of one depth (1 = the root's children) -> their outputs [R, m, H]. tokens [m] are the nodes' tokens,
        hidden [R, m, H] their parents' outputs. mask [m, w + m] bool says which tree slots a node sees: the w that earlier passes
        of this tree wrote, then its own pass."""


Noisy = Callable[[Tensor, Tensor], Tensor]  # scores [m, V] and the positions [1] that they draw -> scores with noise


class Asked(Protocol):
    """What a source is told of its run, as `config.Config` has it."""

    @property
    def sampling(self) -> Any: ...
    @property
    def torch_device(self) -> torch.device: ...
    @property
    def row_length(self) -> int: ...
    @property
    def positions(self) -> int: ...


@dataclass(frozen=True)
class Drafts:
    """A kind of drafts. This one is none: the root alone. `settings` are an object with the fields that a kind reads: see
    `lantern_demo.settings.settings`."""

    name: ClassVar[str] = "none"
    needs_drafter: ClassVar[bool] = False
    reads_back: ClassVar[bool] = False  # each step's tree hangs on numbers that the host reads: the plain engine's alone
    side_by_side: ClassVar[bool] = False  # rows are drawn instead of drafts: see `wavefront`
    by_prefix: ClassVar[bool] = False  # the prefix alone says what is drafted, and no random number
    reads: ClassVar[dict[str, str]] = {}  # its fields, each with what settings call its value
    # those that a machine may choose, each with the setting that asks for it; where that is 0 the machine is to choose
    asks: ClassVar[dict[str, str]] = {}

    @property
    def nodes(self) -> int:
        """Of a draft tree, the root included."""
        return 1

    @property
    def width(self) -> int:
        """How many children a node has at most."""
        return 0

    @property
    def deepest(self) -> int:
        """The depth of the deepest node."""
        return 0

    @property
    def expanded(self) -> int:
        """How many tree slots the drafter fills at most."""
        return 0

    def read_at_once(self, row_length: int) -> int:
        """How many tokens a pass reads at most, of a picture with rows of so many."""
        return self.nodes

    def source(self, asked: Asked, vocabulary: int, noisy: Noisy | None) -> Source:
        """What fills a run's trees. noisy: where noise is shared, which adds it."""
        return Source(asked.torch_device)

    @classmethod
    def of(cls, settings: Any) -> Self:
        """Those of some settings, where the machine does not choose."""
        return cls(**{name: getattr(settings, setting) for name, setting in cls.reads.items()})

    @classmethod
    def fits(cls, settings: Any) -> bool:
        """Whether the machine is to choose them."""
        return any(getattr(settings, setting) == 0 for setting in cls.asks.values())

    @classmethod
    def asked(cls, settings: Any) -> str:
        """What `of` gives, in words."""
        return f"{cls.of(settings).words()}: as asked" if cls.reads else cls().words()

    def asking(self) -> dict[str, Any]:
        """The settings that give them again."""
        return {setting: getattr(self, name) for name, setting in self.asks.items()}

    def words(self) -> str:
        """Their shape; the root is no guess and does not count."""
        return "no tree"


class Source:
    """Fills draft trees. This one drafts nothing: the root alone."""

    depth = 0  # of the deepest node
    draws = 0  # uniforms that it takes in a step
    tree: Tree | None  # where it is the same in every step
    state: tuple[Tensor, ...] = ()  # what it keeps from step to step, in place

    def __init__(self, device: torch.device | str) -> None:
        self.tree = static_tree((), device)

    def begin(self, root: Tensor, seed: int) -> None:
        """A run starts with its first token root [1] int64."""

    def draft(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        """The tree of the last committed token root [1] int64; uniforms [draws] in [TINY, 1)."""
        assert self.tree is not None
        return Draft(self.tree, root, root.new_empty(0, 0))

    def observe(self, out: Any, scores: Tensor) -> None:
        """Learn what a step with drafts accepted, and by which scores [n, V] of the target."""
