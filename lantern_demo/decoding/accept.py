"""Judge the drafts at many nodes at once, by the papers' rejection sampling or greedy rule.

`reference.relaxed` says the same of one node, one token at a time. Read it first: the loop over
children here has its order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .rules import Rule, with_neighbours
from .sampling import kernels_for

# What a sure drafter leaves of q may be as small as 2^-149, the smallest float32. One over that is
# too large for a float32, and one over LIFT times that is not. A power of two changes no digit.
LIFT = 2.0**24


class Children(NamedTuple):
    """The drafts of P nodes, C each, and the distributions that they were drawn from."""

    tokens: Tensor  # [P, C] int64, in draw order, -1 for none
    # [P, V], drawn from without replacement; None: the prefix fixes the drafts
    q: Tensor | None = None
    neighbours: Tensor | None = None  # [V, >= k] int32 or int64, each token's nearest others
    depth: Tensor | float = 0.0  # [P, 1] of the nodes
    # [P, C] bool, draws that are nodes of the tree; the others only leave q. None: all are
    offered: Tensor | None = None
    # [P, C], the sum of q before each draw: where it is 0 nothing was drawn, and `tokens` has any
    # token. None: computed
    rest: Tensor | None = None


class Verdict(NamedTuple):
    """The decisions on the drafts of P nodes, each judged as if all siblings before it were
    rejected."""

    accepted: Tensor  # [P, C] bool; the first one counts
    # [P, V] the bonus token's distribution if no draft is accepted, not normalised
    residual: Tensor
    mass: Tensor  # [P, C] p of the draft
    score: Tensor  # [P, C]
    threshold: Tensor  # [P, C] a score must exceed it; greedy: reach it
    tried: Tensor  # [P, C] bool, which drafts there are
    # [P, C] bool, of accepted drafts: the exact rule would refuse it; None: never
    relaxed: Tensor | None


def decide(rule: Rule, p: Tensor, children: Children, u: Tensor) -> Verdict:
    """Judge drafts in draw order under p [P, V] by a rule and uniforms u [P, >= C] in [0, 1). A
    draft whose rejection would leave nothing is accepted, as it always is in exact arithmetic.
    Where p is not finite no draft is accepted."""
    if (fused := kernels_for(p)) and fused.judges(rule, children):
        return fused.decide(rule, p, children, u)
    x, tried, qx, q, weight = drawn(children)
    u = u[:, : x.shape[1]]
    ids = with_neighbours(rule, x, children.neighbours)
    target = rule.target(p, children.q)
    threshold = rule.threshold(u, qx, target).expand(x.shape)
    residual = target
    masses: list[Tensor] = []  # not list[Tensor](), which `torch.compile` cannot trace
    scores: list[Tensor] = []
    accepted: list[Tensor] = []
    for i in range(x.shape[1]):
        one = slice(i, i + 1)
        members = rule.members(residual, ids[:, one], tried[:, one])
        score = rule.score(members, children.depth)
        of_draft = None if q is None or weight is None else q * weight[:, one]
        rejected = rule.reject(residual, of_draft, members, children.depth)
        left = rejected.sum(-1, keepdim=True)
        # strictly above: a token of probability 0 is not accepted even at u = 0
        accepted.append(tried[:, one] & ((score > threshold[:, one]) | (left <= 0)))
        masses.append(members.mass[..., 0])
        scores.append(score)
        if i + 1 < x.shape[1]:
            residual = rejected / left
            q = None if q is None else q.scatter(1, x[:, one], 0.0)
    mass = torch.cat(masses, 1) if target is p else p.gather(1, x)
    relaxed = Rule.threshold(rule, u, qx, p) >= mass if rule.relaxes else None
    score = torch.cat(scores, 1)
    return Verdict(torch.cat(accepted, 1), rejected, mass, score, threshold, tried, relaxed)


def drawn(
    children: Children,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return the tokens x [P, C], any token for no draft; which of them are tried; their
    probabilities without the draws before them; LIFT q [P, V]; its weight at each draw [P, C], 0
    for untried ones. Without q (the prefix fixes the drafts) the last three are absent: None."""
    tokens, q, rest = children.tokens, children.q, children.rest
    x = tokens.clamp(min=0) if rest is None else tokens
    tried = tokens >= 0 if rest is None else rest > 0
    if q is None:
        return x, tried, None, None, None
    lifted = q * LIFT
    qx = lifted.gather(1, x)
    if rest is None:  # summed from the end: differences from 1 would lose small rests
        qx = qx * tried
        behind = lifted.scatter_add(1, x, -qx).sum(-1, keepdim=True)
        rest = behind + qx.flip(1).cumsum(1).flip(1)
    else:
        rest = rest * LIFT
    if children.offered is not None:
        tried = tried & children.offered
    smallest = torch.finfo(q.dtype).tiny  # no lifted sum is smaller, except for 0
    weight = torch.div(tried, rest.clamp(min=smallest), out=torch.empty_like(qx))
    return x, tried, qx * weight, lifted, weight


def decide_greedy(rule: Rule, p: Tensor, children: Children) -> Verdict:
    """Judge each draft separately and greedily under p [P, V], the softmax of the logits. A draft x
    is accepted if it is the argmax, or would be with probability p(x) + S while the others keep
    theirs. Of equals the first token wins, as in `argmax`."""
    tokens = children.tokens
    tried = tokens >= 0
    x = tokens.clamp(min=0)
    top, best = p.max(-1, keepdim=True)
    best = best.masked_fill(top.isnan(), -2)  # no token
    members = rule.members(p, with_neighbours(rule, x, children.neighbours), tried)
    score = rule.score(members, 0.0)
    exact = tokens == best
    relaxed = tried & ~exact & ((score > top) | ((score == top) & (x < best)))
    threshold = top.expand(x.shape)
    return Verdict(exact | relaxed, p, members.mass[..., 0], score, threshold, tried, relaxed)
