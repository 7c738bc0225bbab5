"""Matmuls with fixed weights on a CPU, in several kinds.
 `plain` and `packed`
are float32. `half` reads weights as float16 and computes in float32. It reads half as many bytes,
and gives the same numbers where float16 holds the weights exactly, as in a model that was stored in
float16. `bfloat16` rounds weights and inputs, and so changes the distributions.

Kinds in `ROW_EXACT` compute each output row from its input row alone: the same bits whatever other
rows are in the call.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

Matmul = Callable[[Tensor], Tensor]  # x [M, D] float32 -> [M, O] float32

KINDS = {
    "plain": "float32 products",
    "packed": "float32 products, packed weights (oneDNN)",
    "half": "float32 products, float16 weights (FBGEMM)",
    "bfloat16": "bfloat16 products, packed weights (oneDNN)",
}
BLOCKS = 60  # rows; a multiple of FBGEMM's blocks of 1 to 6
FEW = 4  # rows
SMALL = 2**21  # numbers of a weight up to which several threads multiply no faster than one
ROW_EXACT = ("packed", "half", "bfloat16")
OF_FORMAT = {"float16": "half", "bfloat16": "bfloat16"}  # the kind of a number format


def exact_kind(weights: Iterable[Tensor]) -> str:
    """Return the kind that gives float32 results with these weights: float16 weights where they
    hold them, else packed ones, else `plain`.
    """
    held = all(torch.equal(weight.half().to(weight.dtype), weight) for weight in weights)
    kinds = ("half", "packed") if held else ("packed",)
    return next(filter(supported, kinds), "plain")


def sixteen_bits() -> str:
    """Return the number format of a published model on a CPU: bfloat16 where the processor
    multiplies in it, else float16 weights in float32 matmuls, else float32.
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
        return _with_filled_rows(
            lambda x: run(x.bfloat16(), packed, None, "none", [], "").float(), kind
        )
    return _with_filled_rows(lambda x: run(x, packed, None, "none", [], ""), kind)


def filled(count: int, kind: str) -> int:
    """Return how many rows, instead of `count`, a kind needs for sums that do not depend on the
    count.

    A pass that pads its rows once, with zeros, saves each of its matmuls the copy.
    """
    if kind == "half":
        fill = _rows_to_fill()
        # the table ends with a multiple of all block sizes, after which it repeats
        return count + fill[count % len(fill)]
    return count if kind == "plain" else max(count, FEW)


def _with_filled_rows(run: Matmul, kind: str) -> Matmul:
    """Make a matmul whose rows have the same bits in any company. oneDNN may sum a row alone in
    another order than a row among others, and takes longer for two rows than for FEW. FBGEMM works
    on blocks of rows, and without AVX-512 it sums blocks of one or two rows in another order. Rows
    of zeros fill them up.
    """

    if kind == "half" and not any(_rows_to_fill()):
        return run  # every count of rows will do here

    def product(x: Tensor) -> Tensor:
        count = x.shape[0]  # len(x) is Python code in PyTorch
        more = filled(count, kind) - count
        return run(F.pad(x, (0, 0, 0, more)))[:count] if more else run(x)

    return product


def supported(kind: str) -> bool:
    """Return whether this PyTorch has a kind and computes it correctly on this processor."""
    x, weight = (
        torch.linspace(-1, 1, 4 * 64).view(4, 64),
        torch.linspace(1, -0.5, 32 * 64).view(32, 64),
    )
    try:
        found = matmul(weight, kind)(x)
    except (AttributeError, RuntimeError):
        return False
    return bool(((found - x @ weight.t()).abs() < 0.5).all())


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
        return _with_filled_rows(lambda x: shared(x, columns), "half")
    return _with_filled_rows(_small_half(weight), "half")


def _small_half(weight: Tensor) -> Matmul:
    run = torch.fbgemm_linear_fp16_weight_fp32_activation
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        packed = torch.fbgemm_pack_gemm_matrix_fp16(weight)
        run(weight.new_zeros(1, weight.shape[1]), packed, None)  # warns once
    return lambda x: run(x, packed, None)


@lru_cache(maxsize=1)
def _rows_to_fill() -> tuple[int, ...]:
    """Return how many rows of zeros each number of rows lacks, from 0 on, until FBGEMM sums every
    row as in a large matmul here.
    """
    generator = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randn(2 * BLOCKS, 64, generator=generator),
        torch.randn(64, 64, generator=generator),
    )
    run = _small_half(weight)
    whole = run(x)
    exact = [torch.equal(run(x[:count]), whole[:count]) for count in range(BLOCKS, 2 * BLOCKS)]
    small = [count == 0 or torch.equal(run(x[:count]), whole[:count]) for count in range(BLOCKS)]
    exact = [a and b for a, b in zip(exact, small, strict=True)]
    return tuple(
        next((more for more in range(BLOCKS) if exact[(count + more) % BLOCKS]), 0)
        for count in range(BLOCKS)
    )
