"""Lantern scenes as ground truth: captions with their true pictures, and a classifier's readings of pictures."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from lantern_demo.bench.quality.classifier import AttributeClassifier, load_classifier
from lantern_demo.models.bundled import Networks
from lantern_demo.scenes import ATTRIBUTES, HELD_OUT, SIZE, Scenes, full_caption, render, sample_scenes

OFFSET = 1_000_000  # from HELD_OUT: scenes that no other validation uses
POOL = 4096  # number of captions
BATCH = 50
ALL = "all"  # the name of all attributes together


@dataclass(frozen=True)
class SceneSet:
    """Captions that name every attribute, with `seeds` true scenes of each. Picture i has caption i // seeds."""

    seeds: int
    scenes: Scenes  # of every picture [captions * seeds]
    captions: list[str]  # one of each caption

    @property
    def pictures(self) -> int:
        return len(self.captions) * self.seeds

    @property
    def prompts(self) -> list[str]:
        """Return the caption of each picture."""
        return [caption for caption in self.captions for _ in range(self.seeds)]

    @property
    def groups(self) -> NDArray[numpy.int64]:
        """Return the index of each picture's caption [pictures]."""
        return numpy.arange(self.pictures) // self.seeds

    @property
    def wanted(self) -> dict[str, Tensor]:
        """Return the requested class index of each picture [pictures], by attribute."""
        return self.scenes.attributes()


def truth(captions: int, seeds: int) -> SceneSet:
    """Sample `captions` held-out captions, each with `seeds` true scenes of the same attributes that differ otherwise.

    A smaller set has the first captions of a larger one. Two captions may be equal. Raises ValueError for fewer than 1 of
    either, or more than POOL captions.
    """
    if not 1 <= captions <= POOL or seeds < 1:
        raise ValueError(f"captions must be 1 to {POOL} and seeds at least 1, got {captions} and {seeds}")
    asked = sample_scenes(POOL, HELD_OUT + OFFSET).rows(slice(captions)).attributes()
    wanted = {name: values.repeat_interleave(seeds) for name, values in asked.items()}
    said = [full_caption(*kind) for kind in torch.stack(list(asked.values()), 1).tolist()]
    return SceneSet(seeds, sample_scenes(captions * seeds, HELD_OUT + OFFSET + 1, wanted), said)


@torch.inference_mode()
def draw_truth(scenes: SceneSet, device: torch.device, size: int = SIZE) -> Tensor:
    """Draw the true pictures [pictures, 3, size, size] float32 in [0, 1], on the CPU. Sizes below 128 are reduced from 128."""
    parts = torch.arange(scenes.pictures).split(BATCH)
    images = torch.cat([render(scenes.scenes.rows(part).to(device), max(size, SIZE)).cpu() for part in parts])
    return images if images.shape[-1] == size else F.interpolate(images, size=size, mode="area")


@torch.inference_mode()
def true_tokens(networks: Networks, scenes: SceneSet) -> Tensor:
    """Encode the scenes, drawn at the image tokenizer's size, as token ids [pictures, N] on its device."""
    device = networks.tokenizer.codebook.device
    images = draw_truth(scenes, device, networks.tokenizer.size)
    return torch.cat([networks.tokenizer.encode(part.to(device)) for part in images.split(BATCH)])


@torch.inference_mode()
def drawn(networks: Networks, tokens: Tensor) -> Tensor:
    """Decode token ids [B, N] to pictures [B, 3, image_size, image_size] in [0, 1], on the CPU.

    Pictures of true tokens bound the quality of a model's pictures."""
    device = networks.tokenizer.codebook.device
    return torch.cat([networks.draw(part.to(device)).cpu() for part in tokens.split(BATCH)])


# By the name of an attribute, whether it matches the request [B]; ALL: whether all of them do.
Right = dict[str, NDArray[numpy.bool_]]


@torch.inference_mode()
def read(classifier: AttributeClassifier, images: Tensor, wanted: dict[str, Any]) -> Right:
    """Read images [B, 3, H, W] in [0, 1], of which the class index wanted of each attribute [B] is given.

    Raises ValueError when `wanted` is not of as many pictures, or lacks an attribute.
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
    """Load the classifier of a model folder. Raises ValueError without one."""
    if folder is None or not (folder / "classifier").is_dir():
        raise ValueError(f"attributes are read by a classifier, which lies in the model's folder; there is none in {folder}")
    return load_classifier(folder, device)
