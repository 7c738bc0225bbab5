"""The steps of a wavefront (see `decoding.wavefront`) on both engines. Keys and values of a place lie in the slot of that place, and each
pass reads, draws and writes down what the plan says: nothing is drafted, judged or moved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..sampling import NO_LAW
from ..trees import Draft
from ..verify import Step
from ..wavefront import Node, Picture, plan_of
from .fixed import Fixed, StepLaw
from .plain import Plain


def checked(drawn: list[int], nodes: tuple[Node, ...], end: int, vocabulary: int) -> Step:
    """The step of a pass whose nodes drew tokens: those of the first `end` places count. Raises FloatingPointError where a law was
    none."""
    places = [place for *_, place in nodes if place < end]
    tokens = drawn[: len(places)]
    if not all(0 <= token < vocabulary for token in tokens):
        raise FloatingPointError(NO_LAW)
    return Step(0, tokens, len(tokens), kinds=["target"] * len(tokens), places=places)


class PlainWave(Plain):
    """Its passes have as many nodes as there are open rows, and attention covers the places up to the last of them."""

    def begin(self, hidden: Tensor, root: Tensor) -> None:
        config, cache = self.config, self.cache
        self.picture = Picture(plan_of(config.num_tokens, config.columns, config.tree.lead, config.place), cache.slots)
        self.picture.begin(root, cache.length)
        self.padding = cache.k.new_zeros(cache.k.shape[1], 1, 1, cache.slots)
        cache.hide_padding(self.padding)

    def next(self, committed: int) -> Step:
        config, clock, picture, number = self.config, self.clock, self.picture, self.steps + 1
        nodes, prefix = picture.plan.passes[number], self.cache.length
        with clock.measure("verify"):
            read, at, drawn = picture.plan.table[:, number, : len(nodes)]
            slots, end = at + prefix, prefix + max(place for _, place, _ in nodes) + 1
            bias = self.padding[..., :end].masked_fill(~picture.visible(number, slots, end), -torch.inf)
            hidden = self.target.forward_at(picture.tokens.index_select(0, read), slots, slots, bias, self.cache)
            looked = self.judge.look(self.target.head(hidden))
        with clock.measure("commit"):
            tokens = self.judge.each(looked, drawn, self.uniforms[number])
            picture.tokens.index_copy_(0, drawn, tokens)
            step = checked(tokens.tolist(), nodes, config.num_tokens, self.target.vocab_size)
        if self.watcher is not None and self.watcher.wants(self.steps):
            draft = self.alone.draft(tokens, self, self.target.head, tokens)
            self.watcher.add(draft, self.judge.law(looked), picture.columns[: len(step.tokens)])
        self.steps = number
        return step


class FixedWave(Fixed):
    """Its passes have as many nodes as there may be open rows, and attention covers the whole cache. The length that a run's state keeps
    is that of the prefix."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        config = self.config
        self.depth = self.size - 1  # a step commits a token of each node at most
        self.picture = Picture(plan_of(self.num_tokens, config.columns, config.tree.lead, config.place), self.slots)
        self.state.kept = (self.picture.tokens,)

    def begin(self, hidden: Tensor, root: Tensor, uniforms: Tensor, seed: int) -> None:
        super().begin(hidden, root, uniforms, seed)
        self.read, self.end = 0, len(uniforms)  # steps read; the run may have fewer tokens than there is room for
        self.picture.begin(root, self.prefix)

    def shapes(self) -> list[tuple[int, bool]]:
        return [(self.slots, False)]

    def bucket(self, committed: int) -> int:
        """The whole cache, since the lowest row may stand anywhere in it."""
        return self.slots

    def draft(self, slots: int, bare: bool) -> Draft:
        """The tokens that the nodes of this pass read."""
        state = self.state
        read, at, self.drawn = self.picture.plan.table.index_select(1, state.step)[:, 0]
        self.at, self.row = at + state.length, self.rows.index_select(0, state.step)[0]
        return self.alone.draft(self.picture.tokens.index_select(0, read), self, self.target.head, self.row)

    def verify(self, draft: Draft) -> tuple[Tensor, Tensor]:
        bias = torch.where(self.picture.visible(self.state.step, self.at, self.slots), self.padding, self.never)
        hidden = self.target.forward_at(draft.tokens, self.at, self.at, bias, self.cache)
        return hidden, self.judge.look(self.target.head(hidden))

    def commit(self, draft: Draft, hidden: Tensor, looked: Tensor) -> StepLaw:
        """Draw, and write down what was drawn."""
        tokens = self.judge.each(looked, self.drawn, self.row)
        self.state.results[:, : self.size].index_copy_(0, self.state.step, tokens.unsqueeze(0))
        self.picture.tokens.index_copy_(0, self.drawn, tokens.clamp(0, self.target.vocab_size - 1))
        self.state.step.add_(1)
        return StepLaw(draft, looked, self.columns[: self.size])

    def outcome(self, row: list[int], bare: bool) -> Step:
        """Steps are read once, in order."""
        self.read += 1
        return checked(row, self.picture.plan.passes[self.read], self.end, self.target.vocab_size)
