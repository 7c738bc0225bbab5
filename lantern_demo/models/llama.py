"""A LLaMA layer: attention and a gated feed-forward half, each behind a norm and added to what came in.

`LlamaLayer` says it once for all families and all ways to compute it. The modules below hand in a linear layer for each weight:
they train, and everything else is held against them. A family adds how its queries and keys turn, and under which names its
published files have the weights. `models.cpu` and `models.cuda` hand in fused products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.models.common import RMSNorm

Store = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # new keys and values [R, heads, n, d] -> all that are attended to
Turn = Callable[[Tensor, Tensor], Tensor]  # queries or keys [R, n, heads, d] and their rotary rows -> the same, turned
Where = TypeVar("Where")  # where keys and values go, and which of them are seen, as a way to compute it keeps them


class LlamaLayer(Generic[Where]):
    """One layer over states x [..., H]: norms, products and attention are handed in, as attributes or as a subclass's methods."""

    norm_before: Callable[[Tensor], Tensor]  # x as attention reads it; drafters may have no norm there
    attend: Callable[[Tensor, Tensor, Where], Tensor]  # (normalised x, rotary rows, where) -> what its queries find
    add_out: Callable[[Tensor, Tensor], Tensor]  # (x, attended) -> x plus the output product of what was attended
    norm_after: Callable[[Tensor], Tensor]  # x as the feed-forward half reads it
    gate_up: Callable[[Tensor], Sequence[Tensor]]  # normalised x -> two products [..., F]
    add_down: Callable[[Tensor, Tensor], Tensor]  # (x, gated [..., F]) -> x plus the last product

    def forward(self, x: Tensor, rope: Tensor, where: Where) -> Tensor:
        """x [..., H] -> the same shape."""
        return self.finish(x, self.attend(self.norm_before(x), rope, where))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """What follows attention: x [..., H] -> the same shape."""
        x = self.add_out(x, attended)
        gate, up = self.gate_up(self.norm_after(x))
        return self.add_down(x, self.gated(gate, up))

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) * up, of the same shape."""
        return F.silu(gate) * up


# -- modules


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
    """The weights of the feed-forward half: gate, up and down."""

    names: ClassVar[tuple[str, str, str]] = ("gate_proj", "up_proj", "down_proj")
    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear

    def __init__(self, dim: int, ffn: int) -> None:
        super().__init__()
        for name, (inputs, outputs) in zip(self.names, ((dim, ffn), (dim, ffn), (ffn, dim)), strict=True):
            self.add_module(name, nn.Linear(inputs, outputs, bias=False))


class Layer(LlamaLayer[tuple[Tensor | None, Store]], nn.Module):
    """A layer of linear layers, under the names that Hugging Face checkpoints use. It is told a mask [R or 1, 1, n, S], bool or
    additive or None, and a `Store`; attended is [R, heads, n, d]. `before` is None where nothing is normalised before attention.
    """

    names: ClassVar[tuple[str, str, str, str]] = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
    input_layernorm: RMSNorm
    self_attn: SplitAttention
    post_attention_layernorm: RMSNorm
    mlp: FeedForward

    def __init__(self, before: RMSNorm | None, attention: Attention, after: RMSNorm, feed: FeedForward) -> None:
        super().__init__()
        for name, part in zip(self.names, (before, attention, after, feed), strict=True):
            self.add_module(name, part)

    def norm_before(self, x: Tensor) -> Tensor:
        norm = getattr(self, self.names[0])
        return x if norm is None else norm(x)

    def attend(self, x: Tensor, rope: Tensor, where: tuple[Tensor | None, Store]) -> Tensor:
        return getattr(self, self.names[1])(x, rope, *where)

    def add_out(self, x: Tensor, attended: Tensor) -> Tensor:
        return x + getattr(self, self.names[1]).out(attended.transpose(1, 2).flatten(2))

    def norm_after(self, x: Tensor) -> Tensor:
        return getattr(self, self.names[2])(x)

    def gate_up(self, x: Tensor) -> tuple[Tensor, Tensor]:
        gate, up, _ = self.feed
        return gate(x), up(x)

    def add_down(self, x: Tensor, gated: Tensor) -> Tensor:
        return x + self.feed[2](gated)

    @property
    def feed(self) -> list[nn.Module]:
        """Gate, up and down of the feed-forward half."""
        feed = getattr(self, self.names[3])
        return [feed.get_submodule(name) for name in feed.names]
