"""A KV cache of fixed size. A step writes the nodes of its tree after the committed positions, and
moves accepted ones up."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNED = 8  # attention kernels need a multiple of this as the last dimension of a mask


@dataclass
class Store:
    """The slots of one layer that a pass writes, and those that it attends to."""

    layer_cache: Tensor  # [rows, 2 heads, slots, head_dim], of the whole layer, keys first
    slots: Tensor  # [n] int64, those that it writes
    k: Tensor  # [rows, heads, end, head_dim]
    v: Tensor

    def __call__(self, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Write the pass's keys and values kv [rows, 2 heads, n, head_dim]. Return all that it
        attends to."""
        self.layer_cache.index_copy_(2, self.slots, kv)
        return self.k, self.v


class KVCache:
    """Keys and values [layers, rows, heads, slots, head_dim], views of one `storage` [layers,
    rows, 2 heads, slots, head_dim], so that one copy moves them. Neither the storage nor `padding`
    [rows, 1, 1, slots] ever moves or grows, so that captured graphs may hold on to both. Attention
    adds `padding` to the scores of slots: -inf for the padding of a prompt, else 0."""

    length = 0  # slots of the prefix, after `start`; the steps count the committed ones after them
    padded = False  # whether any slot is padding

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
        sizes = layers, rows, 2 * heads, slots, head_dim
        self.storage = torch.zeros(sizes, dtype=dtype, device=device)
        self.k, self.v = self.storage.chunk(2, 2)
        self.padding = self.storage.new_zeros(rows, 1, 1, slots)
        self.seen, self.hidden = self.storage.new_zeros(()), self.storage.new_full((), -torch.inf)

    @property
    def rows(self) -> int:
        return self.k.shape[1]

    @property
    def slots(self) -> int:
        return self.k.shape[3]

    def start(self, length: int, real: Tensor | None = None) -> None:
        """Record a prefix of `length` slots, of which real [rows, length] bool are not padding;
        None: all."""
        self.length = length
        self.padded = real is not None and not bool(real.all())
        self.padding.zero_()
        if real is not None:
            self.padding[..., :length].masked_fill_(
                ~real.to(self.padding.device)[:, None, None], -torch.inf
            )

    def bias(self, visible: Tensor | None, end: int) -> Tensor | None:
        """Return the bias that attention adds to the scores of the first `end` slots, [rows or 1,
        1, n, end]; None: no bias. visible is that of `interfaces.Pass`."""
        if visible is None:
            return self.padding[..., :end] if self.padded else None
        # a captured step reads the padding of later prompts too
        whole = self.padded or self.padding.is_cuda
        seen = self.padding[..., :end] if whole else self.seen
        return torch.where(visible[None, None], seen, self.hidden)

    def stores(self, slots: Tensor, end: int) -> list[Store]:
        """Return each layer's store for a pass that writes slots [n] int64 and attends to the first
        `end`. A CPU makes the views of all layers sooner in one call than in a call per layer."""
        k, v = self.k[:, :, :, :end], self.v[:, :, :, :end]
        layers = zip(self.storage.unbind(), k.unbind(), v.unbind(), strict=True)
        return [Store(layer_cache, slots, *attended) for layer_cache, *attended in layers]

    def move(self, source: Tensor, slots: Tensor) -> None:
        """Copy the slots `source` to `slots`, both int64 [n]."""
        self.storage.index_copy_(3, slots, self.storage.index_select(3, source))

    def wipe(self) -> None:
        """Empty the cache, and overwrite it with zeros: a value that is not finite would reach a
        later run through a mask's 0 weight."""
        self.start(0)
        self.storage.zero_()
