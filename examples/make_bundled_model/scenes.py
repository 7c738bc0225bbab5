"""Draw the scenes of the bundled model's world, on any device.

`lanterns` draws the landscape and the lanterns. This adds the things: sprites with a
shadow on land and a reflection on the lake. A drafter of one layer has to learn them, so their
places and sizes vary little, and the landscape varies far more.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from examples.make_bundled_model import lanterns
from examples.make_bundled_model.emoji import MARGIN, SPRITE
from examples.make_bundled_model.world import ATTRIBUTES, MOST_THINGS, THINGS
from lantern_demo.scenes import COLOURS, SHAPES

SIZE = 256  # pixels a side
LANTERNS = 0.35  # share of scenes that show lanterns
TWINS = 0.25  # share of the other scenes that show two things
AIR = torch.tensor([False, *(thing.air for thing in THINGS)])


@dataclass
class Scenes:
    """Parameters of B scenes."""

    back: lanterns.Scenes  # landscape, and lanterns where `thing` is 0
    thing: Tensor  # [B] int64, class of the thing
    count: Tensor  # [B] int64, one less than the number of things or lanterns
    foot: Tensor  # [B, 2, 2] middle of a sprite's lower edge, x and y in [-1, 1], y downwards
    side: Tensor  # [B, 2] the longer side of a sprite, 0 where there is none
    ground: Tensor  # [B] y of the spot on which the sprites stand

    def attributes(self) -> dict[str, Tensor]:
        """Return the class index of every attribute, [B] int64, keyed as in ATTRIBUTES."""
        lantern = self.thing == 0
        found = {"thing": self.thing, "count": self.count}
        found["colour"] = torch.where(lantern, self.back.colour, len(COLOURS))
        found["shape"] = torch.where(lantern, self.back.shape, len(SHAPES))
        found |= {name: getattr(self.back, name) for name in ("place", "time", "moon")}
        return {name: found[name] for name in ATTRIBUTES}

    def to(self, device: torch.device | str) -> Scenes:
        others = [f.name for f in fields(self) if f.name != "back"]
        moved = {name: getattr(self, name).to(device) for name in others}
        return Scenes(self.back.to(device), **moved)


def sample(batch: int, seed: int, things: int = len(THINGS)) -> Scenes:
    """Draw the parameters of `batch` scenes that know the first `things` things, 0 for lanterns
    alone.

    The same seed gives the same scenes on every machine (CPU generator).
    """
    back = lanterns.sample_scenes(batch, seed)
    g = torch.Generator().manual_seed(seed + 1)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=g)

    shown = 1 + torch.randint(max(1, things), (batch,), generator=g)
    lantern = (uniform(0, 1, batch) < LANTERNS) | torch.tensor(things == 0)
    thing = torch.where(lantern, 0, shown)
    twins = uniform(0, 1, batch) < TWINS
    count = torch.where(lantern, back.count, twins.long())
    single = (count == 0)[:, None]
    slot = torch.arange(MOST_THINGS)[None]
    there = (slot <= count[:, None]) & ~lantern[:, None]
    side = torch.where(single, uniform(1.12, 1.16, batch, 1), uniform(0.90, 0.94, batch, 2)) * there
    x = torch.where(single, 0.0, slot - 0.5) + 0.03 * uniform(-1, 1, batch, MOST_THINGS)
    ground = uniform(0.57, 0.60, batch)
    lift = torch.where(AIR[thing], uniform(0.12, 0.15, batch), 0.0)
    foot = torch.stack((x, (ground - lift)[:, None].expand(-1, MOST_THINGS)), -1)
    # A moon keeps away from a single thing, which may be tall.
    apart = torch.where(
        lantern, back.moon_at[:, 0], back.moon_at[:, 0].sign() * uniform(0.6, 0.82, batch)
    )
    moon_at = torch.stack((apart, back.moon_at[:, 1]), -1)
    radius = torch.where(lantern[:, None], back.radius, 0.0)
    return Scenes(replace(back, radius=radius, moon_at=moon_at), thing, count, foot, side, ground)


def joined(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Join the attributes of several groups of scenes."""
    return {name: torch.cat([part[name] for part in parts]) for name in ATTRIBUTES}


class Renderer:
    """Draws scenes with the sprites of THINGS."""

    def __init__(self, sprites: Tensor, device: torch.device | str) -> None:
        """sprites: [N, 4, SPRITE, SPRITE] uint8, as `emoji.sprites` returns them."""
        self.sprites = sprites.to(device)

    @torch.no_grad()
    def __call__(self, scenes: Scenes) -> Tensor:
        """Draw scenes -> [B, 4, SIZE, SIZE] float32 in [0, 1]: a picture, and the share of each
        pixel that things cover.
        """
        s = scenes.to(self.sprites.device)
        picture = torch.empty(len(s.thing), 3, SIZE, SIZE, device=self.sprites.device)
        for rows in ((s.thing == 0).nonzero()[:, 0], s.thing.nonzero()[:, 0]):
            if len(rows):
                picture[rows] = lanterns.render(s.back.rows(rows), SIZE)
        cover = torch.zeros_like(picture[:, :1])
        axis = (torch.arange(SIZE, device=picture.device) + 0.5) * (2 / SIZE) - 1
        x, y = axis.view(1, 1, 1, SIZE), axis.view(1, 1, SIZE, 1)
        for i in range(MOST_THINGS):
            rows = (s.side[:, i] > 0).nonzero()[:, 0]
            if len(rows):
                drawn, alpha = self._thing(s, rows, i, x, y, picture[rows])
                picture[rows], cover[rows] = drawn, torch.maximum(cover[rows], alpha)
        return torch.cat((picture, cover), 1).clamp(0, 1)

    def _thing(
        self, s: Scenes, rows: Tensor, i: int, x: Tensor, y: Tensor, under: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draw sprite i of some scenes over pictures [R, 3, H, W]. Return these and its opacity."""
        side, foot, ground = s.side[rows, i], s.foot[rows, i], _column(s.ground[rows])
        place = s.back.place[rows]
        lake = _column((place == 0).float())
        across, down = x - _column(foot[:, 0]), y - ground
        # A soft shadow on land, a rippled mirror on the lake.
        width = _column(0.42 * side)
        dark = torch.exp(-((across / width) ** 2) - (down / 0.06) ** 2)
        under = under * (1 - 0.5 * dark * (1 - lake))
        below = down.clamp(min=0)
        ripple = torch.sin(_column(s.back.phase[rows, 6]) + 58 * below / (0.5 + below))
        mirrored_x = x + 0.05 * below.sqrt() * ripple
        mirrored_y = ground - 1.15 * below - 0.02 * ripple * below.sqrt()
        mirror = self._sample(s, rows, side, foot, mirrored_x, mirrored_y)
        strength = lake * (below > 0) * 0.55 * torch.exp(-1.1 * below)
        tint = torch.tensor([0.74, 0.82, 0.92], device=x.device).view(1, 3, 1, 1)
        under = under * (1 - mirror[:, 3:] * strength) + mirror[:, :3] * tint * strength
        sprite = self._sample(s, rows, side, foot, x, y)
        alpha = sprite[:, 3:]
        return under * (1 - alpha) + 0.97 * sprite[:, :3], alpha

    def _sample(
        self, s: Scenes, rows: Tensor, side: Tensor, foot: Tensor, x: Tensor, y: Tensor
    ) -> Tensor:
        """Read sprites at points (x, y) -> [R, 4, H, W], colours multiplied by opacity."""
        scale = 2 * (SPRITE - 2 * MARGIN) / SPRITE
        across = scale * (x - _column(foot[:, 0])) / _column(side)
        down = 1 - 2 * MARGIN / SPRITE + scale * (y - _column(foot[:, 1])) / _column(side)
        grid = torch.cat(torch.broadcast_tensors(across, down), 1).permute(0, 2, 3, 1)
        # Half the sprite's resolution is about that of the picture.
        sprites = F.avg_pool2d(self.sprites[s.thing[rows] - 1].float() / 255, 2)
        return F.grid_sample(sprites, grid, align_corners=False)


def _column(value: Tensor) -> Tensor:
    return value[:, None, None, None]


def contact_sheet(images: Tensor, columns: int) -> Image.Image:
    """Join pictures [B, 3, H, W] in [0, 1] to one, row by row. B is a multiple of `columns`."""
    rows = [torch.cat(tuple(row), -1) for row in images.split(columns)]
    pixels = (torch.cat(rows, -2).permute(1, 2, 0) * 255).round().byte().cpu().numpy()
    return Image.fromarray(pixels)
