"""Judge the drafts at many nodes at once, by the papers' rejection sampling or greedy rule.

`reference.relaxed` has the rule for one node, one token at a time. Read it first: the loop over
children here has its order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .rules import Rule, with_neighbours

# The q that a sure drafter leaves may be as small as 2^-149, the smallest float32. One over that is
# too large for a float32, and one over LIFT times that is not. A power of two changes no digit.
LIFT = 2.0**24


class Children(NamedTuple):
    """The drafts of P nodes, C each, and the distributions that they were drawn from."""

    tokens: Tensor  # [P, C] int64, in draw order, -1 for none
    # [P, V], drawn from without replacement; None: the prefix fixes the drafts
    q: Tensor | None = None
    neighbours: Tensor | None = None  # [V, >= k] int32 or int64, each token's nearest others
    depth: Tensor | float = 0.0  # [P, 1] of the nodes


class Sampled(NamedTuple):
    """The distributions that drafts were drawn from, each without the draws before it."""

    qx: Tensor  # [P, C], the drafts' probabilities, 0 for none
    lifted: list[Tensor]  # for each draw [P, V], the rest of LIFT q
    weight: Tensor  # [P, C], one over its sum, 0 for no draft


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
    x, tried = children.tokens.clamp(min=0), children.tokens >= 0
    sampled = None if children.q is None else sampled_from(children.q, x, tried)
    qx = None if sampled is None else sampled.qx
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
        q = None if sampled is None else sampled.lifted[i] * sampled.weight[:, one]
        rejected = rule.reject(residual, q, members, children.depth)
        left = rejected.sum(-1, keepdim=True)
        # strictly above: a token of probability 0 is not accepted even at u = 0
        accepted.append(tried[:, one] & ((score > threshold[:, one]) | (left <= 0)))
        masses.append(members.mass[..., 0])
        scores.append(score)
        if i + 1 < x.shape[1]:
            residual = rejected / left
    mass = torch.cat(masses, 1) if target is p else p.gather(1, x)
    relaxed = Rule.threshold(rule, u, qx, p) >= mass if rule.relaxes else None
    score = torch.cat(scores, 1)
    return Verdict(torch.cat(accepted, 1), rejected, mass, score, threshold, tried, relaxed)


def sampled_from(q: Tensor, x: Tensor, tried: Tensor) -> Sampled:
    """Return `Sampled` of drafts x [P, C], drawn in turn from q [P, V]; tried [P, C] bool marks the
    drafts."""
    lifted = [q * LIFT]
    for i in range(x.shape[1] - 1):
        lifted.append(lifted[i].scatter(1, x[:, i : i + 1], 0.0))
    # summed again for each draw: a difference from 1 would lose a small rest
    rest = torch.cat([left.sum(1, keepdim=True) for left in lifted], 1)
    # no lifted sum is smaller, except for 0
    weight = tried / rest.clamp_(min=torch.finfo(q.dtype).tiny)
    return Sampled(lifted[0].gather(1, x) * weight, lifted, weight)


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
