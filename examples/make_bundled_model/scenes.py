"""Draw the scenes of the bundled model's world, on any device.

A scene is a landscape with one to four paper lanterns in the air, or with an everyday thing at the
middle. Things are sprites with a shadow on land and a reflection on the lake. All have one size and
stand at one place: moved by parts of a token, one outline would be thousands of rows of tokens, of
which a small target learns the mean, a lump. The landscape varies.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from examples.make_bundled_model.emoji import MARGIN, SPRITE
from examples.make_bundled_model.landscape import (
    STARS,
    column,
    edge,
    lake_light,
    land,
    mirrored,
    mix,
    rgb,
    ripples,
    sky,
)
from examples.make_bundled_model.lanterns import paper_lanterns
from examples.make_bundled_model.world import PICTURES
from lantern_demo.paths import user_path
from lantern_demo.scenes import (
    ATTRIBUTES,
    COLOURS,
    MOST_LANTERNS,
    PLACES,
    SHAPES,
    TIMES,
)

SIZE = 256  # pixels a side
HELD_OUT = 900_000_007  # seed of scenes that nothing learns from
SHARE = 0.5  # of scenes that show lanterns
HORIZON = ((0.36, 0.44), (0.24, 0.34))  # ranges of the horizon's y on a lake and on land
# Of a thing: the longer side of its sprite, y of the spot below it, and how high it hangs above, by
# class.
SIDE, GROUND = 1.18, 0.585
LIFT = 0.13125 * torch.tensor([0, *(thing.air for thing in PICTURES.values())])


@dataclass
class Scenes:
    """Parameters of B scenes. Every field is a tensor whose first dimension is B."""

    thing: Tensor  # [B] int64, class of the thing; 0 for lanterns
    count: Tensor  # [B] int64, one less than the number of lanterns; 0 for things
    colour: Tensor  # [B] int64, of lanterns
    shape: Tensor  # [B] int64, of lanterns
    place: Tensor  # [B] int64
    time: Tensor  # [B] int64
    moon: Tensor  # [B] int64
    centre: Tensor  # [B, 4, 2] middle of a lantern
    radius: Tensor  # [B, 4] of a lantern, 0 for an absent one
    horizon: Tensor  # [B] y of the horizon
    moon_at: Tensor  # [B, 2]
    phase: Tensor  # [B, 8] phases of hills, ripples and grass
    stars: Tensor  # [B, STARS, 3] x, y, brightness

    def attributes(self) -> dict[str, Tensor]:
        """Return the class index of every attribute, [B] int64, keyed as in ATTRIBUTES."""
        lantern = self.thing == 0
        plain = {name: getattr(self, name) for name in ATTRIBUTES}
        plain["colour"] = torch.where(lantern, self.colour, len(COLOURS))
        plain["shape"] = torch.where(lantern, self.shape, len(SHAPES))
        return plain

    def rows(self, index: Tensor | slice) -> Scenes:
        """Return the scenes at an index."""
        return Scenes(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def to(self, device: torch.device | str) -> Scenes:
        return Scenes(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def sample(
    batch: int,
    seed: int,
    wanted: Mapping[str, Tensor] | None = None,
    lanterns: float = SHARE,
) -> Scenes:
    """Draw the parameters of `batch` scenes.

    The same seed gives the same scenes on every machine (CPU generator). wanted: the class index
    of every attribute, [batch] each, instead of random ones. lanterns: the odds that a scene shows
    lanterns.
    """
    g = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=g)

    def pick(n: int) -> Tensor:
        return torch.randint(n, (batch,), generator=g)

    shown = 1 + pick(len(PICTURES))
    thing = torch.where(uniform(0, 1, batch) < lanterns, 0, shown)
    count = torch.where(thing == 0, pick(MOST_LANTERNS), 0)
    colour, shape = pick(len(COLOURS)), pick(len(SHAPES))
    place, time, moon = pick(len(PLACES)), pick(len(TIMES)), pick(2)
    if wanted is not None:
        thing, count, colour, shape, place, time, moon = (wanted[name] for name in ATTRIBUTES)
    lantern = thing == 0
    # Lanterns hang in slots of equal width.
    hung = torch.arange(MOST_LANTERNS)[None]
    width = 1.84 / (count + 1)[:, None]
    radius = torch.minimum(uniform(0.27, 0.30, batch, 1), 0.42 * width)
    across = -0.92 + width * (hung + 0.5) + 0.04 * uniform(-1, 1, batch, MOST_LANTERNS)
    down = -0.12 + 0.10 * uniform(-1, 1, batch, MOST_LANTERNS)
    radius = radius * ((hung <= count[:, None]) & lantern[:, None])
    # A moon keeps away from a thing, which may be tall.
    left = torch.where(uniform(0, 1, batch) < 0.5, -1.0, 1.0)
    aside = 0.80 - torch.where(lantern, 0.30, 0.18) * uniform(0, 1, batch)
    moon_at = torch.stack((left * aside, uniform(-0.82, -0.62, batch)), -1)
    lake, dry = (uniform(*each, batch) for each in HORIZON)
    low = torch.tensor([-1.0, -1.0, 0.2])
    stars = low + torch.tensor([2.0, 1.2, 0.8]) * torch.rand(batch, STARS, 3, generator=g)
    return Scenes(
        thing=thing,
        count=count,
        colour=colour,
        shape=shape,
        place=place,
        time=time,
        moon=moon,
        centre=torch.stack((across, down), -1),
        radius=radius,
        horizon=torch.where(place == 0, lake, dry),
        moon_at=moon_at,
        phase=uniform(0, 2 * math.pi, batch, 8),
        stars=stars,
    )


def add_sprites(parser: argparse.ArgumentParser) -> None:
    """Give a command line the option --sprites, the file that a `Renderer` needs."""
    parser.add_argument(
        "--sprites",
        type=_sprites,
        default="runs/sprites.npz",
        help="what emoji.py wrote (default: %(default)s)",
    )


def _sprites(text: str) -> Path:
    """Return the path of a file of sprites. Raise ArgumentTypeError if it is missing."""
    path = user_path(text)
    if not path.exists():
        raise argparse.ArgumentTypeError(
            f"{path} does not exist: run examples/make_bundled_model/emoji.py --out {path}"
        )
    return path


class Renderer:
    """Draws scenes with the sprites of PICTURES."""

    def __init__(self, sprites: Tensor, device: torch.device | str) -> None:
        """sprites: [N, 4, SPRITE, SPRITE] uint8, as `emoji.sprites` returns them."""
        self.sprites = sprites.to(device)
        # What touches the ground: middle and half width of the lowest rows, in shares of a side.
        low = self.sprites[:, 3, -MARGIN - 20 : -MARGIN].amax(1).float() / 255
        axis = (torch.arange(SPRITE, device=device) + 0.5) / SPRITE - 0.5
        left = torch.where(low > 0.5, axis, 1.0).amin(1)
        right = torch.where(low > 0.5, axis, -1.0).amax(1)
        contact = torch.stack(((left + right) / 2, (right - left) / 2), -1)
        self.contact = contact * (SPRITE / (SPRITE - 2 * MARGIN))

    @torch.no_grad()
    def __call__(self, scenes: Scenes) -> Tensor:
        """Draw scenes -> [B, 4, SIZE, SIZE] float32 in [0, 1]: a picture, and the share of each
        pixel that things and lanterns cover.
        """
        s = scenes.to(self.sprites.device)
        device = self.sprites.device
        drawn = torch.empty(len(s.thing), 4, SIZE, SIZE, device=device)
        axis = (torch.arange(SIZE, device=device) + 0.5) * (2 / SIZE) - 1
        for rows in ((s.thing == 0).nonzero()[:, 0], s.thing.nonzero()[:, 0]):
            if len(rows):
                part = s.rows(rows)
                x = axis.view(1, 1, 1, SIZE).expand(len(rows), 1, SIZE, SIZE)
                y = axis.view(1, 1, SIZE, 1).expand(len(rows), 1, SIZE, SIZE)
                lanterns = bool(part.thing[0] == 0)
                drawn[rows] = _lanterns(part, x, y) if lanterns else self._things(part, x, y)
        return drawn.clamp(0, 1)

    def _things(self, s: Scenes, x: Tensor, y: Tensor) -> Tensor:
        wet = edge(column(s.horizon) - y, SIZE) * column(s.place == 0)
        colour, cover = land(s, x, y, SIZE)
        dry = cover * column(s.place != 0)
        picture = mix(sky(s, x, y, SIZE), colour, dry)
        lake = sky(s, *mirrored(s, x, y), SIZE, stars=False) * lake_light(s, x, y)
        picture = mix(picture, lake * _shore(s, y), wet)
        picture = _film(picture * (1 - self._shadows(s, x, y) * dry))
        picture = self._reflected(s, x, y, picture, wet)
        sprite = self._smooth(s, x, y)
        cover = sprite[:, 3:]
        # Light comes from above, so the lower part of a sprite gets less of it.
        shade = 1 - 0.16 * ((y - _foot(s)) / SIDE + 0.5).clamp(0, 0.5)
        return torch.cat((picture * (1 - cover) + 0.97 * sprite[:, :3] * shade, cover), 1)

    def _shadows(self, s: Scenes, x: Tensor, y: Tensor) -> Tensor:
        """Return the share of the ground's light that sprites block, [B, 1, H, W] in [0, 1]."""
        middle, half = self.contact[s.thing - 1].unbind(-1)
        lift, down = GROUND - _foot(s), y - GROUND
        wide = (half * SIDE * 1.12).clamp(min=0.07)
        flat = column((0.22 * wide).clamp(0.025, 0.06))
        near = ((x - column(middle * SIDE)) / column(wide)) ** 4 + (down / flat) ** 2
        broad = (x / (0.52 * SIDE + 0.05)) ** 2 + (down / 0.11) ** 2
        touching = torch.exp(-((lift / 0.05) ** 2))
        below = torch.where(lift > 0.05, 0.30, 0.38)
        return 1 - (1 - 0.62 * touching * torch.exp(-near)) * (1 - below * torch.exp(-broad))

    def _reflected(self, s: Scenes, x: Tensor, y: Tensor, picture: Tensor, wet: Tensor) -> Tensor:
        """Return pictures with the reflections of sprites in the lake."""
        crest, bend = ripples(s, x, y)
        below = (y - GROUND).clamp(min=0)
        root = below.sqrt()
        sprite = self._sprite(
            s, x + 0.09 * root * bend, GROUND - 1.15 * below - 0.03 * crest * root
        )
        dim = 0.97 * rgb(0.74, 0.82, 0.92, x.device)
        dim = dim * (0.86 + 0.14 * crest * (root * 2).clamp(max=1))
        strength = wet * (below > 0) * 0.62 * torch.exp(-1.1 * below)
        return picture * (1 - sprite[:, 3:] * strength) + sprite[:, :3] * dim * strength

    def _smooth(self, s: Scenes, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean of `_sprite` at four points of each pixel."""
        step = 0.5 / SIZE
        near = [(dx, dy) for dx in (-step, step) for dy in (-step, step)]
        return torch.stack([self._sprite(s, x + dx, y + dy) for dx, dy in near]).mean(0)

    def _sprite(self, s: Scenes, x: Tensor, y: Tensor) -> Tensor:
        """Sample the sprite of every scene at points -> [B, 4, H, W], colours multiplied by
        opacity.
        """
        scale = 2 * (SPRITE - 2 * MARGIN) / SPRITE
        down = 1 - 2 * MARGIN / SPRITE + scale * (y - _foot(s)) / SIDE
        grid = torch.cat((scale * x / SIDE, down), 1).permute(0, 2, 3, 1)
        return F.grid_sample(self.sprites[s.thing - 1].float() / 255, grid, align_corners=False)


def _foot(s: Scenes) -> Tensor:
    """Return y of the lower edge of each scene's sprite, [B, 1, 1, 1]."""
    return column(GROUND - LIFT.to(s.thing.device)[s.thing])


def _lanterns(s: Scenes, x: Tensor, y: Tensor) -> Tensor:
    wet = edge(column(s.horizon) - y, SIZE) * column(s.place == 0)
    lantern, covered, glow = paper_lanterns(s, x, y, SIZE)
    colour, cover = land(s, x, y, SIZE)
    picture = sky(s, x, y, SIZE) + 0.55 * glow
    picture = mix(picture, colour + glow * (0.25 + colour), cover * column(s.place != 0))
    at = mirrored(s, x, y)
    other, other_covered, other_glow = paper_lanterns(s, *at, SIZE)
    lake = mix(
        sky(s, *at, SIZE, stars=False) + 0.55 * other_glow, 0.62 * other, 0.85 * other_covered
    )
    picture = mix(picture, lake * lake_light(s, x, y) * _shore(s, y) + 0.10 * other_glow, wet)
    return torch.cat((_film(mix(picture, lantern, covered)), covered), 1)


def _shore(s: Scenes, y: Tensor) -> Tensor:
    """Return the light that a dark line below the horizon leaves."""
    return 1 - 0.45 * torch.exp(-(((y - column(s.horizon)) / 0.02) ** 2))


def _film(light: Tensor) -> Tensor:
    """Return a film's curve of light: it rolls off softly instead of clipping."""
    return (1 - torch.exp(-1.55 * light.clamp(min=0))) ** 0.85


def contact_sheet(images: Tensor, columns: int) -> Image.Image:
    """Join pictures [B, 3, H, W] in [0, 1] to one, row by row. B is a multiple of `columns`."""
    rows = [torch.cat(tuple(row), -1) for row in images.split(columns)]
    pixels = (torch.cat(rows, -2).permute(1, 2, 0) * 255).round().byte().cpu().numpy()
    return Image.fromarray(pixels)
