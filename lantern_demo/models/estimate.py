"""How long a picture of a published model would take on this processor, before anything of it is fetched.

A pass of a large model waits for its weights. How long a byte of them takes is measured in products with random matrices as large as a
layer's, of as many rows as a pass has. What that leaves out, such as attention, is small beside it.
"""

from __future__ import annotations

from functools import lru_cache
from time import perf_counter

import torch

from lantern_demo.models.blank import Sizes, multiplied
from lantern_demo.models.needs import BYTES
from lantern_demo.models.products import OF_FORMAT, product
from lantern_demo.models.registry import Published

SHAPE = (3840, 1280)  # of a matrix: queries, keys and values of LlamaGen-XL
MATRICES = 16  # 150 MiB in 16 bits, more than caches hold
ROUNDS = 6  # over all of them
# Of the calls' times in rising order the one at this share counts. Other programs interrupt a call of half a millisecond or do not: one
# long call would always be interrupted, and half of the short ones are on a machine that is busy.
UNDISTURBED = 0.1


@lru_cache(maxsize=8)
@torch.inference_mode()
def seconds_a_byte(kind: str, rows: int, threads: int) -> float:
    """Seconds that a product of `rows` rows takes for each byte of its weights where nothing disturbs it, with so many threads, which are
    this thread's."""
    weight = torch.randn(SHAPE[0], 64).repeat(1, SHAPE[1] // 64)
    runs, x = [product(weight, kind) for _ in range(MATRICES)], torch.ones(rows, SHAPE[1])
    found = []
    for _ in range(1 + ROUNDS):
        for run in runs:
            began = perf_counter()
            run(x)
            found.append(perf_counter() - began)
    warm = sorted(found[MATRICES:])
    undisturbed = warm[int(UNDISTURBED * len(warm))]
    return undisturbed / (weight.numel() * BYTES[{kind: name for name, kind in OF_FORMAT.items()}.get(kind, "float32")])


def picture_seconds(published: Published, dtype: str, guesses: int, tokens_per_step: float) -> tuple[float, float | None]:
    """Seconds of a picture by vanilla, and by a method whose steps verify a chain of so many guesses and give so many tokens; None for that
    where there is no drafter. With guidance, by this thread's number of threads."""
    kind, threads = OF_FORMAT.get(dtype, "packed"), torch.get_num_threads()
    target, drafter = published.target, published.drafter

    def seconds(sizes: Sizes, rows: int) -> float:
        return multiplied(sizes) * BYTES[dtype] * seconds_a_byte(kind, rows, threads)

    vanilla = target.tokens * seconds(target, 2)
    if drafter is None:
        return vanilla, None
    step = seconds(target, 2 * (1 + guesses)) + guesses * seconds(drafter, 2)
    return vanilla, target.tokens / tokens_per_step * step
