"""True scenes as a reference for pictures, and a classifier's readings of pictures.

A model folder keeps the tokens of true scenes that no training saw. `examples/make_bundled_model/facts.py` writes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from lantern_demo.bench.quality.classifier import AttributeClassifier, load_classifier
from lantern_demo.models.bundled import Networks
from lantern_demo.scenes import ATTRIBUTES, full_caption

TRUTH = "truth.safetensors"  # file of a model folder: token ids [P, N] int16, and the class index [P] of every attribute
SEEDS = 2  # true scenes, and pictures, of each caption
BATCH = 50
ALL = "all"  # the name of all attributes together


@dataclass(frozen=True)
class SceneSet:
    """Captions that name every attribute, with SEEDS true scenes of each. Scene i has caption i // SEEDS."""

    tokens: Tensor  # [P, N] int64, of the true scenes
    wanted: dict[str, Tensor]  # the requested class index of each picture [P], by attribute

    @property
    def captions(self) -> list[str]:
        """Return one caption for every SEEDS scenes."""
        return self.prompts[::SEEDS]

    @property
    def prompts(self) -> list[str]:
        return [full_caption({name: int(v[i]) for name, v in self.wanted.items()}) for i in range(len(self.tokens))]

    @property
    def groups(self) -> NDArray[numpy.int64]:
        """Return the index of each picture's caption [P]."""
        return numpy.arange(len(self.tokens)) // SEEDS


def truth(folder: Path | None, pictures: int) -> SceneSet:
    """Return the first `pictures` true scenes of a model folder.

    Raise ValueError if the folder has no true scenes or fewer.
    """
    path = folder and folder / TRUTH
    if path is None or not path.is_file():
        raise ValueError(f"pictures are compared with true scenes, which lie in the model's folder; there are none in {folder}")
    kept = load_file(path)
    if pictures > (most := len(kept["tokens"])):
        raise ValueError(f"--pictures and --sweep-pictures must be at most {most}, the true scenes of {folder}; got {pictures}")
    return SceneSet(kept["tokens"][:pictures].long(), {name: kept[name][:pictures].long() for name in ATTRIBUTES})


@torch.inference_mode()
def drawn(networks: Networks, tokens: Tensor) -> Tensor:
    """Decode token ids [B, N] to pictures [B, 3, image_size, image_size] in [0, 1], on the CPU.

    Pictures of true tokens bound the quality of a model's pictures.
    """
    device = networks.tokenizer.codebook.device
    return torch.cat([networks.draw(part.to(device)).cpu() for part in tokens.split(BATCH)])


# By the name of an attribute, whether it matches the request [B]; ALL: whether all of them do.
Right = dict[str, NDArray[numpy.bool_]]


@torch.inference_mode()
def read(classifier: AttributeClassifier, images: Tensor, wanted: dict[str, Any]) -> Right:
    """Compare a classifier's readings of images [B, 3, H, W] in [0, 1] with the wanted class index [B] of each attribute.

    Raise ValueError if `wanted` has another number of pictures or lacks an attribute.
    """
    for name in ATTRIBUTES:
        if name not in wanted or len(wanted[name]) != len(images):
            raise ValueError(f"wanted must hold the class of {name!r} of each of the {len(images)} pictures")
    device = classifier.mix[0].weight.device
    parts = [classifier.read(part.to(device)) for part in images.split(BATCH)]
    found = {name: torch.cat([part[name] for part in parts]) for name in ATTRIBUTES}
    right = {name: (found[name] == torch.as_tensor(wanted[name])).numpy() for name in ATTRIBUTES}
    return {**right, ALL: numpy.logical_and.reduce(list(right.values()))}


def load_classifier_of(folder: Path | None, device: torch.device) -> AttributeClassifier:
    """Load the classifier of a model folder. Raise ValueError if it has none."""
    if folder is None or not (folder / "classifier").is_dir():
        raise ValueError(f"attributes are read by a classifier, which lies in the model's folder; there is none in {folder}")
    return load_classifier(folder, device)
