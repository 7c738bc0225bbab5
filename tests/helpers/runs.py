"""Runs of the decoding loop and of its parts, with everything as arguments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from passes import node_pass
from torch import Tensor

from lantern_demo.decoding import loop
from lantern_demo.decoding import sampling as sampled_by
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import DraftConfig, DynamicProposer, StaticProposer
from lantern_demo.decoding.graphs import Runners
from lantern_demo.decoding.loop import Decoded, Step
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.ops import PYTORCH, KernelError, Ops
from lantern_demo.decoding.results import pack_step, unpack_step
from lantern_demo.decoding.rules import Rule
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.step import Steps
from lantern_demo.decoding.timing import Clock
from lantern_demo.decoding.trees import Draft, Tree
from lantern_demo.decoding.verify import RejectionVerifier
from lantern_demo.settings.knobs import KNOBS, bound_of
from lantern_demo.settings.settings import Settings, planned

# Small draft trees and windows, and bounds that say something among few tokens.
DRAFTS = {"tree": "0 1 2 00 01 10 000", "draft_top_k": 3, "draft_depth": 2, "draft_nodes": 9}
BOUNDS = {"lantern_k": 5, "lantern_delta": 0.2, "lanternpp_k": 5, "lanternpp_lambda": 2.0}
SMALL = Settings(**DRAFTS, **BOUNDS, window=4)


# One method for every kind of drafts, that of none among them: networks do not know by which rule
# their drafts are accepted.
OF_EACH_KIND = list({method.drafts: method.id for method in METHODS.values()}.values())


def small(method: str, **changes: Any) -> dict[str, Any]:
    """How a method of the table is run small: what `decode` takes for it under SMALL with some
    settings changed.
    """
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
    """Every way to run small that changes no distribution, by what it is called: lossless methods
    with whatever drafts their kind makes, and others whose bound is at the end where nothing is
    relaxed.
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
    target: Any,
    drafter: Any,
    condition: Any,
    clock: Clock | None = None,
    runners: Runners | None = None,
    padded: bool = False,
    **settings: Any,
) -> Iterator[Step | Decoded]:
    """As `loop.decode`. padded: with the sizes of steps that a GPU captures."""
    events = loop.decode(target, drafter, condition, Config(**settings), clock, runners)
    return with_padded_steps(events) if padded else events


def with_padded_steps(events: Iterator[Step | Decoded]) -> Iterator[Step | Decoded]:
    """Yield the events of a run whose steps have the sizes that a GPU captures."""
    with closing(events):
        while True:
            with patch.object(Steps, "exact", False):
                try:
                    event = next(events)
                except StopIteration:
                    return
            yield event


class Kernels(Ops):
    """PyTorch's operations in the place of kernels, until they are refused. A draw fails once so
    many are done; None: none does.
    """

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


class Behind:
    """A drafter's passes behind its stable one, whose last output is known."""

    position = torch.ones(1, dtype=torch.int64)

    def __init__(self, output: Tensor, drafter: Any, cache: Any) -> None:
        self.output, self.drafter, self.cache = output, drafter, cache

    def sync(self) -> Tensor:
        return self.output

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor) -> Tensor:
        spied = getattr(self.drafter, "node_pass", None)
        return (spied or partial(node_pass, self.drafter))(tokens, hidden, depth, mask, self.cache)


def dynamic_draft(
    drafts: DraftConfig,
    root: Tensor,
    output: Tensor,
    drafter: Any,
    target: Any,
    cache: Any,
    sampling: Sampling,
) -> Draft:
    """A tree grown from the drafter's last stable output [R, 1, H]."""
    return DynamicProposer(drafts, sampling).propose(
        root, Behind(output, drafter, cache), target.head, root[:0]
    )


def static_draft(
    tree: Tree,
    root: Tensor,
    output: Tensor,
    drafter: Any,
    target: Any,
    cache: Any,
    sampling: Sampling,
    uniforms: Tensor,
) -> Draft:
    """A static tree filled from the drafter's last stable output [R, 1, H]."""
    return StaticProposer(tree, sampling).propose(
        root, Behind(output, drafter, cache), target.head, uniforms
    )


def walked(
    rule: Rule,
    draft: Draft,
    logits: Tensor,
    sampling: Sampling,
    neighbours: Tensor | None,
    uniforms: Tensor,
) -> Step:
    """The walk over a draft as an engine takes it, from guided logits [n, V] and uniforms [n, width
    + 1].
    """
    tree, scores = draft.tree, sampled_by.probabilities(logits, sampling).log()
    shape = {"drafts": SimpleNamespace(width=tree.width, nodes=tree.size)}
    of_run = {"rule": rule, "sampling": sampling, "neighbours": neighbours, "ops": PYTORCH}
    config: Any = SimpleNamespace(**of_run, **shape)
    out = RejectionVerifier(config, scores.shape[1]).verify(
        draft, scores, torch.zeros(1).long(), uniforms.flatten()
    )
    row, most = pack_step(draft, out).tolist(), tree.depth + 1
    return unpack_step(row, tree.size, tree.depth, logits.shape[1], most, 1, 0)
