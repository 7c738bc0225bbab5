"""Why drafts were accepted or refused: `with_evidence` judges the nodes of a step's accepted path again, and reads back the
numbers. The decoding loop never does so. A caller that shows the numbers requests them after a step, outside the run's
clock."""

from __future__ import annotations

from dataclasses import replace

import torch

from .results import Compared, Judged, Step
from .verify import Children, RejectionVerifier, SharedNoiseVerifier, decide, decide_greedy


@torch.inference_mode()
def with_evidence(step: Step) -> Step:
    """Return the step with the numbers that each tried draft was judged by, and without the tensors that it kept. A step
    without kept tensors is returned unchanged: it has no drafts, or fixed shapes."""
    if step.kept is None:
        return step
    verifier, draft, out, scores, uniforms = step.kept
    step, tree = replace(step, kept=None), draft.tree
    inner_rows, children = tree.inner_rows.tolist(), tree.children.tolist()
    nodes = [node for node in step.path if inner_rows[node] >= 0]
    at = torch.tensor(nodes, device=scores.device)
    rows = tree.inner_rows.index_select(0, at)
    # by row, the tried drafts in draw order: (draw number, node)
    tried: list[list[tuple[int, int]]] = []
    for node, chosen in zip(nodes, [*step.path[1:], -1], strict=False):
        found = [(i, child) for i, child in enumerate(children[node]) if child >= 0]
        stop = next((n for n, (_, child) in enumerate(found, 1) if child == chosen), len(found))
        tried.append(found[:stop])
    drawn, at_nodes = draft.drawn.index_select(0, rows), scores.index_select(0, at)
    if isinstance(verifier, SharedNoiseVerifier):
        own, sets = out.target_tokens.index_select(0, at).tolist(), drawn.unsqueeze(-1)
        if verifier.rule.relaxes:
            members = verifier.members(drawn, at_nodes)
            sets = members.ids.masked_fill(~members.member, -1)
        compared = []
        for token, by_child, children_of in zip(own, sets.tolist(), tried, strict=True):
            for i, child in children_of:
                near = [member for member in by_child[i] if member >= 0]
                compared.append(Compared(child, token, near.index(token) if token in near else -1, len(near)))
        return replace(step, compared=compared)
    assert isinstance(verifier, RejectionVerifier)
    q, rest, offered = (None if part is None else part.index_select(0, rows) for part in (draft.q, draft.rest, tree.offered))
    of = Children(drawn, q, verifier.neighbours, tree.depths.index_select(0, at).unsqueeze(1), offered, rest)
    if verifier.greedy:
        verdict = decide_greedy(verifier.rule, at_nodes.softmax(-1), of)
    else:
        u = uniforms[: tree.size * (verifier.width + 1)].view(tree.size, -1).index_select(0, at)
        verdict = decide(verifier.rule, at_nodes.softmax(-1), of, u)
    there, *values = (part.tolist() for part in (verdict.tried, verdict.mass, verdict.score, verdict.threshold))
    judged = [
        Judged(child, *(numbers[row][i] for numbers in values))
        for row, children_of in enumerate(tried)
        for i, child in children_of
        if there[row][i]  # otherwise the drafter's distribution was exhausted before this draw
    ]
    return replace(step, judged=judged)
