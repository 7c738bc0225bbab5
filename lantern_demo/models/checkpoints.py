"""Published models, ready to run: fetch, convert once, and put the networks together.

`python -m lantern_demo.models.checkpoints --model llamagen-t2i-256 --check` says what that would take, and does nothing.
Without --check it fetches and converts, so that the first start does not have to.

A local folder may stand in for the Hub. Each part lies in a sub-folder of its name (target, drafter, tokenizer, text) or of
its repository's name (LlamaGen-T2I, llamagen_drafter, llamagen_t2i, flan-t5-xl, LlamaGen, Anole-7b-v0.1-hf, anole_drafter), under its
published file names; what is neither .safetensors nor .bin may also lie in the folder itself. Target and tokenizer must be there. A text
encoder that is not is taken from the Hub.
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
from transformers import T5Config

from lantern_demo.models import hub, store
from lantern_demo.models.anole.drafter import AnoleDrafter, AnoleDrafterConfig
from lantern_demo.models.anole.prompts import PromptTokens, read_vocabulary
from lantern_demo.models.anole.target import Anole, AnoleConfig
from lantern_demo.models.blank import blank_drafter, blank_target, blank_text, blank_tokenizer, fill
from lantern_demo.models.bundled import Networks
from lantern_demo.models.convert import CheckpointError, convert, read_config, weights_of
from lantern_demo.models.device import DTYPES, half
from lantern_demo.models.hub import Located
from lantern_demo.models.llamagen.captions import CaptionEncoder, read_tokenizer
from lantern_demo.models.llamagen.drafter import Drafter, DrafterConfig
from lantern_demo.models.llamagen.labels import ClassLabels
from lantern_demo.models.llamagen.target import LlamaGen, LlamaGenConfig
from lantern_demo.models.registry import REGISTRY, ModelInfo, Part, Published, Words, model_info
from lantern_demo.models.text import PromptEncoder
from lantern_demo.models.tokenizer import ImageTokenizer

# Of LANTERN's configuration template for LlamaGen, which a config.json may leave out.
TEMPLATE_EPS, TEMPLATE_ROPE = 1e-6, 10000.0


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
        return dict(weights_of(self.network, self.located.weights, self.located.source.format))


def load(
    info: ModelInfo, device: torch.device, dtype: torch.dtype, folder: Path | None = None, drafter: Path | None = None
) -> Networks[PromptEncoder, LlamaGen | Anole, Drafter | AnoleDrafter]:
    """A published model's networks, from the Hub or from a local folder.

    Target and drafter are in `dtype`, the image tokenizer in float32, a text encoder in bfloat16 as LANTERN has it (float16 on a
    GPU without bfloat16). On a CPU, weights that are asked for in the dtype they were published in stay in the files, mapped into
    memory. `drafter` is a folder that `save_drafter` wrote, to be used instead of the published one.
    Raises CheckpointError (a ValueError) for what cannot be fetched, read or used.
    """
    published = info.published
    assert published is not None
    made = prepare(info, folder, published_drafter=drafter is None)
    target = _target(published, made["target"], device, dtype)
    tokenizer = fill(blank_tokenizer(published.tokenizer, info.grid), made["tokenizer"].weights(), device, torch.float32)
    sources = {str(part): _told(converted.manifest["source"]) for part, converted in made.items()}
    text: PromptEncoder = ClassLabels()
    if published.text:
        located = text_files(published, folder)
        text, sources["text"] = _text(published, located, device), _told(located.facts)
    trained = drafter or trained_folder(info)
    chosen: Drafter | AnoleDrafter | None = None
    if "drafter" in made:
        config = replace(_drafter_sizes(published), **made["drafter"].manifest["config"])
        chosen = fill(blank_drafter(config), made["drafter"].weights(), device, dtype)
    elif drafter is not None or (trained / "config.json").is_file():
        chosen = load_drafter(trained, target.config, device, dtype)
        sources["drafter"] = {"local": trained.name, "trained": True}
    why = "" if chosen else why_no_drafter(info, folder)
    return Networks(text, target, chosen, tokenizer, {}, sources, why, made["tokenizer"].folder)


def prepare(info: ModelInfo, folder: Path | None = None, published_drafter: bool = True) -> dict[Part, Converted]:
    """Fetch and convert what is not converted yet -> the parts but the text encoder, which is read as it is published.

    The drafter is left out when it is not asked for, none is published, or the local folder has none.
    """
    published = info.published
    assert published is not None
    parts: tuple[Part, ...] = ("target", "tokenizer", "drafter") if published_drafter else ("target", "tokenizer")
    made = {part: _converted(part, published, info, folder) for part in parts if part in published.sources}
    return {part: converted for part, converted in made.items() if converted}


def _converted(part: Part, published: Published, info: ModelInfo, folder: Path | None) -> Converted | None:
    sources = published.sources[part]
    if folder is not None:
        located = hub.find(sources, part, folder)
        if located is None and part == "drafter":
            return None
        if located is None:
            raise CheckpointError(f"{folder} lacks the {part} of {info.id}: {wanted_files(published, part, folder)}")
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
        config, network = expected(part, published, located)
        files, form = located.weights, located.source.format
        found = store.write(place, located, config, lambda into: convert(network, files, form, into))
    return Converted(place, found)


def _in_place(part: Part, published: Published, located: Located) -> InPlace:
    config, network = expected(part, published, located)
    return InPlace(located.weights[0].parent, {"source": located.facts, "config": config}, located, network)


def expected(part: Part, published: Published, located: Located) -> tuple[dict[str, Any], torch.nn.Module]:
    """What a part's files say about its configuration, and the blank network that they must fit.

    Raises CheckpointError when they belong to another model.
    """
    config: dict[str, Any] = {}
    path = located.beside("config.json")
    if part == "tokenizer":
        return config, blank_tokenizer(published.tokenizer, 1)
    if part == "target":
        target = published.target
        if isinstance(target, AnoleConfig):
            said = read_config(path)
            heads = {"num_attention_heads": target.heads, "num_key_value_heads": target.heads}
            _agree(path, said, {**heads, "vocab_size": target.embeddings, "swin_norm": False})
            config = _eps_and_theta(said, target)
        elif located.source.format == "lantern":
            said = read_config(path)
            grid = {"block_size": target.tokens, "cls_token_num": target.prefix}
            _agree(path, said, {"num_attention_heads": target.heads, "num_key_value_heads": target.heads, **grid})
            config = {"eps": said.get("rms_norm_eps", TEMPLATE_EPS), "rope_base": float(said.get("rope_base", TEMPLATE_ROPE))}
        return config, blank_target(replace(target, **config))
    sizes = _drafter_sizes(published)
    said = read_config(path) if path.is_file() else {}
    _agree(path, said, {"num_attention_heads": sizes.heads, "num_key_value_heads": sizes.heads})
    config = {"eps": said.get("rms_norm_eps", TEMPLATE_EPS)}
    if isinstance(sizes, AnoleDrafterConfig):
        config = _eps_and_theta(said, sizes)
    config["bias"] = bool(said.get("bias", sizes.bias))
    return config, blank_drafter(replace(sizes, **config))


def _eps_and_theta(said: Mapping[str, Any], sizes: AnoleConfig | AnoleDrafterConfig) -> dict[str, Any]:
    """What a Chameleon's config.json says of its norms and its positions, which newer versions of the library write one level down."""
    theta = (said.get("rope_parameters") or {}).get("rope_theta", sizes.rope_base)
    return {"eps": float(said.get("rms_norm_eps", sizes.eps)), "rope_base": float(said.get("rope_theta", theta))}


def _agree(path: Path, said: Mapping[str, Any], wanted: Mapping[str, int | bool]) -> None:
    """Shapes do not tell everything: a file may fit and yet be of another model."""
    for key, value in wanted.items():
        if said.get(key, value) != value:
            raise CheckpointError(f"{path} says {key} {said[key]!r}, but this model has {value}: it belongs to another model")


def _drafter_sizes(published: Published) -> DrafterConfig | AnoleDrafterConfig:
    assert published.drafter is not None
    return published.drafter


def _target(published: Published, part: Converted, device: torch.device, dtype: torch.dtype) -> LlamaGen | Anole:
    return fill(blank_target(replace(published.target, **part.manifest["config"])), part.weights(), device, dtype)


def wanted_files(published: Published, part: Part, folder: Path) -> str:
    """Which files of a part are looked for in a local folder, and where, in words."""
    names = " or ".join(dict.fromkeys(source.weights for source in published.sources[part]))
    where = ", ".join(dict.fromkeys(str(p) for source in published.sources[part] for p in hub.places(source, part, folder)))
    return f"put {names} in one of {where}"


def _told(facts: Mapping[str, Any]) -> dict[str, Any]:
    """A part's source as a run record tells it: nothing of this machine's folders but the last one's name."""
    kept = {key: value for key, value in facts.items() if key not in ("path", "mtime_ns")}
    return {"local": Path(facts["path"]).name, **kept} if "path" in facts else kept


# -- parts on their own


def load_target(info: ModelInfo, device: torch.device, dtype: torch.dtype, folder: Path | None = None) -> LlamaGen | Anole:
    """A published model's target alone, frozen: what a drafter is trained on. Raises CheckpointError as `load` does."""
    assert info.published is not None
    part = _converted("target", info.published, info, folder)
    assert part is not None
    return _target(info.published, part, device, dtype)


def load_tokenizer(info: ModelInfo, device: torch.device, folder: Path | None = None) -> ImageTokenizer:
    """A published model's image tokenizer alone, in float32. Raises CheckpointError as `load` does."""
    assert info.published is not None
    part = _converted("tokenizer", info.published, info, folder)
    assert part is not None
    return fill(blank_tokenizer(info.published.tokenizer, info.grid), part.weights(), device, torch.float32)


def text_files(published: Published, folder: Path | None = None) -> Located:
    """The text encoder's files, of a local folder when it has them, else of the Hub. Raises CheckpointError."""
    located = hub.find(published.sources["text"], "text", folder) if folder else None
    return located or hub.download(published.sources["text"][0])


def _text(published: Published, located: Located, device: torch.device) -> PromptEncoder:
    """What a model's prompts are read with, out of the published files. Raises CheckpointError when they are not its own."""
    target = published.target
    if isinstance(target, AnoleConfig):
        assert isinstance(published.text, Words)
        return PromptTokens(read_vocabulary(located.weights[0], target.vocab), target.prefix)
    return load_text(located, target.caption_dim, device, DTYPES[half(device)])


def load_text(located: Located, width: int, device: torch.device, dtype: torch.dtype) -> CaptionEncoder:
    """A T5's encoder and tokenizer, out of the published files. Raises CheckpointError when they are not a T5's of that width."""
    path = located.beside("config.json")
    try:
        config = T5Config.from_dict(read_config(path))
    except (TypeError, KeyError) as error:
        raise CheckpointError(f"{path} is not a T5's configuration ({error}); download it again") from error
    if config.d_model != width:
        raise CheckpointError(f"{path} says d_model {config.d_model}, but this model reads features of width {width}")
    network = blank_text(config)
    weights = dict(weights_of(network, located.weights, located.source.format))
    return CaptionEncoder(read_tokenizer(located.beside("tokenizer.json")), fill(network, weights, device, dtype))


# -- drafters trained here


def trained_folder(info: ModelInfo) -> Path:
    """Where `load` looks for a drafter of a model that was trained on this machine."""
    return store.root() / "drafters" / info.id


def save_drafter(folder: Path, drafter: Drafter | AnoleDrafter) -> None:
    """Write a drafter as config.json (the fields of its configuration) and model.safetensors (its own tensor names and dtype)."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: weight.detach().cpu().contiguous() for name, weight in drafter.state_dict().items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(asdict(drafter.config), indent=1) + "\n")


def load_drafter(
    folder: Path, target: LlamaGenConfig | AnoleConfig, device: torch.device, dtype: torch.dtype
) -> Drafter | AnoleDrafter:
    """Read a drafter that `save_drafter` wrote. Raises CheckpointError when it is damaged or does not fit the target."""
    path = folder / "config.json"
    try:
        kind = AnoleDrafterConfig if isinstance(target, AnoleConfig) else DrafterConfig
        config: DrafterConfig | AnoleDrafterConfig = kind(**read_config(path))
    except TypeError as error:
        raise CheckpointError(f"{path} is not a drafter's configuration ({error}); train it anew") from error
    for name in ("dim", "vocab", "grid", "prefix"):
        if getattr(config, name) != getattr(target, name):
            raise CheckpointError(
                f"{path} says {name} {getattr(config, name)}, but the target has {getattr(target, name)}: it is another model's drafter"
            )
    network = blank_drafter(config)
    return fill(network, dict(weights_of(network, [folder / "model.safetensors"], "drafter")), device, dtype)


def has_drafter(info: ModelInfo) -> bool:
    """Whether a model on offer has a drafter: its own, a published one, or one that was trained here."""
    return info.published is None or info.published.drafter is not None or (trained_folder(info) / "config.json").is_file()


def why_no_drafter(info: ModelInfo, folder: Path | None = None) -> str:
    """Why a model has no drafter, and how to get one."""
    assert info.published is not None
    if folder is not None and info.published.drafter is not None:
        return f"{folder} holds no drafter of {info.id}: {wanted_files(info.published, 'drafter', folder)}"
    command = f"python -m lantern_demo.training.drafter --target {info.id} --out runs/{info.id}-drafter"
    return f"no drafter is published for {info.id}; train one: {command}"


def main() -> None:
    """The command line of this module."""
    from lantern_demo.models.dryrun import report

    offered = [info.id for info in REGISTRY.values() if info.published]
    parser = argparse.ArgumentParser(description="Fetch and convert a published model, or say what that would take.")
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
            lines, fits = report(info, args.device, args.dtype, args.folder)
            print("\n".join(lines))
            parser.exit(0 if fits else 1)
        for part, converted in prepare(info, args.folder).items():
            print(f"{part}: {converted.folder}")
        if info.published and info.published.text:
            print(f"text: {text_files(info.published, args.folder).weights[0].parent}")
    except ValueError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
