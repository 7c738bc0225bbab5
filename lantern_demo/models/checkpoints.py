"""Published models: fetch their files and build the networks.

Files are mapped into memory without a copy.

`python -m lantern_demo.models.checkpoints --model llamagen-t2i-256 --check` reports the needs of a
download. Without --check it downloads the files.

A local folder may replace the Hub. Each part lies in a sub-folder under its published file names.
The sub-folder has the part's name (target, drafter, tokenizer, text), or it has its repository's
name and may lie one level deeper: LlamaGen-T2I, trained_drafters/llamagen_drafter, t5/flan-t5-xl.
So the folders of LANTERN's and LlamaGen's READMEs are read as they are. A file that is neither
.safetensors nor .bin may also lie in the folder itself. Target and tokenizer must be there; a
missing text encoder is taken from the Hub.
"""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from lantern_demo.models import families
from lantern_demo.models.bundled import Networks, NoDrafter
from lantern_demo.models.files import disk_cache, hub, needs
from lantern_demo.models.files.blank import fill
from lantern_demo.models.files.hub import Located, looked_for
from lantern_demo.models.files.needs import gib
from lantern_demo.models.files.tensors import CheckpointError
from lantern_demo.models.machine.device import pick_device, unused_gpu
from lantern_demo.models.machine.shutdown import stoppable
from lantern_demo.models.registry import (
    DRAFTER_FILES,
    REGISTRY,
    ModelInfo,
    Part,
    Published,
    Source,
    model_info,
)
from lantern_demo.models.text import PromptEncoder
from lantern_demo.paths import user_path

_LOG = logging.getLogger(__name__)


def load(
    info: ModelInfo,
    device: torch.device,
    dtype: torch.dtype | None,
    folder: Path | None = None,
    drafter: Path | None = None,
) -> Networks[PromptEncoder]:
    """Return a published model's networks, from the Hub or from a local folder.

    Target and drafter are in `dtype` (None: in that of their files), the image tokenizer in
    float32, a text encoder in bfloat16 as in LANTERN (float16 on a GPU without bfloat16). On a CPU,
    weights in the published dtype stay in the files, mapped into memory. `drafter` is a folder from
    `save_drafter` or LANTERN's training, which replaces the published one. The log says why there
    is no drafter. Raise CheckpointError (a ValueError) for files that cannot be fetched, read or
    used.
    """
    published = info.published
    assert published is not None
    parts = locate(info, folder, drafter)
    target = _network("target", published, parts["target"], device, dtype)
    tokenizer = _network("tokenizer", published, parts["tokenizer"], device, torch.float32)
    text = families.prompt_reader(published, parts.get("text"), device)
    drafts = parts.get("drafter")
    chosen = None if drafts is None else _network("drafter", published, drafts, device, dtype)
    sources: dict[str, dict[str, Any]] = {
        part: dict(located.facts) for part, located in parts.items()
    }
    missing = None if chosen else why_no_drafter(info, folder)
    if missing:
        _LOG.warning("%s runs without a drafter: %s", info.id, missing)
    return Networks(text, target, chosen, tokenizer, {}, sources, missing)


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
    info: ModelInfo,
    folder: Path | None = None,
    drafter: Path | None = None,
) -> dict[Part, Located]:
    """Find the files of a published model's parts in a local folder, or else fetch them from the
    Hub.

    A folder given as `drafter` replaces the published drafter. One that was trained here stands in
    for a missing one. Raise CheckpointError for files that neither folder nor Hub has.
    """
    assert info.published is not None
    found: dict[Part, Located] = {}
    if drafter is not None:  # refused before anything is fetched
        found["drafter"] = drafter_in(drafter)
    for part in info.published.sources:
        if part not in found and (located := _located(part, info, folder)) is not None:
            found[part] = located
    if "drafter" not in found and _was_trained(info):
        found["drafter"] = drafter_in(trained_folder(info))
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
    lacking = f"{folder} lacks the {part} part of {info.id}: {looked_for(published, part)} is there"
    if part != "text":
        raise CheckpointError(lacking)
    try:
        return hub.download(published.sources[part][0])
    except CheckpointError as error:
        raise CheckpointError(f"{lacking}. From the Hub: {error}") from error


def _network(
    part: Part,
    published: Published,
    located: Located,
    device: torch.device,
    dtype: torch.dtype | None,
) -> Any:
    """Read the network of any part but the text encoder."""
    network = families.expected(part, published, located)
    return fill(network, dict(families.weights(network, located)), device, dtype)


def load_target(
    info: ModelInfo, device: torch.device, dtype: torch.dtype, folder: Path | None = None
) -> torch.nn.Module:
    """Load a published model's frozen target, to train a drafter on.

    Raise CheckpointError as `load` does.
    """
    assert info.published is not None
    located = _located("target", info, folder)
    assert located is not None
    return _network("target", info.published, located, device, dtype)


def load_text(info: ModelInfo, device: torch.device, folder: Path | None = None) -> PromptEncoder:
    """Read a published model's prompt reader alone. Raise CheckpointError as `load` does."""
    assert info.published is not None
    located = _located("text", info, folder) if "text" in info.published.sources else None
    return families.prompt_reader(info.published, located, device)


# -- drafters trained here


def trained_folder(info: ModelInfo) -> Path:
    """Return the folder in which `load` looks for a drafter that was trained on this machine."""
    return disk_cache.root() / "drafters" / info.id


def save_drafter(folder: Path, drafter: Any) -> None:
    """Write a drafter as config.json (the fields of its configuration) and model.safetensors (its
    own tensor names and dtype).
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: weight.detach().cpu().contiguous() for name, weight in drafter.state_dict().items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(
        json.dumps(asdict(drafter.config), indent=1) + "\n", encoding="utf-8"
    )


def drafter_in(folder: Path) -> Located:
    """Return the files of a drafter in a folder that `save_drafter` or LANTERN's training wrote.

    Raise CheckpointError where there is none.
    """
    for name in DRAFTER_FILES:
        if (folder / name).is_file():
            facts: dict[str, str | int] = {"local": folder.name, "trained": True}
            return Located(Source(folder.name, name, "drafter"), (folder / name,), facts)
    names = " or ".join(DRAFTER_FILES)
    raise CheckpointError(f"drafter must be a folder with {names}, got {str(folder)!r}")


def _was_trained(info: ModelInfo) -> bool:
    return (trained_folder(info) / "config.json").is_file()


def has_drafter(info: ModelInfo, folder: Path | None = None) -> bool:
    """Return whether a model on offer has a drafter: its own, a published one, or one trained here.

    A published one must lie in `folder`, if that is given.
    """
    if info.published is None or _was_trained(info):
        return True
    if folder is not None and info.published.drafter is not None:
        return hub.find(info.published, "drafter", folder) is not None
    return info.published.drafter is not None


def why_no_drafter(info: ModelInfo, folder: Path | None = None) -> NoDrafter:
    """Return why a model has no drafter, and how to get one. It has no path: visitors read it."""
    assert info.published is not None
    if folder is not None and info.published.drafter is not None:
        lacking = f"the folder {folder.resolve().name} holds no drafter of {info.id}"
        return NoDrafter(f"{lacking}: {looked_for(info.published, 'drafter')} is there")
    captions = " --captions captions.txt" if info.kind == "text" else ""
    training = f"python examples/train_drafter/drafter.py --target {info.id}{captions} --out runs/{info.id}-drafter"
    return NoDrafter(f"no drafter comes with {info.id}", training)


def check(
    info: ModelInfo, device: str = "auto", dtype: str = "auto", folder: Path | None = None
) -> tuple[list[str], bool]:
    """Report where a published model's parts lie, the bytes still to download and the memory that
    it needs. Return (lines, whether it can be loaded).

    Nothing is downloaded. Every tensor of files in a local folder is checked. Raise ValueError for
    a bad device, dtype or LANTERN_REVISIONS.
    """
    published = info.published
    assert published is not None
    chosen, fits = pick_device(device), True
    number, missing = info.dtype(dtype, chosen), needs.downloads(info, folder)
    lines = [f"{info.id}: {info.title}"]
    for part, sources in published.sources.items():
        if folder is None or part in missing:
            size = f"about {gib(missing[part])} to download" if part in missing else "downloaded"
            lacking = "" if folder is None else f"{looked_for(published, part)} is in {folder}; "
            revision = hub.revision_of(sources[0])
            fetched = f"{sources[0].weights} of {sources[0].repo}, revision {revision}"
            lines.append(f"{part}: {lacking}{fetched}; {size}")
            continue
        try:
            located = _located(part, info, folder)
            if located is None:
                lines.append(f"{part}: {why_no_drafter(info, folder)}")
                continue
            _check(part, published, located)
            lines.append(f"{part}: {', '.join(map(str, located.weights))}, as expected")
        except CheckpointError as error:
            lines, fits = [*lines, f"{part}: {error}"], False
    lines += filter(None, [unused_gpu() if device == "auto" else None])
    taken = needs.budget(published, number, chosen.type == "cpu")
    parts = ", ".join(f"{what} {gib(size)}" for what, size in taken.items() if size)
    unmet = needs.requirements_unmet(info, chosen, number, folder)
    lines += [
        f"Memory on {chosen} in {number}: about {gib(sum(taken.values()))}, of it {parts}.",
        f"Not enough: {unmet}." if unmet else "It fits.",
        "Sizes are estimates, from the shapes of the tensors and the bytes that a number is believed to take in each file.",
    ]
    return lines, fits and not unmet


def _check(part: Part, published: Published, located: Located) -> None:
    """Check every tensor of a part's files, and its configuration. Raise CheckpointError."""
    if part == "text":
        families.prompt_reader(published, located, torch.device("cpu"))
    else:
        families.weights(families.expected(part, published, located), located)


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
        parts = locate(info, folder)
        for part, located in parts.items():
            print(f"{part}: {located.weights[0].parent}")
        if "drafter" not in parts:
            print(f"drafter: {why_no_drafter(info, folder)}")
    except ValueError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    with stoppable():
        main()
