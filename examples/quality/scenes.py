"""Scenes as ground truth: captions with their true pictures, and a classifier's readings of
pictures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from examples.make_bundled_model.scenes import HELD_OUT, Renderer, Scenes, sample
from examples.quality.classifier import READ, AttributeClassifier
from lantern_demo.models.bundled import Networks
from lantern_demo.scenes import full_caption

OFFSET = 1_000_000  # from HELD_OUT: scenes that no other validation uses
POOL = 4096  # number of captions
SEEDS = 2  # true scenes, and pictures, of each caption
BATCH = 50
ALL = "all"  # the name of all attributes together


@dataclass(frozen=True)
class SceneSet:
    """P true scenes, SEEDS of each caption, which names every attribute.

    Scene i has caption i // SEEDS.
    """

    scenes: Scenes

    @property
    def captions(self) -> list[str]:
        """Return one caption for every SEEDS scenes."""
        return self.prompts[::SEEDS]

    @property
    def prompts(self) -> list[str]:
        """Return the caption of each picture."""
        return [
            full_caption(*classes)
            for classes in torch.stack(list(self.wanted.values()), 1).tolist()
        ]

    @property
    def groups(self) -> NDArray[numpy.int64]:
        """Return the index of each picture's caption [P]."""
        return numpy.arange(len(self.scenes.count)) // SEEDS

    @property
    def wanted(self) -> dict[str, Tensor]:
        """Return the requested class index of each picture [P], by attribute."""
        return self.scenes.attributes()


def truth(pictures: int) -> SceneSet:
    """Sample held-out captions of lanterns for `pictures` pictures, with SEEDS true scenes of each
    that differ in all but the attributes. `examples/quality/things.py` measures things.

    A smaller set has the first captions of a larger one. Two captions may be equal. Raise
    ValueError for a part of a caption, and for more than POOL captions.
    """
    if pictures % SEEDS or pictures > SEEDS * POOL:
        raise ValueError(
            f"--pictures and --sweep-pictures must be multiples of {SEEDS} and at most "
            f"{SEEDS * POOL}, got {pictures}"
        )
    lanterns = sample(POOL, HELD_OUT + OFFSET, lanterns=1.0)
    asked = lanterns.rows(slice(pictures // SEEDS)).attributes()
    wanted = {name: values.repeat_interleave(SEEDS) for name, values in asked.items()}
    return SceneSet(sample(pictures, HELD_OUT + OFFSET + 1, wanted=wanted))


@torch.inference_mode()
def draw_truth(renderer: Renderer, scenes: Scenes) -> Tensor:
    """Draw true pictures [P, 3, 256, 256] float32 in [0, 1], on the CPU."""
    parts = torch.arange(len(scenes.count)).split(BATCH)
    return torch.cat([renderer(scenes.rows(part))[:, :3].cpu() for part in parts])


@torch.inference_mode()
def true_tokens(networks: Networks, pictures: Tensor) -> Tensor:
    """Encode true pictures as token ids [P, N] on the image tokenizer's device."""
    tokenizer = networks.tokenizer
    device, times = tokenizer.codebook.device, pictures.shape[-1] // tokenizer.size
    return torch.cat(
        [tokenizer.encode(F.avg_pool2d(part.to(device), times)) for part in pictures.split(BATCH)]
    )


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
    """Compare a classifier's readings of images [B, 3, H, W] in [0, 1] with the wanted class index
    [B] of each attribute that it reads.
    """
    device = classifier.mix[0].weight.device
    parts = [classifier.read(part.to(device)) for part in images.split(BATCH)]
    found = {name: torch.cat([part[name] for part in parts]) for name in READ}
    right = {name: (found[name] == torch.as_tensor(wanted[name])).numpy() for name in READ}
    return {**right, ALL: numpy.logical_and.reduce(list(right.values()))}
