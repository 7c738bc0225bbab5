"""A KV cache of fixed size: tree nodes are written behind the committed positions, accepted ones move up."""

from __future__ import annotations

import torch
from torch import Tensor


def check_sizes(*sizes: int) -> None:
    """Raises ValueError unless the sizes of a cache (layers, rows, heads, slots, head_dim) are all at least 1."""
    if min(sizes) < 1:
        raise ValueError(f"cache sizes (layers, rows, heads, slots, head_dim) are {sizes}; each must be at least 1")


class KVCache:
    """Keys and values [layers, rows, heads, slots, head_dim] and the number `length` of committed slots; those from there on are
    scratch. Both are views of one storage `both` [layers, rows, 2 heads, slots, head_dim], so that one copy moves them. It never
    moves or grows, so captured graphs may hold on to it. A method whose slots do not fit raises ValueError."""

    visible: Tensor | None = None  # [R, 1, 1, T] bool, which of the first T slots are not padding; None: all

    def __init__(
        self,
        layers: int,
        rows: int,
        heads: int,
        slots: int,
        head_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        check_sizes(layers, rows, heads, slots, head_dim)
        self.both = torch.zeros(layers, rows, 2 * heads, slots, head_dim, dtype=dtype, device=device)
        self.k, self.v = self.both.chunk(2, 2)
        self.length = 0

    @property
    def slots(self) -> int:
        """How many positions fit in all."""
        return self.k.shape[3]

    def reserve(self, count: int) -> None:
        """Check that `count` slots fit behind the committed ones."""
        if self.length + count > self.slots:
            raise ValueError(f"cache is full: {self.length} committed + {count} new slots asked for, {self.slots} available")

    def write(self, layer: int, offset: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k, v [rows, heads, m, head_dim] of one layer at slot length + offset; returns views
        [rows, heads, length + offset + m, head_dim] of all that is written up to there."""
        count = k.shape[2]
        self.reserve(offset + count)
        start = self.length + offset
        end = start + count
        self.k[layer, :, :, start:end] = k
        self.v[layer, :, :, start:end] = v
        return self.k[layer, :, :, :end], self.v[layer, :, :, :end]

    def write_at(self, layer: int, slots: Tensor, seen: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k, v [rows, heads, m, head_dim] of one layer at slots [m]; returns views of the first `seen` slots."""
        self.both[layer].index_copy_(2, slots, torch.cat((k, v), 1))
        return self.k[layer, :, :, :seen], self.v[layer, :, :, :seen]

    def advance(self, count: int) -> None:
        """Commit the next `count` slots where they are."""
        self.reserve(count)
        self.length += count

    def commit(self, nodes: Tensor) -> None:
        """Move the slots length + nodes (int64 [m], increasing) to the front of the scratch area and commit them."""
        count = nodes.shape[0]
        self.reserve(count)
        # index_select copies first, so that source and destination may overlap
        self.both.narrow(3, self.length, count).copy_(self.both.index_select(3, nodes + self.length))
        self.length += count

    def move(self, source: Tensor, slots: Tensor) -> None:
        """Copy the slots `source` to `slots`, both int64 [m] on the device; the length is the caller's to keep."""
        self.both.index_copy_(3, slots, self.both.index_select(3, source))

    def hide_padding(self, bias: Tensor) -> None:
        """Make bias [R, 1, 1, slots] what attention adds: -inf where a slot of the prefix is padding, else 0."""
        bias.zero_()
        if self.visible is not None:
            bias[..., : self.length].masked_fill_(~self.visible, -torch.inf)

    def reset(self) -> None:
        """Forget everything; the storage stays."""
        self.length = 0

    def wipe(self) -> None:
        """Forget everything, and overwrite it with zeros: what was not finite would reach a later run through a mask's 0
        weight."""
        self.reset()
        self.both.zero_()
