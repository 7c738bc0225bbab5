"""Which child of a tree node is accepted, and from what the next token is drawn when none is: by rejection sampling, greedy, or
by the target's own draw. What counts and what a rejection leaves are the rule's to say: see `rules`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .rules import Children, Near, Rule, Verdict
from .sampling import NOTHING, numbers


def decide(rule: Rule, p: Tensor, children: Children, uniforms: Tensor) -> Verdict:
    """Try the children of P nodes in draw order, at uniforms [P, >= C] in [0, 1); see `rules` for the rule. The target's
    probabilities p [P, V] are worked on in place, and become the residual. A draft that would leave nothing behind is accepted:
    in exact arithmetic it always is. Where p is not made of finite numbers nothing is accepted."""
    nodes, count = children.tokens.shape
    if not count:
        none = p[:, :0]
        return Verdict(children.tokens.new_zeros(nodes), p, none, none, none, none, none.bool(), None)
    # 1) What was drawn, and by which part of what q had left.
    residual, u = rule.target(p, children.q), uniforms[:, :count]
    x, tried, qx, share = _drawn(children)
    thresholds = u if qx is None else u * qx
    # Where all that is tried comes first and leaves nothing of itself, what q still has of it takes nothing away.
    q = children.q.clone() if children.q is not None and (children.offered is not None or rule.thins) else None
    children = children if q is None else replace(children, q=q)
    least = rule.least(residual)
    # 2) Of each child in turn what counts for it, and what it leaves once it is rejected.
    ids = rule.candidates(x, children.neighbours)
    near, each = Near.room(ids, residual, tried if share is None else None)
    totals = residual.new_ones(count + 1, nodes, 1)
    slack = tried * rule.slack if rule.slack else tried
    for i, one in enumerate(each):
        drawn = slice(i, i + 1)
        rule.fill(one, residual, totals[i], slack[:, drawn])
        scaled = None if share is None else share[:, drawn].mul_(totals[i]) if i else share[:, drawn]
        rule.reject(residual, one, scaled, children)
        if q is not None:
            q.scatter_(1, one.ids[:, :1], 0.0)  # behind a draw that found nothing there is none that is tried
        torch.sum(residual, -1, keepdim=True, out=totals[i + 1])
    # 3) All of them held against their uniforms at once.
    near = near.by_node()
    before, after = (part[..., 0].t() for part in (totals[:-1], totals[1:]))
    thresholds = thresholds * (before if share is None else share)
    bar = thresholds if least is None else least.expand_as(thresholds)
    counted = rule.counts(near.mass[..., 0], near.near_mass, children.depth)
    mass = near.mass[..., 0] if residual is p else p.gather(1, x)
    # strictly above: a token of mass 0 is not accepted even at u = 0
    accepted = tried & ((bar < counted) | (after <= 0))
    relaxed = torch.ge(thresholds, mass, out=torch.empty_like(x)) if rule.relaxes else None
    return Verdict(first(accepted), residual, mass, counted, bar, before, accepted, relaxed)


def _drawn(children: Children) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The tokens x [P, C], any where there is none; which of them are tried; q(x), and 1 over what q had left before each draw, 0
    for what is not tried, both None where the prefix fixes the children."""
    tokens, q, rest = children.tokens, children.q, children.rest
    tried, x = (tokens >= 0, tokens.clamp(min=0)) if rest is None else (rest >= NOTHING, tokens)
    if q is None:
        return x, tried, None, None
    qx = q.gather(1, x)
    if rest is None:  # summed from the end: differences from 1 would lose small rests
        qx = qx * tried
        rest = q.scatter_add(1, x, -qx).sum(-1, keepdim=True) + qx.flip(1).cumsum(1).flip(1)
    tried = tried if children.offered is None else tried & children.offered
    return x, tried, qx, torch.div(tried, rest.clamp(min=NOTHING), out=torch.empty_like(qx))


def decide_greedy(rule: Rule, p: Tensor, children: Children) -> Verdict:
    """Greedy acceptance of the children of P nodes, each judged by itself under p [P, V], the plain softmax of the guided logits.
    Exact: x is the argmax. Relaxed: x is the argmax once its mass is p(x) + S and the others keep theirs; of equals the first
    token wins, as in `argmax`."""
    rule, tokens = rule.greedy, children.tokens
    top, best = p.max(-1, keepdim=True)
    best = best.masked_fill(top.isnan(), -2)  # no token
    x = tokens.clamp(min=0)
    near = rule.near(p, x, children.neighbours)
    accepted = tokens == best
    mass, near_mass, relaxed = near.mass[..., 0], near.near_mass, None
    counted = mass if near_mass is None else mass + near_mass
    if near_mass is not None:
        relaxed = (tokens >= 0) & ~accepted & ((counted > top) | ((counted == top) & (x < best)))
        accepted = accepted | relaxed
    return Verdict(first(accepted), p, mass, counted, top.expand(x.shape), torch.ones_like(mass), accepted, relaxed)


def decide_shared(
    rule: Rule, p: Tensor | None, tokens: Tensor, own: Tensor, neighbours: Tensor | None
) -> tuple[Tensor, Near | None]:
    """Accept the first of the children tokens [P, C] of P nodes, -1 for none, near which the target's own draw own [P] lies: its
    draw number [P] int64, C for none, and what lies near the children [P, C, 1 + k], None for an exact rule. p [P, V] are the
    target's distributions, which only the relaxed rules need to know. Of a token that lies near several the first one decides: it
    has left p with that."""
    own = own.unsqueeze(1)
    if p is None or not rule.relaxes:
        return first(tokens == own), None
    tried = tokens >= 0
    near, each = Near.room(rule.candidates(tokens.clamp(min=0), neighbours), p, tried)
    total: Tensor | float = 1.0
    slack, residual = tried * rule.slack, p.clone() if len(each) > 1 else p
    for i, one in enumerate(each):
        if i:  # what stood for the child before has left p
            residual.scatter_reduce_(1, each[i - 1].ids, each[i - 1].kept_mask, "prod")
            total = residual.sum(-1, keepdim=True)
        rule.fill(one, residual, total, slack[:, i : i + 1])
    near = near.by_node()
    return first(((near.ids == own.unsqueeze(1)) & (near.kept_mask == 0)).any(-1)), near


def first(accepted: Tensor) -> Tensor:
    """[P] int64, the first column in which accepted [P, C] is true, C for none."""
    columns = numbers(accepted.shape[1] + 1, accepted.device)
    return torch.where(accepted, columns[:-1], columns[-1:]).amin(1)
