"""Why drafts were accepted or refused: `with_evidence` reads back the numbers that decided on a
step's accepted path. The decoding loop never does so. A caller that shows the numbers requests them
after a step, outside the run's clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .accept import Verdict
from .config import Config
from .interfaces import Pass, Target
from .results import Compared, Judged, Step

CHUNK = 32  # tokens per pass over a finished picture

Tried = list[list[tuple[int, int]]]  # by node of the path, its tried drafts: (draw number, node)


def with_evidence(step: Step) -> Step:
    """Return the step with the numbers that each tried draft was judged by, and without the tensors
    that it kept. A step without kept tensors is returned unchanged: it has no drafts, or was
    captured."""
    if step.kept is None:
        return step
    tree, out = step.kept
    step = replace(step, kept=None)
    inner, children = tree.inner.tolist(), tree.children.tolist()
    nodes = [node for node in step.path if node in inner]
    tried = tried_drafts(step, nodes, children)
    if out.verdict is None:
        own = out.target_tokens.tolist()
        return replace(step, compared=compared(step, [own[node] for node in nodes], tried))
    rows = [inner.index(node) for node in nodes]
    return replace(step, judged=judged(out.verdict, rows, tried))


def tried_drafts(step: Step, nodes: list[int], children: list[list[int]]) -> Tried:
    """Return the drafts that were tried at nodes of the path: those up to the accepted one."""
    tried: Tried = []
    for node, chosen in zip(nodes, [*step.path[1:], -1], strict=False):
        drafts = [(i, child) for i, child in enumerate(children[node]) if child >= 0]
        ends = (n for n, (_, child) in enumerate(drafts, 1) if child == chosen)
        tried.append(drafts[: next(ends, len(drafts))])
    return tried


def compared(step: Step, own: list[int], tried: Tried) -> list[Compared]:
    """Return the drafts at nodes where the target drew the tokens `own`."""
    return [
        Compared(child, token, 0 if step.tree_tokens[child] == token else -1, 1)
        for token, drafts in zip(own, tried, strict=True)
        for _, child in drafts
    ]


def judged(verdict: Verdict, rows: list[int], tried: Tried) -> list[Judged]:
    """Return the drafts at nodes with these rows of a verdict, with the numbers of the rule."""
    exists = verdict.tried.tolist()  # otherwise the drafter's distribution was exhausted before
    columns = [part.tolist() for part in (verdict.mass, verdict.score, verdict.threshold)]
    return [
        Judged(child, *(column[row][i] for column in columns))
        for row, drafts in zip(rows, tried, strict=True)
        for i, child in drafts
        if exists[row][i]
    ]


def own_logits(
    target: Target, condition: Any, tokens: list[int], config: Config
) -> Iterator[Tensor]:
    """Yield the target's logits [R, m, V] of positions 1, 2, ... of a finished picture, each given
    all tokens before it, CHUNK positions at a time."""
    cache = target.new_cache(config.rows, len(tokens))
    target.prefill(condition, cache)
    slots = torch.arange(cache.length + len(tokens) - 1, device=config.torch_device)
    read = torch.tensor(tokens[:-1], device=config.torch_device)
    for chunk, at in zip(read.split(CHUNK), slots[cache.length :].split(CHUNK), strict=True):
        visible = slots[: int(at[-1]) + 1] <= at[:, None]
        yield target.head(target.forward(Pass(chunk, at, at, visible), cache))
