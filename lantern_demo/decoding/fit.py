"""A draft tree that fits the machine: the static tree with the most expected tokens a second.

Expected tokens of a step are 1 (the bonus token) + the sum over the tree's nodes of the chance that the walk reaches them. With
the chance `accept[d][r]` that draw r of a node at depth d is the one accepted, as counted in runs, a node's chance is the product
along its path, and the best tree of n nodes takes the n likeliest. Sizes and depths are then weighed against what they cost here,
as Sequoia does (arXiv 2402.12374, section 3.1); trees are small enough to try all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from .loop import Step
from .trees import Path

Cost = Callable[[int, int, int], float]  # (nodes with the root, depth, nodes that are drafted from) -> seconds of a step


@dataclass(frozen=True)
class Fitted:
    """A tree, the tokens a step that it should give and the seconds that a step should take."""

    paths: tuple[Path, ...]
    tokens: float
    seconds: float


def grow_static(accept: Sequence[Sequence[float]], depth: int, nodes: int) -> Iterable[tuple[Path, float]]:
    """The likeliest paths of at most `depth` choices, at most `nodes` of them, each behind its parent and its elder sibling, with the
    chance that the walk reaches it."""
    waiting: list[tuple[float, Path, float]] = []

    def offer(path: Path, parent: float) -> None:
        level = len(path) - 1
        if level < min(depth, len(accept)) and path[-1] < len(accept[level]):
            chance = parent * accept[level][path[-1]]
            heappush(waiting, (-chance, path, parent))

    offer((0,), 1.0)
    for _ in range(nodes):
        if not waiting or waiting[0][0] == 0:
            return
        negative, path, parent = heappop(waiting)
        yield path, -negative
        offer((*path, 0), -negative)
        offer((*path[:-1], path[-1] + 1), parent)


def fit_static(accept: Sequence[Sequence[float]], cost: Cost, nodes: int) -> Fitted:
    """The tree of at most `nodes` nodes behind the root with the most expected tokens a second.

    accept [depth][draw]: see the head of this file. Raises ValueError when no draft is ever accepted.
    """
    best: Fitted | None = None
    for depth in range(1, len(accept) + 1):
        paths: list[Path] = []
        tokens = 1.0
        for path, chance in grow_static(accept, depth, nodes):
            paths.append(path)
            tokens += chance
            deepest = max(map(len, paths))
            inner = len({p[:-1] for p in paths})
            seconds = cost(1 + len(paths), deepest, inner)
            if best is None or tokens / seconds > best.tokens / best.seconds:
                best = Fitted(tuple(sorted(paths, key=lambda p: (len(p), p))), tokens, seconds)
    if best is None:
        raise ValueError("accept has no chance above 0: no draft was ever accepted")
    return best


def acceptance_by_rank(steps: Iterable[Step]) -> list[list[float]]:
    """The chance [depth][draw] that a draw is the accepted one, counted over steps with static trees.

    A node counts for its draws that the tree has; depths that no walk visited are left out.
    """
    tried: list[list[int]] = []
    accepted: list[list[int]] = []
    for step in steps:
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(step.parents):
            if node:
                children.setdefault(parent, []).append(node)
        for depth, node in enumerate(step.path):
            offered = children.get(node, [])
            if not offered:
                break
            for table in (tried, accepted):
                while len(table) <= depth:
                    table.append([])
                table[depth].extend([0] * (len(offered) - len(table[depth])))
            following = step.path[depth + 1] if depth + 1 < len(step.path) else None
            for draw, child in enumerate(offered):
                tried[depth][draw] += 1
                accepted[depth][draw] += child == following
    return [[a / t for a, t in zip(*rows, strict=True)] for rows in zip(accepted, tried, strict=True)]
