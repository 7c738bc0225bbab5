"""The result of a step. `pack_step` packs it on the device into one row of integers, all that the
host reads, and `unpack_step` makes a `Step` of the row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from .sampling import NO_DRAFT_PROBS, NO_PROBS
from .trees import Draft, Tree, VerifyOutput

# relaxed: only the relaxation accepts it; target: the bonus token
AcceptKind = Literal["exact", "relaxed", "target"]
Kept = tuple[Tree, VerifyOutput] | None  # of a step, on the device; None: it has no drafts


class Judged(NamedTuple):
    """A draft that was tried: accepted when its score is above the threshold; greedy when it
    reaches it."""

    node: int
    p: float  # the target's probability of it, after the rejections of the siblings tried before it
    score: float  # see `rules.Rule.score`
    # the uniform times the drafter's probability of the draft; greedy: the highest probability
    threshold: float


@dataclass(frozen=True)
class Step:
    """The outcome of one step, on the host. Step 0 is the prefill, whose token the target draws
    alone, without a tree. At the image's end `tokens` and `kinds` are cut, but neither
    `accepted_length` nor `path`."""

    index: int
    # newly committed tokens: those of the accepted nodes after the root, then the bonus token
    tokens: list[int]
    accepted_length: int  # accepted drafts and the bonus token
    committed: int = 0  # tokens so far, this step's included
    seconds: float = 0.0  # decode seconds so far
    kinds: list[AcceptKind] = field(default_factory=list)  # one per token, the last one "target"
    tree_tokens: list[int] = field(default_factory=list)  # the draft tree, root first
    parents: list[int] = field(default_factory=list)  # parent of each tree node, the root's is 0
    path: list[int] = field(default_factory=list)  # accepted nodes, root first
    # the drafts that a rule tried, in order; set by `with_evidence`
    judged: list[Judged] = field(default_factory=list)
    # of a step that was not captured, for `with_evidence`, which drops it: its tensors use memory
    kept: Kept = field(default=None, repr=False, compare=False)


def pack_step(draft: Draft, out: VerifyOutput) -> Tensor:
    """Return all that the host reads of a step, one row [m] int64 for `unpack_step`; m is at most
    `row_length`."""
    tree = draft.tree
    relaxed = tree.parents[:1].expand(tree.depth) if out.relaxed is None else out.relaxed
    parts = [out.depth, out.path, out.tokens, relaxed, draft.tokens, tree.parents]
    return torch.cat(parts if draft.fault is None else [*parts, draft.fault])


def row_length(size: int, deepest: int) -> int:
    """Return the most integers that `pack_step` needs for a tree of `size` nodes, `deepest`
    deep."""
    return 4 + 3 * deepest + 2 * size


def unpack_step(
    row: list[int],
    size: int,
    deepest: int,
    vocabulary: int,
    total: int,
    index: int,
    before: int,
    seconds: float = 0.0,
    kept: Kept = None,
) -> Step:
    """Make step `index` of the row that `pack_step` made of a tree of `size` nodes, `deepest` deep.
    Of `total` tokens `before` were committed before it. Raises FloatingPointError for probabilities
    that are not finite."""
    depth, ends, at = row[0], [deepest + 1, deepest + 1, deepest, size, size], 1
    parts = []
    for end in ends:
        parts.append(row[at : at + end])
        at += end
    path, tokens, relaxed, tree_tokens, parents = parts
    path = path[: depth + 1]
    if size > 1 and any(row[at:]):
        raise FloatingPointError(NO_DRAFT_PROBS)
    if not 0 <= tokens[depth] < vocabulary:
        raise FloatingPointError(NO_PROBS)
    kinds: list[AcceptKind] = ["relaxed" if flag else "exact" for flag in relaxed[:depth]]
    kinds.append("target")
    drafts = [node for node, parent in enumerate(parents) if node == 0 or parent != node]
    if len(drafts) < size:  # leave out padding
        number = {node: new for new, node in enumerate(drafts)}
        tree_tokens = [tree_tokens[node] for node in drafts]
        parents = [number[parents[node]] for node in drafts]
        path = [number[node] for node in path]
    new = min(depth + 1, total - before)
    return Step(
        index,
        tokens[:new],
        depth + 1,
        before + new,
        seconds,
        kinds[:new],
        tree_tokens,
        parents,
        path,
        kept=kept,
    )
