"""Tell why drafts were accepted or refused: judge the nodes of one step's accepted path again, and read the numbers."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .deciding import decide, decide_greedy, decide_shared
from .rules import Children
from .trees import Draft
from .verify import Compared, Judged, RejectionVerifier, SharedNoiseVerifier, Step, Verifier, VerifyOutput


def evidence(verifier: Verifier, step: Step, draft: Draft, out: VerifyOutput, scores: Tensor, uniforms: Tensor) -> Step:
    """The step with what each draft that was tried was judged by, read back to the host. The tensors are those that the step was
    verified with."""
    tree = draft.tree
    if tree.size == 1:
        return step
    inner_rows, children = tree.inner_rows.tolist(), tree.children.tolist()
    nodes = [node for node in step.path if inner_rows[node] >= 0]
    at = torch.tensor(nodes, device=scores.device)
    rows = tree.inner_rows.index_select(0, at)
    # the nodes of drafts that were tried, in draw order, by row
    tried: list[list[tuple[int, int]]] = []
    for node, chosen in zip(nodes, [*step.path[1:], -1], strict=False):
        found = [(i, child) for i, child in enumerate(children[node]) if child >= 0]
        stop = next((n for n, (_, child) in enumerate(found, 1) if child == chosen), len(found))
        tried.append(found[:stop])
    drawn = draft.drawn.index_select(0, rows)
    p = scores.index_select(0, at).softmax(-1)
    if isinstance(verifier, SharedNoiseVerifier):
        own = out.target_tokens.index_select(0, at)
        _, near = decide_shared(verifier.rule, p, drawn, own, verifier.neighbours)
        sets = drawn.unsqueeze(-1) if near is None else near.ids.masked_fill(near.kept_mask > 0, -1)
        compared = []
        for children_of, token, by_child in zip(tried, own.tolist(), sets.tolist(), strict=True):
            for i, child in children_of:
                members = [member for member in by_child[i] if member >= 0]
                compared.append(Compared(child, token, members.index(token) if token in members else -1, len(members)))
        return replace(step, compared=compared)
    assert isinstance(verifier, RejectionVerifier)
    q, rest, offered = (None if part is None else part.index_select(0, rows) for part in (draft.q, draft.rest, tree.offered))
    of = Children(drawn, q, verifier.neighbours, tree.depths.index_select(0, at).unsqueeze(1), offered, rest)
    if verifier.greedy:
        verdict = decide_greedy(verifier.rule, p, of)
    else:
        verdict = decide(verifier.rule, p, of, uniforms[: tree.size * (verifier.width + 1)].view(tree.size, -1)[at])
    mass, counted, limits, totals = (part.tolist() for part in (verdict.mass, verdict.counted, verdict.threshold, verdict.total))
    judged = []
    for row, children_of in enumerate(tried):
        for i, child in children_of:
            if limits[row][i] > 0:  # else the drafter's distribution had ended before it, and it was not tried
                judged.append(Judged(child, *(numbers[row][i] / totals[row][i] for numbers in (mass, counted, limits))))
    return replace(step, judged=judged)
