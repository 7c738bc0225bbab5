"""A LLaMA layer: attention and a gated feed-forward half, each behind a norm and added to what came in.

`LlamaLayer` says it once for all families and all ways to compute it. The modules below hand in a linear layer for each weight:
they train, run on accelerators, and everything else is held against them. A family adds how its queries and keys turn, and under
which names its published files have the weights. `models.cpu` hands in fused products.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import ClassVar, Generic, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.models.common import RMSNorm

Store = Callable[[Tensor], tuple[Tensor, Tensor]]  # new keys and values [R, n, 2, heads, d] -> all attended to [R, heads, S, d]
# queries, keys and values [R, n, 3, heads, d] float32, their `turns` [R or 1, n, 3, 1, d / 2] complex64, a dtype -> the same,
# turned, in that dtype
Turn = Callable[[Tensor, Tensor, torch.dtype], Tensor]
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


def unstored(kv: Tensor) -> tuple[Tensor, Tensor]:
    """A `Store` that keeps nothing: what is attended to is what is new."""
    k, v = kv.transpose(1, 3).unbind(2)
    return k, v


def turns(rope: Tensor) -> Tensor:
    """Rows of a rotary table [..., n, d / 2, 2] (cos, sin) -> [..., n, 3, 1, d / 2] complex64 for queries, keys and values, which
    do not turn."""
    turn = torch.view_as_complex(rope.float().contiguous())
    return torch.stack((turn, turn, torch.ones_like(turn)), -2).unsqueeze(-2)


def wide(part: nn.Module, x: Tensor) -> Tensor:
    """x [..., D] through a linear layer without a bias -> [..., O] float32. Sums are kept in float32 anyway; where the device
    allows, half precision is not rounded to on the way out, which matters where differences are enlarged, as guidance does to
    those of logits."""
    if type(part) is nn.Linear and x.dtype != torch.float32 and keeps_sums(x.device.type, x.dtype):
        found = torch.mm(x.reshape(-1, x.shape[-1]), part.weight.t(), out_dtype=torch.float32)
        return found.unflatten(0, x.shape[:-1])
    return part(x).float()


@cache
def keeps_sums(device: str, dtype: torch.dtype) -> bool:
    """Whether products of this dtype can give their float32 sums on a device: on CUDA since PyTorch 2.8."""
    try:
        ones = torch.ones(8, 8, dtype=dtype, device=device)
        return torch.mm(ones, ones, out_dtype=torch.float32).dtype == torch.float32
    except RuntimeError:  # also NotImplementedError, which is one: a device that lacks them
        return False


def added(x: Tensor, part: nn.Module, y: Tensor) -> Tensor:
    """x plus a linear layer without a bias of y, both [R, n, *]; one kernel on an accelerator."""
    if type(part) is not nn.Linear:
        return x + part(y)
    return torch.addmm(x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), part.weight.t()).view(x.shape)


def join(owner: nn.Module, names: Sequence[str]) -> None:
    """Make one linear layer `joined` of an owner's layers without biases that read the same, and drop these: one product takes
    fewer kernels than several. The weights are in memory once."""
    weight = torch.cat([cast(nn.Linear, owner.get_submodule(name)).weight.detach() for name in names])
    with torch.device("meta"):
        joined = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    joined.weight = nn.Parameter(weight, requires_grad=False)
    for name in names:
        delattr(owner, name)
    owner.add_module("joined", joined)


def parts_of(owner: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """An owner's layers of these names, or the one that `join` made of them."""
    joined = owner._modules.get("joined")
    return [owner.get_submodule(name) for name in names] if joined is None else [joined]


class Attention(nn.Module, ABC):
    """Attention of `heads` heads; its weights are a subclass's."""

    def __init__(self, heads: int, turn: Turn) -> None:
        super().__init__()
        self.heads, self.turn = heads, turn

    @abstractmethod
    def read(self, x: Tensor) -> Tensor:
        """x [R, n, H] -> queries, keys and values [R, n, 3 H] float32, before they are turned."""

    @property
    @abstractmethod
    def last(self) -> nn.Module:
        """The output projection."""

    def join(self) -> None:  # some families' weights are one already
        """Make one product of those to queries, keys and values."""

    def normed(self, qkv: Tensor) -> Tensor:
        """Queries, keys and values [R, n, 3, heads, d] as they are turned; a family may normalise the first two."""
        return qkv

    def turned(self, x: Tensor, turn: Tensor) -> Tensor:
        """x [R, n, H] -> turned queries and keys, and values [R, n, 3, heads, d]."""
        return self.turn(self.normed(self.read(x).unflatten(-1, (3, self.heads, -1))), turn, x.dtype)

    def project(self, x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [R, n, H] -> turned queries and keys, and values, [R, heads, n, d] each."""
        q, k, v = self.turned(x, turn).transpose(1, 3).unbind(2)
        return q, k, v

    def forward(self, x: Tensor, turn: Tensor, mask: Tensor | None, store: Store, asked: int) -> Tensor:
        """What the last `asked` queries of x [R, n, H] find, [R, asked, H], before the output projection."""
        turned = self.turned(x, turn)
        k, v = store(turned[:, :, 1:])
        q = turned[:, x.shape[1] - asked :, 0].transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


class SplitAttention(Attention):
    """One weight each for queries, keys and values, under the names that Hugging Face checkpoints use."""

    parts = ("q_proj", "k_proj", "v_proj")

    def __init__(self, dim: int, heads: int, turn: Turn) -> None:
        super().__init__(heads, turn)
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def read(self, x: Tensor) -> Tensor:
        """As `Attention.read`."""
        found = [wide(part, x) for part in parts_of(self, self.parts)]
        return torch.cat(found, -1) if len(found) > 1 else found[0]

    def join(self) -> None:
        """As `Attention.join`."""
        join(self, self.parts)

    @property
    def last(self) -> nn.Module:
        """As `Attention.last`."""
        return self.o_proj


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


Seen = tuple[Tensor | None, Store, int]  # mask [R or 1, 1, m, S], bool or additive; where keys and values go; m


class Layer(LlamaLayer[Seen], nn.Module):
    """A layer of linear layers, under the names that Hugging Face checkpoints use. It gives the states of the last m of its
    nodes. `before` is None where nothing is normalised before attention."""

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

    def attend(self, x: Tensor, rope: Tensor, where: Seen) -> Tensor:
        return getattr(self, self.names[1])(x, rope, *where)

    def add_out(self, x: Tensor, attended: Tensor) -> Tensor:
        return added(x[:, x.shape[1] - attended.shape[1] :], getattr(self, self.names[1]).last, attended)

    def norm_after(self, x: Tensor) -> Tensor:
        return getattr(self, self.names[2])(x)

    def gate_up(self, x: Tensor) -> Sequence[Tensor]:
        found = [part(x) for part in parts_of(self.feed, self.feed.names[:2])]
        return found if len(found) > 1 else found[0].chunk(2, -1)

    def add_down(self, x: Tensor, gated: Tensor) -> Tensor:
        return added(x, self.feed.get_submodule(self.feed.names[2]), gated)

    @property
    def feed(self) -> FeedForward:
        """The feed-forward half."""
        return getattr(self, self.names[3])

    def join(self) -> None:
        """Make one product each of those to queries, keys and values, and of gate and up."""
        getattr(self, self.names[1]).join()
        join(self.feed, self.feed.names[:2])
