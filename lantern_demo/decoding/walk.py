"""The walk from the root along accepted nodes on an accelerator: all nodes are judged at once, with one read at the end.

`host.walk_levels` is its twin for a CPU. With the same uniforms (one per node and draw number, one per node for the bonus
token) both give the same tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .acceptance import Rule, decide, decide_greedy
from .drafting import Draft
from .sampling import Sampling, draw, probabilities

NO_LAW = "the target's logits are not finite numbers; its weights or its number format may be at fault"


class Judged(NamedTuple):
    """A draft that was tried: accepted when `p + near` is above `height`, by the exact rule when `p` alone is."""

    node: int
    p: float  # the target's probability of it, without what siblings that were tried before it took along
    near: float  # of its proximity set without itself; 0 where the exact rule accepts, and it was not looked at
    height: float  # the uniform times the drafter's probability; greedy: the highest probability


class Walk(NamedTuple):
    """The outcome of one verification."""

    path: list[int]  # accepted nodes, root first
    tokens: list[int]  # tokens of the accepted nodes behind the root, then the bonus token
    relaxed: list[bool]  # per accepted node behind the root: only the relaxation accepted it
    tree_tokens: list[int]  # [n]
    tree_parents: list[int]  # [n]
    nodes: Tensor  # [m] int64, the path on the device
    next_tokens: Tensor  # [m] int64, `tokens` on the device
    root_law: Tensor  # [V] float32, the target's law at the root
    judged: Sequence[Judged] = ()  # in the order they were tried; only `host.walk_levels` keeps them


def walk_nodes(rule: Rule, draft: Draft, logits: Tensor, sampling: Sampling, neighbours: Tensor | None, uniforms: Tensor) -> Walk:
    """Judge all nodes at once, follow the accepted ones on the device, read back once; arguments as
    `walk_levels`. Raises FloatingPointError when the law of the bonus token is none."""
    p = probabilities(logits, sampling)
    if draft.tree.size == 1:
        final, law = draft.tree.parents, p
        relaxed = torch.zeros_like(final, dtype=torch.bool)
    elif sampling.greedy:
        final, relaxed = greedy_end(rule, draft, p, neighbours)
        law = p.index_select(0, final)
    else:
        final, relaxed, law = sampled_end(rule, draft, p, neighbours, uniforms)
    bonus = law.argmax(-1) if sampling.greedy else draw(law, uniforms[final, -1])
    bonus = torch.where(law.amax(-1) > 0, bonus, -1)
    return _read_back(draft, final, relaxed, bonus, p[0])


def sampled_end(
    rule: Rule, draft: Draft, p: Tensor, neighbours: Tensor | None, uniforms: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Where the walk ends [1], which nodes [n] only the relaxation accepts, and the bonus token's law [1,
    V]."""
    tree = draft.tree
    inner = tree.inner
    offered = tree.children[inner] >= 0
    verdict = decide(rule, p[inner], draft.drawn, draft.all_q(), neighbours, uniforms[inner], offered, tree.depths[inner])
    final = _follow(draft, verdict.rank)
    row = tree.inner_rows[final]
    law = torch.where(row.unsqueeze(1) < 0, p[final], verdict.residual[row.clamp(min=0)])
    # A node has at most one accepted child, so the flag of the parent's verdict is the flag of that child.
    relaxed = torch.zeros(tree.size, dtype=torch.bool, device=p.device)
    relaxed[inner] = verdict.relaxed
    return final, relaxed[tree.parents], law


def greedy_end(rule: Rule, draft: Draft, p: Tensor, neighbours: Tensor | None) -> tuple[Tensor, Tensor]:
    """Where the greedy walk ends [1] and which nodes [n] only the relaxation accepts; p [n, V]."""
    tree = draft.tree
    accepted, loosely = decide_greedy(rule, p[tree.inner], draft.drawn, neighbours)
    # from parent and draw number to node; the extra last entry swallows what is not a child
    children = tree.children[tree.inner]
    at = torch.where(children < 0, tree.size, children)
    relaxed = torch.zeros(tree.size + 1, dtype=torch.bool, device=p.device)
    relaxed[at] = loosely
    if not rule.released:
        first = torch.where(accepted.any(-1), accepted.int().argmax(-1), -1)
        return _follow(draft, first), relaxed[:-1]
    by_itself = torch.zeros_like(relaxed)
    by_itself[at] = accepted
    by_itself[0] = True
    alive = ~(tree.mask & ~by_itself[:-1]).any(1)
    # the deepest node alive; of equals the one whose path the released code lists first
    score = torch.where(alive, tree.depths * tree.size - _listing_order(draft), -tree.size)
    return score.argmax().view(1), relaxed[:-1]


def _listing_order(draft: Draft) -> Tensor:
    """[n] int64, the place of the first path through a node in the released code's list of paths: sorted for
    static trees, where it goes like the node numbers, and by leaf for dynamic ones."""
    tree = draft.tree
    node = torch.arange(tree.size, device=tree.parents.device)
    if tree.levels:
        return node
    leaf_below = tree.mask & (tree.children < 0).all(1).unsqueeze(1)
    return torch.where(leaf_below, node.unsqueeze(1), tree.size).amin(0).clamp(max=tree.size - 1)


def _follow(draft: Draft, rank: Tensor) -> Tensor:
    """The node [1] where the walk ends, from the accepted draw numbers rank [I] of the inner nodes."""
    tree = draft.tree
    following = torch.arange(tree.size, device=rank.device)  # a node without an accepted child leads to itself
    child = tree.children[tree.inner].gather(1, rank.clamp(min=0).unsqueeze(1))[:, 0]
    following[tree.inner] = torch.where(rank < 0, tree.inner, child)
    node = following[:1]
    for _ in range(tree.depth - 1):
        node = following[node]
    return node


def _read_back(draft: Draft, final: Tensor, relaxed: Tensor, bonus: Tensor, root_law: Tensor) -> Walk:
    """Everything the host wants to know, in one read."""
    tree = draft.tree
    size, longest = tree.size, tree.depth + 1
    node = torch.arange(size, device=final.device)
    # the ancestors of the final node, laid out by depth; what is off the path falls behind the end
    place = torch.where(tree.mask[final[0]], tree.depths, longest)
    path = node.new_full((longest + 1,), -1).scatter_(0, place, node)[:longest]
    found = torch.cat([path, relaxed[path.clamp(min=0)].long(), bonus, draft.tokens, tree.parents]).tolist()
    if found[2 * longest] < 0:
        raise FloatingPointError(NO_LAW)
    nodes = [i for i in found[:longest] if i >= 0]
    flags = found[longest : longest + len(nodes)]
    tree_tokens = found[2 * longest + 1 : 2 * longest + 1 + size]
    on_path = path[: len(nodes)]
    return Walk(
        path=nodes, tokens=[*(tree_tokens[i] for i in nodes[1:]), found[2 * longest]],
        relaxed=[bool(flag) for flag in flags[1:]], tree_tokens=tree_tokens, tree_parents=found[-size:],
        nodes=on_path, next_tokens=torch.cat([draft.tokens[on_path[1:]], bonus]), root_law=root_law,
    )  # fmt: skip
