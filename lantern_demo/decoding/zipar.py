"""ZipAR (arXiv 2412.04062): rows of a picture drawn in parallel. A row begins once the row above is `window` tokens ahead, and
one pass draws the next token of every open row.

A node of a pass reads a token at its own position in the picture and draws the one after it. It sees the tokens read so far at
earlier positions, those of this pass included. It does not see the tokens that open rows above it have yet to draw. So its
distribution is not the model's in raster order, and the method is lossy. The first node of a row would read the last token of
the row above, which is not drawn yet. The newest token of that row stands in for it, seen like any other, until the true token
is read at its position. Positions not yet read are hidden; the released code leaves their cache slots zeroed and visible.

The positions that a pass reads and draws do not depend on drawn tokens, so all of them are planned before the run. With a
window as long as a row each pass has one node, in raster order: vanilla.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from .cache import ALIGNED
from .config import Config
from .drafting import ZipAR, nodes_at_most
from .interfaces import Target, Verifier
from .results import Step
from .sampling import NO_PROBS, warp
from .timing import Part

Node = tuple[int, int, int]  # positions: whose token it reads, that it stands at, that it draws


@dataclass(frozen=True)
class Plan:
    """The passes of a picture of T tokens, from pass 1; pass 0 is the prefill. Idle nodes stand at T, which is no position."""

    passes: tuple[tuple[Node, ...], ...]
    table: Tensor  # [3, passes, n] int64, the three numbers of each pass's nodes, the idle ones last
    since: Tensor  # [T + 1] int64, the first pass that reads a token at a position: later positions see it from then on


def nodes_of(number: int, tokens: int, row: int, window: int) -> tuple[Node, ...]:
    """Return the nodes of a pass, the uppermost row first. A node that draws nothing comes last, if there is one."""
    lag, found, finishing = min(window, row), [], []
    for r in range(-(-tokens // row)):
        column, first = number - r * lag, r * row
        end = min(first + row, tokens)
        if 0 <= column < end - first and (r or column):
            index = first + column
            stands_in = column == 0 and lag < row
            found.append((first - row + lag - 1 if stands_in else index - 1, index - 1, index))
        elif column == row and lag < row and end < tokens:  # its last token replaces the stand-in
            finishing.append((end - 1, end - 1, tokens))
    return tuple(found + finishing)


@lru_cache(maxsize=8)
def plan_of(tokens: int, row: int, window: int, device: torch.device) -> Plan:
    """Return the plan of a picture of `tokens` tokens in rows of `row`; window is at least 1."""
    lag, size = min(window, row), nodes_at_most(row, window)
    last = max(r * lag + min(row, tokens - r * row) - 1 for r in range(-(-tokens // row)))
    passes = tuple(nodes_of(number, tokens, row, window) if number else () for number in range(last + 1))
    idle = (0, tokens, tokens)
    table = torch.tensor([[*nodes, *[idle] * (size - len(nodes))] for nodes in passes], dtype=torch.int64, device=device)
    since = [index // row * lag + (index % row + 1 if (index + 1) % row else lag) for index in range(tokens)]
    return Plan(passes, table.movedim(-1, 0).contiguous(), torch.tensor([*since, last + 1], dtype=torch.int64, device=device))


class RowSteps:
    """The passes of one run: nothing is drafted, verified or moved. Keys and values of a position lie in the slot of that
    position. A pass of fixed shape has as many nodes as rows may be open, and attends to the whole cache. An eager pass has
    only the nodes that it needs, and attends to the positions up to the last of them."""

    done: Step | None = None

    def __init__(self, target: Target, config: Config, verifier: Verifier, draws: int, eager: bool) -> None:
        """draws: uniforms of a step."""
        assert isinstance(config.tree, ZipAR)
        device, self.target, self.config, self.verifier, self.eager = config.torch_device, target, config, verifier, eager
        self.num_tokens = config.num_tokens if eager else config.positions
        self.cache = target.new_cache(config.rows, self.num_tokens + 2 * ALIGNED)
        self.caches, self.slots = [self.cache], self.cache.slots // ALIGNED * ALIGNED
        self.plan = plan_of(self.num_tokens, config.row_length, config.tree.lead, device)
        self.columns = torch.arange(self.slots, device=device)
        self.since = torch.zeros_like(self.columns)  # `Plan.since` of the slots, 0 for those of the prefix
        self.tokens = torch.zeros_like(self.plan.since)  # a token per position, and last those that idle nodes draw
        self.number = self.columns.new_ones(1)  # of the pass, from 1
        self.prefix = self.columns.new_zeros(1)
        self.uniforms = torch.zeros(self.num_tokens, draws, device=device)
        self.results = self.columns.new_zeros(self.num_tokens, config.nodes)

    def begin(self, hidden: Tensor, root: Tensor, uniforms: Tensor, condition: Any) -> None:
        """Start a run: see `step.TreeSteps.begin`."""
        first = self.cache.length
        self.launched = self.read = 0
        self.end = self.config.num_tokens  # a run may have fewer tokens than buffers have room for
        self.number.fill_(1)
        self.prefix.fill_(first)
        self.tokens.zero_()[:1] = root
        self.since.zero_()[first : first + len(self.tokens)] = self.plan.since
        self.uniforms = uniforms if self.eager else self.uniforms
        if not self.eager:
            self.uniforms[: len(uniforms)].copy_(uniforms)

    def state(self) -> list[Tensor]:
        """Return the tensors that a pass changes, except for cache slots."""
        return [self.number, self.tokens, self.results]

    def upcoming(self, committed: int, flying: bool) -> tuple[int, bool, int] | None:
        """Return the next pass: see `step.TreeSteps.upcoming`. None after the last."""
        if self.launched + 1 >= len(self.plan.passes):
            return None
        self.launched += 1
        nodes = self.plan.passes[self.launched]
        end = self.cache.length + 1 + max(at for _, at, _ in nodes)
        return (end if self.eager else self.slots), True, len(nodes)

    def shapes(self) -> list[tuple[int, bool]]:
        """Return one shape for all passes."""
        return [(self.slots, True)]

    def step(self, slots: int, drafts: bool, part: Part = nullcontext) -> None:
        """Take one pass: read tokens, and draw the next ones."""
        with part("draft"):
            if self.eager:
                row, count = self.uniforms[self.launched], len(self.plan.passes[self.launched])
                nodes = self.plan.table[:, self.launched, :count]
            else:
                row, nodes = self.uniforms.index_select(0, self.number)[0], self.plan.table.index_select(1, self.number)[:, 0]
            tokens, at, drawn = self.tokens.index_select(0, nodes[0]), nodes[1] + self.prefix, nodes[2]
        with part("verify"):
            own, columns = at.unsqueeze(1), self.columns[:slots]
            visible = ((self.since[:slots] <= self.number) & (columns <= own)) | (columns == own)
            hidden = self.target.forward(tokens, at, at, visible, self.cache)
            scores = warp(self.target.head(hidden), self.config.sampling)
        with part("commit"):
            found = self.verifier.sample(scores, drawn, row)
            self.results[:, : len(found)].index_copy_(0, self.number, found.unsqueeze(0))
            self.tokens.index_copy_(0, drawn, found.clamp(0, self.target.vocab_size - 1))
            self.number.add_(1)

    def unpack(self, row: list[int], draft: bool) -> Step:
        """Read a row of results, once, in order. Raise FloatingPointError if probabilities were not finite."""
        self.read += 1
        places = [index for *_, index in self.plan.passes[self.read] if index < self.end]
        tokens = row[: len(places)]
        if not all(0 <= token < self.target.vocab_size for token in tokens):
            raise FloatingPointError(NO_PROBS)
        return Step(0, tokens, len(tokens), kinds=["target"] * len(tokens), places=places)
