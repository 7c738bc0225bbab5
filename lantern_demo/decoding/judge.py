"""Acceptance for steps of fixed shapes: all nodes at once, no host read on any device, few kernels.

`acceptance.decide` states the rule and `walk.walk_nodes` the walk; here is their twin for replayed steps. What it saves:
laws are left unnormalised and their totals kept beside them, no residual is worked out twice, and where siblings do not
depend on each other they are judged together. Children fixed by the prefix under the exact rule need no loop at all, since
what is left of p before the i-th is p without the first i - 1. Otherwise each child costs 5 kernels (sampled, exact), 6
(fixed by the prefix, relaxed) or 9 (sampled, relaxed), because what it is judged by is what its rejected siblings left.

A law that is none, because its logits were not finite, accepts nothing, and the bonus token is then no token: below 0 or V.

With the same uniforms the tokens are those of `walk_nodes`, up to rounding. Only one rounding event is settled differently:
a draft that would leave nothing behind is accepted, as it always is in exact arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .acceptance import Rule, proximity
from .drafting import Draft
from .sampling import NOTHING, draw_raw
from .trees import Tree
from .walk import greedy_end, sampled_end


class Ways(NamedTuple):
    """What the walk needs of a tree; the same at every step where the tree is static."""

    offered: Tensor  # [I, C] bool, which draws at the inner nodes are nodes
    onward: Tensor  # [I, C + 1] int64, the node behind each draw number, and the node itself behind C: none accepted
    numbers: Tensor  # [C + 1, 1] int64, 0 to C
    stay: Tensor  # [n] int64, every node behind itself; those behind inner nodes are filled in
    rows: Tensor  # [n] int64, the place of a node among the inner ones; 0 for the others
    reach: Tensor  # [n, 2] int64, how many nodes the path to a node has, and 1 for the step
    flags: Tensor  # [C + 1, I] int64, a place for what is known of accepted children; 0 behind C
    near: Tensor | None = None  # [V, 1 + k] int64, see `with_self`, where it is worth the memory


class Judgement(NamedTuple):
    """The accepted path, as tensors of fixed shape; D is the depth of the tree."""

    path: Tensor  # [D + 1] int64 accepted nodes, root first; behind the end the last one again
    taken: Tensor  # [1] int64, how many nodes the path has
    loose: Tensor  # [D] int64, 1 where only the relaxation accepted path[1:]
    ahead: Tensor  # [2] int64, `taken` and 1
    bonus: Tensor  # [1] int64, the target's own token; below 0 or V where there is no law to draw it from


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
    numbers = torch.arange(onward.shape[1], device=onward.device).unsqueeze(1)
    stay = tree.inner if _whole(tree) else torch.arange(tree.size, device=onward.device)
    rows = tree.inner_rows if _whole(tree) else tree.inner_rows.clamp(min=0)
    return Ways(
        children >= 0,
        onward,
        numbers,
        stay,
        rows,
        torch.stack((tree.depths + 1, torch.ones_like(tree.depths)), 1),
        torch.zeros_like(onward.t()),
    )


def with_self(neighbours: Tensor, k: int) -> Tensor:
    """Each token and its first k neighbours [V, 1 + k] int64, from a table of neighbours [V, k or more]."""
    own = torch.arange(len(neighbours), device=neighbours.device).unsqueeze(1)
    return torch.cat([own, neighbours[:, :k]], 1).long()


def judge(rule: Rule, draft: Draft, way: Ways, p: Tensor, greedy: bool, neighbours: Tensor | None, uniforms: Tensor) -> Judgement:
    """Judge a draft by the target's laws p [n, V]; uniforms [n, C + 1] in [0, 1), neighbours as in `decide`."""
    tree = draft.tree
    if tree.size == 1:
        path, ahead, loose, law = tree.parents, way.reach[0], tree.parents[:0], p
    elif not rule.twinned:
        path, ahead, loose, law = _by_statement(rule, draft, way, p, greedy, neighbours, uniforms)
    elif greedy:
        top, best = _best(p)
        accepted, relaxed = _greedily(rule, draft, p, top, best, neighbours)
        path, ahead, loose = _walk(tree, way, accepted.t(), None if relaxed is None else way.flags[:-1].copy_(relaxed.t()))
        return Judgement(path, ahead[:1], loose, ahead, best.index_select(0, path[-1:]))
    else:
        drawn = draft.drawn >= 0 if draft.turns is None else draft.turns.live
        tried = drawn & way.offered if draft.turns is None or not tree.gapless else drawn  # the others count as not drawn
        trial = _try(rule, draft, way, drawn, tried, p, neighbours, uniforms)
        reached = trial.mass if trial.moved is None else trial.mass + trial.moved
        passed = trial.height < reached
        accepted = tried.t() & (passed if trial.empty is None else passed | trial.empty)
        relaxed_only = None
        if trial.moved is not None:
            relaxed_only = torch.ge(trial.height, trial.mass, out=way.flags[:-1])
        path, ahead, loose = _walk(tree, way, accepted, relaxed_only)
        laws = trial.left if _whole(tree) else p.index_copy(0, tree.inner, trial.left)
        law = laws.index_select(0, path[-1:])
    bonus = _best(law)[1] if greedy else draw_raw(law, uniforms[:, -1].index_select(0, path[-1:]))
    return Judgement(path, ahead[:1], loose, ahead, bonus)


def _best(p: Tensor) -> tuple[Tensor, Tensor]:
    """The highest mass of each law [n, V] and the token that has it, both [n]; no token, -2, of a law that is none."""
    top, best = p.max(-1)
    return top, best.masked_fill_(top.isnan(), -2)


def _greedily(
    rule: Rule, draft: Draft, p: Tensor, top: Tensor, best: Tensor, neighbours: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """`acceptance.decide_greedy` at all inner nodes, with top and best as `_best` gives them: accepted [I, C], and which of them only
    the relaxation accepts, where it can."""
    tree = draft.tree
    best = (best if _whole(tree) else best.index_select(0, tree.inner)).unsqueeze(1)
    exact = draft.drawn == best
    if not rule.relaxes:
        return exact, None
    rows, top = (p, top) if _whole(tree) else (p.index_select(0, tree.inner), top.index_select(0, tree.inner))
    x, top = draft.drawn.clamp(min=0), top.unsqueeze(1)
    mass = rows.gather(1, x) + proximity(rule, rows, x, neighbours).moved
    relaxed = (draft.drawn >= 0) & ((mass > top) | ((mass == top) & (x < best)))
    return exact | relaxed, relaxed & ~exact


def _whole(tree: Tree) -> bool:
    """Whether the inner nodes are simply all nodes, in order, as in dynamic trees."""
    return tree.inner.shape[0] == tree.size


def _walk(tree: Tree, way: Ways, accepted: Tensor, loosely: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Path, `ahead` and flags as in `Judgement`, from which children accepted [C, I] is true of: the first one counts. loosely [C, I],
    the first rows of `way.flags`, says of which of them only the relaxation is."""
    count = accepted.shape[0]
    rank = torch.where(accepted, way.numbers[:count], way.numbers[count:]).amin(0, keepdim=True)  # [1, I]
    behind = way.onward.gather(1, rank.t())[:, 0]
    # a node without children leads to itself
    following = behind if _whole(tree) else way.stay.index_copy_(0, tree.inner, behind)
    nodes = [tree.parents[:1], following[:1]]
    for _ in range(tree.depth - 1):
        nodes.append(following.index_select(0, nodes[-1]))
    path = torch.cat(nodes)
    ahead = way.reach.index_select(0, path[-1:])[0]
    if loosely is None:
        return path, ahead, torch.zeros_like(path[1:])
    # A node has at most one accepted child, so that a flag of the parent's is the flag of that child.
    flags = way.flags.gather(0, rank)[0]
    parents = path[:-1] if _whole(tree) else way.rows.index_select(0, path[:-1])
    return path, ahead, flags.index_select(0, parents)


def _try(
    rule: Rule, draft: Draft, way: Ways, drawn: Tensor, tried: Tensor, p: Tensor, neighbours: Tensor | None, uniforms: Tensor
) -> Trial:  # fmt: skip
    """Judge the children of all inner nodes, see `Trial`; drawn [I, C] and tried [I, C] bool, whether there is a draw and whether
    it is a node."""
    tree, turns, count = draft.tree, draft.turns, draft.drawn.shape[1]
    x = draft.drawn.clamp(min=0) if turns is None else turns.tokens
    u = (uniforms if _whole(tree) else uniforms.index_select(0, tree.inner))[:, :count].t()
    q = draft.all_q()
    if q is None and not rule.relaxes:
        return _fixed_exact(p, x, tried, u)
    left = p.index_select(0, tree.inner)  # a copy, to be worked on
    if q is None:
        mass, moved, totals = _in_turn(rule, left, _sets(rule, way, x.t(), neighbours), tried.t(), None, None, None)
        return Trial(u * totals[:-1], mass, moved, totals[1:] <= 0, left)
    qx = q.gather(1, x)
    if turns is None:
        qx = qx * drawn
        # What is left of q before each draw, summed from the end: differences from 1 would lose small rests.
        rest = q.scatter_add(1, x, -qx).sum(-1) + _sums_from(qx.t())
    else:
        rest = turns.left.t()
    # where there is a draw the rest is no less than `NOTHING`
    share = torch.div(tried.t(), rest.clamp_(min=NOTHING), out=left.new_empty(rest.shape))
    sets = _sets(rule, way, x.t(), neighbours)
    mass, moved, totals = _in_turn(rule, left, sets, tried.t(), q, share, None if tree.gapless else drawn.t())
    return Trial(u * qx.t() * share, mass, moved, totals[1:] <= 0, left)


def _sums_from(values: Tensor) -> Tensor:
    """values [C, I] -> [C, I], the sum of each and all after it."""
    return values.flip(0).cumsum(0).flip(0)


def _fixed_exact(p: Tensor, x: Tensor, tried: Tensor, u: Tensor) -> Trial:
    """Children fixed by the prefix under the exact rule: the i-th is accepted with p(x_i) over what is left without those
    before it. Sums, no loop; p [n, V], x and tried [n, C], u [C, n]."""
    mass = p.gather(1, x) * tried
    left = p.scatter_add(1, x, -mass)  # siblings differ, and what was not tried takes nothing away
    return Trial(u * (left.sum(-1) + _sums_from(mass.t())), mass.t(), None, None, left)


def _sets(rule: Rule, way: Ways, x: Tensor, neighbours: Tensor | None) -> Tensor:
    """Tokens x [C, I] and the neighbours that the rule may count [C, I, 1 + k], each token first; k is 0 for the exact rule."""
    if not rule.relaxes or neighbours is None:
        return x.unsqueeze(-1)
    if way.near is not None:
        return way.near[x]
    return torch.cat([x.unsqueeze(-1), neighbours[:, : rule.k][x].long()], -1)


def _in_turn(
    rule: Rule, left: Tensor, ids: Tensor, tried: Tensor, q: Tensor | None, share: Tensor | None, drawn: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """Reject one child after the other: left [I, V] p at first, becomes what all of them leave; ids [C, I, 1 + k] as
    `_sets` gives them, tried [C, I] bool, q [I, V] what they were drawn from or None, share [C, I] one over the rest of q at each.

    Returns p of each child when its turn came [C, I], the mass of its neighbours that counts [C, I] or None, and the total of
    `left` before each child and at the end [C + 1, I], where the first one, 1, is only there without q. share is multiplied by it: by
    that much q is taken away.

    A rejected child has less of p than of q, so that nothing of it is left, and taking q from it again changes nothing: q
    needs no update, except where draws that are no nodes come between; drawn [C, I] bool is given then.
    """
    count, nodes, size = ids.shape
    near = stays = limit = None
    if size > 1:
        near = left.new_empty(count, nodes, size - 1)
        stays = left.new_empty(ids.shape)  # 1 for what is not in the set of a child that is tried, 0 for what leaves with it
        if q is None:
            torch.logical_not(tried, out=stays[..., 0])
        # nothing but what has no mass fits the bound 0 of a child that is not tried
        limit = (tried * (rule.bound if rule.kind == "additive" else rule.bound - 1)).unsqueeze(-1)
    values = left.new_empty(ids.shape)
    totals = left.new_ones(count + 1, nodes, 1) if share is None else left.new_empty(count + 1, nodes, 1)
    for i in range(count):
        torch.gather(left, 1, ids[i], out=values[i])
        if near is not None and stays is not None and limit is not None:
            torch.cumsum(values[i][:, 1:], -1, out=near[i])
            bound = limit[i]
            if rule.kind == "multiplicative":
                bound = bound * values[i][:, :1]
            elif i > 0:
                bound = bound * totals[i]
            torch.gt(near[i], bound, out=stays[i][:, 1:])
            first = 0 if q is None else 1  # of a rejected child itself nothing is left without q
            left.scatter_reduce_(1, ids[i][:, first:], stays[i][:, first:], "prod")
        if q is not None and share is not None:
            taken = share[i].unsqueeze(1)
            left.addcmul_(q, taken.mul_(totals[i]) if i > 0 else taken, value=-1.0).clamp_(min=0.0)
            if drawn is not None:
                token = ids[i][:, :1]
                q.scatter_(1, token, q.gather(1, token).masked_fill_(drawn[i].unsqueeze(1), 0.0))
        torch.sum(left, -1, keepdim=True, out=totals[i + 1])
    moved = None if near is None or stays is None else near.addcmul_(near, stays[..., 1:], value=-1.0).amax(-1)
    return values[..., 0], moved, totals[..., 0]


def _by_statement(
    rule: Rule, draft: Draft, way: Ways, p: Tensor, greedy: bool, neighbours: Tensor | None, uniforms: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A rule without a twin here, by `acceptance.decide` itself: path, `ahead` and flags as in `Judgement`, and the bonus token's law."""
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
    return path, way.reach.index_select(0, final)[0], relaxed.index_select(0, path[1:]).long(), law
