"""The steps of a wavefront (see `decoding.wavefront`). Keys and values of a place lie in the slot of that place, and each pass
reads, draws and writes down what the plan says: nothing is drafted, judged or moved."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..sampling import NO_PROBS, warp
from ..trees import Draft
from ..verify import Step
from ..wavefront import Wavefront, plan_of
from .fixed import Fixed


class Wave(Fixed):
    """A pass of fixed shape has as many nodes as there may be open rows, and attention covers the whole cache. Where the host
    waits for each step (`exact`) it has as many as there are, and attention covers the places up to the last of them. The length
    that a run keeps is that of the prefix."""

    def __init__(self, *args: Any, exact: bool) -> None:
        super().__init__(*args)
        self.exact, self.depth = exact, self.size - 1  # a step commits a token of each node at most
        config = self.config
        assert isinstance(config.tree, Wavefront)
        self.plan = plan_of(self.num_tokens, config.row_length, config.tree.lead, config.torch_device)
        self.tokens = torch.zeros_like(self.plan.since)  # of each place, and of what nobody asked for
        self.since = torch.zeros_like(self.slot_numbers)  # `Plan.since` of the slots, 0 for those of the prefix
        self.kept = (self.tokens,)

    def begin(self, hidden: Tensor, root: Tensor, uniforms: Tensor, seed: int) -> None:
        super().begin(hidden, root, uniforms, seed)
        self.read, self.end = 0, len(uniforms)  # steps read; the run may have fewer tokens than there is room for
        self.tokens.zero_()[:1] = root
        self.since.zero_()[self.prefix : self.prefix + len(self.tokens)] = self.plan.since

    def shapes(self) -> list[tuple[int, bool]]:
        return [(self.slots, False)]

    def bucket(self, committed: int) -> int:
        """The whole cache, since the lowest row may stand anywhere in it."""
        if not self.exact:
            return self.slots
        return self.prefix + 1 + max(index for _, index, _ in self.plan.passes[self.read + 1])

    def draft(self, slots: int, no_draft: bool) -> Draft:
        """The tokens that the nodes of this pass read."""
        if self.exact:
            nodes = self.plan.table[:, self.read + 1, : len(self.plan.passes[self.read + 1])]
        else:
            nodes = self.plan.table.index_select(1, self.number)[:, 0]
        read, at, self.drawn = nodes
        self.bucketed, self.at, self.row = slots, at + self.length, self.rows.index_select(0, self.number)[0]
        return self.alone.draft(self.tokens.index_select(0, read), self, self.target.head, self.row)

    def verify(self, draft: Draft) -> tuple[Tensor, Tensor]:
        own, columns = self.at.unsqueeze(1), self.slot_numbers[: self.bucketed]
        seen = ((self.since[: self.bucketed] <= self.number) & (columns <= own)) | (columns == own)
        bias = torch.where(seen, self.padding[..., : self.bucketed], self.never)
        hidden = self.target.forward_at(draft.tokens, self.at, self.at, bias, self.cache)
        return hidden, warp(self.target.head(hidden), self.config.sampling)

    def commit(self, draft: Draft, hidden: Tensor, scores: Tensor) -> None:
        """Draw, and write down what was drawn."""
        tokens = self.verifier.sample(scores, self.drawn, self.row)
        self.results[:, : len(tokens)].index_copy_(0, self.number, tokens.unsqueeze(0))
        self.tokens.index_copy_(0, self.drawn, tokens.clamp(0, self.target.vocab_size - 1))
        self.number.add_(1)

    def outcome(self, row: list[int], no_draft: bool) -> Step:
        """Steps are read once, in order. Raises FloatingPointError where probabilities were not finite."""
        self.read += 1
        places = [index for *_, index in self.plan.passes[self.read] if index < self.end]
        tokens = row[: len(places)]
        if not all(0 <= token < self.target.vocab_size for token in tokens):
            raise FloatingPointError(NO_PROBS)
        return Step(0, tokens, len(tokens), kinds=["target"] * len(tokens), places=places)
