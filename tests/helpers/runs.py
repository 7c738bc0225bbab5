"""Runs of the decoding loop and of its parts, with everything as arguments."""

from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from lantern_demo.decoding import loop
from lantern_demo.decoding import sampling as sampled_by
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.loop import Decoded, Step
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.ops import PYTORCH, KernelError, Ops
from lantern_demo.decoding.results import pack_step, unpack_step
from lantern_demo.decoding.rules import Rule
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.step import Steps
from lantern_demo.decoding.trees import Draft
from lantern_demo.decoding.verify import RejectionVerifier
from lantern_demo.settings.knobs import KNOBS, bound_of
from lantern_demo.settings.settings import Settings, planned

# Small draft trees and windows, and bounds that say something among few tokens.
DRAFTS = {"tree": "0 1 2 00 01 10 000", "draft_top_k": 3, "draft_depth": 2, "draft_nodes": 9}
BOUNDS = {"lantern_k": 5, "lantern_delta": 0.2, "lanternpp_k": 5, "lanternpp_lambda": 2.0}
SMALL = Settings(**DRAFTS, **BOUNDS, window=4)
# One method for every kind of drafts: networks do not know by which rule these are accepted.
OF_EACH_KIND = list({method.drafts: method.id for method in METHODS.values()}.values())


def small(method: str, **changes: Any) -> dict[str, Any]:
    """What `decode` takes for a method of the table under SMALL with some settings changed."""
    plan = planned(METHODS[method], SMALL.with_changes(**changes))
    return {"drafts": plan.drafts, "rule": plan.rule}


# Settings beside those of SMALL, of which every kind of drafts takes its own: a chain, a tree of
# one level, a deep one, and windows of one place and wider than a row.
SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"tree": "0 00 000 0000 00000"},
    {"draft_top_k": 5, "draft_depth": 0, "draft_nodes": 6},
    {"draft_top_k": 2, "draft_depth": 4, "draft_nodes": 19},
    {"window": 1},
    {"window": 12},
)


def exact_ways() -> dict[str, dict[str, Any]]:
    """Every way to run small that changes no distribution, by name: lossless methods with whatever
    drafts their kind makes, and others whose bound is at the end where nothing is relaxed.
    """
    tried = [(name, shape) for name in METHODS if METHODS[name].lossless for shape in SHAPES]
    for name, method in METHODS.items():
        bound = bound_of(method)
        limit = KNOBS[bound].limit if bound else None
        ends = [{bound: end} for end in (limit.low, limit.high)] if limit else []
        tried += [(name, end) for end in ends if not SMALL.with_changes(**end).rule(method).relaxes]
    found: dict[str, dict[str, Any]] = {}
    for name, changes in tried:
        way = small(name, **changes)
        if way not in found.values():
            found[" ".join([name, *(f"{knob} {value}" for knob, value in changes.items())])] = way
    return found


def decode(
    target: Any, drafter: Any, condition: Any, padded: bool = False, **settings: Any
) -> Iterator[Step | Decoded]:
    """As `loop.decode`. padded: with the sizes of steps that a GPU captures."""
    kept = {name: settings.pop(name, None) for name in ("clock", "runners")}
    events = loop.decode(target, drafter, condition, Config(**settings), **kept)
    return with_padded_steps(events) if padded else events


def with_padded_steps(events: Iterator[Step | Decoded]) -> Iterator[Step | Decoded]:
    """Yield the events of a run whose steps have the sizes that a GPU captures."""
    with closing(events):
        while True:
            with patch.object(Steps, "exact", False):
                event = next(events, None)
            if event is None:
                return
            yield event


class Kernels(Ops):
    """PyTorch's operations as if they were kernels. With `draws` the draw after so many fails."""

    def __init__(self, draws: int | None = None) -> None:
        super().__init__()
        self.left = draws

    def refuse(self, error: KernelError) -> None:
        if self.reason:
            raise error
        self.reason = f"without kernels: {error}"

    def draw(self, probs: Tensor, u: Tensor) -> Tensor:
        if self.left is not None and not self.reason:
            if not self.left:
                raise KernelError("no kernel")
            self.left -= 1
        return super().draw(probs, u)


def walked(
    rule: Rule, draft: Draft, logits: Tensor, sampling: Sampling, near: Tensor | None, u: Tensor
) -> Step:
    """An engine's walk over a draft by guided logits [n, V] and uniforms u [n, width + 1]."""
    tree, scores = draft.tree, sampled_by.probabilities(logits, sampling).log()
    shape = {"drafts": SimpleNamespace(width=tree.width, nodes=tree.size)}
    of_run = {"rule": rule, "sampling": sampling, "neighbours": near, "ops": PYTORCH}
    verifier = RejectionVerifier(SimpleNamespace(**of_run, **shape), scores.shape[1])
    out = verifier.verify(draft, scores, torch.zeros(1).long(), u.flatten())
    row, most = pack_step(draft, out).tolist(), tree.depth + 1
    return unpack_step(row, tree.size, tree.depth, logits.shape[1], most, 1, 0)
