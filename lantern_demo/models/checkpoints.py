"""Published models: fetch their files and build the networks. Files are mapped into memory without a copy.

`python -m lantern_demo.models.checkpoints --model llamagen-t2i-256 --check` reports the needs of a download. Without --check it
downloads the files.

A local folder may replace the Hub. Each part lies in a sub-folder under its published file names. The sub-folder has the part's
name (target, drafter, tokenizer, text) or its repository's name: LlamaGen-T2I, llamagen_drafter, llamagen_t2i, flan-t5-xl,
LlamaGen, Anole-7b-v0.1-hf, anole_drafter, Janus-Pro-1B. A file that is neither .safetensors nor .bin may also lie in the folder
itself. Target and tokenizer must be there; a missing text encoder is taken from the Hub.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from lantern_demo.models import families
from lantern_demo.models.bundled import Networks, NoDrafter
from lantern_demo.models.common import DrafterSizes, TargetSizes
from lantern_demo.models.files import disk_cache, hub, needs
from lantern_demo.models.files.blank import blank_network, fill
from lantern_demo.models.files.hub import Located, wanted_files
from lantern_demo.models.files.needs import gib
from lantern_demo.models.files.tensors import AS_PUBLISHED, CheckpointError, read_config, weights_of
from lantern_demo.models.machine.device import pick_device
from lantern_demo.models.machine.shutdown import stoppable
from lantern_demo.models.registry import REGISTRY, ModelInfo, Part, Published, model_info
from lantern_demo.models.text import PromptEncoder


def load(
    info: ModelInfo, device: torch.device, dtype: torch.dtype | None, folder: Path | None = None, drafter: Path | None = None
) -> Networks[PromptEncoder]:
    """Return a published model's networks, from the Hub or from a local folder.

    Target and drafter are in `dtype` (None: in that of their files), the image tokenizer in float32, a text encoder in bfloat16
    as in LANTERN (float16 on a GPU without bfloat16). On a CPU, weights in the published dtype stay in the files, mapped into
    memory. `drafter` is a folder from `save_drafter`, which replaces the published one. Raise CheckpointError (a ValueError)
    for files that cannot be fetched, read or used.
    """
    published = info.published
    assert published is not None
    parts = locate(info, folder, published_drafter=drafter is None)
    target = _network("target", published, parts["target"], device, dtype)
    tokenizer = _network("tokenizer", published, parts["tokenizer"], device, torch.float32)
    text = families.prompt_reader(published, parts.get("text"), device)
    sources: dict[str, dict[str, Any]] = {part: dict(located.facts) for part, located in parts.items()}
    chosen: torch.nn.Module | None = None
    trained = drafter or trained_folder(info)
    if "drafter" in parts:
        chosen = _network("drafter", published, parts["drafter"], device, dtype)
    elif drafter is not None or (trained / "config.json").is_file():
        chosen = load_drafter(trained, published.target, device, dtype)
        sources["drafter"] = {"local": trained.name, "trained": True}
    return Networks(text, target, chosen, tokenizer, {}, sources, None if chosen else why_no_drafter(info, folder))


def locate(info: ModelInfo, folder: Path | None = None, published_drafter: bool = True) -> dict[Part, Located]:
    """Find the files of a published model's parts in a local folder, or else fetch them from the Hub.

    The result lacks the drafter when `published_drafter` is false, or when neither Hub nor folder has one. Raise
    CheckpointError for files that neither has.
    """
    assert info.published is not None
    sources = info.published.sources
    found = {part: _located(part, info, folder) for part in sources if published_drafter or part != "drafter"}
    return {part: located for part, located in found.items() if located is not None}


def _located(part: Part, info: ModelInfo, folder: Path | None) -> Located | None:
    """Find or fetch the files of one part; None for a drafter that the folder lacks."""
    assert info.published is not None
    sources = info.published.sources[part]
    found = None if folder is None else hub.find(sources, part, folder)
    if found is not None or (folder is not None and part == "drafter"):
        return found
    if folder is not None and part != "text":
        raise CheckpointError(f"{folder} lacks the {part} of {info.id}: {wanted_files(sources, part, folder)}")
    return hub.download(sources[0])


def _network(part: Part, published: Published, located: Located, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Read the network of any part but the text encoder."""
    network = families.expected(part, published, located)
    return fill(network, dict(families.weights(network, located)), device, dtype)


def load_target(info: ModelInfo, device: torch.device, dtype: torch.dtype, folder: Path | None = None) -> torch.nn.Module:
    """Load a published model's frozen target, to train a drafter on. Raise CheckpointError as `load` does."""
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
    """Write a drafter as config.json (the fields of its configuration) and model.safetensors (its own tensor names and dtype)."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: weight.detach().cpu().contiguous() for name, weight in drafter.state_dict().items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(asdict(drafter.config), indent=1) + "\n")


def load_drafter(folder: Path, target: TargetSizes[Any], device: torch.device, dtype: torch.dtype | None) -> torch.nn.Module:
    """Read a drafter that `save_drafter` wrote. Raise CheckpointError when it is damaged or does not fit the target."""
    path = folder / "config.json"
    try:
        config: DrafterSizes[torch.nn.Module] = families.family_of(target).drafter(**read_config(path))
    except TypeError as error:
        raise CheckpointError(f"{path} is not a drafter's configuration ({error}); train it anew") from error
    try:
        config.check_target(target)
    except ValueError as error:
        raise CheckpointError(f"{path} {error}") from None
    network = blank_network(config)
    return fill(network, dict(weights_of(network, [folder / "model.safetensors"], AS_PUBLISHED)), device, dtype)


def has_drafter(info: ModelInfo) -> bool:
    """Return whether a model on offer has a drafter: its own, a published one, or one that was trained here."""
    return info.published is None or info.published.drafter is not None or (trained_folder(info) / "config.json").is_file()


def why_no_drafter(info: ModelInfo, folder: Path | None = None) -> NoDrafter:
    """Return why a model has no drafter, and how to get one."""
    assert info.published is not None
    if folder is not None and info.published.drafter is not None:
        wanted = wanted_files(info.published.sources["drafter"], "drafter", folder)
        return NoDrafter(f"{folder} holds no drafter of {info.id}: {wanted}")
    captions = " --captions captions.txt" if info.kind == "text" else ""
    training = f"python -m lantern_demo.training.drafter --target {info.id}{captions} --out runs/{info.id}-drafter"
    return NoDrafter(f"no drafter comes with {info.id}", training)


def check(info: ModelInfo, device: str = "auto", dtype: str = "auto", folder: Path | None = None) -> tuple[list[str], bool]:
    """Report where a published model's parts lie, the bytes still to download and the memory that it needs. Return (lines,
    whether it can be loaded).

    Nothing is downloaded. Every tensor of files in a local folder is checked. Raise ValueError for a bad device, dtype or
    LANTERN_REVISIONS.
    """
    published = info.published
    assert published is not None
    chosen, fits = pick_device(device), True
    number, missing = info.dtype(dtype, chosen), needs.downloads(info, folder)
    lines = [f"{info.id}: {info.title}"]
    for part, sources in published.sources.items():
        if folder is None or part in missing:
            size = f"about {gib(missing[part])} to download" if part in missing else "downloaded"
            lines.append(f"{part}: {sources[0].weights} of {sources[0].repo}, revision {hub.revision_of(sources[0])}; {size}")
            continue
        try:
            located = _located(part, info, folder)
            if located is None:
                lines.append(f"{part}: {wanted_files(sources, part, folder)}")
                continue
            _check(part, published, located)
            lines.append(f"{part}: {', '.join(map(str, located.weights))}, as expected")
        except CheckpointError as error:
            lines, fits = [*lines, f"{part}: {error}"], False
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
    parser = argparse.ArgumentParser(description="Fetch a published model, or say what that would take.")
    parser.add_argument("--model", required=True, choices=offered)
    parser.add_argument(
        "--check", action="store_true", help="only say what it would take; exit code 1 when something does not fit"
    )
    parser.add_argument("--folder", type=Path, help="a local folder with the published files; its tensors are checked one by one")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16 (default: %(default)s)")
    args = parser.parse_args()
    info = model_info(args.model)
    try:
        if args.check:
            lines, fits = check(info, args.device, args.dtype, args.folder)
            print("\n".join(lines))
            parser.exit(0 if fits else 1)
        for part, located in locate(info, args.folder).items():
            print(f"{part}: {located.weights[0].parent}")
    except ValueError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    with stoppable():
        main()
