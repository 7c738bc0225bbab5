"""A LLaMA layer, written once for all families: attention and a gated feed-forward half, each behind a norm and added to what
came in.

A family hands in how its queries and keys turn, and says under which names its published files have the weights. The fused models
compute the same from fused weights (`models.cpu`, `models.cuda`), and are held against this.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.models.common import RMSNorm

Store = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # new keys and values [R, heads, n, d] -> all that are attended to
Turn = Callable[[Tensor, Tensor], Tensor]  # queries or keys [R, n, heads, d] and their rotary rows -> the same, turned


def unstored(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """A `Store` that keeps nothing: what is attended to is what is new."""
    return keys, values


class Attention(nn.Module, ABC):
    """Attention of `heads` heads; its weights are a subclass's."""

    def __init__(self, heads: int, turn: Turn) -> None:
        super().__init__()
        self.heads, self.turn = heads, turn

    @abstractmethod
    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [R, n, H] -> queries and keys side by side [R, n, 2 heads, d], before they are turned, and values [R, n, heads,
        d]."""

    @abstractmethod
    def out(self, attended: Tensor) -> Tensor:
        """The output projection: [R, n, H] -> [R, n, H]."""

    def project(self, x: Tensor, rope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [R, n, H] -> turned queries and keys, and values, [R, heads, n, d] each."""
        both, v = self.read(x)
        q, k = self.turn(both, rope).transpose(1, 2).chunk(2, 1)
        return q, k, v.transpose(1, 2)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None, store: Store) -> Tensor:
        """Attention [R, heads, n, d] of x [R, n, H], before the output projection."""
        q, k, v = self.project(x, rope)
        k, v = store(k, v)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class SplitAttention(Attention):
    """One weight each for queries, keys and values, under the names that Hugging Face checkpoints use."""

    def __init__(self, dim: int, heads: int, turn: Turn) -> None:
        super().__init__(heads, turn)
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """As `Attention.read`."""
        q, k, v = (p(x).unflatten(-1, (self.heads, -1)) for p in (self.q_proj, self.k_proj, self.v_proj))
        return torch.cat(self.normed(q, k), 2), v

    def normed(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys [R, n, heads, d] as they are turned; a family may normalise them."""
        return q, k

    def out(self, attended: Tensor) -> Tensor:
        """As `Attention.out`."""
        return self.o_proj(attended)


class FeedForward(nn.Module):
    """The feed-forward half: down(silu(gate(x)) * up(x))."""

    names: ClassVar[tuple[str, str, str]] = ("gate_proj", "up_proj", "down_proj")
    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear

    def __init__(self, dim: int, ffn: int) -> None:
        super().__init__()
        for name, (inputs, outputs) in zip(self.names, ((dim, ffn), (dim, ffn), (ffn, dim)), strict=True):
            self.add_module(name, nn.Linear(inputs, outputs, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., H] -> the same shape."""
        gate, up, down = (self.get_submodule(name) for name in self.names)
        return down(F.silu(gate(x)) * up(x))


class Layer(nn.Module):
    """The whole of a layer, under the names that Hugging Face checkpoints use. `before` is None where nothing is normalised
    before attention."""

    names: ClassVar[tuple[str, str, str, str]] = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
    input_layernorm: RMSNorm
    self_attn: SplitAttention
    post_attention_layernorm: RMSNorm
    mlp: FeedForward

    def __init__(self, before: RMSNorm | None, attention: Attention, after: RMSNorm, feed: FeedForward) -> None:
        super().__init__()
        for name, part in zip(self.names, (before, attention, after, feed), strict=True):
            self.add_module(name, part)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None, store: Store) -> Tensor:
        """x [R, n, H], rope as the family's turn takes it, mask [R or 1, 1, n, S] bool or additive, or None -> [R, n, H]."""
        return self.finish(x, self.attended(x, rope, mask, store))

    def attended(self, x: Tensor, rope: Tensor, mask: Tensor | None, store: Store) -> Tensor:
        """Attention [R, heads, n, d] of x [R, n, H]."""
        before, attention = (getattr(self, name) for name in self.names[:2])
        return attention(x if before is None else before(x), rope, mask, store)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """What follows attention: x [R, n, H], attended [R, heads, n, d] -> [R, n, H]."""
        attention, after, feed = (getattr(self, name) for name in self.names[1:])
        x = x + attention.out(attended.transpose(1, 2).flatten(2))
        return x + feed(after(x))
