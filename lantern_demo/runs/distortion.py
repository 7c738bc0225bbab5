"""Measured distortion: how far the distribution of the next token under a rule is from the target's probabilities p.

Measured at nodes that a run came by, for the token that came out there: the one-step distance at the first of some steps, the
picture's price (see `lantern_demo.runs.price`) at all of them. Runs after the run, with a generator of its own.

A token is drawn off running sums, which round. The distributions here are those that the sums realise (`sampling.running_sums`),
while the rule judges by the distributions it was told: a draw that does not follow its distribution shows as distortion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.rules import Children, Near, Rule
from lantern_demo.decoding.sampling import NOTHING, draw, running_sums
from lantern_demo.decoding.trees import Draft

Item = TypeVar("Item")

MAX_ROOTS = 16  # visits that the one-step distance is the mean of
KEPT_BYTES = 2**26  # of a run's distributions
DRAWS = 64
# entries of the largest table that one estimate builds; bounds its memory to some 100 MB
_BUDGET = 1 << 22
# entries up to which a single child is summed over all draws: beyond, that takes longer than a race may wait for
_SUMMED = 1 << 18


class Distortion(NamedTuple):
    """A one-step total variation distance, 0 to 1, and how it was come by."""

    tvd: float
    method: str


@dataclass(frozen=True)
class Visit:
    """One node that a run came by, where a token was drawn: target probabilities p [V], tokens drafted there [C] (-1 none), which
    of them are nodes [C] bool, the probabilities q [V] they were drawn from (None: fixed by the prefix), the token that came out,
    and the node's depth."""

    p: Tensor
    tokens: Tensor
    offered: Tensor
    q: Tensor | None
    emitted: int
    depth: int = 0


class _Kept(NamedTuple):
    """What a step leaves, a row for each node of its path; behind the path's end anything."""

    p: Tensor  # [m, V]
    tokens: Tensor  # [m, C]
    offered: Tensor  # [m, C]
    q: Tensor | None  # [m, V]

    @property
    def bytes(self) -> int:
        """What it takes."""
        return sum(part.numel() * part.element_size() for part in self if part is not None)


class ProbsWatcher:
    """The distributions of a run's steps, of all of them where they fit into KEPT_BYTES, else evenly spread, MAX_ROOTS of them
    whatever they take; the same for the same run. A `protocols.Watcher`. It keeps every `stride`-th step; when the room is used
    up, every other one goes and the stride doubles."""

    def __init__(self) -> None:
        self._kept: list[_Kept] = []
        self._stride, self._bytes = 1, 0

    def wants(self, step: int) -> bool:
        """As `protocols.Watcher.wants`."""
        return step % self._stride == 0

    def add(self, draft: Draft, p: Tensor, path: Tensor) -> None:
        """As `protocols.Watcher.add`."""
        tree, probs = draft.tree, p.index_select(0, path)
        if tree.size == 1:
            nothing = draft.tokens[:0].expand(len(path), 0)
            found = _Kept(probs, nothing, nothing.bool(), None)
        else:
            rows = tree.inner_rows.index_select(0, path)
            at = rows.clamp(min=0)
            drawn = draft.drawn.index_select(0, at).masked_fill(rows.unsqueeze(1) < 0, -1)
            if draft.rest is not None:
                drawn.masked_fill_(draft.rest.index_select(0, at) < NOTHING, -1)
            q = None if draft.q is None else draft.q.index_select(0, at)
            found = _Kept(probs, drawn, tree.children.index_select(0, path) >= 0, q)
        self._kept.append(found)
        self._bytes += found.bytes  # steps differ in how many nodes they come by
        while self._bytes > KEPT_BYTES and len(self._kept) > MAX_ROOTS:
            self._kept = self._kept[::2]
            self._stride *= 2
            self._bytes = sum(kept.bytes for kept in self._kept)

    def visits(self, steps: Sequence[Step]) -> list[list[tuple[int, Visit]]]:
        """What was kept of a run, given its steps, the prefill first: of each step the tokens' places and visits."""
        found = []
        for kept, step in zip(self._kept, steps[1 :: self._stride], strict=False):
            visits = []
            for j, (index, token) in enumerate(zip(step.places, step.tokens, strict=True)):
                q = None if kept.q is None else kept.q[j]
                depth = j if step.tree_tokens else 0  # a wave's tokens lie in rows of their own, each a root
                visits.append((index, Visit(kept.p[j], kept.tokens[j], kept.offered[j], q, token, depth)))
            found.append(visits)
        return found


def measure(rule: Rule, visits: Sequence[Visit], neighbours: Tensor | None, greedy: bool, seed: int) -> Distortion | None:
    """The mean distance over visits; None without any.

    Greedy: the distribution is a point mass, so the mean is the share of visits whose token is not the argmax.
    Children fixed by the prefix: closed form. Sampled children: see `sampled_shift`.
    """
    if not visits:
        return None
    if greedy:
        missed = [visit.emitted != int(visit.p.argmax()) for visit in visits]
        return Distortion(sum(missed) / len(missed), "closed form")
    generator = torch.Generator(visits[0].p.device).manual_seed(seed)
    total, sampled = 0.0, 0
    for visit in visits:
        shift, draws = shift_at(rule, visit, neighbours, generator)
        sampled = max(sampled, draws)
        total += 0.5 * float(shift.abs().sum())
    return Distortion(total / len(visits), f"monte carlo ({sampled} draws)" if sampled else "closed form")


def roots(steps: Sequence[Sequence[tuple[int, Visit]]]) -> list[Visit]:
    """Of kept steps the first visits, at most MAX_ROOTS, evenly spread: what the one-step distance is measured at."""
    return [step[0][1] for step in spread_evenly(steps)]


def spread_evenly(steps: Sequence[Item]) -> Sequence[Item]:
    """At most MAX_ROOTS of what steps have, one for each."""
    stride = 1
    while -(-len(steps) // stride) > MAX_ROOTS:
        stride *= 2
    return steps[::stride]


def shift_at(
    rule: Rule, visit: Visit, neighbours: Tensor | None, generator: torch.Generator, draws: int = DRAWS
) -> tuple[Tensor, int]:
    """Law of the token that comes out at a visited node minus p, [V] float64, whatever was drafted there; and the Monte Carlo
    draws used, 0 when none were needed."""
    if not visit.tokens.shape[0] or not bool(visit.offered.any()):
        return torch.zeros_like(visit.p, dtype=torch.float64), 0
    aim = rule.target(visit.p, visit.q)
    if visit.q is not None and aim is not visit.p:  # the exact rule, with another target
        shift, used = sampled_shift(Rule(), aim, visit.q, visit.offered, neighbours, generator, draws, visit.depth)
        return shift + (aim.double() - visit.p), used
    if visit.q is None:
        return fixed_shift(rule, visit.p, visit.tokens, neighbours, visit.depth), 0
    return sampled_shift(rule, visit.p, visit.q, visit.offered, neighbours, generator, draws, visit.depth)


def fixed_shift(rule: Rule, p: Tensor, tokens: Tensor, neighbours: Tensor | None, depth: int = 0) -> Tensor:
    """Law of the token emitted at a node of some depth minus p, [V] float64, for children [C] fixed by the prefix, -1 none."""
    probs = torch.zeros_like(p, dtype=torch.float64)
    residual, open_mass = p.unsqueeze(0), torch.ones((), dtype=torch.float64, device=p.device)
    for x in tokens[tokens >= 0].view(-1, 1):
        children = Children(x, None, neighbours, depth)
        near = rule.near(residual, x, neighbours)
        chance = rule.chance(residual, near, children).view(())
        probs[x[0]] += open_mass * chance
        open_mass = open_mass * (1 - chance)
        residual = _after(rule, residual, near, children)
    return probs + open_mass * _drawn_once(residual)[0] - p


def _after(rule: Rule, p: Tensor, near: Near, children: Children) -> Tensor:
    """The probabilities [M, V] behind the rejection of the child that near is about, from p [M, V] and what children say; p where
    nothing is left."""
    residual = p.clone()
    rule.reject(residual, near, None if children.q is None else torch.ones_like(residual[:, :1]), children)
    total = residual.sum(-1, keepdim=True)
    return torch.where(total > 0, residual / total, p)


def without(q: Tensor, x: Tensor) -> Tensor:
    """q [P, V] without tokens x [P] (-1: all stay), renormalised; a row that becomes empty is all zero."""
    at = x.clamp(min=0).unsqueeze(1)
    residual = q.scatter(1, at, q.gather(1, at) * (x < 0).unsqueeze(1))
    total = residual.sum(-1, keepdim=True)
    return residual / total.masked_fill(total <= 0, 1.0)


def sampled_shift(
    rule: Rule,
    p: Tensor,
    q: Tensor,
    offered: Tensor,
    neighbours: Tensor | None,
    generator: torch.Generator,
    draws: int = DRAWS,
    depth: int = 0,
) -> tuple[Tensor, int]:
    """Law of the token emitted at a node of some depth minus p, [V] float64, for children drawn from q; and the Monte Carlo
    draws used, 0 when none were needed.

    With r_i the distribution left after rejecting siblings 1..i (r_0 = p), q_i that of draw i, and h the siblings drawn, the
    shift is the sum over i of E_h[P(1..i-1 rejected | h) D_i(h)], where D_i = (what draw i emits under r_i-1 and q_i, r_i after a
    rejection) - r_i-1. The rule judges by q_i; the draws themselves follow `realised`, which is q_i unless the drawing is at
    fault. In D_i the accepted part is summed over all tokens; only the rejected draws, on which r_i and the following siblings
    depend, are sampled, from their own distribution. The terms of the exact rule are 0 for every h up to rounding, so this
    estimate has no noise for it, yet would show a wrong rule or a wrong draw. For relaxed rules what noise is left leans the
    distance upward a little. A single child is summed over all draws instead of sampled, unless the vocabulary is too large for
    that.
    """
    offered = offered[: int(offered.nonzero()[-1]) + 1]  # later draws reach no node
    vocabulary, count = p.shape[0], offered.shape[0]
    history = torch.empty(1, 0, dtype=torch.int64, device=p.device)
    support = ((q > 0) | (realised(q, history)[0] > 0)).nonzero()[:, 0]
    exact = count == 1 and support.shape[0] * vocabulary <= _SUMMED
    per_chain = max(vocabulary, support.shape[0] * rule.table_columns)
    chains = support.shape[0] if exact else max(1, min(draws, _BUDGET // per_chain))
    # one row as long as the history is common to all chains, then one per chain
    residual, residual_q = p.unsqueeze(0), q.unsqueeze(0)
    weight = torch.ones(chains, dtype=torch.float64, device=p.device)
    shift = torch.zeros_like(p, dtype=torch.float64)
    for i in range(count):
        u = torch.rand(chains, generator=generator, device=p.device)
        if not bool(offered[i]):
            x = _drawn(realised(q, history).expand(chains, -1), u)
            residual, residual_q, history = residual.expand(chains, -1), residual_q.expand(chains, -1), history.expand(chains, -1)
            residual_q, history = without(residual_q, x), torch.cat([history, x.unsqueeze(1)], 1)
            continue
        drawn = realised(q, history)
        accepted, rejected = _split(rule, residual, drawn, Children(support, residual_q, neighbours, depth))
        lost = rejected.sum(-1, keepdim=True)
        # 1, or 0 where q has run out of tokens and the rule tries nothing
        tried = (drawn.sum(-1, keepdim=True) > 0).double()
        residual, residual_q, history = residual.expand(chains, -1), residual_q.expand(chains, -1), history.expand(chains, -1)
        if exact:
            x, share = support, rejected[0, support] / lost[0].clamp(min=1e-300)
        else:
            x, share = _drawn(rejected.expand(chains, -1), u), torch.full_like(weight, 1 / chains)
        after = _after(rule, residual, rule.near(residual, x, neighbours), Children(x, residual_q, neighbours, depth))
        # the exact chains' shares sum to 0 where nothing is rejected, hence the accepted part by itself
        shift += ((accepted - tried * residual) * weight.unsqueeze(1)).mean(0)
        follows = _drawn_once(after) if i == count - 1 else after  # the bonus token's
        shift += ((share * weight).unsqueeze(1) * lost * follows).sum(0)
        weight = weight * lost.squeeze(1)
        residual, residual_q, history = after, without(residual_q, x), torch.cat([history, x.unsqueeze(1)], 1)
    return shift, 0 if exact else chains


def _drawn(probs: Tensor, u: Tensor) -> Tensor:
    """As `sampling.draw`; any token of a distribution without mass, whose weight is 0."""
    return draw(probs, u).clamp_(max=probs.shape[1] - 1)


def realised(q: Tensor, history: Tensor) -> Tensor:
    """Laws [M, V] float64 of the next draw without replacement from q [V] behind the tokens history [M, i], in draw order; zeros
    where nothing is left."""
    rows, at = (
        history.unique(dim=0, return_inverse=True) if history.shape[1] else (history[:1], history.new_zeros(len(history)).long())
    )
    residual = q.double().expand(rows.shape[0], -1).scatter(1, rows, 0.0)
    return _drawn_once(residual)[at]


def _drawn_once(probs: Tensor) -> Tensor:
    """The probabilities [M, V] float64 that single draws from probabilities [M, V] have; zeros for one without mass."""
    sums = running_sums(probs)
    return sums.diff(dim=-1, prepend=torch.zeros_like(sums[..., :1])) / sums[..., -1:].clamp(min=1e-300)


def _split(rule: Rule, p: Tensor, drawn: Tensor, children: Children) -> tuple[Tensor, Tensor]:
    """The distribution of a draw, drawn [M, V], of any of the tokens of children [m], split into what is emitted by acceptance
    under p and the children's q [M, V] and what is rejected, both [M, V] float64."""
    tokens = children.tokens.expand(p.shape[0], -1)
    chance = rule.chance(p, rule.near(p, tokens, children.neighbours), children)
    proposed = drawn.gather(1, tokens)
    nothing = torch.zeros_like(p, dtype=torch.float64)
    return nothing.scatter(1, tokens, proposed * chance), nothing.scatter(1, tokens, proposed * (1 - chance))
