"""Estimates of a model's download, and of its memory by number format, from the shapes of its
tensors.
"""

from __future__ import annotations

import shutil
from math import prod
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.constants import HF_HUB_CACHE

from lantern_demo.models.files import hub
from lantern_demo.models.files.blank import Sizes, held, shapes
from lantern_demo.models.machine.device import DTYPES
from lantern_demo.models.machine.memory import free_memory
from lantern_demo.models.registry import ModelInfo, Part, Published

# bytes of a number of the text encoder in memory: bfloat16, or float16 where a device lacks it
TEXT_BYTES = 2
TREE_SLOTS = 192  # cache positions after the last token, for the largest draft trees
TREE_NODES = 128  # nodes of the largest draft tree
TABLE_COLUMNS = 1001  # columns of the neighbour table
WORK_BYTES = 2**30  # the prompt's and the picture decoder's passes, the libraries

GIB = 2**30


def sizes_of(published: Published) -> dict[Part, Sizes]:
    """Return the sizes of a model's parts, in the order they are loaded."""
    every: dict[Part, Sizes | None] = {
        "target": published.target,
        "drafter": published.drafter,
        "tokenizer": published.tokenizer,
        "text": published.text,
    }
    return {part: sizes for part, sizes in every.items() if sizes is not None}


def numbers(sizes: Sizes) -> int:
    """Return how many numbers the tensors of a part's published file hold."""
    return sum(prod(shape) for shape in shapes(sizes).values())


def budget(published: Published, dtype: str, on_cpu: bool = False) -> dict[str, int]:
    """Estimate the bytes that a loaded and running model takes on its device, by use; target and
    drafter in `dtype`.

    Of fused models for a CPU only the weights of matmuls have that dtype: the vectors of tokens,
    states, keys and values are in float32.
    """
    target, drafter, each = published.target, published.drafter, DTYPES[dtype].itemsize
    fused = on_cpu and published.on_cpu is None
    computed = 4 if fused else each
    vectors = target.vocab * target.dim * (computed - each)  # beyond the bytes that `held` counts
    positions = target.prefix + target.tokens + TREE_SLOTS
    layers = target.layers + (1 if drafter else 0)
    # Alive at once in a step: states and feed-forward halves of two rows, the mask, and some
    # distributions of the vocabulary in float32. Captured steps share one pool, since one runs at a
    # time.
    states, probs = (
        2 * TREE_NODES * (8 * target.dim + 3 * target.ffn + positions),
        16 * TREE_NODES * target.vocab,
    )
    return {
        "target": held(target) * each + vectors,
        "drafter": held(drafter) * each + vectors if drafter else 0,
        "text encoder": held(published.text) * TEXT_BYTES if published.text else 0,
        "image tokenizer": held(published.tokenizer) * 4,
        "neighbour table": published.tokenizer.codebook * TABLE_COLUMNS * 4,
        "keys and values": 2 * 2 * layers * positions * target.dim * computed,  # of two rows
        "a captured step": states * computed + probs * 4,
        "the rest": WORK_BYTES,
    }


def memory(published: Published, dtype: str, on_cpu: bool = False) -> int:
    """Estimate the bytes that a loaded and running model takes on its device: the sum of `budget`."""
    return sum(budget(published, dtype, on_cpu).values())


def describe(info: ModelInfo) -> dict[str, Any] | None:
    """Return the needs and sources of a published model, JSON-able; None for a model that ships
    with the code. Bytes are estimates for a machine without any of its files.
    """
    published = info.published
    if published is None:
        return None
    fetched = {part: published.sources[part][0] for part in sizes_of(published)}
    files = {
        part: numbers(sizes) * fetched[part].number_bytes
        for part, sizes in sizes_of(published).items()
    }
    return {
        "download_bytes": sum(files.values()),
        "memory_bytes": {dtype: memory(published, dtype) for dtype in DTYPES},
        "memory_parts": {dtype: budget(published, dtype) for dtype in DTYPES},
        "estimated": True,
        "sources": {
            p: {"repo": s.repo, "file": s.weights, "revision": hub.revision_of(s)}
            for p, s in fetched.items()
        },
    }


def downloads(info: ModelInfo, folder: Path | None = None) -> dict[Part, int]:
    """Estimate the bytes still to fetch before a published model loads here, by part.

    Raise ValueError for a bad LANTERN_REVISIONS.

    With a local folder only a text encoder that it lacks is fetched.
    """
    assert info.published is not None
    found = dict[Part, int]()
    for part, sizes in sizes_of(info.published).items():
        source = info.published.sources[part][0]
        there = folder and (part != "text" or hub.find(info.published, part, folder))
        if not there and not hub.downloaded(source):
            found[part] = numbers(sizes) * source.number_bytes
    return found


def requirements_unmet(
    info: ModelInfo, device: torch.device, dtype: str, folder: Path | None = None
) -> str | None:
    """Return a sentence why a published model cannot be loaded on this machine, or None if it seems
    possible.

    Estimates of memory are compared with the device's free memory, and those of files with the free
    space of their disks.
    """
    if info.published is None:
        return None
    return short_of_memory(info.published, device, dtype) or short_of_disk(info, folder)


def short_of_memory(published: Published, device: torch.device, dtype: str) -> str | None:
    """Return why the device's memory does not suffice, or None."""
    on_cpu = device.type == "cpu"
    needed, free = memory(published, dtype, on_cpu), free_memory(device)
    if free is None or needed <= free:
        return None
    lighter = (
        "; bfloat16 needs less"
        if dtype == "float32" and memory(published, "bfloat16", on_cpu) <= free
        else ""
    )
    place = "GPU memory" if device.type == "cuda" else "memory"
    return f"it needs about {gib(needed)} of {place} in {dtype}, and {gib(free)} are free{lighter}"


def no_room_to_race(
    info: ModelInfo, device: torch.device, dtype: str, methods: int, kept: int = 0
) -> str | None:
    """Return why a loaded model cannot decode with `methods` methods at once, or None if it seems
    possible. `kept` is the number of runs whose memory is already set aside.
    """
    if info.published is None:
        return None
    parts, free = budget(info.published, dtype, device.type == "cpu"), free_memory(device)
    needed = max(0, methods - kept) * (parts["keys and values"] + parts["a captured step"])
    if free is None or needed <= free:
        return None
    return f"{methods} methods at once need about {gib(needed)} of memory more, and {gib(free)} are free"


def short_of_disk(info: ModelInfo, folder: Path | None = None) -> str | None:
    """Return why the disk's free space does not suffice, or None."""
    place = next(
        p
        for p in (Path(HF_HUB_CACHE).absolute(), *Path(HF_HUB_CACHE).absolute().parents)
        if p.exists()
    )
    needed, free = sum(downloads(info, folder).values()), shutil.disk_usage(place).free
    if needed <= free:
        return None
    return f"it needs about {gib(needed)} of disk space at {place}, and {gib(free)} are free"


def gib(count: int) -> str:
    """Return bytes in words: GiB with one digit, or MiB."""
    return f"{count / GIB:.1f} GiB" if count >= 0.1 * GIB else f"{count / 2**20:.0f} MiB"
