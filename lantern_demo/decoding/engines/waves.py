"""The steps of a wavefront (see `decoding.wavefront`) on both engines. Keys and values of a place lie in the slot of that place, and each
pass reads, draws and writes down what the plan says: nothing is drafted, judged or moved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..protocols import FixedTarget
from ..sampling import NO_LAW, Uniforms, guide
from ..trees import Draft
from ..verify import Outcome
from ..wavefront import Node, plan_of, seen
from .fixed import Fixed, StepLaw
from .plain import Plain


def checked(drawn: list[int], nodes: tuple[Node, ...], end: int, vocabulary: int) -> Outcome:
    """The outcome of a pass whose nodes drew tokens: those of the first `end` places count. Raises FloatingPointError where a law was
    none."""
    places = [place for *_, place in nodes if place < end]
    tokens = drawn[: len(places)]
    if not all(0 <= token < vocabulary for token in tokens):
        raise FloatingPointError(NO_LAW)
    return Outcome([], tokens, [], [], [], places=places)


class PlainWave(Plain):
    """Its passes have as many nodes as there are open rows, and attention covers the places up to the last of them."""

    target: FixedTarget

    def begin(self, hidden: Tensor, root: Tensor) -> None:
        """As `Plain.begin`."""
        config, cache = self.config, self.cache
        with self.clock.measure("prefill"):
            self.judge.begin(config.seed)
        self.plan = plan_of(config.num_tokens, config.columns, config.tree.lead, config.place)
        self.picture = root.new_zeros(config.num_tokens + 1)  # and a place for what nobody asked for
        self.picture[:1] = root
        self.columns = torch.arange(cache.slots, device=config.place)
        self.since = self.columns.new_zeros(cache.slots)
        self.since[cache.length : cache.length + config.num_tokens + 1] = self.plan.since
        self.padding = cache.k.new_zeros(cache.k.shape[1], 1, 1, cache.slots)
        if cache.visible is not None:
            self.padding[..., : cache.length].masked_fill_(~cache.visible, -torch.inf)

    def next(self, committed: int) -> Outcome:
        """Read and draw one pass."""
        config, clock, number = self.config, self.clock, self.steps + 1
        nodes = self.plan.passes[number]
        size, prefix, drawing = len(nodes), self.cache.length, sum(place < config.num_tokens for *_, place in nodes)
        with clock.measure("verify"):
            read, at, drawn = (table[number, :size] for table in (self.plan.read, self.plan.at, self.plan.drawn))
            slots, end = at + prefix, prefix + max(place for _, place, _ in nodes) + 1
            visible = seen(self.since[:end], number, slots, self.columns[:end])
            bias = self.padding[..., :end].masked_fill(~visible, -torch.inf)
            hidden = self.target.forward_at(self.picture.index_select(0, read), slots, slots, bias, self.cache)
            looked = self.judge.look(guide(self.target.head(hidden), config.sampling.cfg_scale))
        with clock.measure("commit"):
            tokens = self.judge.each(looked, drawn, self.uniforms.rows[number])
            self.picture.index_copy_(0, drawn, tokens)
            outcome = checked(tokens.tolist(), nodes, config.num_tokens, self.target.vocab_size)
        if self.watcher is not None and self.watcher.wants(self.steps):
            draft = self.alone.draft(tokens, self, self.target.head, tokens)
            self.watcher.add(draft, self.judge.law(looked), self.columns[:drawing])
        self.steps = number
        return outcome


class FixedWave(Fixed):
    """Its passes have as many nodes as there may be open rows, and attention covers the whole cache. The length that a run's state keeps
    is that of the prefix."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        config, device = self.config, self.columns.device
        self.depth = self.size - 1  # a step commits a token of each node at most
        self.plan = plan_of(self.num_tokens, config.columns, config.tree.lead, device)
        self.picture = self.columns.new_zeros(self.num_tokens + 1)
        self.lanes = self.columns[: self.size]
        self.since = self.columns.new_zeros(self.slots)
        self.state.source = (self.picture,)
        self.read = 0  # steps whose results have been read

    def begin(self, hidden: Tensor, root: Tensor, uniforms: Uniforms, seed: int) -> None:
        """As `Fixed.begin`."""
        super().begin(hidden, root, uniforms, seed)
        self.read, self.end = 0, uniforms.rows.shape[0]  # the run may have fewer tokens than there is room for
        self.picture.zero_()
        self.picture[:1] = root
        self.since.zero_()
        self.since[self.prefix : self.prefix + self.num_tokens + 1] = self.plan.since

    def shapes(self) -> list[tuple[int, bool]]:
        """As `Fixed.shapes`: there is one."""
        return [(self.slots, False)]

    def bucket(self, committed: int) -> int:
        """As `Fixed.bucket`: the whole cache, since the lowest row may stand anywhere in it."""
        return self.slots

    def draft(self, slots: int, bare: bool) -> Draft:
        """The tokens that the nodes of this pass read."""
        plan, state = self.plan, self.state
        self.at = plan.at.index_select(0, state.step)[0] + state.length
        self.drawn = plan.drawn.index_select(0, state.step)[0]
        self.row = self.rows.index_select(0, state.step)[0]
        tokens = self.picture.index_select(0, plan.read.index_select(0, state.step)[0])
        return self.alone.draft(tokens, self, self.target.head, self.row)

    def verify(self, draft: Draft) -> tuple[Tensor, Tensor]:
        """As `Fixed.verify`."""
        visible = seen(self.since, self.state.step, self.at, self.columns)
        bias = torch.where(visible, self.padding, self.never)
        hidden = self.target.forward_at(draft.tokens, self.at, self.at, bias, self.cache)
        return hidden, self.judge.look(guide(self.target.head(hidden), self.config.sampling.cfg_scale))

    def commit(self, draft: Draft, hidden: Tensor, looked: Tensor) -> StepLaw:
        """Draw, and write down what was drawn."""
        tokens = self.judge.each(looked, self.drawn, self.row)
        self.state.results[:, : self.size].index_copy_(0, self.state.step, tokens.unsqueeze(0))
        self.picture.index_copy_(0, self.drawn, tokens.clamp(0, self.target.vocab_size - 1))
        self.state.step.add_(1)
        return StepLaw(draft, looked, self.lanes)

    def outcome(self, row: list[int], bare: bool) -> Outcome:
        """As `Fixed.outcome`; steps are read once, in order."""
        self.read += 1
        return checked(row, self.plan.passes[self.read], self.end, self.target.vocab_size)
