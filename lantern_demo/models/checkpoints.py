"""Published models: their needs, fetching their files, building their networks.

Files are mapped into memory without a copy.

`python -m lantern_demo.models.checkpoints --model llamagen-t2i-256 --check` reports the needs of a
download. Without --check it downloads the files.

A local folder may replace the Hub. Each part lies in a sub-folder under its published file names.
The sub-folder has the part's name (target, drafter, tokenizer, text), or it has its repository's
name and may lie one level deeper: LlamaGen-T2I, trained_drafters/llamagen_drafter, t5/flan-t5-xl.
So the folders of LANTERN's and LlamaGen's READMEs are read unchanged. A file that is neither
.safetensors nor .bin may also lie in the folder itself. Target and tokenizer must be there; a
missing text encoder is taken from the Hub.
"""

from __future__ import annotations

if __name__ == "__main__":
    from lantern_demo.shutdown import stop_at_once

    stop_at_once()  # the imports below take seconds

import argparse
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.constants import HF_HUB_CACHE

from lantern_demo.models import families, hub
from lantern_demo.models.bundled import Networks
from lantern_demo.models.device import DTYPES, pick_device, unused_gpu
from lantern_demo.models.hub import Located
from lantern_demo.models.memory import free_memory
from lantern_demo.models.registry import (
    DRAFTER_FILES,
    REGISTRY,
    ModelInfo,
    Part,
    Published,
    Source,
    model_info,
)
from lantern_demo.models.tensors import CheckpointError, load_weights
from lantern_demo.paths import user_path
from lantern_demo.shutdown import stoppable

_LOG = logging.getLogger(__name__)

TREE_SLOTS = 192  # cache positions after the last token, for the largest draft trees
TREE_NODES = 128  # nodes of the largest draft tree
GIB = 2**30


# -- needs


def to_fetch(info: ModelInfo, folder: Path | None = None) -> tuple[list[Part], int]:
    """Return the parts still to fetch before a published model loads here, and about their bytes.

    With a local folder only a text encoder that it lacks is fetched. Raise CheckpointError
    when some of several files are missing.
    """
    published = info.published
    assert published is not None
    files = {part: _files_here(part, published, folder) for part in published.sources}
    fetched = [
        part for part, here in files.items() if not here and (folder is None or part == "text")
    ]
    if not fetched:
        return [], 0
    distinct = {path for here in files.values() for path in here}
    return fetched, max(0, published.download - sum(p.stat().st_size for p in distinct))


def _files_here(part: Part, published: Published, folder: Path | None) -> tuple[Path, ...]:
    """Return the weight files that are here for a part, or none.

    They are those of a local folder, where one is given, or else of the Hub's cache. A text encoder
    may be in either.
    """
    found = None if folder is None else hub.find(published, part, folder)
    if found is not None:
        return found.weights
    return hub.cached(published.sources[part][0]) if folder is None or part == "text" else ()


def requirements_unmet(
    info: ModelInfo, device: torch.device, dtype: str, folder: Path | None = None
) -> str | None:
    """Return why a published model cannot be loaded here, or None if it seems possible.

    Estimates of memory are compared with the device's free memory, and those of files with the free
    space of their disks.
    """
    if info.published is None:
        return None
    if short := short_of_memory(info.published, device, dtype):
        return short
    cache = Path(HF_HUB_CACHE).absolute()
    place = next(p for p in (cache, *cache.parents) if p.exists())
    needed = to_fetch(info, folder)[1]
    free = shutil.disk_usage(place).free
    if needed <= free:
        return None
    return f"it needs about {gib(needed)} of disk space at {place}, and {gib(free)} are free"


def short_of_memory(published: Published, device: torch.device, dtype: str) -> str | None:
    """Return why the device's memory does not suffice, or None."""
    needed = published.memory
    free = free_memory(device)
    if free is None or needed <= free:
        return None
    about = "at least" if dtype == "float32" else "about"
    place = "GPU memory" if device.type == "cuda" else "memory"
    return f"it needs {about} {gib(needed)} of {place} in {dtype}, and {gib(free)} are free"


def run_bytes(published: Published, dtype: str) -> int:
    """Estimate the bytes that each run of a race takes on its device.

    Keys and values of two rows have the number format of states. A step has states and feed-forward
    halves of two rows, the mask, and some distributions of the vocabulary in float32.
    """
    target = published.target
    each = DTYPES[dtype].itemsize
    layers = target.layers + 1  # and the drafter's
    positions = target.prefix + target.tokens + TREE_SLOTS
    kept = 2 * 2 * layers * positions * target.dim
    states = 2 * TREE_NODES * (8 * target.dim + 3 * target.ffn + positions)
    return (kept + states) * each + 16 * TREE_NODES * target.vocab * 4


def no_room_to_race(
    info: ModelInfo, device: torch.device, dtype: str, methods: int, kept: int = 0
) -> str | None:
    """Return why a loaded model cannot run `methods` methods at once, or None if it seems so.

    `kept` is the number of runs whose memory is already set aside.
    """
    if info.published is None:
        return None
    free = free_memory(device)
    needed = max(0, methods - kept) * run_bytes(info.published, dtype)
    if free is None or needed <= free:
        return None
    return (
        f"{methods} methods at once need about {gib(needed)} of memory more, "
        f"and {gib(free)} are free"
    )


def gib(count: int) -> str:
    """Return bytes in words: GiB with one digit, or MiB."""
    return f"{count / GIB:.1f} GiB" if count >= 0.1 * GIB else f"{count / 2**20:.0f} MiB"


# -- loading


def load(
    info: ModelInfo,
    device: torch.device,
    dtype: torch.dtype,
    folder: Path | None = None,
    drafter: Path | None = None,
) -> Networks:
    """Return a published model's networks, from the Hub or from a local folder.

    Target and drafter are in `dtype`, the image tokenizer in float32, a text encoder in bfloat16 as
    in LANTERN (float16 on a GPU without bfloat16). On a CPU, weights in the published dtype stay in
    the files, mapped into memory. `drafter` is a folder of `examples/train_drafter` or of LANTERN's
    training, which replaces the published drafter. The log explains a missing drafter. Raise
    CheckpointError (a ValueError) for files that cannot be fetched, read or used.
    """
    published = info.published
    assert published is not None
    if drafter is None and (missing := no_drafter(info, folder)):
        # said before the files are fetched and read, which takes minutes
        _LOG.warning("%s runs without a drafter: %s", info.id, missing)
    parts = locate(info, folder, drafter)
    made = {part: _read(part, published, files, device, dtype) for part, files in parts.items()}
    sources: dict[str, dict[str, Any]] = {part: dict(files.facts) for part, files in parts.items()}
    drafts = made.get("drafter")
    return Networks(made["text"], made["target"], drafts, made["tokenizer"], {}, sources)


def load_part(part: Part, info: ModelInfo, device: torch.device, folder: Path | None = None) -> Any:
    """Load one part of a published model in float32, to train a drafter.

    Raise CheckpointError as `load`.
    """
    assert info.published is not None
    located = _located(part, info, folder)
    assert located is not None
    return _read(part, info.published, located, device, torch.float32)


def _read(
    part: Part, published: Published, located: Located, device: torch.device, dtype: torch.dtype
) -> Any:
    """Read a network, or the prompt reader; `dtype` is that of target and drafter."""
    if part == "text":
        return families.prompt_reader(published, located, device)
    network = families.expected(part, published, located)
    layout = families.LAYOUTS[located.source.format]
    number = torch.float32 if part == "tokenizer" else dtype
    return load_weights(network, located.weights, layout, device, number)


def files_folder(info: ModelInfo, folder: str | Path | None) -> Path | None:
    """Return the folder that a user names for a model's published files, or None without one.

    Raise ValueError for a name that is no folder, and for a model that is not published.
    """
    if folder is None:
        return None
    got = f"got {str(folder)!r}"
    if info.published is None:
        raise ValueError(f"folder is for published models; {info.id} has its own, {got}")
    if not user_path(folder).is_dir():
        raise ValueError(f"folder must be a folder with the published files, {got}")
    return user_path(folder)


def locate(
    info: ModelInfo, folder: Path | None = None, drafter: Path | None = None
) -> dict[Part, Located]:
    """Find a published model's files in a local folder, or else fetch them from the Hub.

    A folder given as `drafter` replaces the published drafter. Raise CheckpointError for files that
    neither folder nor Hub has.
    """
    assert info.published is not None
    found: dict[Part, Located] = {}
    if drafter is not None:  # refused before anything is fetched
        found["drafter"] = drafter_in(drafter)
    for part in info.published.sources:
        if part not in found and (located := _located(part, info, folder)) is not None:
            found[part] = located
    return found


def _located(part: Part, info: ModelInfo, folder: Path | None) -> Located | None:
    """Find or fetch the files of one part; None for a drafter that the folder lacks."""
    published = info.published
    assert published is not None
    if folder is None:
        return hub.download(published.sources[part][0])
    found = hub.find(published, part, folder)
    if found is not None or part == "drafter":
        return found
    lacking = _lacks(part, info, folder)
    if part != "text":
        raise CheckpointError(lacking)
    try:
        return hub.download(published.sources[part][0])
    except CheckpointError as error:
        raise CheckpointError(f"{lacking}. From the Hub: {error}") from error


def _lacks(part: Part, info: ModelInfo, folder: Path) -> str:
    """Report that a folder lacks a part. The sentence has no whole path: visitors read it."""
    assert info.published is not None
    looked = hub.looked_for(info.published, part)
    return f"the folder {folder.resolve().name} holds no {part} of {info.id}: {looked} is there"


# -- drafters


def drafter_in(folder: Path) -> Located:
    """Return the files of a drafter, of `examples/train_drafter` or of LANTERN's training.

    Raise CheckpointError if it is missing.
    """
    for name in DRAFTER_FILES:
        if (folder / name).is_file():
            facts: dict[str, str | int] = {"local": folder.name, "trained": True}
            return Located(Source(folder.name, name, "drafter"), (folder / name,), facts)
    names = " or ".join(DRAFTER_FILES)
    raise CheckpointError(f"drafter must be a folder with {names}, got {str(folder)!r}")


def no_drafter(info: ModelInfo, folder: Path | None) -> str | None:
    """Return why a model has no drafter, or None."""
    published = info.published
    if published is None or folder is None or hub.find(published, "drafter", folder) is not None:
        return None
    return _lacks("drafter", info, folder)


# -- the command


def check(
    info: ModelInfo, device: str = "auto", dtype: str = "auto", folder: Path | None = None
) -> tuple[list[str], bool]:
    """Return lines with the needs of a published model, and whether it can be loaded.

    They show where its parts lie, the bytes still to download and the memory that it takes. Nothing
    is downloaded. Raise ValueError for a bad device or dtype.
    """
    published = info.published
    assert published is not None
    chosen = pick_device(device)
    number = families.dtype_of(info, dtype, chosen)
    fetched, left = to_fetch(info, folder)
    lines = [f"{info.id}: {info.title}"]
    lacking = False
    for part, sources in published.sources.items():
        source, files = sources[0], _files_here(part, published, folder)
        if files:
            state = ", ".join(map(str, files))
        elif part in fetched:
            state = f"{source.weights} of {source.repo}; to download"
        else:
            assert folder is not None
            state = _lacks(part, info, folder)
            lacking = lacking or part != "drafter"
        lines.append(f"{part}: {state}")
    lines += filter(None, [unused_gpu() if device == "auto" else None])
    if fetched:
        lines.append(f"To download: about {gib(left)}.")
    unmet = requirements_unmet(info, chosen, number, folder)
    lines += [
        f"Memory on {chosen} in 16 bits: about {gib(published.memory)}.",
        f"Not enough: {unmet}." if unmet else "It fits.",
        "Sizes are estimates, from the shapes of the tensors and the bytes of a number in a file.",
    ]
    return lines, not lacking and not unmet


def main() -> None:
    offered = [info.id for info in REGISTRY.values() if info.published]
    parser = argparse.ArgumentParser(
        description="Fetch a published model, or say what that would take."
    )
    parser.add_argument("--model", required=True, choices=offered)
    parser.add_argument(
        "--check",
        action="store_true",
        help="only say what it would take; exit code 1 when something does not fit",
    )
    parser.add_argument("--folder", help="a local folder with the published files")
    parser.add_argument(
        "--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)"
    )
    parser.add_argument(
        "--dtype", default="auto", help="auto, float32, bfloat16 or float16 (default: %(default)s)"
    )
    args = parser.parse_args()
    info = model_info(args.model)
    try:
        folder = files_folder(info, args.folder)
        if args.check:
            lines, fits = check(info, args.device, args.dtype, folder)
            print("\n".join(lines))
            parser.exit(0 if fits else 1)
        if missing := no_drafter(info, folder):
            print(f"drafter: {missing}", flush=True)
        for part, located in locate(info, folder).items():
            print(f"{part}: {located.weights[0].parent}")
    except ValueError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    with stoppable():
        main()
