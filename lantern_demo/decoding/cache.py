"""A KV cache of fixed size: tree nodes are written behind the committed positions, accepted ones move up."""

from __future__ import annotations

import torch
from torch import Tensor


class KVCache:
    """Keys and values [layers, rows, heads, slots, head_dim] and the number `length` of committed slots.

    The storage never moves or grows, so captured graphs may hold on to it. Slots from `length` on are
    scratch.
    """

    def __init__(
        self, layers: int, rows: int, heads: int, slots: int, head_dim: int,
        *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu",
    ) -> None:  # fmt: skip
        shape = (layers, rows, heads, slots, head_dim)
        if min(shape) < 1:
            raise ValueError(f"cache sizes (layers, rows, heads, slots, head_dim) are {shape}; each must be at least 1")
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        self.length = 0

    @property
    def slots(self) -> int:
        """How many positions fit in all."""
        return self.k.shape[3]

    def reserve(self, count: int) -> None:
        """Check that `count` slots fit behind the committed ones; ValueError otherwise."""
        if self.length + count > self.slots:
            raise ValueError(f"cache is full: {self.length} committed + {count} new slots asked for, {self.slots} available")

    def write(self, layer: int, offset: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k, v [rows, heads, m, head_dim] of one layer at slot length + offset.

        Returns views [rows, heads, length + offset + m, head_dim] of all that is written up to there.
        Raises ValueError when the slots do not fit.
        """
        count = k.shape[2]
        self.reserve(offset + count)
        start = self.length + offset
        self.k[layer, :, :, start : start + count] = k
        self.v[layer, :, :, start : start + count] = v
        return self.k[layer, :, :, : start + count], self.v[layer, :, :, : start + count]

    def advance(self, count: int) -> None:
        """Commit the next `count` slots where they are. Raises ValueError when they do not fit."""
        self.reserve(count)
        self.length += count

    def commit(self, nodes: Tensor) -> None:
        """Move the slots length + nodes (int64 [m], increasing) to the front of the scratch area and commit
        them."""
        count = nodes.shape[0]
        self.reserve(count)
        slots = nodes + self.length
        for store in (self.k, self.v):
            # index_select copies first, so that source and destination may overlap
            store.narrow(3, self.length, count).copy_(store.index_select(3, slots))
        self.length += count

    def reset(self) -> None:
        """Forget everything; the storage stays."""
        self.length = 0
