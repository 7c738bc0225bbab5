"""Why drafts were accepted or refused: `with_evidence` reads back the numbers that decided on a
step's accepted path. The decoding loop never does so. A caller that shows the numbers requests them
after a step, outside the run's clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .config import Config
from .interfaces import Pass, Target
from .results import Judged, Step

CHUNK = 32  # tokens per pass over a finished picture


def with_evidence(step: Step) -> Step:
    """Return the step with the numbers that a rule judged each tried draft by, and without the
    tensors that it kept. A step without them has no drafts, or was captured. With shared noise
    there are no numbers: a draft is accepted if it is the token that the target draws there."""
    if step.kept is None:
        return step
    tree, out = step.kept
    if (verdict := out.verdict) is None:
        return replace(step, kept=None)
    rows = tree.rows.index_select(0, out.path).tolist()
    exists = verdict.tried.tolist()  # otherwise the drafter's distribution was exhausted before
    columns = [part.tolist() for part in (verdict.mass, verdict.score, verdict.threshold)]
    judged = [
        Judged(child, *(column[row][i] for column in columns))
        for row, drafts in zip(rows, tried_drafts(step.parents, step.path), strict=False)
        for i, child in enumerate(drafts)
        if exists[row][i]
    ]
    return replace(step, judged=judged, kept=None)


def tried_drafts(parents: Sequence[int], path: Sequence[int]) -> Iterator[list[int]]:
    """Yield the drafts that were tried after each node of a path: its children in the tree of
    `parents`, in order, up to the accepted one."""
    for node, accepted in zip(path, [*path[1:], len(parents)], strict=False):
        yield [
            child for child in range(1, len(parents)) if parents[child] == node <= child <= accepted
        ]


def own_logits(
    target: Target, condition: Any, tokens: list[int], config: Config
) -> Iterator[Tensor]:
    """Yield the target's logits [R, m, V] of all positions of a finished picture, each given all
    tokens before it: first that of position 0, then CHUNK positions at a time."""
    cache = target.new_cache(config.rows, len(tokens))
    yield target.head(target.prefill(condition, cache)[:, -1:])
    slots = torch.arange(cache.length + len(tokens) - 1, device=config.torch_device)
    read = torch.tensor(tokens[:-1], device=config.torch_device)
    for chunk, at in zip(read.split(CHUNK), slots[cache.length :].split(CHUNK), strict=True):
        visible = slots[: int(at[-1]) + 1] <= at[:, None]
        yield target.head(target.forward(Pass(chunk, at, at, visible), cache))
