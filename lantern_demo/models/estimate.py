"""How long a picture of a published model would take on this processor, before anything of it is fetched.

A pass of a large model waits for its weights. How long a byte of them takes is measured in products with random matrices as large
as a layer's, of as many rows as a pass has, and beside it all else that a layer does in the middle of a picture.
"""

from __future__ import annotations

from functools import lru_cache
from time import perf_counter

import torch

from lantern_demo.models.cpu import LeanCache, LeanLayer, Norm
from lantern_demo.models.files.blank import Sizes, multiplied
from lantern_demo.models.files.needs import BYTES
from lantern_demo.models.machine.matmul import OF_FORMAT, Matmul, matmul
from lantern_demo.models.registry import Published

SHAPE = (3840, 1280)  # of a matrix: queries, keys and values of LlamaGen-XL
MATRICES = 16  # 150 MiB in 16 bits, more than caches hold
ROUNDS = 6  # over all of them
# Of the calls' times in rising order the one at this share counts. Other programs interrupt a call of half a millisecond or do
# not: one long call would always be interrupted, and half of the short ones are on a machine that is busy.
UNDISTURBED = 0.1


@lru_cache(maxsize=8)
@torch.inference_mode()
def seconds_a_byte(kind: str, rows: int, threads: int) -> float:
    """Seconds that a product of `rows` rows takes for each byte of its weights where nothing disturbs it, with so many threads,
    which are this thread's."""
    weight = torch.randn(SHAPE[0], 64).repeat(1, SHAPE[1] // 64)
    runs, x = [matmul(weight, kind) for _ in range(MATRICES)], torch.ones(rows, SHAPE[1])
    found = []
    for _ in range(1 + ROUNDS):
        for run in runs:
            began = perf_counter()
            run(x)
            found.append(perf_counter() - began)
    return undisturbed(found[MATRICES:]) / (
        weight.numel() * BYTES[{kind: name for name, kind in OF_FORMAT.items()}.get(kind, "float32")]
    )


@lru_cache(maxsize=16)
@torch.inference_mode()
def layer_seconds(heads: int, head_dim: int, ffn: int, positions: int, nodes: int, threads: int) -> float:
    """Seconds that a layer takes beside its products, with guidance, of so many nodes that look at so many positions."""
    dim, rows = heads * head_dim, 2 * nodes

    def made(width: int) -> Matmul:
        numbers = torch.ones(rows, width)
        return lambda _: numbers.clone()

    norm = Norm(torch.ones(dim), 1e-5)
    layer = LeanLayer(norm, made(3 * dim), made(dim), norm, made(2 * ffn), made(dim), heads)
    cache = LeanCache(1, 2, heads, positions, head_dim)
    cache.length = positions - nodes
    tables, sight = next(cache.tables_behind(0, nodes)), cache.sight(nodes, positions, None)
    x, turn, found = torch.ones(rows, dim), torch.ones(nodes, 3 * dim // 2, dtype=torch.complex64), []
    for _ in range(1 + ROUNDS * MATRICES):
        began = perf_counter()
        layer.forward(x, turn, (sight, tables, None))
        found.append(perf_counter() - began)
    return undisturbed(found[1:])


def undisturbed(seconds: list[float]) -> float:
    """Of the seconds of several calls what one takes where nothing disturbs it."""
    return sorted(seconds)[int(UNDISTURBED * len(seconds))]


def picture_seconds(published: Published, dtype: str, guesses: int, tokens_per_step: float) -> tuple[float, float | None]:
    """Seconds of a picture by vanilla, and by a method whose steps verify a chain of so many guesses and give so many tokens;
    None for that where there is no drafter. With guidance, by this thread's number of threads."""
    kind, threads = OF_FORMAT.get(dtype, "packed"), torch.get_num_threads()
    target, drafter = published.target, published.drafter

    def seconds(sizes: Sizes, nodes: int) -> float:
        return multiplied(sizes) * BYTES[dtype] * seconds_a_byte(kind, 2 * nodes, threads)

    def verification(nodes: int) -> float:
        positions = target.prefix + target.tokens // 2
        return seconds(target, nodes) + target.layers * layer_seconds(
            target.heads, target.head_dim, target.ffn, positions, nodes, threads
        )

    vanilla = target.tokens * verification(1)
    if drafter is None:
        return vanilla, None
    step = verification(1 + guesses) + guesses * seconds(drafter, 1)
    return vanilla, target.tokens / tokens_per_step * step
