"""What the fused models for accelerators share: weights of several linear layers as one, products whose result is not rounded
back, and the parts of a layer, a target and a drafter that are alike in every family.

A fused model runs its module's own weights in fewer kernels, with positions, slots and masks that are tensors, so that a step can
be captured once and replayed. Joined weights take the place of the modules' own, which use their rows: nothing is in memory
twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.models.common import with_features
from lantern_demo.models.decoder import PaddedCache, SequenceDrafter, SequenceLayer, SequenceTarget, cache_bias
from lantern_demo.models.llama import LlamaLayer


class Rows(nn.Module):
    """A linear layer without a bias whose weight is some rows of a joined one.

    The rows are looked up when they are used. A kept view would be a tensor of its own for ZeroGPU, which packs tensors by where
    they begin and what shape they have, so that every weight would be packed and moved twice.
    """

    def __init__(self, whole: Tensor, first: int, count: int) -> None:
        super().__init__()
        # in a tuple it is no parameter of this module: it would be listed once for each layer that shares it
        self._whole = (whole,)
        self.first, self.out_features, self.in_features = first, count, whole.shape[1]

    @property
    def weight(self) -> Tensor:
        """[count, inputs], a view."""
        return self._whole[0][self.first : self.first + self.out_features]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def join(owner: nn.Module, *names: str) -> Tensor:
    """Join the weights of an owner's linear layers to one [sum of outputs, D], of which the layers then use their rows."""
    parts = [cast(nn.Linear, owner.get_submodule(name)).weight.detach() for name in names]
    whole = torch.cat(parts)
    first = 0
    for name, part in zip(names, parts, strict=True):
        setattr(owner, name, Rows(whole, first, len(part)))
        first += len(part)
    return whole


def matmul(x: Tensor, weight: Tensor) -> Tensor:
    """x [M, D] times weight [O, D] -> [M, O] float32. Sums are kept in float32 anyway; where the device allows, half precision is
    not rounded to on the way out, which matters where differences are enlarged, as guidance does to those of logits."""
    if x.dtype != torch.float32 and keeps_sums(x.device.type, x.dtype):
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return F.linear(x, weight).float()


@cache
def keeps_sums(device: str, dtype: torch.dtype) -> bool:
    """Whether products of this dtype can give their float32 sums on a device: on CUDA since PyTorch 2.8."""
    try:
        ones = torch.ones(8, 8, dtype=dtype, device=device)
        return torch.mm(ones, ones, out_dtype=torch.float32).dtype == torch.float32
    except RuntimeError:  # also NotImplementedError, which is one: a device that lacks them
        return False


Where = tuple[Tensor, Tensor, Tensor]  # slots [n] int64, bias [R or 1, 1, n, S], keys and values [R, 2 heads, slots, d]


@dataclass(frozen=True)
class Weights:
    """The weights of a layer, of products [outputs, inputs] and of norms [H]."""

    before: Tensor | None  # of the norm before attention, None where there is no such norm
    qkv: Tensor
    out: Tensor
    after: Tensor  # of the norm before the feed-forward half
    gate_up: Tensor
    down: Tensor
    heads: int
    eps: float


class FusedLayer(LlamaLayer[Where], ABC):
    """One decoder layer over nodes x [R * n, D], which is overwritten with the layer's output."""

    def __init__(self, weights: Weights) -> None:
        w = self.weights = weights
        self.norm_before = partial(self.norm, weight=w.before) if w.before is not None else (lambda x: x)
        self.norm_after = partial(self.norm, weight=w.after)
        self.gate_up = lambda x: F.linear(x, w.gate_up).chunk(2, -1)
        self.add_out = lambda x, attended: x.addmm_(attended, w.out.t())
        self.add_down = lambda x, gated: x.addmm_(gated, w.down.t())

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [M, D] normalised."""
        return F.rms_norm(x, x.shape[-1:], weight, self.weights.eps)

    @abstractmethod
    def turned(self, qkv: Tensor, turn: Tensor, dtype: torch.dtype) -> Tensor:
        """Queries, keys and values [R, n, 3, heads, d] float32 of the product -> the same in `dtype`, queries and keys turned."""

    def attend(self, x: Tensor, rope: Tensor, where: Where) -> Tensor:
        """What the queries of x [R * n, D] find -> [R * n, D]; its keys and values are written first. rope is complex64, of the
        family's shape."""
        slots, bias, both = where
        heads, seen = self.weights.heads, bias.shape[-1]
        qkv = matmul(x, self.weights.qkv).view(both.shape[0], -1, 3, heads, both.shape[-1])
        turned = self.turned(qkv, rope, x.dtype)
        both.index_copy_(2, slots, turned[:, :, 1:].flatten(2, 3).transpose(1, 2))
        attended = F.scaled_dot_product_attention(
            turned[:, :, 0].transpose(1, 2), both[:, :heads, :seen], both[:, heads:, :seen], attn_mask=bias
        )
        return attended.transpose(1, 2).reshape(x.shape)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        """As `LlamaLayer.gated`."""
        return F.silu(gate).mul_(up)


class FusedTargetBase(ABC):
    """A target on an accelerator; implements `decoding.protocols.FixedTarget`. What runs once per image, the prefix, and what
    steps of changing shapes ask for is left to the original."""

    def __init__(self, original: Any, layers: Sequence[FusedLayer]) -> None:
        self.original, self.layers, self.vocab_size = original, layers, original.config.vocab

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """Image tokens [n] int64 -> their vectors [n, D]."""

    @abstractmethod
    def turns_at(self, positions: Tensor, cache: Any) -> Tensor:
        """The turns of positions [n] int64, as the layers take them."""

    @abstractmethod
    def head(self, hidden: Tensor) -> Tensor:
        """hidden [R, n, H] -> logits [R, n, V] float32 of the image tokens."""

    def new_cache(self, rows: int, length: int) -> Any:
        """As the original's."""
        return self.original.new_cache(rows, length)

    def prefill(self, condition: Any, cache: Any) -> Tensor:
        """As the original's."""
        return self.original.prefill(condition, cache)

    def forward(self, tokens: Tensor, depths: Tensor, mask: Tensor, cache: Any) -> Tensor:
        """As the original's."""
        return self.original.forward(tokens, depths, mask, cache)

    def forward_at(self, tokens: Tensor, positions: Tensor, slots: Tensor, bias: Tensor, cache: Any) -> Tensor:
        """n tree nodes -> hidden [R, n, H]; see `decoding.protocols.FixedTarget.forward_at`."""
        rows, n = cache.both.shape[1], tokens.shape[0]
        original = self.original
        x = self.embed(tokens).repeat(rows, 1)
        turn, feature_layers = self.turns_at(positions, cache), original.feature_layers
        features: list[Tensor] = []
        for i, (layer, both) in enumerate(zip(self.layers, cache.both.unbind(0), strict=True)):
            layer.forward(x, turn, (slots, bias, both))
            if i + 1 in feature_layers:
                features.append(x.clone())  # the next layer writes over it
        final = F.rms_norm(x, x.shape[-1:], original.norm.weight, original.config.eps)
        return with_features(final, features).view(rows, n, -1)


class FusedDrafterBase:
    """What a drafter on an accelerator leaves to the original: all but steps of fixed shape."""

    def __init__(self, original: Any, layer: FusedLayer) -> None:
        self.original, self.layer, self.guided = original, layer, original.guided

    def new_cache(self, rows: int, length: int) -> Any:
        """As the original's."""
        return self.original.new_cache(rows, length)

    def start(self, hidden: Tensor, token: Tensor, cache: Any, condition: Any = None) -> Tensor:
        """As the original's."""
        return self.original.start(hidden, token, cache, condition)

    def extend(self, tokens: Tensor, hidden: Tensor, cache: Any) -> Tensor:
        """As the original's."""
        return self.original.extend(tokens, hidden, cache)

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor, cache: Any) -> Tensor:
        """As the original's."""
        return self.original.expand(tokens, hidden, depth, mask, cache)


# -- LLaMA decoders with the prompt in their sequence: see `models.decoder`


class FusedSequenceLayer(FusedLayer):
    """One layer of such a decoder; turns are [R, n or 1, 1, 1, d / 2]."""

    def __init__(self, layer: SequenceLayer, eps: float) -> None:
        """A layer fused, whose weights become rows of the fused ones."""
        a, m = layer.self_attn, layer.mlp
        super().__init__(
            Weights(
                layer.input_layernorm.weight,
                join(a, "q_proj", "k_proj", "v_proj"),
                a.o_proj.weight,
                layer.post_attention_layernorm.weight,
                join(m, "gate_proj", "up_proj"),
                m.down_proj.weight,
                a.heads,
                eps,
            )
        )

    def turned(self, qkv: Tensor, turn: Tensor, dtype: torch.dtype) -> Tensor:
        """As `FusedLayer.turned`."""
        return half_turned(qkv[:, :, :2], qkv, turn, dtype)


def half_turned(both: Tensor, qkv: Tensor, turn: Tensor, dtype: torch.dtype) -> Tensor:
    """Queries and keys `both` [R, n, 2, heads, d] turned, beside the values of qkv [R, n, 3, heads, d] -> that shape in
    `dtype`."""
    # pairs are (i, i + d / 2)
    turned = torch.view_as_real(torch.complex(*both.chunk(2, -1)) * turn)
    new = qkv.new_empty(qkv.shape, dtype=dtype)
    new[:, :, :2].unflatten(-1, (2, -1)).copy_(turned.transpose(-1, -2))
    new[:, :, 2].copy_(qkv[:, :, 2])
    return new


def turns(rope: Tensor) -> Tensor:
    """A rotary table [P, d / 2, 2] (cos, sin) -> [P, 1, 1, d / 2] complex64."""
    return torch.view_as_complex(rope.float().contiguous())[:, None, None]


class FusedSequence(FusedTargetBase):
    """Such a target on an accelerator; its head is the family's."""

    def __init__(self, target: SequenceTarget, layers: Sequence[FusedSequenceLayer]) -> None:
        super().__init__(target, layers)
        self.turns = turns(target.rope)

    def embed(self, tokens: Tensor) -> Tensor:
        """As `FusedTargetBase.embed`."""
        return self.original.embed(tokens)

    def turns_at(self, positions: Tensor, cache: PaddedCache) -> Tensor:
        """[R, n, 1, 1, d / 2] complex64."""
        return self.turns[cache.positions(positions)]


class FusedSequenceDrafter(FusedDrafterBase):
    """A drafter of such a target on an accelerator; implements `decoding.protocols.FixedDrafter`."""

    original: SequenceDrafter

    def __init__(self, drafter: SequenceDrafter, layer: FusedSequenceLayer) -> None:
        super().__init__(drafter, layer)
        self.turns = turns(drafter.rope)

    def turns_at(self, positions: Tensor, cache: PaddedCache) -> Tensor:
        """[R, m, 1, 1, d / 2] complex64; see `decoding.protocols.FixedDrafter.turns_at`."""
        return self.turns[cache.positions(positions)]

    def run_at(self, tokens: Tensor, hidden: Tensor, turn: Tensor, slots: Tensor, bias: Tensor, cache: PaddedCache) -> Tensor:
        """m slots -> outputs [R, m, H]; see `decoding.protocols.FixedDrafter.run_at`. Padding is left out here."""
        original, mask = self.original, cache_bias(bias, cache)
        x = original.fuse(original.embed(tokens).expand(hidden.shape[0], -1, -1), hidden).flatten(0, 1)
        return original.finish(self.layer.forward(x, turn, (slots, mask, cache.both[0])).view(hidden.shape))
