"""Compute the distance of a run: how far the distributions of its tokens are from the model's own.

One forward pass of the target over the finished picture computes the model's own distribution of
every token given all tokens before it. The distance of a token is the total variation distance, 0
to 1, between this and the method's distribution, averaged over drafts and random numbers. The
distance of a picture is the mean of its tokens', which is rounding error for a lossless method. A
distance of 0.1 means that at least 10 of 100 tokens on average differ from the model's own draw.

A draw reads running sums, which round. The distributions here are those that the sums realise
(`sampling.running_sums`), while the rule judges by its input distributions. A draw that does not
follow its distribution therefore shows as distance.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import Proposer
from lantern_demo.decoding.evidence import own_logits
from lantern_demo.decoding.loop import Decoded, Step, decode, device_work, parts_of
from lantern_demo.decoding.ops import KernelError
from lantern_demo.decoding.rules import Members, Rule, columns, with_neighbours
from lantern_demo.decoding.sampling import draw, guide, probabilities, running_sums
from lantern_demo.decoding.trees import Draft, VerifyOutput
from lantern_demo.decoding.verify import Verifier

DRAWS = 8  # of drafts that are averaged over; the mean of many tokens needs few
# entries of the largest table that one estimate builds; bounds its memory to some 100 MB
_BUDGET = 1 << 22
# entries up to which a single child is summed over all draws: beyond, that takes seconds
_SUMMED = 1 << 18


class Visit(NamedTuple):
    """The distributions at a token: the target's probabilities p [V] and the tokens drafted there
    [C] (-1 none).

    q [V] are the draft probabilities (None: the prefix fixes the drafts).
    """

    p: Tensor
    tokens: Tensor
    q: Tensor | None


@torch.inference_mode()
def picture_tvd(target: Any, drafter: Any, condition: Any, config: Config) -> float:
    """Draw a picture and return its distance, 0 to 1.

    Raises ValueError at temperature 0, where nothing is drawn.
    """
    if config.sampling.greedy:
        raise ValueError("temperature is 0; a distance between distributions needs one above 0")
    visits, tokens = watched(target, drafter, condition, config)
    with device_work(config.torch_device):
        try:
            return _distance(target, condition, config, visits, tokens)
        except KernelError as error:
            config.ops.refuse(error)
        return _distance(target, condition, config, visits, tokens)


def _distance(
    target: Any, condition: Any, config: Config, visits: list[Visit], tokens: list[int]
) -> float:
    """Return the distance of a picture of these tokens and their visits, 0 to 1."""
    # not the run's own random numbers, which determined the drafts
    generator = torch.Generator(config.torch_device).manual_seed(config.seed ^ 1)
    total, place = 0.0, 0
    for logits in own_logits(target, condition, tokens, config):
        for own in probabilities(guide(logits, config.sampling.cfg_scale), config.sampling):
            if place:  # the first one is the model's own
                shift = shift_at(
                    config.rule, visits[place], config.neighbours, generator, config.shared
                )
                total += 0.5 * float((visits[place].p + shift - own).abs().sum())
            place += 1
    return total / len(tokens)


def watched(
    target: Any, drafter: Any, condition: Any, config: Config
) -> tuple[list[Visit], list[int]]:
    """Run a config and return the visit of each token of its picture, and the tokens, both in
    raster order.
    """
    seen: list[Iterable[Visit]] = []  # of each step, the prefill first

    def make_parts(config: Config, vocabulary: int) -> tuple[Proposer, Verifier]:
        """Return `loop.parts_of` with a verifier that also records its distributions."""
        proposer, verifier = parts_of(config, vocabulary)
        sample, verify = verifier.sample, verifier.verify

        def sampled(scores: Tensor, positions: Tensor, uniforms: Tensor) -> Tensor:
            none = torch.empty(0, dtype=torch.int64, device=scores.device)
            seen.append([Visit(p, none, None) for p in scores.softmax(-1)])
            return sample(scores, positions, uniforms)

        def verified(
            draft: Draft, scores: Tensor, position: Tensor, uniforms: Tensor
        ) -> VerifyOutput:
            count = len(seen)
            out = verify(draft, scores, position, uniforms)
            seen[count:] = [visits_of(draft, scores.softmax(-1), out.path)]
            return out

        vars(verifier).update(sample=sampled, verify=verified)
        proposer.needs_host_sync = True  # a replayed graph would not call them
        return proposer, verifier

    *steps, last = decode(target, drafter, condition, config, make_parts=make_parts)
    assert isinstance(last, Decoded)
    found: dict[int, Visit] = {}
    for step, visits in zip(steps, seen, strict=True):
        assert isinstance(step, Step)
        places = range(step.committed - len(step.tokens), step.committed)
        found |= zip(places, visits, strict=False)  # visits after the path's end are arbitrary
    return [found[place] for place in range(len(last.tokens))], last.tokens


def visits_of(draft: Draft, p: Tensor, path: Tensor) -> list[Visit]:
    """Return the visits of the nodes of a path [m] through a draft to which the target gives
    probabilities p [n, V].
    """
    tree, probs = draft.tree, p.index_select(0, path)
    if tree.size == 1:
        return [Visit(probs[0], path.new_zeros(0), None)]
    rows = tree.rows.index_select(0, path)
    childless = tree.children.index_select(0, path) < 0
    drawn = draft.drawn.index_select(0, rows).masked_fill(childless, -1)
    q = [None] * len(path) if draft.q is None else draft.q.index_select(0, rows)
    return [Visit(*parts) for parts in zip(probs, drawn, q, strict=True)]


def shift_at(
    rule: Rule, visit: Visit, neighbours: Tensor | None, generator: torch.Generator, shared: bool
) -> Tensor:
    """Compute the distribution of the token emitted at a visited node minus p, [V] float64,
    averaged over drafts.

    shared: drafts and target drew with the same noise. An exact rule then emits only the target's
    own draw.
    """
    drafts = int((visit.tokens >= 0).sum())
    if not drafts or (shared and not rule.relaxes):
        return torch.zeros_like(visit.p, dtype=torch.float64)
    if visit.q is None:
        return fixed_shift(rule, visit.p, visit.tokens, neighbours)
    return sampled_shift(rule, visit.p, visit.q, drafts, neighbours, generator)


def fixed_shift(rule: Rule, p: Tensor, tokens: Tensor, neighbours: Tensor | None) -> Tensor:
    """Compute the distribution of the token emitted at a node minus p, [V] float64.

    The prefix fixes children [C], -1 none.
    """
    probs = torch.zeros_like(p, dtype=torch.float64)
    residual, open_mass = p.unsqueeze(0), torch.ones((), dtype=torch.float64, device=p.device)
    for x in tokens[tokens >= 0].view(-1, 1, 1):
        members = members_of(rule, residual, x, neighbours)
        accepted = chance(rule, members, None).view(())
        probs[x[0, 0]] += open_mass * accepted
        open_mass = open_mass * (1 - accepted)
        residual = _after(rule, residual, None, members)
    return probs + open_mass * _drawn_once(residual)[0] - p


def members_of(rule: Rule, p: Tensor, x: Tensor, neighbours: Tensor | None) -> Members:
    """Return the sets of tokens x [P, m] under p [P, V]."""
    return rule.members(
        p, with_neighbours(rule, x, neighbours), torch.ones_like(x, dtype=torch.bool)
    )


def chance(rule: Rule, members: Members, q: Tensor | None) -> Tensor:
    """Compute the probability [P, m] float64 that drafts are accepted: their score over its largest
    threshold.

    q [P, V] sums to 1, or is None if the prefix fixes the drafts."""
    score = rule.score(members, 0.0).double()
    if q is not None:
        score = score / q.gather(1, members.ids[..., 0]).double().clamp(min=1e-300)
    return score.clamp(max=1.0)


def _after(rule: Rule, p: Tensor, q: Tensor | None, members: Members) -> Tensor:
    """Return the probabilities [M, V] after one rejected draft a row, from p and q [M, V]; p where
    no probability remains.
    """
    residual = rule.reject(p, q, members, 0.0)
    total = residual.sum(-1, keepdim=True)
    return torch.where(total > 0, residual / total, p)


def without(q: Tensor, x: Tensor) -> Tensor:
    """Return q [P, V] without tokens x [P] (-1: keep all), renormalised; a row that becomes empty
    is all zero.
    """
    at = x.clamp(min=0).unsqueeze(1)
    residual = q.scatter(1, at, q.gather(1, at) * (x < 0).unsqueeze(1))
    total = residual.sum(-1, keepdim=True)
    return residual / total.masked_fill(total <= 0, 1.0)


def sampled_shift(
    rule: Rule,
    p: Tensor,
    q: Tensor,
    count: int,
    neighbours: Tensor | None,
    generator: torch.Generator,
    draws: int = DRAWS,
) -> Tensor:
    """Compute the distribution of the token emitted at a node minus p, [V] float64, for `count`
    children drawn from q.

    r_i is the distribution left after rejecting siblings 1..i (r_0 = p), q_i that of draw i, and h
    the drawn siblings. The shift is the sum over i of E_h[P(1..i-1 rejected | h) D_i(h)]. D_i is
    the distribution that draw i emits under r_i-1 and q_i (r_i after a rejection), minus r_i-1. The
    rule judges by q_i. The draws follow `realised`, which equals q_i unless the drawing is at
    fault.

    D_i sums the accepted part over all tokens, and samples only the rejected draws. For the exact
    rule every term is 0 up to rounding, and a wrong rule or draw would show. For relaxed rules the
    noise raises the distance a little. A single child is summed over all draws instead of sampled,
    unless the vocabulary is too large.
    """
    vocabulary = p.shape[0]
    history = torch.empty(1, 0, dtype=torch.int64, device=p.device)
    support = ((q > 0) | (realised(q, history)[0] > 0)).nonzero()[:, 0]
    exact = count == 1 and len(support) * vocabulary <= _SUMMED
    chains = len(support)
    if not exact:
        chains = max(1, min(draws, _BUDGET // max(vocabulary, chains * columns(rule))))
    # one row as long as the history is common to all chains, then one per chain
    residual, residual_q = p.unsqueeze(0), q.unsqueeze(0)
    weight = torch.ones(chains, dtype=torch.float64, device=p.device)
    shift = torch.zeros_like(p, dtype=torch.float64)
    for i in range(count):
        u = torch.rand(chains, generator=generator, device=p.device)
        drawn = realised(q, history)
        accepted, rejected = _split(rule, residual, drawn, support, residual_q, neighbours)
        lost = rejected.sum(-1, keepdim=True)
        # 1, or 0 where q has run out of tokens and the rule tries nothing
        tried = (drawn.sum(-1, keepdim=True) > 0).double()
        residual, residual_q, history = (
            rows.expand(chains, -1) for rows in (residual, residual_q, history)
        )
        x = support if exact else _drawn(rejected.expand(chains, -1), u)
        share = torch.full_like(weight, 1 / chains)
        if exact:
            share = rejected[0, support] / lost[0].clamp(min=1e-300)
        members = members_of(rule, residual, x.unsqueeze(1), neighbours)
        after = _after(rule, residual, residual_q, members)
        # the exact chains' shares sum to 0 where nothing is rejected, hence the separate accepted
        # part
        shift += ((accepted - tried * residual) * weight.unsqueeze(1)).mean(0)
        follows = _drawn_once(after) if i == count - 1 else after  # the bonus token's
        shift += ((share * weight).unsqueeze(1) * lost * follows).sum(0)
        residual, weight = after, weight * lost.squeeze(1)
        residual_q, history = without(residual_q, x), torch.cat([history, x.unsqueeze(1)], 1)
    return shift


def _drawn(probs: Tensor, u: Tensor) -> Tensor:
    """Return `sampling.draw`, or an arbitrary token for an all-zero distribution, whose weight is
    0.
    """
    return draw(probs, u).clamp_(max=probs.shape[1] - 1)


def realised(q: Tensor, history: Tensor) -> Tensor:
    """Return the distributions [M, V] float64 of the next draw without replacement from q [V] after
    the tokens history [M, i].

    The history is in draw order. A row is all zero where no token remains."""
    if history.shape[1]:
        rows, at = history.unique(dim=0, return_inverse=True)
    else:  # all rows are the same
        rows, at = history[:1], history.new_zeros(len(history)).long()
    residual = q.double().expand(rows.shape[0], -1).scatter(1, rows, 0.0)
    return _drawn_once(residual)[at]


def _drawn_once(probs: Tensor) -> Tensor:
    """Return the probabilities [M, V] float64 that single draws from probabilities [M, V] realise,
    zeros for an empty row.
    """
    sums = running_sums(probs)
    return sums.diff(dim=-1, prepend=torch.zeros_like(sums[..., :1])) / sums[..., -1:].clamp(
        min=1e-300
    )


def _split(
    rule: Rule, p: Tensor, drawn: Tensor, tokens: Tensor, q: Tensor, neighbours: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Split the distribution of a draw, drawn [M, V], over the tokens [m] into accepted and
    rejected parts.

    Both are [M, V] float64. The rule accepts under p and q [M, V]."""
    tokens = tokens.expand(p.shape[0], -1)
    accepted = chance(rule, members_of(rule, p, tokens, neighbours), q)
    proposed = drawn.gather(1, tokens)
    nothing = torch.zeros_like(p, dtype=torch.float64)
    kept, lost = proposed * accepted, proposed * (1 - accepted)
    return nothing.scatter(1, tokens, kept), nothing.scatter(1, tokens, lost)
