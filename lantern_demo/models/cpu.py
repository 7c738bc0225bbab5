"""Layers of the bundled model on a CPU: few, large operations on an ordinary cache.

One matmul computes queries, keys and values, another gate and up; the rotation is one complex
multiplication. All numbers are float32, except weights of `half`. Attention is PyTorch's own. A
pass of another shape may round a sum differently, by some 1e-5 of a logit.

`plain` and `packed` matmuls are float32. `half` reads weights as float16 and computes in float32.
It reads half as many bytes. The numbers are the same if float16 holds the weights exactly, as in a
model that was stored in float16.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_demo.models.llama import Layer, Store

Matmul = Callable[[Tensor], Tensor]  # x [..., D] float32 -> [..., O] float32

PRODUCTS = {
    "plain": "float32 products",
    "packed": "float32 products, packed weights (oneDNN)",
    "half": "float32 products, float16 weights (FBGEMM)",
}
FEW = 4  # rows of a matmul
SMALL = 2**21  # numbers of a weight up to which `half`, on one thread, is as fast as several


def exact_product(weights: Iterable[Tensor]) -> str:
    """Return the product that gives float32 results with these weights.

    It is `half` where they are small and float16 holds them, else `packed`, else `plain`.
    """
    held = all(
        weight.numel() <= SMALL and torch.equal(weight.half().to(weight.dtype), weight)
        for weight in weights
    )
    products = ("half", "packed") if held else ("packed",)
    return next(filter(supported, products), "plain")


def matmul(weight: Tensor, product: str) -> Matmul:
    """Return the matmul x -> x weight^T with weight [O, D].

    Raise RuntimeError or AttributeError if PyTorch lacks the product.
    """
    weight = weight.detach()
    if product == "plain":
        return partial(F.linear, weight=weight.float())
    if product == "half":
        return _half(weight.float())
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.float().contiguous(), None)
    run = torch.ops.mkldnn._linear_pointwise.default
    return _with_filled_rows(lambda x: run(x, packed, None, "none", [], ""))


def _with_filled_rows(run: Matmul) -> Matmul:
    """Fill up a matmul's rows with zeros, as oneDNN takes longer for two rows than for FEW."""

    def product(x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        count = rows.shape[0]  # len(x) is Python code in PyTorch
        few = count < FEW
        y = run(F.pad(rows, (0, 0, 0, FEW - count)))[:count] if few else run(rows)
        return y.view(*x.shape[:-1], -1)

    return product


def supported(product: str) -> bool:
    """Return whether this PyTorch has a product and computes it correctly on this processor."""
    x = torch.linspace(-1, 1, 4 * 64).view(4, 64)
    weight = torch.linspace(1, -0.5, 32 * 64).view(32, 64)
    try:
        y = matmul(weight, product)(x)
    except (AttributeError, RuntimeError):
        return False
    return bool(((y - x @ weight.t()).abs() < 0.5).all())


def _half(weight: Tensor) -> Matmul:
    """Make a matmul with float16 weights, which are widened when read.

    PyTorch means to drop its functions for `quantized.linear_dynamic_fp16`. That is the same kernel
    on several threads, and its calls take ten microseconds more, as much as a whole small matmul.
    """
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
    """Order rows [heads * d, ...] so that pairs (i, i + d / 2) of each head are adjacent."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(rows.shape)


class Norm:
    """RMSNorm: x [..., D] -> x / sqrt(mean(x^2) + eps) times a weight [D].

    Its small operations are rounded correctly, so that all instruction sets give the same result.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        dim = weight.shape[0]
        self.weight = weight.float() * dim**0.5
        self.floor = torch.tensor(dim * eps)

    def __call__(self, x: Tensor) -> Tensor:
        squares = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_()
        return (x / squares.add_(self.floor).sqrt_()).mul_(self.weight)


class LeanLayer:
    """`llama.Layer` of fused matmuls, in float32.

    `before` and `after` are its norms, `before` None for a layer without a norm before attention.
    """

    def __init__(self, layer: Layer, product: str, before: Matmul | None, after: Matmul) -> None:
        attention = layer.self_attn
        self.heads = attention.heads
        self.before = before
        # `complex_rope` turns adjacent pairs
        q, k = (paired(part.weight, self.heads) for part in (attention.q_proj, attention.k_proj))
        self.qkv = matmul(torch.cat((q, k, attention.v_proj.weight)), product)
        self.out = matmul(attention.o_proj.weight, product)
        self.after = after
        self.gate_up = matmul(
            torch.cat((layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight)), product
        )
        self.down = matmul(layer.mlp.down_proj.weight, product)

    def __call__(
        self, x: Tensor, rotation: Tensor, mask: Tensor | None, store: Store, outputs: int
    ) -> Tensor:
        """As `Layer.forward`; rotation [1, n, 3 D / 2] holds rows of `complex_rope`."""
        rows, n, _ = x.shape
        qkv = self.qkv(x if self.before is None else self.before(x))
        turned = qkv.view(torch.complex64).mul_(rotation).view(torch.float32)
        rotated = turned.view(rows, n, 3 * self.heads, -1).transpose(1, 2)
        k, v = store(rotated[:, self.heads :])
        q = rotated[:, : self.heads]
        if outputs < n:
            q, x = q[:, :, n - outputs :], x[:, n - outputs :]
        attended = F.scaled_dot_product_attention(q, k, v, mask, scale=1.0)  # q is scaled
        x = self.out(attended.transpose(1, 2).flatten(2)).add_(x)
        gate, up = self.gate_up(self.after(x)).chunk(2, -1)
        return self.down(F.silu(gate).mul_(up)).add_(x)
