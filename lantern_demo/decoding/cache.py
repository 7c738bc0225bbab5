"""A KV cache of fixed size. A step writes the nodes of its tree after the committed positions, and
moves accepted ones up."""

from __future__ import annotations

import torch
from torch import Tensor

ALIGNED = 8  # attention kernels need a multiple of this as the last dimension of a mask


class KVCache:
    """Keys and values [layers, rows, heads, slots, head_dim], views of one storage `both` [layers,
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
        sizes = layers, rows, heads, slots, head_dim
        if min(sizes) < 1:
            raise ValueError(
                f"cache sizes (layers, rows, heads, slots, head_dim) are {sizes}; "
                "each must be at least 1"
            )
        self.both = torch.zeros(
            layers, rows, 2 * heads, slots, head_dim, dtype=dtype, device=device
        )
        self.k, self.v = self.both.chunk(2, 2)
        self.padding = self.both.new_zeros(rows, 1, 1, slots)
        self.seen, self.hidden = self.both.new_zeros(()), self.both.new_full((), -torch.inf)

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

    def write(self, layer: int, slots: Tensor, end: int, kv: Tensor) -> tuple[Tensor, Tensor]:
        """Write the keys and values kv [rows, n, 2, heads, head_dim] of one layer at slots [n]
        int64. Return views of the first `end` slots, [rows, heads, end, head_dim] each."""
        self.both[layer].index_copy_(2, slots, kv.flatten(2, 3).transpose(1, 2))
        return self.k[layer, :, :, :end], self.v[layer, :, :, :end]

    def move(self, source: Tensor, slots: Tensor) -> None:
        """Copy the slots `source` to `slots`, both int64 [n]."""
        self.both.index_copy_(3, slots, self.both.index_select(3, source))

    def wipe(self) -> None:
        """Empty the cache, and overwrite it with zeros: a value that is not finite would reach a
        later run through a mask's 0 weight."""
        self.start(0)
        self.both.zero_()
