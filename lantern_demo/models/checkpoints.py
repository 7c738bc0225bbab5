"""Published models, ready to run: fetch, convert once, and put the networks together.

`python -m lantern_demo.models.checkpoints --model llamagen-t2i-256 --check` says what that would take, and does nothing.
Without --check it fetches and converts, so that the first start does not have to.

A local folder may stand in for the Hub. Each part lies in a sub-folder of its name (target, drafter, tokenizer, text) or of its
repository's name (LlamaGen-T2I, llamagen_drafter, llamagen_t2i, flan-t5-xl, LlamaGen, Anole-7b-v0.1-hf, anole_drafter,
Janus-Pro-1B), under its published file names; what is neither .safetensors nor .bin may also lie in the folder itself. Target and
tokenizer must be there. A text encoder that is not is taken from the Hub.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from lantern_demo.models import families
from lantern_demo.models.bundled import Networks, NoDrafter
from lantern_demo.models.common import DrafterSizes, TargetSizes
from lantern_demo.models.files import dryrun, hub, store
from lantern_demo.models.files.blank import blank_network, blank_tokenizer, fill
from lantern_demo.models.files.convert import AS_PUBLISHED, CheckpointError, convert, read_config, weights_of
from lantern_demo.models.files.hub import Located, wanted_files
from lantern_demo.models.registry import REGISTRY, ModelInfo, Part, Published, model_info
from lantern_demo.models.text import PromptEncoder


@dataclass(frozen=True)
class Converted:
    """A part in its place on this machine, and the manifest that describes it."""

    folder: Path
    manifest: dict[str, Any]

    def weights(self) -> dict[str, torch.Tensor]:
        """Its tensors under our names, mapped into memory."""
        return store.weights(self.folder, self.manifest["files"])


@dataclass(frozen=True)
class InPlace(Converted):
    """A part that is read from its published files, which lie in `folder`; its manifest is made at every start."""

    located: Located
    network: torch.nn.Module  # blank

    def weights(self) -> dict[str, torch.Tensor]:
        """As `Converted.weights`. Raises CheckpointError naming what is wrong with the files."""
        return dict(families.weights(self.network, self.located))


def load(
    info: ModelInfo, device: torch.device, dtype: torch.dtype | None, folder: Path | None = None, drafter: Path | None = None
) -> Networks[PromptEncoder]:
    """A published model's networks, from the Hub or from a local folder.

    Target and drafter are in `dtype` (None: in that of their files), the image tokenizer in float32, a text encoder in bfloat16
    as LANTERN has it (float16 on a GPU without bfloat16). On a CPU, weights that are asked for in the dtype they were published
    in stay in the files, mapped into memory. `drafter` is a folder that `save_drafter` wrote, to be used instead of the published
    one.
    Raises CheckpointError (a ValueError) for what cannot be fetched, read or used.
    """
    published = info.published
    assert published is not None
    trained = drafter or trained_folder(info)
    own = drafter is not None or (_unchecked_drafter(info) and (trained / "config.json").is_file())
    made, refusal = prepare_and_tell(info, folder, published_drafter=not own)
    target = _target(published, made["target"], device, dtype)
    tokenizer = fill(blank_tokenizer(published.tokenizer, info.grid), made["tokenizer"].weights(), device, torch.float32)
    sources = {str(part): _told(converted.manifest["source"]) for part, converted in made.items()}
    located = text_files(published, folder) if published.text else None
    text = families.prompt_reader(published, located, device)
    if located:
        sources["text"] = _told(located.facts)
    chosen: torch.nn.Module | None = None
    if "drafter" in made:
        assert published.drafter is not None
        config = replace(published.drafter, **made["drafter"].manifest["config"])
        chosen = fill(blank_network(config), made["drafter"].weights(), device, dtype)
    elif drafter is not None or (trained / "config.json").is_file():
        chosen = load_drafter(trained, published.target, device, dtype)
        sources["drafter"] = {"local": trained.name, "trained": True}
    missing = None if chosen else refusal or why_no_drafter(info, folder)
    return Networks(text, target, chosen, tokenizer, {}, sources, missing, made["tokenizer"].folder)


def prepare(info: ModelInfo, folder: Path | None = None, published_drafter: bool = True) -> dict[Part, Converted]:
    """Fetch and convert what is not converted yet -> the parts but the text encoder, which is read as it is published.

    The drafter is left out when it is not asked for, none is published, the local folder has none, or it is an unchecked one that
    cannot be had or used.
    """
    return prepare_and_tell(info, folder, published_drafter)[0]


def prepare_and_tell(
    info: ModelInfo, folder: Path | None = None, published_drafter: bool = True
) -> tuple[dict[Part, Converted], NoDrafter | None]:
    """As `prepare`, and why an unchecked drafter is not used, where that is so."""
    published = info.published
    assert published is not None
    parts: tuple[Part, ...] = ("target", "tokenizer", "drafter") if published_drafter else ("target", "tokenizer")
    made, refusal = dict[Part, Converted](), None
    for part in parts:
        if part not in published.sources:
            continue
        try:
            converted = _converted(part, published, info, folder)
        except CheckpointError as error:
            if part != "drafter" or not _unchecked_drafter(info):
                raise
            repo = published.sources[part][0].repo
            refusal = NoDrafter(f"the drafter that others have published for it ({repo}) is not used: {error}", _training(info))
            continue
        if converted:
            made[part] = converted
    return made, refusal


def _unchecked_drafter(info: ModelInfo) -> bool:
    """Whether the drafter that is published for a model is one that nobody here has seen."""
    assert info.published is not None
    return any(source.unchecked for source in info.published.sources.get("drafter", ()))


def _converted(part: Part, published: Published, info: ModelInfo, folder: Path | None) -> Converted | None:
    sources = published.sources[part]
    if folder is not None:
        located = hub.find(sources, part, folder)
        if located is None and part == "drafter":
            return None
        if located is None:
            raise CheckpointError(f"{folder} lacks the {part} of {info.id}: {wanted_files(sources, part, folder)}")
        if located.source.in_place:
            return _in_place(part, published, located)
        place, found = store.local_folder(located), store.manifest(store.local_folder(located), located.facts)
    elif sources[0].in_place:
        return _in_place(part, published, hub.download(sources[0]))
    else:
        place, found = store.hub_folder(sources[0]), store.manifest(store.hub_folder(sources[0]))
        located = None if found else hub.download(sources[0])
    if found is None:
        assert located is not None
        config, network = families.expected(part, published, located)
        files, layout = located.weights, families.LAYOUTS[located.source.format]
        found = store.write(place, located, config, lambda into: convert(network, files, layout, into))
    return Converted(place, found)


def _in_place(part: Part, published: Published, located: Located) -> InPlace:
    config, network = families.expected(part, published, located)
    return InPlace(located.weights[0].parent, {"source": located.facts, "config": config}, located, network)


def _target(published: Published, part: Converted, device: torch.device, dtype: torch.dtype | None) -> torch.nn.Module:
    return fill(blank_network(replace(published.target, **part.manifest["config"])), part.weights(), device, dtype)


def _told(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A part's source as a run record tells it: nothing of this machine's folders but the last one's name."""
    kept = {key: value for key, value in facts.items() if key not in ("path", "mtime_ns")}
    return {"local": Path(facts["path"]).name, **kept} if "path" in facts else kept


# -- parts on their own


def load_target(info: ModelInfo, device: torch.device, dtype: torch.dtype, folder: Path | None = None) -> torch.nn.Module:
    """A published model's target alone, frozen: what a drafter is trained on. Raises CheckpointError as `load` does."""
    assert info.published is not None
    part = _converted("target", info.published, info, folder)
    assert part is not None
    return _target(info.published, part, device, dtype)


def text_files(published: Published, folder: Path | None = None) -> Located:
    """The text encoder's files, of a local folder when it has them, else of the Hub. Raises CheckpointError."""
    located = hub.find(published.sources["text"], "text", folder) if folder else None
    return located or hub.download(published.sources["text"][0])


# -- drafters trained here


def trained_folder(info: ModelInfo) -> Path:
    """Where `load` looks for a drafter of a model that was trained on this machine."""
    return store.root() / "drafters" / info.id


def save_drafter(folder: Path, drafter: Any) -> None:
    """Write a drafter as config.json (the fields of its configuration) and model.safetensors (its own tensor names and dtype)."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: weight.detach().cpu().contiguous() for name, weight in drafter.state_dict().items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(asdict(drafter.config), indent=1) + "\n")


def load_drafter(folder: Path, target: TargetSizes[Any], device: torch.device, dtype: torch.dtype | None) -> torch.nn.Module:
    """Read a drafter that `save_drafter` wrote. Raises CheckpointError when it is damaged or does not fit the target."""
    path = folder / "config.json"
    try:
        config: DrafterSizes[torch.nn.Module] = families.family_of(target).drafter(**read_config(path))
    except TypeError as error:
        raise CheckpointError(f"{path} is not a drafter's configuration ({error}); train it anew") from error
    for name in ("dim", "vocab", "grid", "prefix"):
        if getattr(config, name) != getattr(target, name):
            raise CheckpointError(
                f"{path} says {name} {getattr(config, name)}, but the target has {getattr(target, name)}: it is another "
                "model's drafter"
            )
    try:
        config.check_feature_layers(target.layers)
    except ValueError as error:
        raise CheckpointError(f"{path} is another model's drafter: its {error}") from None
    network = blank_network(config)
    return fill(network, dict(weights_of(network, [folder / "model.safetensors"], AS_PUBLISHED)), device, dtype)


def has_drafter(info: ModelInfo) -> bool:
    """Whether a model on offer has a drafter: its own, a published one, or one that was trained here."""
    return info.published is None or info.published.drafter is not None or (trained_folder(info) / "config.json").is_file()


def why_no_drafter(info: ModelInfo, folder: Path | None = None) -> NoDrafter:
    """Why a model has no drafter, and how to get one."""
    assert info.published is not None
    if folder is not None and info.published.drafter is not None:
        wanted = wanted_files(info.published.sources["drafter"], "drafter", folder)
        return NoDrafter(f"{folder} holds no drafter of {info.id}: {wanted}")
    return NoDrafter(f"no drafter is published for {info.id}", _training(info))


def _training(info: ModelInfo) -> str:
    """The command that trains a drafter for a model."""
    captions = " --captions captions.txt" if info.kind == "text" else ""
    return f"python -m lantern_demo.training.drafter --target {info.id}{captions} --out runs/{info.id}-drafter"


def main() -> None:
    """The command line of this module."""
    offered = [info.id for info in REGISTRY.values() if info.published]
    parser = argparse.ArgumentParser(description="Fetch and convert a published model, or say what that would take.")
    parser.add_argument("--model", required=True, choices=offered)
    parser.add_argument(
        "--check", action="store_true", help="only say what it would take; exit code 1 when something does not fit"
    )
    parser.add_argument("--folder", type=Path, help="a local folder with the published files; its tensors are checked one by one")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16 (default: %(default)s)")
    args = parser.parse_args()
    info = model_info(args.model)
    try:
        if args.check:
            lines, fits = dryrun.report(info, args.device, args.dtype, args.folder)
            print("\n".join(lines))
            parser.exit(0 if fits else 1)
        made, refusal = prepare_and_tell(info, args.folder)
        for part, converted in made.items():
            print(f"{part}: {converted.folder}")
        if refusal:
            print(refusal)
        if info.published and info.published.text:
            print(f"text: {text_files(info.published, args.folder).weights[0].parent}")
    except ValueError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
