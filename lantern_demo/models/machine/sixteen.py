"""The 16-bit number format of published models on a processor: the fastest one is measured, and kept on disk, so that the same
seed gives the same picture after a restart."""

from __future__ import annotations

from functools import lru_cache, partial

import torch

from lantern_demo.models.files import disk_cache
from lantern_demo.models.machine.device import device_name, pick_threads
from lantern_demo.models.machine.matmul import PROBED_NODES, Matmul, matmul, quickest, supported

KINDS = {"bfloat16": "bfloat16", "half": "float16"}  # row-exact kinds of matmul, and their formats
PROBED = (3840, 1280)  # a weight of a LlamaGen-XL's
PROBED_BYTES = 2**27  # of such weights in 16 bits in a probe: more than caches hold


def sixteen_bits() -> str:
    """Return the number format of a target and its drafter on a CPU: bfloat16 (if the processor multiplies in it), or float16
    weights in float32 matmuls, whichever is faster for the few rows of their passes; float32 if neither works. Raise ValueError
    as in `device.pick_threads`."""
    kinds = _kinds()
    if len(kinds) < 2:
        return KINDS[kinds[0]] if kinds else "float32"
    threads = pick_threads(None, torch.device("cpu"), small=False).count
    file = disk_cache.choice_file(
        "sixteen-bits", device_name(torch.device("cpu")), threads, torch.__version__, PROBED, PROBED_BYTES
    )
    return disk_cache.cached_choice(file, list(KINDS.values()).__contains__, lambda: KINDS[_fastest(kinds, threads)])


def sixteen_bits_for_prompts() -> str:
    """Return the number format of a text encoder on a CPU, which reads a whole prompt at once: bfloat16 if the processor
    multiplies in it, else as in `sixteen_bits`."""
    return KINDS[kinds[0]] if (kinds := _kinds()) else "float32"


def _kinds() -> tuple[str, ...]:
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return tuple(kind for kind in KINDS if (native or kind != "bfloat16") and supported(kind))


@lru_cache(maxsize=1)
def _fastest(kinds: tuple[str, ...], threads: int) -> str:
    """Return the fastest of some kinds on `threads` threads, found in about a second."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        weight = torch.linspace(-1, 1, PROBED[0] * PROBED[1]).view(PROBED)
        count = PROBED_BYTES // (2 * weight.numel())
        layers = {kind: [matmul(weight, kind) for _ in range(count)] for kind in kinds}
        inputs = {nodes: torch.ones(2 * nodes, PROBED[1]) for nodes in PROBED_NODES}

        def run(products: list[Matmul], nodes: int) -> None:
            for one in products:
                one(inputs[nodes])

        return quickest({(kind, n): partial(run, products, n) for kind, products in layers.items() for n in inputs})
    finally:
        torch.set_num_threads(before)
