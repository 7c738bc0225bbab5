"""Acceptance for steps of fixed shapes: all nodes at once, no host read on any device, few kernels.

`acceptance.decide` states the rule and `walk.walk_nodes` the walk; here is their twin for replayed steps. What it saves:
laws are left unnormalised and their totals kept beside them, no residual is worked out twice, and where siblings do not
depend on each other they are judged together. Children fixed by the prefix under the exact rule need no loop at all, since
what is left of p before the i-th is p without the first i - 1. Otherwise each child costs 5 kernels (sampled, exact), 7
(fixed by the prefix, relaxed) or 10 (sampled, relaxed), because what it is judged by is what its rejected siblings left.

With the same uniforms the tokens are those of `walk_nodes`, up to rounding. Only one rounding event is settled differently:
a draft that would leave nothing behind is accepted, as it always is in exact arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .acceptance import Rule, decide_greedy
from .drafting import Draft
from .sampling import draw
from .trees import Tree
from .walk import greedy_end, sampled_end


class Ways(NamedTuple):
    """What the walk needs of a tree; the same at every step where the tree is static."""

    offered: Tensor  # [I, C] bool, which draws at the inner nodes are nodes
    onward: Tensor  # [I, C + 1] int64, the node behind each draw number, and the node itself behind C: none accepted
    numbers: Tensor  # [C + 1] int64, 0 to C
    stay: Tensor  # [n] int64, every node behind itself


class Judgement(NamedTuple):
    """The accepted path, as tensors of fixed shape; D is the depth of the tree."""

    path: Tensor  # [D + 1] int64 accepted nodes, root first; behind the end the last one again
    taken: Tensor  # [1] int64, how many nodes the path has
    loose: Tensor  # [D] int64, 1 where only the relaxation accepted path[1:]
    bonus: Tensor  # [1] int64, the target's own token


class Trial(NamedTuple):
    """Children in draw order, each judged as if all before it were rejected. C children of I nodes."""

    height: Tensor  # [C, I] what a child's mass must exceed
    mass: Tensor  # [C, I] p of the child
    moved: Tensor | None  # [C, I] mass of its neighbours that counts
    empty: Tensor | None  # [C, I] bool, rejecting it would leave nothing
    left: Tensor  # [I, V] law of the bonus token when all are rejected, not normalised


def ways(tree: Tree) -> Ways:
    """The ways through a tree."""
    children = tree.children if _whole(tree) else tree.children.index_select(0, tree.inner)
    onward = torch.cat([children, tree.inner.unsqueeze(1)], 1)
    numbers = torch.arange(onward.shape[1], device=onward.device)
    stay = tree.inner if _whole(tree) else torch.arange(tree.size, device=onward.device)
    return Ways(children >= 0, onward, numbers, stay)


def judge(rule: Rule, draft: Draft, way: Ways, p: Tensor, greedy: bool, neighbours: Tensor | None, uniforms: Tensor) -> Judgement:
    """Judge a draft by the target's laws p [n, V]; uniforms [n, C + 1] in [0, 1), neighbours as in `decide`."""
    tree = draft.tree
    if tree.size == 1:
        path, count, loose, law = tree.parents, tree.parents + 1, tree.parents[:0], p
    elif rule.released:
        path, count, loose, law = _released(rule, draft, p, greedy, neighbours, uniforms)
    elif greedy:
        rows = p if _whole(tree) else p.index_select(0, tree.inner)
        accepted, relaxed = decide_greedy(rule, rows, draft.drawn, neighbours)
        path, count, loose = _walk(tree, way, accepted.t(), relaxed.t() if rule.relaxes else None)
        law = p.index_select(0, path[-1:])
    else:
        drawn = draft.drawn >= 0
        tried = drawn & way.offered
        trial = _try(rule, draft, drawn, tried, p, neighbours, uniforms)
        reached = trial.mass if trial.moved is None else trial.mass + trial.moved
        passed = trial.height < reached
        accepted = tried.t() & (passed if trial.empty is None else passed | trial.empty)
        relaxed_only = None if trial.moved is None else accepted & (trial.height >= trial.mass)
        path, count, loose = _walk(tree, way, accepted, relaxed_only)
        laws = trial.left if _whole(tree) else p.index_copy(0, tree.inner, trial.left)
        law = laws.index_select(0, path[-1:])
    bonus = law.argmax(-1) if greedy else draw(law, uniforms[:, -1].index_select(0, path[-1:]))
    return Judgement(path, count, loose, bonus)


def _whole(tree: Tree) -> bool:
    """Whether the inner nodes are simply all nodes, in order, as in dynamic trees."""
    return tree.inner.shape[0] == tree.size


def _walk(tree: Tree, way: Ways, accepted: Tensor, loosely: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Path, count and flags as in `Judgement`, from which children accepted [C, I] is true of: the first one counts."""
    count = accepted.shape[0]
    rank = torch.where(accepted, way.numbers[:count].unsqueeze(1), way.numbers[count:]).amin(0, keepdim=True)  # [1, I]
    behind = way.onward.gather(1, rank.t())[:, 0]
    # a node without children leads to itself
    following = behind if _whole(tree) else way.stay.index_copy(0, tree.inner, behind)
    nodes = [tree.parents[:1], following[:1]]
    for _ in range(tree.depth - 1):
        nodes.append(following.index_select(0, nodes[-1]))
    path = torch.cat(nodes)
    depth = tree.depths.index_select(0, path[-1:])
    if loosely is None:
        return path, depth + 1, torch.zeros_like(path[1:])
    # A node has at most one accepted child, so that a flag of the parent's is the flag of that child.
    flags = loosely.gather(0, rank.clamp(max=count - 1))[0].long()
    parents = path[:-1] if _whole(tree) else tree.inner_rows.index_select(0, path[:-1]).clamp_(min=0)
    return path, depth + 1, flags.index_select(0, parents)


def _try(rule: Rule, draft: Draft, drawn: Tensor, tried: Tensor, p: Tensor, neighbours: Tensor | None, uniforms: Tensor) -> Trial:
    """Judge the children of all inner nodes, see `Trial`; drawn [I, C] and tried [I, C] bool, whether there is a draw and whether
    it is a node."""
    tree, count = draft.tree, draft.drawn.shape[1]
    x = draft.drawn.clamp(min=0)
    u = (uniforms if _whole(tree) else uniforms.index_select(0, tree.inner))[:, :count].t()
    q = draft.all_q()
    if q is None and not rule.relaxes:
        return _fixed_exact(p, x, tried, u)
    left = p.index_select(0, tree.inner)  # a copy, to be worked on
    if q is None:
        mass, moved, totals = _in_turn(rule, left, x.t(), tried.t(), None, neighbours, None, None)
        return Trial(u * totals[:-1], mass, moved, totals[1:] <= 0, left)
    qx = q.gather(1, x) * drawn
    # What is left of q before each draw, summed from the end: differences from 1 would lose small rests.
    rest = q.scatter_add(1, x, -qx).sum(-1) + _sums_from(qx.t())
    share = tried.t() / rest.clamp_(min=1e-38)  # where there is a draw the rest is positive
    mass, moved, totals = _in_turn(rule, left, x.t(), tried.t(), q, neighbours, share, None if tree.gapless else drawn.t())
    height = u * qx.t() * (totals[:-1] * share)
    return Trial(height, mass, moved, totals[1:] <= 0, left)


def _sums_from(values: Tensor) -> Tensor:
    """values [C, I] -> [C, I], the sum of each and all after it."""
    return values.flip(0).cumsum(0).flip(0)


def _fixed_exact(p: Tensor, x: Tensor, tried: Tensor, u: Tensor) -> Trial:
    """Children fixed by the prefix under the exact rule: the i-th is accepted with p(x_i) over what is left without those
    before it. Sums, no loop; p [n, V], x and tried [n, C], u [C, n]."""
    mass = p.gather(1, x) * tried
    left = p.scatter_add(1, x, -mass)  # siblings differ, and what was not tried takes nothing away
    return Trial(u * (left.sum(-1) + _sums_from(mass.t())), mass.t(), None, None, left)


def _in_turn(
    rule: Rule, left: Tensor, x: Tensor, tried: Tensor, q: Tensor | None, neighbours: Tensor | None, share: Tensor | None,
    drawn: Tensor | None,
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """Reject one child after the other: left [I, V] p at first, becomes what all of them leave; x [C, I] tokens, tried
    [C, I] bool, q [I, V] what they were drawn from or None, share [C, I] one over the rest of q at each.

    Returns p of each child when its turn came [C, I], the mass of its neighbours that counts [C, I] or None, and the total
    of `left` before each child and at the end [C + 1, I].

    A rejected child has less of p than of q, so that nothing of it is left, and taking q from it again changes nothing: q
    needs no update, except where draws that are no nodes come between; drawn [C, I] bool is given then.
    """
    count, nodes = x.shape
    ids = x.unsqueeze(-1)
    near = kept = limit = None
    if rule.relaxes and neighbours is not None:
        ids = torch.cat([ids, neighbours[:, : rule.k][x].long()], -1)  # [C, I, 1 + k], the child first
        near = left.new_empty(count, nodes, ids.shape[-1] - 1)
        kept = (~tried).unsqueeze(-1).repeat(1, 1, ids.shape[-1])  # what is not in the set of a child that is tried
        # below zero for what is not tried: nothing fits such a bound
        bound = rule.bound if rule.kind == "additive" else rule.bound - 1
        limit = torch.where(tried, bound, -1.0).unsqueeze(-1)
    values = left.new_empty(ids.shape)
    totals = left.new_ones(count + 1, nodes, 1)
    for i in range(count):
        torch.gather(left, 1, ids[i], out=values[i])
        if near is not None and kept is not None and limit is not None:
            torch.cumsum(values[i][:, 1:], -1, out=near[i])
            scale = totals[i] if rule.kind == "additive" else values[i][:, :1]
            torch.gt(near[i], limit[i] * scale, out=kept[i][:, 1:])
            left.scatter_(1, ids[i], values[i] * kept[i])
        if q is not None and share is not None:
            left.addcmul_(q, totals[i] * share[i].unsqueeze(1), value=-1.0).clamp_(min=0.0)
            if drawn is not None:
                token = x[i].unsqueeze(1)
                q.scatter_(1, token, q.gather(1, token).masked_fill_(drawn[i].unsqueeze(1), 0.0))
        torch.sum(left, -1, keepdim=True, out=totals[i + 1])
    moved = None if near is None or kept is None else (near * ~kept[..., 1:]).amax(-1)
    return values[..., 0], moved, totals[..., 0]


def _released(
    rule: Rule, draft: Draft, p: Tensor, greedy: bool, neighbours: Tensor | None, uniforms: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The released residual, by the general functions: path, count and flags as in `Judgement`, and the bonus token's law."""
    tree = draft.tree
    if greedy:
        final, relaxed = greedy_end(rule, draft, p, neighbours)
        law = p.index_select(0, final)
    else:
        final, relaxed, law = sampled_end(rule, draft, p, neighbours, uniforms)
    up = [final]
    for _ in range(tree.depth):
        up.append(tree.parents.index_select(0, up[-1]))
    ancestors = torch.cat(up)
    path = final.repeat(tree.depth + 1).scatter_(0, tree.depths.index_select(0, ancestors), ancestors)
    return path, tree.depths.index_select(0, final) + 1, relaxed.index_select(0, path[1:]).long(), law
