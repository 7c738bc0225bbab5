"""A LLaMA layer: attention and a gated feed-forward half, each after a norm and added to its input.

`LlamaLayer` implements it once for all families. The modules below give it a linear layer for each
weight: they train, run on accelerators, and serve as the reference in tests. A family adds the
rotation of its queries and keys, and the names of its published weights. `models.cpu` gives it
fused matmuls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import ClassVar, Generic, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.models.common import RMSNorm, attend

# new keys and values [R, n, 2, heads, d] -> all attended to [R, heads, S, d]
Store = Callable[[Tensor], tuple[Tensor, Tensor]]
# queries, keys and values [R, n, 3, heads, d] float32, their `rotations` [R or 1, n, 3, 1, d / 2]
# complex64, a dtype -> the rotated ones in that dtype
Rotate = Callable[[Tensor, Tensor, torch.dtype], Tensor]
# the slots to write and those that are seen, in an implementation's own form
Where = TypeVar("Where")


class LlamaLayer(Generic[Where]):
    """One layer over states x [..., H].

    Norms, matmuls and attention come as attributes or as a subclass's methods.
    """

    # x as attention reads it; drafters may have no norm there
    norm_before: Callable[[Tensor], Tensor]
    # (normalised x, rotary rows, where) -> attended values
    attend: Callable[[Tensor, Tensor, Where], Tensor]
    # (x, attended) -> x plus the output projection of attended
    add_out: Callable[[Tensor, Tensor], Tensor]
    norm_after: Callable[[Tensor], Tensor]  # x as the feed-forward half reads it
    gate_up: Callable[[Tensor], Sequence[Tensor]]  # normalised x -> gate and up [..., F]
    # (x, gated [..., F]) -> x plus the down projection of gated
    add_down: Callable[[Tensor, Tensor], Tensor]

    def forward(self, x: Tensor, rope: Tensor, where: Where) -> Tensor:
        """x [..., H] -> the same shape."""
        return self.finish(x, self.attend(self.norm_before(x), rope, where))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Apply the rest of the layer after attention: x [..., H] -> the same shape."""
        x = self.add_out(x, attended)
        gate, up = self.gate_up(self.norm_after(x))
        return self.add_down(x, self.gated(gate, up))

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu(gate) * up, of the same shape."""
        return F.silu(gate) * up


# -- modules


def unstored(kv: Tensor) -> tuple[Tensor, Tensor]:
    """A `Store` that keeps nothing: a pass attends to its own keys and values."""
    k, v = kv.transpose(1, 3).unbind(2)
    return k, v


def rotations(rope: Tensor) -> Tensor:
    """Convert rows of a rotary table [..., n, d / 2, 2] (cos, sin) to [..., n, 3, 1, d / 2]
    complex64 for queries, keys and values; values do not turn.
    """
    rotation = torch.view_as_complex(rope.float().contiguous())
    return torch.stack((rotation, rotation, torch.ones_like(rotation)), -2).unsqueeze(-2)


def wide(part: nn.Module, x: Tensor) -> Tensor:
    """Map x [..., D] through a linear layer without a bias to [..., O] float32.

    Sums are in float32 anyway. Where the device allows, the output is not rounded to half
    precision, which matters where differences are enlarged, as guidance enlarges those of logits.
    PyTorch has no derivative of such a matmul.
    """
    # not so in mixed precision
    alike = type(part) is nn.Linear and part.weight.dtype == x.dtype != torch.float32
    if not alike or torch.is_grad_enabled() or not keeps_sums(x.device.type, x.dtype):
        return part(x).float()
    weight = cast(nn.Linear, part).weight
    return torch.mm(x.reshape(-1, x.shape[-1]), weight.t(), out_dtype=torch.float32).unflatten(
        0, x.shape[:-1]
    )


@cache
def keeps_sums(device: str, dtype: torch.dtype) -> bool:
    """Return whether a device can return a matmul's float32 sums: CUDA since PyTorch 2.8."""
    try:
        ones = torch.ones(8, 8, dtype=dtype, device=device)
        return torch.mm(ones, ones, out_dtype=torch.float32).dtype == torch.float32
    except RuntimeError:  # also NotImplementedError, a subclass: a device that lacks them
        return False


def added(x: Tensor, part: nn.Module, y: Tensor) -> Tensor:
    """Add to x a linear layer without a bias of y, both [R, n, *]; one kernel on an accelerator."""
    if type(part) is not nn.Linear:
        return x + part(y)
    return torch.addmm(
        x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), part.weight.t()
    ).view(x.shape)


def join(owner: nn.Module, names: Sequence[str]) -> None:
    """Make one linear layer `joined` of an owner's layers without biases that have the same input,
    and drop these.

    One matmul takes fewer kernels than several. The weights are in memory once.
    """
    weight = torch.cat(
        [cast(nn.Linear, owner.get_submodule(name)).weight.detach() for name in names]
    )
    with torch.device("meta"):
        joined = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    joined.weight = nn.Parameter(weight, requires_grad=False)
    for name in names:
        delattr(owner, name)
    owner.add_module("joined", joined)


def parts_of(owner: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Return an owner's layers of these names, or the one that `join` made of them."""
    joined = owner._modules.get("joined")
    return [owner.get_submodule(name) for name in names] if joined is None else [joined]


class Attention(nn.Module, ABC):
    """Attention of `heads` heads; a subclass has its weights."""

    def __init__(self, heads: int, rotate: Rotate) -> None:
        super().__init__()
        self.heads, self.rotate = heads, rotate

    @abstractmethod
    def read(self, x: Tensor) -> Tensor:
        """Map x [R, n, H] to queries, keys and values [R, n, 3 H] float32, before the rotation."""

    @property
    @abstractmethod
    def last(self) -> nn.Module:
        """The output projection."""

    def join(self) -> None:  # some families publish a single weight
        """Join the matmuls to queries, keys and values."""

    def normed(self, qkv: Tensor) -> Tensor:
        """Normalise queries and keys of [R, n, 3, heads, d] before the rotation, if a family does
        so.
        """
        return qkv

    def rotated(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Map x [R, n, H] to rotated queries and keys, and values [R, n, 3, heads, d]."""
        return self.rotate(
            self.normed(self.read(x).unflatten(-1, (3, self.heads, -1))), rotation, x.dtype
        )

    def forward(
        self, x: Tensor, rotation: Tensor, mask: Tensor | None, store: Store, asked: int
    ) -> Tensor:
        """Attend with the last `asked` queries of x [R, n, H] -> [R, asked, H], before the output
        projection.
        """
        rotated = self.rotated(x, rotation)
        k, v = store(rotated[:, :, 1:])
        q = rotated[:, x.shape[1] - asked :, 0].transpose(1, 2)
        return attend(q, k, v, mask).transpose(1, 2).flatten(2)


class SplitAttention(Attention):
    """One weight each for queries, keys and values, under the names that Hugging Face checkpoints
    use.
    """

    parts = ("q_proj", "k_proj", "v_proj")

    def __init__(self, dim: int, heads: int, rotate: Rotate) -> None:
        super().__init__(heads, rotate)
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def read(self, x: Tensor) -> Tensor:
        found = [wide(part, x) for part in parts_of(self, self.parts)]
        return torch.cat(found, -1) if len(found) > 1 else found[0]

    def join(self) -> None:
        join(self, self.parts)

    @property
    def last(self) -> nn.Module:
        return self.o_proj


class FeedForward(nn.Module):
    """The weights of the feed-forward half: gate, up and down."""

    names: ClassVar[tuple[str, str, str]] = ("gate_proj", "up_proj", "down_proj")
    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear

    def __init__(self, dim: int, ffn: int) -> None:
        super().__init__()
        for name, (inputs, outputs) in zip(
            self.names, ((dim, ffn), (dim, ffn), (ffn, dim)), strict=True
        ):
            self.add_module(name, nn.Linear(inputs, outputs, bias=False))


# mask [R or 1, 1, m, S], bool or additive; the store of keys and values; m
Seen = tuple[Tensor | None, Store, int]


class Layer(LlamaLayer[Seen], nn.Module):
    """A layer of linear layers, under the names that Hugging Face checkpoints use.

    It returns the states of its last m nodes. `before` is None for a layer without a norm before
    attention.
    """

    names: ClassVar[tuple[str, str, str, str]] = (
        "input_layernorm",
        "self_attn",
        "post_attention_layernorm",
        "mlp",
    )
    input_layernorm: RMSNorm
    self_attn: SplitAttention
    post_attention_layernorm: RMSNorm
    mlp: FeedForward

    def __init__(
        self, before: RMSNorm | None, attention: Attention, after: RMSNorm, feed: FeedForward
    ) -> None:
        super().__init__()
        for name, part in zip(self.names, (before, attention, after, feed), strict=True):
            self.add_module(name, part)

    def norm_before(self, x: Tensor) -> Tensor:
        norm = getattr(self, self.names[0])
        return x if norm is None else norm(x)

    def attend(self, x: Tensor, rope: Tensor, where: Seen) -> Tensor:
        return getattr(self, self.names[1])(x, rope, *where)

    def add_out(self, x: Tensor, attended: Tensor) -> Tensor:
        return added(
            x[:, x.shape[1] - attended.shape[1] :], getattr(self, self.names[1]).last, attended
        )

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
        """Join the matmuls to queries, keys and values, and those to gate and up."""
        getattr(self, self.names[1]).join()
        join(self.feed, self.feed.names[:2])
