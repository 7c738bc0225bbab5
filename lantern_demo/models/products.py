"""Products with fixed weights on a CPU, in several kinds: which is fastest depends on the processor.

On one machine a plain product of two rows takes six times as long as a packed one, on another it is the faster of the two.
`plain` and `packed` are float32. `half` reads its weights as float16 and computes in float32: half of what a product of few rows
has to read, and the same numbers where float16 holds the weights exactly, as it does those of a model that was stored so.
`bfloat16` and `int8` round weights and inputs, and so change the laws that are sampled from.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]  # x [M, D] float32 -> [M, O] float32

KINDS = {
    "plain": "float32 products",
    "packed": "float32 products, packed weights (oneDNN)",
    "half": "float32 products, float16 weights (FBGEMM)",
    "bfloat16": "bfloat16 products, packed weights (oneDNN)",
    "int8": "8-bit products of 8-bit weights and inputs (FBGEMM)",
}


def exact_kinds(weights: Iterable[Tensor]) -> tuple[str, ...]:
    """The kinds whose products with these weights are float32 ones."""
    held = all(torch.equal(weight.half().to(weight.dtype), weight) for weight in weights)
    return ("plain", "packed", "half") if held else ("plain", "packed")


def product(weight: Tensor, kind: str) -> Product:
    """The product x -> x weight^T with weight [O, D]. Raises RuntimeError or AttributeError where a PyTorch lacks the kind."""
    weight = weight.detach()
    if kind == "plain":
        return partial(torch.mm, mat2=weight.float().t())
    if kind == "half":
        return _half(weight.float())
    if kind == "int8":
        return _int8(weight.float())
    dtype = torch.bfloat16 if kind == "bfloat16" else torch.float32
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype).contiguous(), None)
    run = torch.ops.mkldnn._linear_pointwise.default
    if kind == "bfloat16":
        return lambda x: run(x.bfloat16(), packed, None, "none", [], "").float()
    return lambda x: run(x, packed, None, "none", [], "")


def supported(kind: str) -> bool:
    """Whether this PyTorch has a kind and gets its products right on this processor."""
    x, weight = torch.linspace(-1, 1, 4 * 64).view(4, 64), torch.linspace(1, -0.5, 32 * 64).view(32, 64)
    try:
        found = product(weight, kind)(x)
    except (AttributeError, RuntimeError):
        return False
    # Without VNNI the sums of pairs of 8-bit products saturate: far off, not a little.
    return bool(((found - x @ weight.t()).abs() < 0.5).all())


def _half(weight: Tensor) -> Product:
    """Weights in float16, which are widened as they are read."""
    with _packing():
        packed = torch.ops.quantized.linear_prepack_fp16(weight, None)
    run = torch.ops.quantized.linear_dynamic_fp16.default
    return lambda x: run(x, packed)


def _int8(weight: Tensor) -> Product:
    """Weights with a scale per output, inputs with one scale and offset per call."""
    scale = (weight.abs().amax(1) / 127).clamp_min(1e-8).double()
    zero = torch.zeros(len(scale), dtype=torch.int64)
    with _packing():
        packed = torch.ops.quantized.linear_prepack(torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8), None)
    run = torch.ops.quantized.linear_dynamic.default
    return lambda x: run(x, packed, False)


@contextmanager
def _packing() -> Iterator[None]:
    """Weights are packed for FBGEMM; the engine decides that, and no more."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch means to drop its quantised tensors
            yield
    finally:
        torch.backends.quantized.engine = before
