"""The walk from the root along accepted nodes: all nodes are judged at once, without a host read, and reported in one row of
numbers. Both engines use it, so that with the same seed they give the same tokens up to rounding. What judges by the papers'
rejection sampling is in `rejection`, and what judges by shared noise in `shared`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import ne
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .rules import Near, Rule, Verdict
from .sampling import NO_DRAFT_PROBS, NO_PROBS, NOTHING, Sampling
from .trees import Draft, Tree


class Found(NamedTuple):
    """What came of judging a draft of n nodes, on the device."""

    own: Tensor  # [n] int64, the target's own token behind each node; below 0 or V where p is not made of finite numbers
    following: Tensor  # [n] int64, the child that was accepted at each node, or the node itself
    # [n] 1 or true where only the relaxation accepted that child; None: where the child is not `own`
    relaxed: Tensor | None = None
    path: Tensor | None = None  # [D + 1] as `walk` gives it, where it is known already; all of `own` is then what ends it
    # what children of the inner nodes were judged by; None: not by that alone, or there are none
    tried: Verdict | Near | None = None


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
    counted: float  # by the rule, p included: see `rules.Rule.counts`
    limit: float  # the uniform times the drafter's probability of what was counted; greedy: the highest probability


AcceptKind = Literal["exact", "relaxed", "target"]  # relaxed: only the relaxation accepts it; target: the bonus token


@dataclass(frozen=True)
class Step:
    """What one step committed, on the host. Step 0 is the prefill, whose token the target draws alone; it has no tree. At the
    image's end the loop cuts `tokens` and `kinds`, while `accepted_length` and `path` are not cut."""

    index: int  # this, `committed` and `seconds` are the loop's to know
    tokens: list[int]  # newly committed tokens: those of the accepted nodes behind the root, then the bonus token
    accepted_length: int  # accepted drafts and the bonus token
    committed: int = 0  # tokens so far
    seconds: float = 0.0  # decode seconds so far
    kinds: list[AcceptKind] = field(default_factory=list)  # one per token, the last one "target"
    tree_tokens: list[int] = field(default_factory=list)  # the draft tree, root first
    parents: list[int] = field(default_factory=list)  # parent of each tree node, the root's is 0
    path: list[int] = field(default_factory=list)  # accepted nodes, root first
    judged: list[Judged] = field(default_factory=list)  # the drafts that were tried, in order; only the plain engine keeps them
    compared: list[Compared] = field(default_factory=list)  # with shared noise, instead of `judged`
    # of the tokens in the picture, in raster order from 0; engines: empty for the next ones
    places: list[int] = field(default_factory=list)


class Judge(ABC):
    """How a run draws, and what it accepts: by shared noise or by rejection sampling."""

    state: tuple[Tensor, ...] = ()  # what it keeps from step to step, in place
    draws = 0  # uniforms that it takes in a step
    flagged = False  # whether what it finds says `relaxed`

    def __init__(self, rule: Rule, sampling: Sampling, neighbours: Tensor | None, vocabulary: int) -> None:
        self.rule, self.sampling, self.neighbours, self.vocabulary = rule, sampling, neighbours, vocabulary

    def begin(self, seed: int) -> None:  # noqa: B027  # only noise depends on it
        """A run starts at its first token."""

    @abstractmethod
    def look(self, logits: Tensor) -> Tensor:
        """What it draws from and judges by, [n, V], of logits [R, n, V], which nobody reads again."""

    @abstractmethod
    def each(self, looked: Tensor, positions: Tensor | None, uniforms: Tensor) -> Tensor:
        """Tokens [n], each drawn for itself, of n positions, None: the one behind the root; uniforms are the step's."""

    @abstractmethod
    def choose(self, draft: Draft, looked: Tensor, uniforms: Tensor) -> Found:
        """Judge a draft that has more than a root."""

    def judge(self, draft: Draft, looked: Tensor, uniforms: Tensor) -> Found:
        """Judge a draft; uniforms are the step's."""
        if draft.tree.size > 1:
            return self.choose(draft, looked, uniforms)
        return Found(self.each(looked, None, uniforms), draft.tree.parents)

    def evidence(self, step: Step, draft: Draft, found: Found) -> Step:
        """The step with what each draft was judged by; reads it back to the host."""
        return step

    def move(self, depth: Tensor | int) -> None:  # noqa: B027  # only noise stands at a place
        """A step has committed the nodes down to a depth (int, or [1] int64), and a token behind them."""

    def read(self, row: list[int], size: int) -> Step:
        """A `report` of a tree of `size` nodes. Raises FloatingPointError where probabilities were not finite."""
        own, following, tokens, parents, relaxed = (row[i * size : (i + 1) * size] for i in range(5))
        if size > 1 and any(row[5 * size :]):
            raise FloatingPointError(NO_DRAFT_PROBS)
        path = [0]
        while (node := following[path[-1]]) != path[-1]:
            path.append(node)
        drawn, accepted = [own[node] for node in path], [tokens[node] for node in path[1:]]
        if not all(0 <= token < self.vocabulary for token in drawn):
            raise FloatingPointError(NO_PROBS)
        loose = [relaxed[node] for node in path[:-1]] if self.flagged else map(ne, accepted, drawn)
        kinds: list[AcceptKind] = ["relaxed" if flag else "exact" for flag in loose]
        return Step(0, [*accepted, drawn[-1]], len(path), 0, 0.0, [*kinds, "target"], tokens, parents, path)


def report(draft: Draft, found: Found) -> Tensor:
    """All that the host wants to know of a step, [m] int64, to be read at once by `Judge.read`."""
    parts = [found.own, found.following, draft.tokens, draft.tree.parents]
    if found.relaxed is not None:
        parts.append(found.relaxed)
    if draft.rest is not None:
        firsts = draft.rest[:, 0]  # where probabilities are finite there is a first token
        parts.append(torch.lt(firsts, NOTHING, out=draft.drawn.new_empty(firsts.shape)))
    return torch.cat(parts)


def goes(draft: Draft, found: Found) -> tuple[Tensor, Tensor, Tensor]:
    """Where a judgement leads, on the device: the accepted path as `walk` gives it, its depth [1], and the target's token behind
    it [1]."""
    tree = draft.tree
    if tree.size == 1:
        return tree.parents, tree.depths, found.own
    path = walk(tree, found.following) if found.path is None else found.path
    last = path[-1:]
    return path, tree.depths.index_select(0, last), found.own.index_select(0, last) if found.path is None else found.own[:1]


def tried(tree: Tree, path: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """The drafts that were tried along a path, in order: their parent, its row among the inner nodes, the draw number, the node.
    Reads the tree back to the host."""
    rows, children = tree.inner_rows.tolist(), tree.children.tolist()
    for node, chosen in zip(path, [*path[1:], -1], strict=True):
        for i, child in enumerate(children[node] if rows[node] >= 0 else ()):
            if child >= 0:
                yield node, rows[node], i, child
            if child == chosen >= 0:
                break


def onward(tree: Tree, rank: Tensor) -> Tensor:
    """Where a walk goes from each node, [n] int64: to the child of the draw number rank [I], C for none, or to the node
    itself."""
    at = rank.unsqueeze(1)
    return tree.onward.gather(1, at if tree.whole else at.index_select(0, tree.rows))[:, 0]


def walk(tree: Tree, following: Tensor) -> Tensor:
    """The path [D + 1] from the root along following [n]; behind the end the last node again."""
    path = [tree.parents[:1], following[:1]]
    for _ in range(tree.depth - 1):
        path.append(following.index_select(0, path[-1]))
    return torch.cat(path)


def likeliest(probs: Tensor) -> Tensor:
    """The likeliest tokens [m] of distributions or scores [m, V]; no token, -2, of what is none: not finite numbers, or no token
    possible."""
    top, best = probs.max(-1)
    return torch.where(top.abs() < torch.inf, best, -2)
