"""Verify a draft tree: judge all nodes at once, walk from the root along accepted children, and draw the token after the last
one.

Two verifiers do so without a host read. Both return a `VerifyOutput`, which `results.pack_step` packs for the host.
`RejectionVerifier` is the papers' rejection sampling, or their greedy rule; see `rules`.

`SharedNoiseVerifier` compares tokens. Position i of the picture has one vector of Gumbel noise G_i for all models and methods
(see `noise`):

    target     draws y_i = argmax(scores + G_i); at temperature 0 there is no noise.
    vanilla    draws y_i.
    drafter    drafts the top of the drafter's scores + G_i; dynamic trees and windows keep their drafts.
    exact      accepts a child that equals y_i, else y_i is the bonus token.
    relaxed    accepts the first child x whose set near(x) has y_i; a token belongs to the first set that has it

So every exact method draws vanilla's tokens, whatever the tree and the drafter: drafter-invariant speculative decoding (Daliri
et al., arXiv 2408.07978) with several drafts (Gumbel-max list sampling, arXiv 2506.05632). LANTERN keeps its published
distribution where the prefix fixes the children. Where the children are drawn it would not, so relaxed rules then verify by
rejection.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .config import Config
from .noise import gumbel_
from .rules import Members, Rule, with_neighbours
from .sampling import draw, numbers
from .trees import Draft, Tree, VerifyOutput


class SharedNoiseVerifier:
    """Accepts a draft that equals the token that the target draws with the noise of its position."""

    draws = 0

    def __init__(self, config: Config, vocabulary: int) -> None:
        self.rule = Rule() if config.sampling.greedy else config.rule
        self.neighbours = config.neighbours
        # drafts may reach beyond the picture's end
        positions = 0 if config.sampling.greedy else config.positions + config.tree.deepest + 1
        self.noise = torch.empty(positions, vocabulary, device=config.torch_device)

    def begin(self, seed: int) -> None:
        gumbel_(self.noise, seed)

    def add_noise(self, scores: Tensor, positions: Tensor) -> Tensor:
        """Add to scores [n, V] the noise of positions [n] or [1] int64."""
        return scores + self.noise.index_select(0, positions) if len(self.noise) else scores

    def sample(self, scores: Tensor, positions: Tensor, uniforms: Tensor) -> Tensor:
        return argmax_or_invalid(self.add_noise(scores, positions))

    def verify(self, draft: Draft, scores: Tensor, position: Tensor, uniforms: Tensor) -> VerifyOutput:
        tree = draft.tree
        if tree.size == 1:
            return root_alone(tree, self.sample(scores, position, uniforms))
        target = self.sample(scores, position + tree.depths, uniforms)
        if self.rule.relaxes:
            own, members = tree.of_inner(target).view(-1, 1, 1), self.members(draft.drawn, tree.of_inner(scores))
            accepted = ((members.ids == own) & members.member).any(-1)
        else:
            accepted = draft.drawn == tree.of_inner(target).unsqueeze(1)
        path = walk(tree, next_node(tree, first(accepted)))
        own = target.index_select(0, path)  # past the end of the path the bonus token again
        if not self.rule.relaxes:
            return VerifyOutput(path, depth_of(tree, path), own, own[-1:], None, target)
        relaxed = draft.tokens.index_select(0, path[1:]) != own[:-1]
        return VerifyOutput(path, *accepted_tokens(draft, path, own[-1:]), own[-1:], relaxed, target)

    def members(self, x: Tensor, scores: Tensor) -> Members:
        """Return the sets of drafts x [P, C], -1 for none, at nodes with scores [P, V]. No set has a token of an earlier
        one."""
        ids = with_neighbours(self.rule, x.clamp(min=0), self.neighbours)
        return in_turn(self.rule, scores.softmax(-1), ids, x >= 0)[0]


class RejectionVerifier:
    """Verifies by the papers' rejection sampling; at temperature 0 by their greedy rule."""

    def __init__(self, config: Config, vocabulary: int) -> None:
        self.rule, self.neighbours, self.greedy = config.rule, config.neighbours, config.sampling.greedy
        self.width, nodes = config.tree.width, config.nodes
        self.draws = nodes * (self.width + 1)

    def begin(self, seed: int) -> None:
        """Do nothing: the uniforms are the run's."""

    def sample(self, scores: Tensor, positions: Tensor, uniforms: Tensor) -> Tensor:
        probs = scores.softmax(-1)
        return argmax_or_invalid(probs) if self.greedy else draw(probs, uniforms[: len(probs)])

    def verify(self, draft: Draft, scores: Tensor, position: Tensor, uniforms: Tensor) -> VerifyOutput:
        """uniforms [at least n (width + 1)] in [0, 1): per node one for each child, and one for the bonus token after it."""
        tree, rule = draft.tree, self.rule
        if tree.size == 1:
            return root_alone(tree, self.sample(scores, position, uniforms))
        p, uniforms = scores.softmax(-1), uniforms[: tree.size * (self.width + 1)].view(tree.size, -1)
        children = Children(draft.drawn, draft.q, self.neighbours, tree.inner_depths, tree.offered, draft.rest)
        if self.greedy:
            verdict = decide_greedy(rule, tree.of_inner(p), children)
        else:
            verdict = decide(rule, tree.of_inner(p), children, tree.of_inner(uniforms))
        rank = first(verdict.accepted)
        path = walk(tree, next_node(tree, rank))
        last = path[-1:]
        if self.greedy:
            bonus = argmax_or_invalid(p.index_select(0, last))
        else:
            residual = verdict.residual if tree.whole else p.index_copy(0, tree.inner, verdict.residual)
            bonus = draw(residual.index_select(0, last), uniforms[:, -1].index_select(0, last))
        relaxed = None
        if verdict.relaxed is not None:  # a node has at most one accepted child
            flags = verdict.relaxed.gather(1, rank.unsqueeze(1).clamp(max=tree.width - 1))[:, 0]
            relaxed = flags.index_select(0, path[:-1] if tree.whole else tree.rows.index_select(0, path[:-1]))
        return VerifyOutput(path, *accepted_tokens(draft, path, bonus), bonus, relaxed, bonus.expand(tree.size))


# -- acceptance at each node

# What a sure drafter leaves of q may be as small as 2^-149, the smallest float32. One over that is
# too large for a float32, and one over LIFT times that is not. A power of two changes no digit.
LIFT = 2.0**24


class Children(NamedTuple):
    """The drafts of P nodes, C each, and their distributions."""

    tokens: Tensor  # [P, C] int64, in draw order, -1 for none
    q: Tensor | None = None  # [P, V], drawn from without replacement; None: the prefix fixes the drafts
    neighbours: Tensor | None = None  # [V, >= k] int32 or int64, each token's nearest others
    depth: Tensor | float = 0.0  # [P, 1] of the nodes
    offered: Tensor | None = None  # [P, C] bool, draws that are nodes of the tree; the others only leave q. None: all
    # [P, C], the sum of q before each draw: where it is 0 nothing was drawn, and `tokens` has any
    # token. None: computed
    rest: Tensor | None = None


class Verdict(NamedTuple):
    """The decisions on the drafts of P nodes, each judged as if all siblings before it were rejected."""

    accepted: Tensor  # [P, C] bool; the first one counts
    residual: Tensor  # [P, V] the bonus token's distribution if no draft is accepted, not normalised
    mass: Tensor  # [P, C] p of the draft
    score: Tensor  # [P, C]
    threshold: Tensor  # [P, C] a score must exceed it; greedy: reach it
    tried: Tensor  # [P, C] bool, which drafts there are
    relaxed: Tensor | None  # [P, C] bool, of accepted drafts: the exact rule would refuse it; None: never


def decide(rule: Rule, p: Tensor, children: Children, u: Tensor) -> Verdict:
    """Judge drafts in draw order under p [P, V] by a rule and uniforms u [P, >= C] in [0, 1). A draft whose rejection would
    leave nothing is accepted, as it always is in exact arithmetic. Where p is not finite no draft is accepted."""
    x, tried, qx, q, weight = drawn(children)
    u, target, depth = u[:, : x.shape[1]], rule.target(p, children.q), children.depth
    ids = with_neighbours(rule, x, children.neighbours)
    members, residual, left = in_turn(rule, target, ids, tried, q, weight, depth, to_the_end=True)
    score, threshold = rule.score(members, depth), rule.threshold(u, qx, target)
    # strictly above: a token of probability 0 is not accepted even at u = 0
    accepted = tried & ((score > threshold) | (left <= 0))
    mass = members.mass[..., 0] if target is p else p.gather(1, x)
    relaxed = Rule.threshold(rule, u, qx, p) >= mass if rule.relaxes else None
    return Verdict(accepted, residual, mass, score, threshold.expand(x.shape), tried, relaxed)


def in_turn(
    rule: Rule,
    p: Tensor,
    ids: Tensor,
    tried: Tensor,
    q: Tensor | None = None,
    weight: Tensor | None = None,
    depth: Tensor | float = 0.0,
    to_the_end: bool = False,
) -> tuple[Members, Tensor, Tensor]:
    """Find the sets of drafts with their neighbours ids [P, C, 1 + k]; tried [P, C] bool marks the
    drafts that exist. Each set is found under the p [P, V] that earlier rejections leave. A draft's
    distribution is q [P, V], which is overwritten, times its weight [P, C]. Return the sets, the p
    after the last rejection, and the sum [P, C] after each one. Skip the last rejection unless
    `to_the_end`."""
    found, left = list[Members](), list[Tensor]()
    for i in range(ids.shape[1]):
        one = slice(i, i + 1)
        if i:
            p = p / left[-1]
            if q is not None:
                q.scatter_(1, ids[:, i - 1, :1], 0.0)
        found.append(members := rule.members(p, ids[:, one], tried[:, one]))
        if to_the_end or i + 1 < ids.shape[1]:
            p = rule.reject(p, None if q is None or weight is None else q * weight[:, one], members, depth)
            left.append(p.sum(-1, keepdim=True))
    mass, member = (torch.cat([getattr(one, name) for one in found], 1) for name in ("mass", "member"))
    return Members(ids, mass, member), p, torch.cat(left, 1) if left else p[:, :0]


def drawn(
    children: Children,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return the tokens x [P, C], any token for no draft; which of them are tried; their
    probabilities without the draws before them; LIFT q [P, V]; its weight at each draw [P, C], 0 for
    untried ones. Without q (the prefix fixes the drafts) the last three values are absent: None."""
    tokens, q, rest = children.tokens, children.q, children.rest
    tried, x = (tokens >= 0, tokens.clamp(min=0)) if rest is None else (rest > 0, tokens)
    if q is None:
        return x, tried, None, None, None
    lifted = q * LIFT
    qx = lifted.gather(1, x)
    if rest is None:  # summed from the end: differences from 1 would lose small rests
        qx = qx * tried
        rest = lifted.scatter_add(1, x, -qx).sum(-1, keepdim=True) + qx.flip(1).cumsum(1).flip(1)
    else:
        rest = rest * LIFT
    tried = tried if children.offered is None else tried & children.offered
    smallest = torch.finfo(q.dtype).tiny  # no lifted sum is smaller, except for 0
    weight = torch.div(tried, rest.clamp(min=smallest), out=torch.empty_like(qx))
    return x, tried, qx * weight, lifted, weight


def decide_greedy(rule: Rule, p: Tensor, children: Children) -> Verdict:
    """Judge each draft separately and greedily under p [P, V], the softmax of the logits. A draft x is accepted if it is the
    argmax, or would be with probability p(x) + S while the others keep theirs. Of equals the first token wins, as in
    `argmax`."""
    tokens = children.tokens
    tried, x = tokens >= 0, tokens.clamp(min=0)
    top, best = p.max(-1, keepdim=True)
    best = best.masked_fill(top.isnan(), -2)  # no token
    members = rule.members(p, with_neighbours(rule, x, children.neighbours), tried)
    score, exact = rule.score(members, 0.0), tokens == best
    relaxed = tried & ~exact & ((score > top) | ((score == top) & (x < best)))
    return Verdict(exact | relaxed, p, members.mass[..., 0], score, top.expand(x.shape), tried, relaxed)


def first(accepted: Tensor) -> Tensor:
    """Return the first column, [P] int64, in which accepted [P, C] is true, or C."""
    at = numbers(accepted.shape[1] + 1, accepted.device)
    return torch.where(accepted, at[:-1], at[-1:]).amin(1)


# -- the walk


def next_node(tree: Tree, rank: Tensor) -> Tensor:
    """Return the next node of a walk from each node, [n] int64: the child of draw number rank [I], or the node itself for C and
    for a missing child."""
    at = rank.unsqueeze(1)
    return tree.onward.gather(1, at if tree.whole else at.index_select(0, tree.rows))[:, 0]


def walk(tree: Tree, following: Tensor) -> Tensor:
    """Return the path [D + 1] from the root along following [n]; after its end the last node repeats."""
    path = [tree.parents[:1], following[:1]]
    for _ in range(tree.depth - 1):
        path.append(following.index_select(0, path[-1]))
    return torch.cat(path)


def depth_of(tree: Tree, path: Tensor) -> Tensor:
    """Return the depth [1] of a path's last node."""
    return tree.depths.index_select(0, path[-1:])


def accepted_tokens(draft: Draft, path: Tensor, bonus: Tensor) -> tuple[Tensor, Tensor]:
    """Return the depth [1] of a path [D + 1], and the tokens [D + 1] that it commits: those of its nodes after the root, then
    bonus [1]."""
    depth = depth_of(draft.tree, path)
    return depth, torch.cat([draft.tokens.index_select(0, path[1:]), bonus]).scatter_(0, depth, bonus)


def root_alone(tree: Tree, token: Tensor) -> VerifyOutput:
    """Return the output for a tree of the root alone, after which the target drew token [1]."""
    return VerifyOutput(tree.parents, tree.depths, token, token, None, token)


def argmax_or_invalid(scores: Tensor) -> Tensor:
    """Return the likeliest tokens [m] of scores or probabilities [m, V]; -2 where no finite number is the highest."""
    top, best = scores.max(-1)
    return torch.where(top.abs() < torch.inf, best, -2)
