"""LLaMA decoders on a CPU: few, large operations on an ordinary cache.

One matmul computes queries, keys and values, another gate and up; the rotation is one complex
multiplication. All numbers are float32, except in the matmuls of some `KINDS`. Attention is
PyTorch's own. A pass of another shape may round a sum differently, by some 1e-5 of a logit.

`plain` and `packed` matmuls are float32. `half` reads weights as float16 and computes in float32.
It reads half as many bytes, and gives the same numbers where float16 holds the weights exactly, as
in a model that was stored in float16. `bfloat16` rounds weights and inputs, and so changes the
distributions.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.decoding.cache import KVCache
from lantern_demo.decoding.interfaces import Pass
from lantern_demo.models.llama import (
    Attention,
    Condition,
    Layer,
    prefix_mask,
    rotate_halves,
    with_features,
)

Network = TypeVar("Network", bound=nn.Module)
Matmul = Callable[[Tensor], Tensor]  # x [M, D] float32 -> [M, O] float32

KINDS = {
    "plain": "float32 products",
    "packed": "float32 products, packed weights (oneDNN)",
    "half": "float32 products, float16 weights (FBGEMM)",
    "bfloat16": "bfloat16 products, packed weights (oneDNN)",
}
FEW = 4  # rows of a matmul
SMALL = 2**21  # numbers of a weight up to which several threads multiply no faster than one
OF_FORMAT = {"float16": "half", "bfloat16": "bfloat16"}  # the kind of a number format


def exact_kind(weights: Iterable[Tensor]) -> str:
    """Return the kind that gives float32 results with these weights.

    It is `half` where float16 holds them, else `packed`, else `plain`.
    """
    held = all(torch.equal(weight.half().to(weight.dtype), weight) for weight in weights)
    kinds = ("half", "packed") if held else ("packed",)
    return next(filter(supported, kinds), "plain")


def sixteen_bits() -> str:
    """Return the number format of a published model on a CPU.

    It is bfloat16 where the processor multiplies in it, else float16 weights in float32 matmuls,
    else float32.
    """
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    formats = ("bfloat16", "float16") if native else ("float16",)
    return next((name for name in formats if supported(OF_FORMAT[name])), "float32")


def matmul(weight: Tensor, kind: str) -> Matmul:
    """Return the matmul x -> x weight^T with weight [O, D].

    Raise RuntimeError or AttributeError if PyTorch lacks the kind.
    """
    weight = weight.detach()
    if kind == "plain":
        return partial(torch.mm, mat2=weight.float().t())
    if kind == "half":
        return _half(weight.float())
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype).contiguous(), None)
    run = torch.ops.mkldnn._linear_pointwise.default
    if kind == "bfloat16":
        return _with_filled_rows(lambda x: run(x.bfloat16(), packed, None, "none", [], "").float())
    return _with_filled_rows(lambda x: run(x, packed, None, "none", [], ""))


def _with_filled_rows(run: Matmul) -> Matmul:
    """Fill up a matmul's rows with zeros, as oneDNN takes longer for two rows than for FEW."""

    def product(x: Tensor) -> Tensor:
        count = x.shape[0]  # len(x) is Python code in PyTorch
        return run(F.pad(x, (0, 0, 0, FEW - count)))[:count] if count < FEW else run(x)

    return product


def supported(kind: str) -> bool:
    """Return whether this PyTorch has a kind and computes it correctly on this processor."""
    x = torch.linspace(-1, 1, 4 * 64).view(4, 64)
    weight = torch.linspace(1, -0.5, 32 * 64).view(32, 64)
    try:
        y = matmul(weight, kind)(x)
    except (AttributeError, RuntimeError):
        return False
    return bool(((y - x @ weight.t()).abs() < 0.5).all())


def _half(weight: Tensor) -> Matmul:
    """Make a matmul with float16 weights, which are widened when read.

    Large ones use `quantized.linear_dynamic_fp16`, which splits its columns among threads. Small
    ones use functions that PyTorch means to drop for it: the same kernel on one thread, with the
    same bits. Their calls take ten microseconds less, as much as a whole small matmul.
    """
    if weight.numel() > SMALL:
        shared = torch.ops.quantized.linear_dynamic_fp16.default
        before = torch.backends.quantized.engine
        torch.backends.quantized.engine = "fbgemm"  # the engine that packs weights runs them
        try:
            columns = torch.ops.quantized.linear_prepack_fp16(weight, None)
        finally:
            torch.backends.quantized.engine = before
        return lambda x: shared(x, columns)
    run = torch.fbgemm_linear_fp16_weight_fp32_activation
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = torch.fbgemm_pack_gemm_matrix_fp16(weight)
        run(weight.new_zeros(1, weight.shape[1]), packed, None)  # warns once
    return lambda x: run(x, packed, None)


# -- layers


def complex_rope(rope: Tensor, heads: int) -> Tensor:
    """Convert a rotary table [S, d / 2, 2] (cos, sin) to [S, 3 heads * d / 2] complex64.

    It is for queries, keys and values. Queries are scaled for attention as they turn; values do not
    turn.
    """
    rotation = torch.view_as_complex(rope.float().contiguous()).unsqueeze(1).expand(-1, heads, -1)
    scaled = rotation * (2 * rotation.shape[-1]) ** -0.5
    return torch.cat((scaled, rotation, torch.ones_like(rotation)), 1).flatten(1)


def paired(rows: Tensor, heads: int) -> Tensor:
    """Order rows [heads * d, ...] so that pairs (i, i + d / 2) of each head are adjacent.

    `complex_rope` turns adjacent pairs. Scores sum over a whole head, so they do not depend on the
    order.
    """
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(rows.shape)


class Norm:
    """RMSNorm: x [M, D] -> x / sqrt(mean(x^2) + eps) times a weight [D].

    Its small operations are rounded correctly, so that all instruction sets give the same result.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        dim = weight.shape[0]
        self.weight = weight.float() * dim**0.5
        self.floor = torch.tensor(dim * eps)

    def __call__(self, x: Tensor) -> Tensor:
        squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        return (x / squares.add_(self.floor).sqrt_()).mul_(self.weight)


@dataclass(frozen=True)
class Packing:
    """Makes matmuls of a kind (see `KINDS`) from a network's linear layers.

    release: each layer drops its weight when it is packed, so that only one weight at a time is in
    memory twice.
    """

    kind: str
    release: bool = False

    def matmul(self, *parts: nn.Linear) -> Matmul:
        """Make one matmul of linear layers without biases, their outputs side by side."""
        return self._of([part.weight for part in parts], parts)

    def qkv(self, attention: Attention) -> Matmul:
        """Make one matmul to queries, keys and values, in the order that `complex_rope` turns."""
        parts = attention.q_proj, attention.k_proj, attention.v_proj
        q, k, v = (part.weight for part in parts)
        if attention.rotate is rotate_halves:
            q, k = paired(q, attention.heads), paired(k, attention.heads)
        return self._of([q, k, v], parts)

    def affine(self, part: nn.Linear) -> Matmul:
        """Make a matmul that adds the linear layer's bias."""
        run = self.matmul(part)
        bias = part.bias.detach().float()
        return lambda x: run(x).add_(bias)

    def take(self, *parts: nn.Linear | nn.Embedding) -> None:
        """Drop the parts' weights if they are to be released: a copy exists."""
        for part in parts if self.release else ():
            part.weight = nn.Parameter(part.weight.to("meta"), requires_grad=False)

    def _of(self, weights: list[Tensor], parts: tuple[nn.Linear, ...]) -> Matmul:
        made = matmul(torch.cat(weights) if len(weights) > 1 else weights[0], self.kind)
        self.take(*parts)
        return made


class Where(NamedTuple):
    """The slots that a layer writes, and those that its last `asked` nodes see."""

    cache: KVCache
    layer: int
    slots: Tensor  # [n] int64
    end: int  # attention covers the first `end` slots
    # [R or 1, 1, asked, end], bool or added to the scores; None: all are visible
    mask: Tensor | None
    asked: int


class LeanLayer:
    """`llama.Layer` of fused matmuls over nodes x [M, D], M of all rows together.

    `before` and `after` are its norms, `before` None for a layer without a norm before attention.
    """

    def __init__(
        self, layer: Layer, packing: Packing, before: Matmul | None, after: Matmul
    ) -> None:
        self.heads = layer.self_attn.heads
        self.before = before
        self.qkv = packing.qkv(layer.self_attn)
        self.out = packing.matmul(layer.self_attn.o_proj)
        self.after = after
        self.gate_up = packing.matmul(layer.mlp.gate_proj, layer.mlp.up_proj)
        self.down = packing.matmul(layer.mlp.down_proj)

    def forward(self, x: Tensor, rope: Tensor, where: Where) -> Tensor:
        """Map x [R * n, D] to the states of the last nodes [R * asked, D].

        rope [n, 3 D / 2] holds rows of `complex_rope`.
        """
        rows = where.cache.rows
        n = rope.shape[0]  # len() of a tensor is Python code in PyTorch
        qkv = self.qkv(x if self.before is None else self.before(x))
        turned = (qkv.view(torch.complex64).view(rows, n, -1) * rope).view(torch.float32)
        rotated = turned.view(rows, n, 3, self.heads, -1)
        k, v = where.cache.write(where.layer, where.slots, where.end, rotated[:, :, 1:])
        q = rotated[:, n - where.asked :, 0].transpose(1, 2)
        attended = F.scaled_dot_product_attention(q, k, v, where.mask, scale=1.0)  # q is scaled
        if where.asked < n:
            x = x.view(rows, n, -1)[:, n - where.asked :].flatten(0, 1)
        return self.finish(x, attended.transpose(1, 2).reshape(x.shape))

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Apply the rest of the layer after attention: x [M, D] -> the same shape."""
        x = self.out(attended).add_(x)
        gate, up = self.gate_up(self.after(x)).chunk(2, 1)
        return self.down(F.silu(gate).mul_(up)).add_(x)


# -- targets


class LeanDecoder(ABC):
    """A target on a CPU; implements `decoding.interfaces.Target`.

    It keeps the original for its conditions. A family adds the embedding of tokens and the head.
    Positions count from the start of a row's padding: attention depends on their differences alone.
    """

    original: Any

    def __init__(self, target: Any, kind: str = "plain", release: bool = False) -> None:
        """kind and release are those of `Packing`."""
        c = target.config
        self.original = target
        self.config = c
        self.vocab_size = c.vocab
        # dtype of the mask's sums, on which padding "released" depends
        self.format = torch.bfloat16 if kind == "bfloat16" else torch.float32
        self.packing = Packing(kind, release)
        self.layers = [self.layer(block) for block in target.blocks]
        self.norm = Norm(target.norm.weight, c.eps)
        self.rope = complex_rope(target.rope, c.heads)

    def layer(self, block: Layer) -> LeanLayer:
        """Return a block as a layer of packed matmuls."""
        assert block.input_layernorm is not None
        before = Norm(block.input_layernorm.weight, self.config.eps)
        after = Norm(block.post_attention_layernorm.weight, self.config.eps)
        return LeanLayer(block, self.packing, before, after)

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """Map image tokens [n] int64 to their vectors [n, H] float32."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Map final states [M, H], features after them or not, to logits [M, V] float32."""

    def new_cache(self, rows: int, length: int) -> KVCache:
        c = self.config
        return KVCache(len(self.layers), rows, c.heads, c.prefix + length, c.head_dim)

    def prefill(self, condition: Condition, cache: KVCache) -> Tensor:
        """Read the T prefix positions -> hidden [R, T, H], also of padding, for drafters."""
        x = self.original.read(condition).float()
        n = x.shape[1]
        cache.start(n, condition.mask)
        mask = prefix_mask(condition.mask, n, x.device, self.original.padding, self.format)
        return self._run(x, self.rope[:n], torch.arange(n), n, mask, cache)

    def forward(self, nodes: Pass, cache: KVCache) -> Tensor:
        """Read n nodes -> hidden [R, n, H]; see `decoding.interfaces.Target.forward`."""
        x, end = self.embed(nodes.tokens).expand(cache.rows, -1, -1), nodes.end
        mask = cache.bias(nodes.visible, end)
        return self._run(x, self.rope[nodes.positions], nodes.slots, end, mask, cache)

    def head(self, hidden: Tensor) -> Tensor:
        return self.logits(hidden.flatten(0, 1)).view(*hidden.shape[:2], -1)

    def _run(
        self, x: Tensor, rope: Tensor, slots: Tensor, end: int, mask: Tensor | None, cache: KVCache
    ) -> Tensor:
        """Run the layers over x [R, n, H]; the last four are as in `Where`."""
        r, n, dim = x.shape
        x = x.reshape(r * n, dim)
        features: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            x = layer.forward(x, rope, Where(cache, i, slots, end, mask, n))
            if i + 1 in self.original.feature_layers:
                features.append(x)
        return with_features(self.norm(x), features).view(r, n, -1)


# -- whole networks


class Packed(nn.Module):
    """A linear layer with a matmul of a kind; inputs and outputs are float32."""

    def __init__(self, linear: nn.Linear, kind: str) -> None:
        super().__init__()
        self.run = matmul(linear.weight, kind)
        # a T5 of the library reads the number format of some
        self.register_parameter("weight", None)
        self.bias = None if linear.bias is None else linear.bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        """x [..., D] -> [..., O] float32."""
        y = self.run(x.float().flatten(0, -2)).unflatten(0, x.shape[:-1])
        return y if self.bias is None else y.add_(self.bias)


def packed(network: Network, kind: str) -> Network:
    """Return a CPU copy of a network, such as a drafter of a `llama.SequenceTarget`.

    It is the same module with packed matmuls, norms in float32, and the original's vectors of
    tokens.
    """
    shared = {
        id(weight): nn.Parameter(weight.detach(), requires_grad=False)
        for weight in network.parameters()
    }
    fused = deepcopy(network, shared)
    for name, part in list(fused.named_modules()):
        if isinstance(part, nn.Linear):
            fused.set_submodule(name, Packed(part, kind))
        elif not isinstance(part, nn.Embedding):
            for weight in part.parameters(recurse=False):
                weight.data = weight.data.float()
    return fused
