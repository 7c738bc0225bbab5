"""The walk from the root along accepted nodes: all nodes are judged at once, without a host read, and reported in one row of numbers.
Both engines use it, so that with the same seed they give the same tokens up to rounding. `Rejection` judges by the papers' rejection
sampling; what judges by shared noise is in `shared`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .acceptance import NOTHING, Rule, Trials, decide, decide_greedy
from .sampling import NO_DRAFT_LAW, NO_LAW, Sampling, draw, probabilities
from .trees import Draft, Tree


class Verified(NamedTuple):
    """The accepted path of a tree of depth D, as tensors of fixed shape."""

    path: Tensor  # [D + 1] int64 accepted nodes, root first; behind the end the last one again
    depth: Tensor  # [1] int64, of the last one
    relaxed: Tensor  # [D] 1 or true where only the relaxation accepted path[1:]; behind the end anything
    bonus: Tensor  # [1] int64, the target's own token; below 0 or V where there is no law to draw it from
    trials: Trials | None = None  # of the inner nodes; None for the root alone, and where more than they decides on the path


class Walk(NamedTuple):
    """What an engine that never waits goes on with behind a step."""

    path: Tensor  # [D + 1] int64 accepted nodes, root first; behind the end the last one again
    depth: Tensor  # [1] int64, of the last one
    bonus: Tensor  # [1] int64, the target's own token; below 0 or V where there is none


class Compared(NamedTuple):
    """A draft that was held against the target's own draw."""

    node: int
    drawn: int  # the token that the target itself drew there
    near: int  # 0: it is the draft; j: it is the j-th of the draft's neighbours, which count; -1: neither
    tokens: int  # how many tokens stand for the draft, itself counted


class Judged(NamedTuple):
    """A draft that was tried: accepted when what the rule counted is above the limit; greedy when it reaches it."""

    node: int
    p: float  # the target's probability of it, without what siblings that were tried before it took along
    counted: float  # by the rule, p included: see `acceptance.counted`
    limit: float  # the uniform times the drafter's probability of what was counted; greedy: the highest probability


class Outcome(NamedTuple):
    """The outcome of one verification, on the host."""

    path: list[int]  # accepted nodes, root first
    tokens: list[int]  # tokens of the accepted nodes behind the root, then the bonus token
    relaxed: list[bool]  # per accepted node behind the root: only the relaxation accepted it
    tree_tokens: list[int]  # [n]
    tree_parents: list[int]  # [n]
    judged: Sequence[Judged] = ()  # in the order they were tried; only the plain engine keeps them
    places: Sequence[int] = ()  # in the picture, of the tokens; empty: the next ones
    compared: Sequence[Compared] = ()  # with shared noise, instead of `judged`


class Judge(Protocol):
    """How a run draws, and what it accepts: by shared noise or by rejection sampling."""

    state: tuple[Tensor, ...]  # what it keeps from step to step, in place
    judged: tuple[int, int]  # for how many nodes, and children of each, a step takes uniforms

    def begin(self, seed: int) -> None:
        """A run starts; its first token is there."""

    def first(self, logits: Tensor, uniforms: Tensor, seed: int) -> Tensor:
        """The picture's first token [1], from guided logits [1, V]; below 0 or V where there is no law to draw from."""

    def look(self, logits: Tensor) -> Tensor:
        """What it draws from and judges by, [n, V], of guided logits [n, V], which nobody reads again."""

    def law(self, looked: Tensor) -> Tensor:
        """The target's laws [n, V] of what `look` gave."""

    def each(self, looked: Tensor, places: Tensor, uniforms: Tensor) -> Tensor:
        """Tokens [n] of the places [n], each drawn for itself."""

    def judge(self, draft: Draft, looked: Tensor, uniforms: Tensor) -> Any:
        """Judge a draft; uniforms are the step's."""

    def walk(self, draft: Draft, found: Any) -> Walk:
        """Where a judgement leads, on the device."""

    def seen(self, found: Any) -> Tensor:
        """What draft sources may learn from a judgement: see `drafting.Source.observe`."""

    def report(self, draft: Draft, found: Any) -> Tensor:
        """All that the host wants to know of a step, [m] int64, to be read at once by `read`."""

    def read(self, row: list[int], size: int, depth: int, laws: int) -> Outcome:
        """A report of a tree of `size` nodes and a depth, drawn from so many laws; what is behind it does not count. Raises
        FloatingPointError where a law was none."""

    def evidence(self, outcome: Outcome, draft: Draft, found: Any) -> Outcome:
        """The outcome with what each draft was judged by; reads it back to the host."""

    def move(self, depth: Tensor) -> None:
        """A step has committed the nodes down to a depth [1], and a token behind them."""


class Rejection:
    """Judges by the papers' rejection sampling: see `acceptance`."""

    state: tuple[Tensor, ...] = ()

    def __init__(
        self, rule: Rule, sampling: Sampling, neighbours: Tensor | None, vocabulary: int, nodes: int, width: int
    ) -> None:
        """nodes and width are the most that a draft tree has, and the most children of a node."""
        self.rule, self.sampling, self.neighbours, self.vocabulary, self.judged = (
            rule,
            sampling,
            neighbours,
            vocabulary,
            (nodes, width),
        )

    def begin(self, seed: int) -> None:
        """All its random numbers are the uniforms'."""

    def first(self, logits: Tensor, uniforms: Tensor, seed: int) -> Tensor:
        p = self.look(logits)
        return likeliest(p) if self.sampling.greedy else draw(p, uniforms[:1])

    def look(self, logits: Tensor) -> Tensor:
        return probabilities(logits, self.sampling, spent=True)

    def law(self, looked: Tensor) -> Tensor:
        return looked

    def each(self, looked: Tensor, places: Tensor, uniforms: Tensor) -> Tensor:
        return draw(looked, uniforms[: len(looked)])

    def judge(self, draft: Draft, looked: Tensor, uniforms: Tensor) -> tuple[Verified, Tensor]:
        size = draft.tree.size
        columns = self.judged[1] + 1 if size > 1 else 1
        uniforms = uniforms[: size * columns].view(size, columns)
        return verify(self.rule, draft, looked, self.sampling.greedy, self.neighbours, uniforms), looked

    def walk(self, draft: Draft, found: tuple[Verified, Tensor]) -> Walk:
        return Walk(found[0].path, found[0].depth, found[0].bonus)

    def seen(self, found: tuple[Verified, Tensor]) -> Tensor:
        return found[1]

    def report(self, draft: Draft, found: tuple[Verified, Tensor]) -> Tensor:
        return report(draft, found[0])

    def read(self, row: list[int], size: int, depth: int, laws: int) -> Outcome:
        return read(row, size, depth, laws, self.vocabulary)

    def evidence(self, outcome: Outcome, draft: Draft, found: tuple[Verified, Tensor]) -> Outcome:
        trials = found[0].trials
        return outcome if trials is None else outcome._replace(judged=judged_on(outcome, draft, trials))

    def move(self, depth: Tensor) -> None:
        """Nothing of it hangs on the place."""


def verify(rule: Rule, draft: Draft, p: Tensor, greedy: bool, neighbours: Tensor | None, uniforms: Tensor) -> Verified:
    """Judge a draft by the target's laws p [n, V]; uniforms [n, width + 1] in [0, 1), the last column for the bonus token."""
    tree = draft.tree
    if tree.size == 1:
        bonus = likeliest(p) if greedy else draw(p, uniforms[:, -1])
        return Verified(tree.parents, tree.depths, tree.parents[:0], bonus)
    inner, whole = tree.inner, tree.whole
    laws = p.index_select(0, inner)  # a copy, to be worked on
    if greedy:
        verdict = decide_greedy(rule, laws, draft.drawn, neighbours)
        rank = _longest(draft, verdict.trials.accepted) if rule.released else verdict.rank
    else:
        heights = uniforms if whole else uniforms.index_select(0, inner)
        verdict = decide(rule, laws, draft.drawn, draft.q, neighbours, heights, tree.offered, tree.inner_depths, draft.rest)
        rank = verdict.rank
    nodes = walk(tree, onward(tree, rank))
    last, at, relaxed = nodes[-1:], rank.unsqueeze(1), verdict.trials.relaxed
    if relaxed is None:
        flags = tree.parents[:1].expand(tree.depth)  # 0
    else:  # a node has at most one accepted child, so that a flag of the parent's is the flag of that child
        of_parents = relaxed.gather(1, at.clamp(max=tree.width - 1))[:, 0]
        flags = of_parents.index_select(0, nodes[:-1] if whole else tree.rows.index_select(0, nodes[:-1]))
    if greedy:
        bonus = likeliest(p.index_select(0, last))
    else:
        left = verdict.residual if whole else p.index_copy(0, inner, verdict.residual)
        bonus = draw(left.index_select(0, last), uniforms[:, -1].index_select(0, last))
    by_trials = not (greedy and rule.released)
    return Verified(nodes, tree.depths.index_select(0, last), flags, bonus, verdict.trials if by_trials else None)


def onward(tree: Tree, rank: Tensor) -> Tensor:
    """Where a walk goes from each node, [n] int64: to the child of the draw number rank [I], C for none, or to the node itself."""
    at = rank.unsqueeze(1)
    return tree.onward.gather(1, at if tree.whole else at.index_select(0, tree.rows))[:, 0]


def walk(tree: Tree, following: Tensor) -> Tensor:
    """The path [D + 1] from the root along following [n]; behind the end the last node again."""
    path = [tree.parents[:1], following[:1]]
    for _ in range(tree.depth - 1):
        path.append(following.index_select(0, path[-1]))
    return torch.cat(path)


def likeliest(law: Tensor) -> Tensor:
    """The likeliest tokens [m] of laws or scores [m, V]; no token, -2, of what is none: not finite numbers, or no token possible."""
    top, best = law.max(-1)
    return torch.where(top.abs() < torch.inf, best, -2)


def _longest(draft: Draft, accepted: Tensor) -> Tensor:
    """Draw numbers [I], C for none, that lead to the longest path of accepted [I, C] children, as the released code takes it; of
    equals the one that it lists first: sorted for static trees, where it goes like the node numbers, and by leaf for dynamic ones."""
    tree, node = draft.tree, draft.tree.nodes
    children = tree.children.index_select(0, tree.inner)
    by_itself = torch.zeros(tree.size + 1, dtype=torch.bool, device=accepted.device)
    by_itself[torch.where(children < 0, tree.size, children)] = accepted  # what is no child goes to the end, which is cut off
    by_itself[0] = True
    alive = ~(tree.mask & ~by_itself[:-1]).any(1)
    listed = node
    if not tree.levels:
        leaf_below = tree.mask & (tree.children < 0).all(1).unsqueeze(1)
        listed = torch.where(leaf_below, node.unsqueeze(1), tree.size).amin(0).clamp(max=tree.size - 1)
    end = torch.where(alive, tree.depths * tree.size - listed, -tree.size).argmax().view(1)
    on_the_way = tree.mask.index_select(0, end)[0][children.clamp(min=0)] & (children >= 0)
    return torch.where(on_the_way.any(1), on_the_way.int().argmax(1), tree.width)


def report(draft: Draft, found: Verified) -> Tensor:
    """All that the host wants to know of a step, [m] int64, to be read at once by `read`."""
    parts = [found.depth, found.path, found.relaxed, found.bonus, draft.tokens, draft.tree.parents]
    if draft.rest is not None:
        firsts = draft.rest[:, 0]  # every law has a first token, unless it is no law
        parts.append(torch.ge(firsts, NOTHING, out=draft.drawn.new_empty(firsts.shape)))
    return torch.cat(parts)


def read(row: list[int], size: int, depth: int, laws: int, vocabulary: int) -> Outcome:
    """A `report` of a tree of `size` nodes and a depth, drawn from so many laws; what is behind it does not count. Raises
    FloatingPointError where a law was none: the bonus token is then no token, or a first draw is missing."""
    accepted, path, row = row[0], row[1 : depth + 2], row[depth + 2 :]
    relaxed, bonus, row = row[:depth], row[depth], row[depth + 1 :]
    tokens, parents, firsts = row[:size], row[size : 2 * size], row[2 * size : 2 * size + laws]
    if not all(firsts):
        raise FloatingPointError(NO_DRAFT_LAW)
    if not 0 <= bonus < vocabulary:
        raise FloatingPointError(NO_LAW)
    path = path[: accepted + 1]
    following = [*(tokens[node] for node in path[1:]), bonus]
    return Outcome(path, following, [bool(flag) for flag in relaxed[:accepted]], tokens, parents)


def judged_on(outcome: Outcome, draft: Draft, trials: Trials) -> list[Judged]:
    """The drafts that were tried along the path of an outcome, in order; reads the trials back to the host. A node of a height of 0 was
    not tried: the drafter's law had ended before it."""
    rows: list[int] = draft.tree.inner_rows.tolist()
    children: list[list[int]] = draft.tree.children.tolist()
    numbers = [values.tolist() for values in (trials.mass, trials.counted, trials.height, trials.total)]
    found = []
    for node, chosen in zip(outcome.path, [*outcome.path[1:], -1], strict=True):
        if rows[node] < 0:
            break
        for child, p, stands, height, total in zip(children[node], *(of[rows[node]] for of in numbers), strict=False):
            if child >= 0 and height > 0:
                found.append(Judged(child, p / total, stands / total, height / total))
            if child == chosen >= 0:
                break
    return found
