"""Draws and the walk for a CPU, in plain numbers: a tensor operation costs more there than what it computes.

Nodes are visited one by one, and only what a verdict needs is worked out. `sampling.draw_without_replacement` and
`walk.walk_nodes` are the twins for an accelerator; with the same uniforms they give the same tokens.
"""

from __future__ import annotations

import math
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from .acceptance import Rule
from .drafting import Draft
from .sampling import Sampling, probabilities, running_sum
from .walk import NO_LAW, Judged, Walk, walk_nodes

Array = NDArray[numpy.float32]


def walk_levels(
    rule: Rule, draft: Draft, logits: Tensor, sampling: Sampling, neighbours: Tensor | None, uniforms: Tensor
) -> Walk:
    """Walk node by node on the host; guided logits [n, V], uniforms [n, width + 1]. Only visited rows are
    processed, and neighbours only of drafts that the exact rule refuses."""
    tree = draft.tree
    if not rule.twinned:
        return walk_nodes(rule, draft, logits, sampling, neighbours, uniforms)
    tree_tokens: list[int] = draft.tokens.tolist()
    children: list[list[int]] = tree.children.tolist() if tree.size > 1 else [[]]
    heights: list[list[float]] = uniforms.tolist()
    table = None if neighbours is None or not rule.relaxes else neighbours.numpy()
    path, relaxed, node = [0], [], 0
    judged: list[Judged] = []
    root_law: Tensor | None = None
    while True:
        p = probabilities(logits[node], sampling)
        root_law = p if root_law is None else root_law
        law = p.numpy()
        row = int(tree.inner_rows[node]) if any(child >= 0 for child in children[node]) else -1
        if row < 0:
            break
        drawn = draft.drawn[row].tolist()
        if sampling.greedy:
            rank, loosely = _greedy_child(rule, law, drawn, children[node], table, judged)
        else:
            q = draft.q_row(len(path) - 1, row)
            rank, loosely, law = _sampled_child(
                rule, law, drawn, children[node], heights[node], None if q is None else q[0].numpy(), table, judged
            )
        if rank < 0:
            break
        relaxed.append(loosely)
        node = children[node][rank]
        path.append(node)
    bonus = _best(law) if sampling.greedy else _draw(law, heights[node][-1])
    nodes = torch.tensor(path)
    tokens = [*(tree_tokens[i] for i in path[1:]), bonus]
    return Walk(
        path=path, tokens=tokens, relaxed=relaxed, tree_tokens=tree_tokens,
        tree_parents=list(tree.fixed_parents) or tree.parents.tolist(),
        nodes=nodes, next_tokens=torch.tensor(tokens), root_law=root_law, judged=judged,
    )  # fmt: skip


def _near(rule: Rule, p: Array, total: float, x: int, table: Array) -> tuple[Any, float]:
    """The neighbours of x in its proximity set and their mass, both under the unnormalised p [V] of that sum."""
    ids = table[x, : rule.k]
    summed = p[ids].cumsum()
    bound = rule.bound * total if rule.kind == "additive" else (rule.bound - 1) * float(p[x])
    count = int(summed.searchsorted(numpy.float32(bound), side="right"))
    return ids[:count], float(summed[count - 1]) if count else 0.0


def _sampled_child(
    rule: Rule, p: Array, drawn: list[int], children: list[int], heights: list[float], q: Array | None, table: Array | None,
    judged: list[Judged],
) -> tuple[int, bool, Array]:  # fmt: skip
    """`acceptance.decide` at one node, in plain numbers: the draw number of the accepted child (-1 for none), whether only the
    relaxation accepts it, and the law that is left, [V] and not normalised. What was tried is added to `judged`."""
    total, q_total, mine = 1.0, 1.0, False
    for i, x in enumerate(drawn):
        offered = children[i] >= 0
        if x < 0 or not (offered or q is not None):
            continue
        qx = 1.0 if q is None else float(q[x])
        if offered:
            height, px = heights[i] * qx / q_total * total, float(p[x])
            if height < px:
                judged.append(Judged(children[i], px / total, 0.0, height / total))
                return i, False, p
            near, moved = (x, 0.0) if table is None else _near(rule, p, total, x, table)
            judged.append(Judged(children[i], px / total, moved / total, height / total))
            if height < px + moved:
                return i, True, p
            if not mine:
                p, mine = p.copy(), True
            rest = p[near]
            p[near], p[x] = 0.0, 0.0
            left = p if q is None else numpy.maximum(p - q * numpy.float32(total / q_total), 0.0)
            left_total = float(left.sum())
            if left_total > 0:
                p, total = left, left_total
            else:
                # A rounding event, as in `acceptance.residual`: p without x is closest, a point mass on x stays.
                p[near], p[x] = rest, 0.0
                total = float(p.sum())
                if total <= 0:
                    p[x] = total = px
        if q is not None and i + 1 < len(drawn):
            q = q.copy()
            q[x] = 0.0
            q_total = float(q.sum()) or 1.0
            if q_total < 1e-30:  # one over it would overflow
                q, q_total = q / numpy.float32(q_total), 1.0
    return -1, False, p


def _greedy_child(
    rule: Rule, p: Array, drawn: list[int], children: list[int], table: Array | None, judged: list[Judged]
) -> tuple[int, bool]:
    """`acceptance.decide_greedy` at one node: the draw number of the first accepted child, -1 for none, and whether only the
    relaxation accepts it. What was tried is added to `judged`."""
    best = _best(p)
    top = float(p[best])
    for i, x in enumerate(drawn):
        if x < 0:
            continue
        near = 0.0 if x == best or table is None else _near(rule, p, 1.0, x, table)[1]
        judged.append(Judged(children[i], float(p[x]), near, top))
        if x == best:
            return i, False
        if table is not None:
            mass = float(p[x]) + near
            if mass > top or (mass == top and x < best):
                return i, True
    return -1, False


def _best(law: Array) -> int:
    """The likeliest token of a law [V]. Raises FloatingPointError when it is no law."""
    best = int(law.argmax())  # of a NaN, if there is one
    if not law[best] > 0:
        raise FloatingPointError(NO_LAW)
    return best


def _draw(law: Array, u: float) -> int:
    """`sampling.draw` for one law [V], not normalised. Raises FloatingPointError when it is no law."""
    cdf = running_sum(torch.from_numpy(law)).numpy()
    total = float(cdf[-1])
    if not total > 0:
        raise FloatingPointError(NO_LAW)
    return int(cdf.searchsorted(min(u * total, math.nextafter(total, 0.0)), side="right"))
