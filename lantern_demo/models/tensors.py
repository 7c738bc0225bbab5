"""Read published checkpoints into networks: read safely, check every tensor, rename.

A `Layout` has the tensor names of a published format. A network is built on the meta device, which
gives the names and shapes of its tensors, and then filled one tensor at a time.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import T5EncoderModel

Network = TypeVar("Network", bound=nn.Module)

# keys under which a .pt keeps its tensors; FSDP-trained ones have no such key
CONTAINERS = ("model", "module", "state_dict")
QUOTED = 300  # characters of another's text, at most
POINTER = b"version https://git-lfs.github.com/spec/"  # instead of a file, without Git LFS
WRAPPER = "module."  # before every name of a model that several GPUs trained, saved as it was


class CheckpointError(ValueError):
    """A published checkpoint cannot be fetched, read or used.

    The message names the file, the reason and the remedy.
    """


Shapes = Mapping[str, tuple[int, ...]]  # shapes of a network's tensors, under our names


@dataclass(frozen=True)
class Layout:
    """A format's tensors.

    `published` returns the published name of one of ours. `ignored` matches published tensors to
    leave out. `first_row` is for those of ours that are only rows of a published one.
    """

    published: Callable[[str, Shapes], str]
    ignored: re.Pattern[str]
    first_row: Callable[[str, Shapes], int | None] = lambda *_: None


def renaming(*rules: tuple[str, str]) -> Callable[[str, Shapes], str]:
    """Return a `Layout.published` that applies rules to a name, in turn.

    A rule is a regular expression and its replacement.
    """

    def published(name: str, _: Shapes) -> str:
        for ours, theirs in rules:
            name = re.sub(ours, theirs, name)
        return name

    return published


SCALE = ".scale"  # ends the name of the scales of a matrix in 8 bits
NOTHING = re.compile(r"(?!)")  # for layouts without tensors to leave out
AS_PUBLISHED = Layout(renaming(), NOTHING)  # the published names are this project's


def one_line(text: object) -> str:
    """Return a text from outside as one line of printable characters, cut to QUOTED."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())[:QUOTED]


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise CheckpointError with the name of a file, for any error of a library that reads it."""
    check_fetched(path)
    try:
        yield
    except Exception as error:  # the libraries raise almost anything for bytes of something else
        # PyTorch goes on with advice to run the code in the file
        said = one_line(f"{type(error).__name__}: {error}").split(". ")[0]
        raise CheckpointError(f"{path} cannot be read ({said}); download it again") from error


def check_fetched(path: Path) -> None:
    """Raise CheckpointError when git left a pointer instead of a file."""
    with suppress(OSError), path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            what = f"{path} is a Git LFS pointer, not the file itself"
            raise CheckpointError(f"{what}; run `git lfs pull` in its folder")


def read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a .safetensors, .pt or .bin file, memory-mapped.

    Code in such a file is never run. Names lose WRAPPER if all of them have it. Raise
    CheckpointError when it is damaged, no checkpoint, or holds more than data.
    """
    with reading(path):
        tensors = load_file(path) if path.suffix == ".safetensors" else _unpickled(path)
    if not all(name.startswith(WRAPPER) for name in tensors):
        return tensors
    return {name.removeprefix(WRAPPER): tensor for name, tensor in tensors.items()}


def _unpickled(path: Path) -> dict[str, Tensor]:
    # Training checkpoints also hold their command line. It is data, like a dict.
    with torch.serialization.safe_globals([argparse.Namespace]):
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if isinstance(found, dict):
        found = next((found[key] for key in CONTAINERS if isinstance(found.get(key), dict)), found)
        if found and all(isinstance(v, Tensor) for v in found.values()):
            return found
    raise ValueError(f"no tensors are in it, neither bare nor under one of {', '.join(CONTAINERS)}")


def read_config(path: Path) -> dict[str, Any]:
    """Read a published config.json. Raise CheckpointError when it is missing or no JSON object."""
    with reading(path):
        config = json.loads(path.read_bytes())
        if not isinstance(config, dict):
            raise ValueError("it is no JSON object")
    return config


def read_tokenizer_file(path: Path) -> Tokenizer:
    """Read a tokenizer.json. Raise CheckpointError when it cannot be read."""
    with reading(path):
        return Tokenizer.from_file(str(path))


def check_config(path: Path, config: Mapping[str, Any], wanted: Mapping[str, int]) -> None:
    """Check the values of a config.json: tensors of another model may have the same shapes.

    Raise CheckpointError naming the first value that differs. A missing value passes.
    """
    for key, value in wanted.items():
        if config.get(key, value) != value:
            raise CheckpointError(
                f"{path} says {key} {config[key]!r}, but this model has {value}: "
                "it belongs to another model"
            )


def load_weights(
    network: Network,
    paths: Sequence[Path],
    layout: Layout,
    device: torch.device,
    dtype: torch.dtype,
) -> Network:
    """Give a blank network its weights from a checkpoint's files, see `fill`.

    Raise CheckpointError with PyTorch's own list of the tensors that are unknown, missing or
    mis-shaped, under the names of this project.
    """
    try:
        return fill(network, weights_of(network, paths, layout), device, dtype)
    except Unfit as error:
        where = paths[0] if len(paths) == 1 else paths[0].parent
        raise CheckpointError(f"{where} is not this model's: {one_line(error)}") from error


class Unfit(Exception):
    """Weights are missing, unknown or mis-shaped."""


def fill(
    network: Network, weights: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype
) -> Network:
    """Give a blank network its weights, and put it on a device for inference.

    Weights are moved and cast one by one. Those that already have the device and dtype are not
    copied: tensors of a memory-mapped file stay in that file, so that the network is never in
    memory twice. Rotary tables stay float32, and numbers that count stay whole. Raise Unfit.
    """
    kept = _kept_in_float32(network, dtype)

    def placed(name: str, weight: Tensor) -> Tensor:
        if not weight.is_floating_point():
            return weight.to(device)
        return weight.to(device, torch.float32 if name in kept else dtype)

    state = {name: placed(name, weight) for name, weight in weights.items()}
    try:
        network.load_state_dict(state, strict=True, assign=True)
    except RuntimeError as error:
        raise Unfit(str(error)) from error
    network.requires_grad_(False).eval()
    return network.to(device)  # the buffers that are no weights too


def weights_of(network: nn.Module, paths: Iterable[Path], layout: Layout) -> dict[str, Tensor]:
    """Return the weights in a checkpoint's files, by the names that a (blank) network has for them.

    They lie in the files, which are mapped into memory. Tensors that the layout does not know keep
    their published names.
    """
    tensors: dict[str, Tensor] = {}
    for path in paths:
        tensors.update(read(path))
    _widen(tensors)
    shapes = shapes_of(network)
    names = {ours: layout.published(ours, shapes) for ours in shapes}
    known = set(names.values())
    found = {
        name: tensor
        for name, tensor in tensors.items()
        if name not in known and not layout.ignored.fullmatch(name)
    }
    for ours, name in names.items():
        if name in tensors:
            first = layout.first_row(ours, shapes)
            rows = slice(first, None if first is None else first + shapes[ours][0])
            cut = first is not None and tensors[name].dim() > 0
            found[ours] = tensors[name][rows] if cut else tensors[name]
    return found


def _widen(tensors: dict[str, Tensor]) -> None:
    """Replace matrices in 8 bits, with a float16 scale for each row, by float16."""
    for name in [name for name in tensors if name + SCALE in tensors]:
        scale = tensors.pop(name + SCALE).float()
        if scale.shape != tensors[name].shape[:1]:
            raise Unfit(f"{name + SCALE} has shape {list(scale.shape)}")
        tensors[name] = (tensors[name].float() * scale[:, None]).half()


def shapes_of(network: nn.Module) -> Shapes:
    """Return the shapes of a network's tensors, by name."""
    return {name: tuple(weight.shape) for name, weight in network.state_dict().items()}


def _kept_in_float32(network: nn.Module, dtype: torch.dtype) -> set[str]:
    """Return the weights that would overflow in float16.

    They are the second matrices of a T5's feed-forward layers; the library keeps them in float32
    too.
    """
    if dtype != torch.float16 or not isinstance(network, T5EncoderModel):
        return set()
    return {name for name, _ in network.named_parameters() if name.endswith(".wo.weight")}
