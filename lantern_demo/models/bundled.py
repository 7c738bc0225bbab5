"""Read a model folder, the bundled model's format.

It has config.json, sharded safetensors of its networks (a folder each) and words.json, the words of
its text encoder. There are four networks, and a fifth in a folder with a picture decoder; otherwise
the image tokenizer draws the pictures.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import JanusVQVAEConfig, T5Config

from lantern_demo.models.llamagen import LAYOUTS, Drafter, LlamaGen
from lantern_demo.models.registry import DrafterConfig, LlamaGenConfig, check_drafter
from lantern_demo.models.tensors import (
    AS_PUBLISHED,
    CheckpointError,
    Layout,
    Network,
    load_weights,
    read_config,
    reading,
)
from lantern_demo.models.text import TextEncoder
from lantern_demo.models.tokenizer import ImageTokenizer, PictureDecoder

PALETTE = "palette"  # a file of a model folder, which may be absent: the mean colours of its tokens
# another one: what its tokens look like, 64 patches in a row, for the page
PATCHES = "patches.webp"
# folders of weights in a model folder; picture may be absent
PARTS = ("text", "target", "drafter", "tokenizer", "picture")
DECODERS = ("target", "drafter")


@dataclass
class Networks:
    """A model of any family: its networks, facts of its training, sources of published parts."""

    text: Any  # a `text.PromptEncoder`
    target: Any
    drafter: Any  # None without one
    tokenizer: ImageTokenizer
    trained: dict[str, Any]
    # part -> repository, file, commit
    sources: dict[str, dict[str, Any]] = field(default_factory=dict)
    # draws the tokenizer's tokens larger than the tokenizer does
    picture: PictureDecoder | None = None
    # its own default draft trees: see `settings.named_trees.drafts_by_device`
    trees: Any = field(default_factory=dict)
    # settings that replace the defaults
    preset: dict[str, Any] = field(default_factory=dict)
    # the tokens' colours [V, 3] uint8, if they were learnt from pictures
    palette: Tensor | None = None

    def __post_init__(self) -> None:
        """Make the target's states carry the feature layers that its drafter reads."""
        self.target.feature_layers = (
            () if self.drafter is None else self.drafter.config.feature_layers
        )

    @property
    def image_size(self) -> int:
        """Pixels a side of a picture."""
        return self.picture.size if self.picture is not None else self.tokenizer.size

    def draw(self, tokens: Tensor) -> Tensor:
        """Map token ids [B, G * G] to pictures [B, 3, image_size, image_size] in [0, 1].

        The picture decoder draws them if there is one.
        """
        if self.picture is None:
            return self.tokenizer.decode(tokens)
        return self.picture(self.tokenizer.vectors(tokens))

    def parts(self) -> dict[str, nn.Module]:
        """The model's networks, by the name of their folder."""
        found = {name: getattr(self, name) for name in PARTS}
        return {name: part for name, part in found.items() if part is not None}


def layout_of(part: nn.Module) -> Layout:
    """Return the names of a network's tensors in a model folder: a target has LlamaGen's."""
    return LAYOUTS["llamagen"] if isinstance(part, LlamaGen) else AS_PUBLISHED


def load_part(
    folder: Path, part: Network, device: torch.device, dtype: torch.dtype = torch.float32
) -> Network:
    """Give a blank network its weights from a folder, and put it on a device for inference.

    Raise CheckpointError naming the folder when they cannot be read or do not fit.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder} must hold weights as .safetensors, and has none")
    return load_weights(part, files, layout_of(part), device, dtype)


def _check_fit(path: Path, networks: Networks) -> None:
    """Raise ValueError if parts of a model folder do not fit: they would fail in a run."""
    target = networks.target.config
    try:
        check_drafter(networks.drafter.config, target)
    except ValueError as error:
        raise ValueError(f"{path}: its drafter {error}") from None
    if networks.tokenizer.codebook_size != target.vocab or networks.tokenizer.grid != target.grid:
        raise ValueError(
            f"{path} has an image tokenizer that does not go with its target: "
            "their codebook or grid differs"
        )
    if networks.picture is not None:
        own, read = networks.picture.config, networks.tokenizer.vq.config
        if (own.embed_dim, own.num_patches) != (read.embed_dim, read.num_patches):
            raise ValueError(
                f"{path} has a picture decoder that does not go with its image tokenizer: "
                "their vectors or grid differ"
            )


def load(folder: Path, device: torch.device, dtype: torch.dtype = torch.float32) -> Networks:
    """Read a model folder.

    All networks but target and drafter stay in float32: they run once per image. Raise ValueError
    naming the file when the folder is no model folder, or a tensor is missing, unknown or
    mis-shaped.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
        with torch.device("meta"):
            networks = _built(folder, config)
    # the libraries raise anything for a damaged file, down to a bare Exception
    except Exception as error:
        raise ValueError(
            f"{path} is not the config of a model folder, or an earlier version wrote it: "
            f"{error!r}; published files need the id of their model as model, and their folder as "
            "folder"
        ) from error
    _check_fit(path, networks)
    for network in (networks.target, networks.drafter):
        network.rope = network.rope_table()
    for name, part in networks.parts().items():
        load_part(folder / name, part, device, dtype if name in DECODERS else torch.float32)
    networks.palette = _palette(folder, networks.tokenizer.codebook_size)
    return networks


def preset_of(folder: Path) -> dict[str, Any]:
    """Return the settings that a model folder replaces, {} if it names none.

    An unreadable folder names none: `load` refuses it with the reason. Raise ValueError for
    settings that are no object.
    """
    try:
        preset = read_config(folder / "config.json").get("preset", {})
    except CheckpointError:
        return {}
    if not isinstance(preset, dict):
        raise ValueError(f"preset in {folder / 'config.json'} must be an object, got {preset!r}")
    return preset


def grid_of(folder: Path) -> int:
    """Return the tokens a side of a model folder's pictures, before it is loaded.

    It is 0 for an unreadable folder, which `load` refuses.
    """
    try:
        return int(read_config(folder / "config.json")["target"]["grid"])
    except (CheckpointError, KeyError, TypeError, ValueError):
        return 0


def parameters_of(folder: Path) -> int:
    """Return the number of parameters of a model folder's networks, before it is loaded.

    It is 0 for an unreadable folder, which `load` refuses.
    """
    try:
        with torch.device("meta"):
            networks = _built(folder, read_config(folder / "config.json"))
    except Exception:  # of many kinds, as in `load`
        return 0
    return sum(p.numel() for part in networks.parts().values() for p in part.parameters())


def _built(folder: Path, config: dict[str, Any]) -> Networks:
    """Return the blank networks of a configuration."""
    encoder = T5Config(**{k: v for k, v in config["text"].items() if k != "length"})
    words = Tokenizer.from_file(str(folder / "words.json"))
    picture = config.get("picture")
    return Networks(
        TextEncoder(words, encoder, config["text"]["length"]),
        LlamaGen(LlamaGenConfig(**config["target"])),
        Drafter(DrafterConfig(**config["drafter"])),
        ImageTokenizer(JanusVQVAEConfig(**config["tokenizer"])),
        config["trained"],
        trees=config.get("trees", {}),
        preset=config.get("preset", {}),
        picture=None if picture is None else PictureDecoder(JanusVQVAEConfig(**picture)),
    )


def _palette(folder: Path, codes: int) -> Tensor | None:
    """Return the colours of a model folder's tokens, or None.

    Raise ValueError naming the file when it is damaged.
    """
    path = folder / f"{PALETTE}.safetensors"
    if not path.exists():
        return None
    with reading(path):
        colours = load_file(path)[PALETTE]
    if colours.shape != (codes, 3) or colours.dtype != torch.uint8:
        raise ValueError(
            f"{path} must hold {codes} colours as uint8 [{codes}, 3], got {list(colours.shape)}"
        )
    return colours
