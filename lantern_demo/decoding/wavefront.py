"""Rows of a picture drawn side by side (ZipAR, arXiv 2412.04062): a row begins once the row above is `window` tokens ahead, and
one pass draws the next token of every open row.

A node of a pass reads a token at its own place in the picture and draws the one behind it. It sees the tokens that have been read
at places before its own, those of this pass included, and not what open rows above it have yet to draw: so its distribution is
not the distribution of the model in raster order, and the method is lossy. The first node of a row would read the last token of
the row above, which is not there yet. The newest token of that row stands in for it, seen like any other, until the true token is
read at its place. What has not been read is hidden; the released code leaves such slots of the cache zeroed and visible.

Which places a pass reads and draws depends on nothing that is drawn, so that all of it is laid out before the run. With a window
as long as a row there is one node a pass, in raster order: vanilla.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from .trees import Drafts, at_least_one

Node = tuple[int, int, int]  # the place whose token it reads, the place that it stands at, the place that it draws


@dataclass(frozen=True)
class Wavefront(Drafts):
    """No drafts: rows drawn side by side, each `lead` tokens ahead of the next. Raises ValueError for a lead below 1."""

    lead: int = 4

    name: ClassVar[str] = "wavefront"
    side_by_side: ClassVar[bool] = True
    reads: ClassVar[dict[str, str]] = {"lead": "lead_asked"}
    asks: ClassVar[dict[str, str]] = {"lead": "zipar_window"}

    def __post_init__(self) -> None:
        at_least_one("window", self.lead)

    def read_at_once(self, row_length: int) -> int:
        return nodes_at_most(row_length, self.lead)

    def words(self) -> str:
        return f"rows side by side, window of {self.lead}"


@dataclass(frozen=True)
class Plan:
    """The passes of a picture of T tokens, from pass 1; pass 0 is the prefill. T itself stands for no place: idle nodes stand
    there."""

    passes: tuple[tuple[Node, ...], ...]
    table: Tensor  # [3, passes, n] int64, the three numbers of each pass's nodes, the idle ones last
    since: Tensor  # [T + 1] int64, the first pass that reads a token at a place: from then on it is seen by what lies behind it


def nodes_at_most(row: int, window: int) -> int:
    """How many nodes a pass has at most in a picture with rows of `row` tokens."""
    return 1 if window >= row else row // window + 1


def nodes_of(number: int, tokens: int, row: int, window: int) -> tuple[Node, ...]:
    """The nodes of a pass, the uppermost row first, and behind them the one that draws nothing, if there is one."""
    lag, found, finishing = min(window, row), [], []
    for r in range(-(-tokens // row)):
        column, first = number - r * lag, r * row
        end = min(first + row, tokens)
        if 0 <= column < end - first and (r or column):
            index = first + column
            stands_in = column == 0 and lag < row
            found.append((first - row + lag - 1 if stands_in else index - 1, index - 1, index))
        elif column == row and lag < row and end < tokens:  # its last token takes the place of what stood in for it
            finishing.append((end - 1, end - 1, tokens))
    return tuple(found + finishing)


@lru_cache(maxsize=8)
def plan_of(tokens: int, row: int, window: int, device: torch.device) -> Plan:
    """The plan of a picture of `tokens` tokens in rows of `row`; window is at least 1."""
    lag, size = min(window, row), nodes_at_most(row, window)
    last = max(r * lag + min(row, tokens - r * row) - 1 for r in range(-(-tokens // row)))
    passes = tuple(nodes_of(number, tokens, row, window) if number else () for number in range(last + 1))
    idle = (0, tokens, tokens)
    table = torch.tensor([[*nodes, *[idle] * (size - len(nodes))] for nodes in passes], dtype=torch.int64, device=device)
    since = [index // row * lag + (index % row + 1 if (index + 1) % row else lag) for index in range(tokens)]
    return Plan(passes, table.movedim(-1, 0).contiguous(), torch.tensor([*since, last + 1], dtype=torch.int64, device=device))
