"""Scenes as soft codes: a picture's tokens are drawn, each from the entries near its vector.

A token is drawn by softmax(-distance^2 / TEMPERATURE) over the NEAREST entries of the codebook, as
in RQ-VAE's training (arXiv 2203.01941, section 3.3). So tokens that look alike are interchangeable,
and a target that learns this law has the entropy of image models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from examples.make_bundled_model import emoji
from examples.make_bundled_model.networks import MARKS, Model
from examples.make_bundled_model.scenes import Renderer, sample
from examples.make_bundled_model.world import PAD, Captions
from lantern_demo.models.text import END
from lantern_demo.models.tokenizer import ImageTokenizer

NEAREST = 12
TEMPERATURE = 0.007


@dataclass
class Bank:
    """B scenes that training draws from. Every field but `pictures` has B as first dimension."""

    codes: Tensor  # [B, N, NEAREST] int16, the nearest entry first
    probs: Tensor  # [B, N, NEAREST] float16, the law of each token
    cover: Tensor  # [B, N] float16, the share of a token's square that things or lanterns cover
    pictures: Tensor  # [P, 4, H, W] uint8, colours and cover of the first P scenes
    attributes: dict[str, Tensor]  # [B] int64 each

    def __len__(self) -> int:
        return len(self.codes)

    def rows(self, index: Tensor, pictures: bool = False) -> Bank:
        """Return the scenes at an index [n]; their pictures only if asked for, if they are kept."""
        return Bank(
            self.codes[index],
            self.probs[index],
            self.cover[index],
            self.pictures[index] if pictures else self.pictures[:0],
            {name: value[index] for name, value in self.attributes.items()},
        )

    @property
    def nearest(self) -> Tensor:
        """The tokens [B, N] int64 of the nearest entries."""
        return self.codes[..., 0].long()

    def drawn(self, g: torch.Generator) -> Tensor:
        """Draw the tokens [B, N] int64 of all scenes."""
        which = torch.multinomial(self.probs.float().flatten(0, 1), 1, generator=g)
        return self.codes.long().gather(-1, which.view(*self.codes.shape[:2], 1))[..., 0]


def joined(parts: list[Bank]) -> Bank:
    """Join banks to one."""
    tensors = [f.name for f in fields(Bank) if f.name != "attributes"]
    names = parts[0].attributes
    return Bank(
        **{name: torch.cat([getattr(part, name) for part in parts]) for name in tensors},
        attributes={name: torch.cat([part.attributes[name] for part in parts]) for name in names},
    )


@torch.no_grad()
def encoded(tokenizer: ImageTokenizer, pictures: Tensor, attributes: dict[str, Tensor]) -> Bank:
    """Encode pictures [B, 4, 256, 256] uint8 of scenes."""
    shown = pictures.float() / 255
    z = tokenizer.latent(F.avg_pool2d(shown[:, :3], 2)).float()  # unit vectors, as the codebook's
    cosines = z.permute(0, 2, 3, 1).flatten(1, 2) @ tokenizer.codebook.float().t()
    near, codes = cosines.topk(NEAREST, -1)
    probs = ((2 * near - 2) / TEMPERATURE).softmax(-1)  # |a - b|^2 = 2 - 2 cos
    cover = F.avg_pool2d(shown[:, 3:], shown.shape[-1] // z.shape[-1]).flatten(1)
    return Bank(codes.to(torch.int16), probs.half(), cover.half(), pictures, attributes)


Pictures = tuple[Tensor, dict[str, Tensor]]  # tokens [B, N] int64 and attributes [B]


class World:
    """Scenes of a run: drawn, encoded and captioned on its device."""

    def __init__(self, model: Model, sprites: Path, device: torch.device) -> None:
        self.model, self.device = model, device
        self.renderer = Renderer(emoji.read(sprites), device)
        vocabulary = model.text.tokenizer.get_vocab()
        self.captions = Captions({w: n for w, n in vocabulary.items() if w not in MARKS}, device)
        self.end = vocabulary[END]
        self.group = 256 if device.type == "cuda" else 8

    def bank(
        self,
        seed: int,
        wanted: int,
        lanterns: bool,
        kept: int = 0,
        ended: Callable[[], bool] = lambda: False,
    ) -> Bank:
        """Draw groups of scenes of things or of lanterns, until there are `wanted` of them or
        `ended` is true. Pictures of the first `kept` are kept.
        """
        found: list[Bank] = []
        while len(found) * self.group < wanted and not (found and ended()):
            scenes = sample(self.group, seed + len(found), lanterns=float(lanterns))
            pictures = (self.renderer(scenes) * 255).round().byte()
            attributes = {k: v.to(self.device) for k, v in scenes.attributes().items()}
            part = encoded(self.model.tokenizer, pictures, attributes)
            if len(found) * self.group >= kept:
                part.pictures = pictures[:0]
            found.append(part)
        return joined(found)

    def caption_ids(
        self, attributes: dict[str, Tensor], seed: int, omit: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Caption scenes -> ids [B, PREFIX] with an end mark, and their mask."""
        ids = F.pad(self.captions(attributes, seed, omit), (0, 1), value=PAD)
        length = (ids != PAD).sum(1, keepdim=True)
        ids = ids.scatter(1, length, self.end)
        return ids, torch.arange(ids.shape[1], device=ids.device)[None] <= length
