"""Judging by the papers' rejection sampling, and greedy: see `deciding`."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from .deciding import decide, decide_greedy
from .rules import Children, Rule, Verdict
from .sampling import Sampling, draw, guide, probabilities
from .trees import Draft
from .verify import Found, Judge, Judged, Step, likeliest, onward, tried, walk


class Rejection(Judge):
    """How a run draws and judges by rejection sampling."""

    flagged = True

    def __init__(
        self, rule: Rule, sampling: Sampling, neighbours: Tensor | None, vocabulary: int, nodes: int, width: int
    ) -> None:
        """nodes and width are the most that a draft tree has, and the most children of a node."""
        super().__init__(rule, sampling, neighbours, vocabulary)
        self.width, self.draws = width, nodes * (width + 1)

    def look(self, logits: Tensor) -> Tensor:
        return probabilities(guide(logits, self.sampling.cfg_scale), self.sampling, spent=True)

    def each(self, looked: Tensor, positions: Tensor | None, uniforms: Tensor) -> Tensor:
        return likeliest(looked) if self.sampling.greedy else draw(looked, uniforms[: len(looked)])

    def choose(self, draft: Draft, looked: Tensor, uniforms: Tensor) -> Found:
        """uniforms [at least n (width + 1)] in [0, 1): of each node one for each child and one for the bonus token behind it."""
        tree, rule, greedy, p = draft.tree, self.rule, self.sampling.greedy, looked
        inner, whole = tree.inner, tree.whole
        uniforms = uniforms[: tree.size * (self.width + 1)].view(tree.size, -1)
        probs = p.index_select(0, inner)  # a copy, to be worked on
        children = Children(draft.drawn, draft.q, self.neighbours, tree.inner_depths, tree.offered, draft.rest)
        if greedy:
            verdict = decide_greedy(rule, probs, children)
        else:
            verdict = decide(rule, probs, children, uniforms if whole else uniforms.index_select(0, inner))
        following = onward(tree, verdict.rank)
        path = walk(tree, following)
        last = path[-1:]
        if verdict.relaxed is None:
            flags = tree.parents[:1].expand(tree.size)  # 0
        else:  # a node has at most one accepted child
            flags = verdict.relaxed.gather(1, verdict.rank.unsqueeze(1).clamp(max=tree.width - 1))[:, 0]
            flags = flags if whole else flags.index_select(0, tree.rows)
        if greedy:
            bonus = likeliest(p.index_select(0, last))
        else:
            residual = verdict.residual if whole else p.index_copy(0, inner, verdict.residual)
            bonus = draw(residual.index_select(0, last), uniforms[:, -1].index_select(0, last))
        return Found(bonus.expand(tree.size), following, flags, path, verdict)

    def evidence(self, step: Step, draft: Draft, found: Found) -> Step:
        """As `Judge.evidence`. A node of a threshold of 0 was not tried: the drafter's distribution had ended before it."""
        if not isinstance(found.tried, Verdict):
            return step
        of = found.tried
        mass, stands, thresholds, totals = (values.tolist() for values in (of.mass, of.counted, of.threshold, of.total))
        judged = []
        for _, row, i, child in tried(draft.tree, step.path):
            if thresholds[row][i] > 0:
                parts = (numbers[row][i] / totals[row][i] for numbers in (mass, stands, thresholds))
                judged.append(Judged(child, *parts))
        return replace(step, judged=judged)
