"""Choose the draft tree, or the window, that is fastest on this machine: the most tokens a step, as calibrated, for the seconds
of a step, as measured here.

Methods with drafts of one kind share them: a relaxed method and its exact control draft the same tree. CANDIDATES names the
method whose counts decide. `python -m lantern_demo.bench.calibrate` writes a model's calibration.json for its preset settings.
The file holds the chance that each draw in a static tree is accepted, and the mean accepted length of some dynamic trees and
windows. Steps are timed once, in a few seconds. Of static trees a few are timed first, in turn, and a plane is fitted to them;
then the most promising ones are timed. Of other kinds every calibrated one is timed. The choice is kept on disk, so that the
same seed gives the same picture after a restart. It is not kept when the machine was busy and the times varied.

The best static tree has the most expected tokens a second. A step gives 1 token (the bonus token) and one for each node that
verification reaches. `accept[d][r]` is the chance that draw r of a node at depth d is accepted, as counted in runs. The chance
to reach a node is the product along its path, and the best tree of n nodes takes the n likeliest. Every depth and size is
compared by tokens and seconds, as in Sequoia (arXiv 2402.12374, section 3.1); trees are small enough to try all of them. A
window has no such chances: a guess is accepted more often the more passes it was in the window for, and so depends on the
window's size.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import prod
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from lantern_demo.decoding.drafting import DraftConfig, DynamicTree, StaticTree, ZipAR
from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.opt_tree import OptTree
from lantern_demo.decoding.trees import Path as TreePath
from lantern_demo.decoding.window import Window
from lantern_demo.models.files.disk_cache import locked, put, root
from lantern_demo.models.machine.tuning import Tuning
from lantern_demo.settings.drafts import describe_drafts, drafts_of, settings_of
from lantern_demo.settings.settings import Settings
from lantern_demo.static_trees import read_paths

FILE = "calibration.json"
MOST_NODES = 48
FIT_ROUNDS = 3  # short runs with each tree whose cost is measured
# Trees whose measured steps show the costs of a node, a level and a node that is drafted from.
PROBES = tuple(
    map(read_paths, ("0", "0 1 2", "0 00 000", "0 1 2 00 01 10 000", "0 1 2 3 00 01 10 11 20 000 001 010 100 0000 0001"))
)
SHARES = (1.0, 0.8, 1.25)  # of the fitted cost of a node: the plane may be wrong, so the best tree at each is timed too
UNSTEADY = 1.5  # a median this many times the lower quartile is a sign of a busy machine

Seconds = Callable[[list[DraftConfig]], list[float]]  # seconds of a step with each tree, measured in turn
Cost = Callable[[int, int, int], float]  # (nodes with the root, depth, nodes that are drafted from) -> seconds of a step
Rows = tuple[tuple[Any, ...], ...]  # of a calibration's table


@dataclass(frozen=True)
class Candidates:
    """The drafts of one kind that are compared: `values` make each. Of static trees all of up to MOST_NODES are compared."""

    name: str  # name of the file that keeps the choice
    table: str  # the field of a calibration
    counted: str  # the method whose counts decide: of a pair the relaxed one, since its runs are shown
    values: tuple[tuple[Any, ...], ...] = ()


CANDIDATES: dict[type[DraftConfig], Candidates] = {
    StaticTree: Candidates("static", "static", "lantern++"),
    # top_k, depth and nodes. All have two levels or more: a single guess is no tree.
    DynamicTree: Candidates(
        "dynamic",
        "dynamic",
        "lantern",
        ((1, 1, 3), (2, 1, 4), (3, 1, 6), (1, 2, 4), (2, 2, 6), (3, 2, 8), (4, 2, 8), (2, 3, 8), (3, 3, 12), (4, 3, 16)),
    ),
    OptTree: Candidates("opt", "chances", "opt-tree", ((0.03,), (0.06,), (0.1,), (0.15,), (0.2,), (0.25,), (0.3,))),
    Window: Candidates("window", "windows", "sjd", ((2,), (4,), (8,), (16,), (32,), (64,))),
    ZipAR: Candidates("wavefront", "wavefronts", "zipar", ((2,), (3,), (4,), (5,), (6,), (8,), (12,), (16,), (24,))),
}


@dataclass(frozen=True)
class Calibration:
    """How many drafts are accepted, by method id. A row has the values that define the drafts, then the mean accepted
    length."""

    static: dict[str, list[tuple[float, ...]]] = field(default_factory=dict)  # [depth][draw]: see `accept` above
    dynamic: dict[str, list[tuple[int, int, int, float]]] = field(default_factory=dict)
    windows: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    # the third value is the share of tokens that the window changes: see `lantern_demo.runs.changed`
    wavefronts: dict[str, list[tuple[int, float, float]]] = field(default_factory=dict)
    chances: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def rows(self, kind: type[DraftConfig], most_changed: float = 1.0) -> Rows:
        """Return the rows from which drafts of a kind are chosen; empty if nothing was counted. Of wavefronts keep those that
        change at most a share of the tokens."""
        if kind not in CANDIDATES:
            return ()
        rows = getattr(self, CANDIDATES[kind].table).get(CANDIDATES[kind].counted, ())
        return tuple(row for row in rows if kind is not ZipAR or row[2] <= most_changed)


@dataclass(frozen=True)
class Choice:
    """A tree, and the reason for it."""

    policy: DraftConfig
    reason: str


def calibration_folder(model: str, folder: Path | None) -> Path:
    """Return the folder of a model's calibration: its own or, for a published model without one, a folder in this machine's
    cache."""
    return folder or root() / "calibrated" / model


def read_calibration(folder: Path | None) -> Calibration | None:
    """Return the calibration of a model folder, which may lack tables; None without the file. Raises ValueError naming the file
    when it is damaged."""
    if folder is None or not (folder / FILE).exists():
        return None
    try:
        return TypeAdapter(Calibration).validate_json((folder / FILE).read_bytes())
    except ValidationError as error:
        raise ValueError(f"{folder / FILE} is not a calibration: {error.errors()[0]['msg']}") from error


def choose(kind: Any, rows: Rows, seconds: Seconds) -> Choice:
    """Return the drafts of a kind with the most tokens a second, by the rows of a calibration."""
    if kind is StaticTree:
        tokens = static_trees(rows, seconds)
    else:
        count = len(CANDIDATES[kind].values[0])
        tokens = {kind(*row[:count]): row[count] for row in rows}
    measured = dict(zip(tokens, seconds(list(tokens)), strict=True))
    best = max(tokens, key=lambda drafts: tokens[drafts] / measured[drafts])
    told = f"expected {tokens[best]:.2f} tokens a step of {1000 * measured[best]:.1f} ms"
    return Choice(best, f"fitted: {describe_drafts(best)}; {told} with {METHODS[CANDIDATES[kind].counted].label}")


def static_trees(accept: Rows, seconds: Seconds) -> dict[DraftConfig, float]:
    """Return the static trees that are worth a measurement, each with its tokens a step: PROBES, and the best by a plane
    through their costs."""
    cost = plane(dict(zip(PROBES, seconds([StaticTree(paths) for paths in PROBES]), strict=True)))

    def proposal(share: float) -> tuple[TreePath, ...]:
        return fit_static(accept, lambda nodes, depth, inner: cost(round(nodes * share), depth, inner), MOST_NODES)

    proposed = [*(proposal(share) for share in SHARES), *(paths for paths in PROBES if covered(accept, paths))]
    return {StaticTree(paths): 1 + sum(chances(accept, paths)) for paths in proposed}


def grow_static(accept: Sequence[Sequence[float]], depth: int, nodes: int) -> Iterable[tuple[TreePath, float]]:
    """Yield the likeliest paths of at most `depth` choices, at most `nodes` of them, with the chance that verification reaches
    each.

    A path follows its parent and its elder sibling."""
    waiting: list[tuple[float, TreePath, float]] = []

    def offer(path: TreePath, parent: float) -> None:
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


def fit_static(accept: Sequence[Sequence[float]], cost: Cost, nodes: int) -> tuple[TreePath, ...]:
    """Return the tree of at most `nodes` nodes, without the root, with the most expected tokens a second. accept [depth][draw]:
    see the module's docstring. Raises ValueError when no draft is ever accepted."""
    best: tuple[TreePath, ...] = ()
    most = 0.0
    for depth in range(1, len(accept) + 1):
        paths: list[TreePath] = []
        tokens = 1.0
        for path, chance in grow_static(accept, depth, nodes):
            paths.append(path)
            tokens += chance
            rate = tokens / cost(*size_of(paths))
            if rate > most:
                best, most = tuple(paths), rate
    if not best:
        raise ValueError("accept has no chance above 0: no draft was ever accepted")
    return tuple(sorted(best, key=lambda p: (len(p), p)))


def size_of(paths: Sequence[TreePath]) -> tuple[int, int, int]:
    """Return the nodes of a tree with the root, its depth, and the nodes that are drafted from."""
    return 1 + len(paths), max(map(len, paths)), len({path[:-1] for path in paths})


def acceptance_by_rank(steps: Iterable[Step]) -> list[list[float]]:
    """Return the chance [depth][draw] that a draw is the accepted one, counted over steps with static trees. A visited node
    counts for those of its draws that the tree has. Depths that were never visited are left out."""
    tried, accepted = Counter[tuple[int, int]](), Counter[tuple[int, int]]()  # by depth and draw
    for step in steps:
        for depth, node in enumerate(step.path):
            children = [child for child, parent in enumerate(step.parents) if child and parent == node]
            for draw, child in enumerate(children):
                tried[depth, draw] += 1
                accepted[depth, draw] += child in step.path
    found: list[list[float]] = []
    for depth, draw in sorted(tried):
        if draw == 0:
            found.append([])
        found[depth].append(accepted[depth, draw] / tried[depth, draw])
    return found


class StepCosts:
    """Seconds of a step with draft trees, measured at the first request. `times(policy)` returns those of some steps of a short
    run."""

    def __init__(self, times: Callable[[DraftConfig], list[float]], rounds: int) -> None:
        self.times, self.rounds = times, rounds
        self.steady = True
        self._known: dict[DraftConfig, float] = {}

    def __call__(self, policies: list[DraftConfig]) -> list[float]:
        """Return the lower quartile over all steps of each policy: disturbances only ever make a step longer."""
        found: dict[DraftConfig, list[float]] = {policy: [] for policy in policies if policy not in self._known}
        for _ in range(self.rounds):
            for policy, times in found.items():  # in turn, so that a disturbance affects all of them
                times += self.times(policy)
        for policy, times in found.items():
            ordered = sorted(times)
            self._known[policy] = ordered[len(ordered) // 4]
            if ordered[len(ordered) // 2] > UNSTEADY * self._known[policy]:
                self.steady = False
        return [self._known[policy] for policy in policies]


def chances(accept: Sequence[Sequence[float]], paths: tuple[TreePath, ...]) -> list[float]:
    """Return the chance that verification reaches each path."""
    return [prod(accept[level][draw] for level, draw in enumerate(path)) for path in paths]


def covered(accept: Sequence[Sequence[float]], paths: tuple[TreePath, ...]) -> bool:
    """Return whether the calibration has a chance for every node of a tree."""
    return all(len(path) <= len(accept) and all(draw < len(accept[d]) for d, draw in enumerate(path)) for path in paths)


def plane(measured: dict[tuple[TreePath, ...], float]) -> Cost:
    """Fit seconds of a step as a sum of a constant and non-negative shares of nodes, depth and nodes drafted from, by least
    squares."""
    columns = [0, 1, 2, 3]
    table = torch.tensor([(1, *size_of(paths)) for paths in measured], dtype=torch.float64)
    wanted = torch.tensor(list(measured.values()), dtype=torch.float64)
    while True:  # a negative share is noise, since no node makes a step shorter: drop it
        share = torch.linalg.lstsq(table[:, columns], wanted[:, None]).solution[:, 0]
        if bool((share >= 0).all()) or len(columns) == 1:
            break
        columns.pop(int(share.argmin()))
    shares = dict(zip(columns, share.tolist(), strict=True))

    def cost(nodes: int, depth: int, inner: int) -> float:
        return max(1e-6, sum(shares.get(i, 0.0) * x for i, x in enumerate((1, nodes, depth, inner))))

    return cost


def recall(file: Path, kind: type[DraftConfig]) -> Choice | None:
    """Return a choice of this kind that `remember` wrote, or None without a usable one."""
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        return Choice(drafts_of(kind, Settings(**told["settings"])), str(told["reason"]))
    except (OSError, KeyError, TypeError, ValueError):
        return None


def remember(file: Path, choice: Choice) -> None:
    """Write a choice to disk. If the disk cannot be written, the next start measures again."""
    with suppress(OSError):
        put(file, json.dumps({"reason": choice.reason, "settings": settings_of(choice.policy)}) + "\n")


class TreeFitting:
    """Chooses the draft trees and windows of one model on one device."""

    def __init__(self, tuning: Tuning, calibration: Calibration, costs: StepCosts) -> None:
        self.tuning, self.calibration, self.costs = tuning, calibration, costs
        self._fitted: dict[tuple[type[DraftConfig], Rows], Choice] = {}

    def fitted(self, kind: type[DraftConfig], most_changed: float) -> Choice | None:
        """Return the drafts of a kind, chosen at the first request, which takes seconds; None without a calibration.
        most_changed: the largest share of changed tokens that a wavefront may have."""
        rows = self.calibration.rows(kind, most_changed)
        if rows and (kind, rows) not in self._fitted:
            file = self.tuning.file(CANDIDATES[kind].name, (rows, self.tuning.products))
            with locked(file):
                choice = recall(file, kind)
                if choice is None:
                    choice = choose(kind, rows, self.costs)
                    if self.costs.steady:
                        remember(file, choice)
            self._fitted[kind, rows] = choice
        return self._fitted.get((kind, rows))
