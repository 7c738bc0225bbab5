"""A batched, seeded renderer of captioned pictures with known attributes.

Every picture shows one to three sprites of one noun on a lake, hills or a plain, at dusk, night or dawn, with or without a
moon. The landscape is closed-form torch arithmetic on a pixel grid. The sprites have shadows on land and reflections on the lake.
It runs on any device.

A small target sees each noun a few hundred times. Therefore the sprites' places and sizes vary little, and not their light. The
landscape varies far more.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.make_bundled_model.emoji import MARGIN, SPRITE, sprites
from lantern_demo.scenes import ATTRIBUTES, MAX_COUNT, NOUNS, PLACES, TIMES, caption

SIZE = 256  # pixels a side
HORIZON = ((0.36, 0.44), (0.24, 0.34))  # ranges of the horizon's y on a lake and on land; y runs from -1 at the top to 1
STARS = 20
TWINS, TRIPLETS = 0.20, 0.15  # shares of scenes; several small things are harder to learn than a large one
NONE = len(NOUNS)  # in place of a noun where there is no sprite

# Sky colours per time of day at the zenith, half way down, and at the horizon (linear RGB).
_SKY = torch.tensor(
    [
        [[0.10, 0.08, 0.26], [0.44, 0.19, 0.40], [1.00, 0.48, 0.24]],
        [[0.010, 0.016, 0.055], [0.028, 0.045, 0.130], [0.070, 0.110, 0.220]],
        [[0.26, 0.50, 0.86], [0.62, 0.66, 0.84], [1.15, 0.78, 0.58]],
    ]
)
_CLOUDS = torch.tensor([[0.30, 0.10, 0.06], [0.012, 0.018, 0.035], [0.20, 0.14, 0.10]])
# Ground colours per place (the lake's is the tint of its water) before the light of the hour.
_GROUND = torch.tensor([[0.62, 0.72, 0.86], [0.14, 0.32, 0.17], [0.34, 0.38, 0.12]])
_DAYLIGHT = torch.tensor([[0.80, 0.56, 0.54], [0.34, 0.44, 0.66], [1.22, 1.12, 0.98]])  # on the ground
_LIGHT, _GLOWING = 0.97, 1.08  # factors of the colours of sprites, and of those that shine
_AIR = torch.tensor([noun.air for noun in NOUNS] + [False])
_GLOW = torch.tensor([noun.glow for noun in NOUNS] + [False])
_MASS = torch.tensor([noun.mass for noun in NOUNS] + [False])


@dataclass
class Scenes:
    """Parameters of B scenes. Every field is a tensor whose first dimension is B."""

    noun: Tensor  # [B] int64, index into NOUNS
    count: Tensor  # [B] int64, 0..2 stands for 1..3 of the noun
    place: Tensor  # [B] int64, index into PLACES
    time: Tensor  # [B] int64, index into TIMES
    moon: Tensor  # [B] int64, 0 or 1
    kind: Tensor  # [B, 3] int64, the noun of every sprite from left to right; NONE where there is no sprite
    foot: Tensor  # [B, 3, 2] middle of a sprite's lower edge, x and y in [-1, 1], y downwards
    side: Tensor  # [B, 3] the longer side of a sprite
    ground: Tensor  # [B, 3] y of the spot below a sprite, on the ground or the water
    horizon: Tensor  # [B] y of the horizon
    moon_at: Tensor  # [B, 2]
    phase: Tensor  # [B, 8] phases of hills, ripples and grass
    stars: Tensor  # [B, STARS, 3] x, y, brightness

    def attributes(self) -> dict[str, Tensor]:
        """Return the class index of every attribute, [B] int64 each, keyed as in ATTRIBUTES."""
        return {name: getattr(self, name) for name in ATTRIBUTES}

    def row(self, index: int) -> dict[str, int]:
        """Return the class index of every attribute of one scene."""
        return {name: int(values[index]) for name, values in self.attributes().items()}

    def to(self, device: torch.device | str) -> Scenes:
        return Scenes(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def sample_scenes(batch: int, seed: int, wanted: Mapping[str, Tensor] | None = None) -> Scenes:
    """Draw the parameters of `batch` scenes, with the attributes `wanted` [batch] if given.

    The same seed gives the same scenes on every machine (CPU generator).
    """
    g = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=g)

    def pick(n: int) -> Tensor:
        return torch.randint(n, (batch,), generator=g)

    noun, lot = pick(len(NOUNS)), uniform(0, 1, batch)
    count = torch.where(_MASS[noun], 0, (lot < TWINS + TRIPLETS).long() + (lot < TRIPLETS).long())
    place, time, moon = pick(len(PLACES)), pick(len(TIMES)), pick(2)
    if wanted is not None:
        noun, count, place, time, moon = (wanted[name] for name in ATTRIBUTES)
    slot = torch.arange(MAX_COUNT)[None]
    kind = torch.where(slot <= count[:, None], noun[:, None], NONE)
    shown = kind != NONE
    n = shown.sum(1, keepdim=True)
    # One thing is large; several share the width, and those in front are a little larger and lower.
    width = torch.where(n == 1, 2.0, torch.where(n == 2, 1.96, 2.0)) / n
    near = uniform(0, 1, batch, MAX_COUNT)
    largest = torch.where(n == 1, uniform(1.16, 1.20, batch, 1), uniform(0.97, 1.0, batch, 1) * width)
    side = largest * torch.where(n == 1, 1.0, 0.98 + 0.02 * near)
    free = torch.where(n == 1, 0.03, 0.02)
    middle = torch.where(n == 1, 0.0, -0.5 * width * n + width * (slot + 0.5))
    x = middle + free * uniform(-1, 1, batch, MAX_COUNT)
    edge = 0.98 - 0.5 * side
    x = torch.minimum(torch.maximum(x, -edge), edge)
    # Things stand well below the horizon. The lake keeps room for reflections.
    lake, land = (uniform(*each, batch) for each in HORIZON)
    horizon = torch.where(place == 0, lake, land)
    ground = uniform(0.57, 0.60, batch, 1) + torch.where(n == 1, 0.0, 0.04 * (near - 0.5))
    air = _AIR[kind]
    lift = uniform(0.36, 0.38, batch, MAX_COUNT) * (1.5 - side).clamp(0.35, 1.0)
    foot = torch.stack((x, ground - air * lift), -1)
    left = torch.where(uniform(0, 1, batch) < 0.5, -1.0, 1.0)
    # A moon keeps away from a single thing, which may be tall.
    left = torch.where(n[:, 0] == 1, -torch.sign(x[:, 0]), left)
    moon_at = torch.stack((left * uniform(0.50, 0.80, batch), uniform(-0.82, -0.62, batch)), -1)
    stars = torch.stack((uniform(-1, 1, batch, STARS), uniform(-1, 0.2, batch, STARS), uniform(0.2, 1, batch, STARS)), -1)
    phase = uniform(0, 2 * math.pi, batch, 8)
    return Scenes(noun, count, place, time, moon, kind, foot, side * shown, ground, horizon, moon_at, phase, stars)


def joined(parts: Sequence[Scenes]) -> Scenes:
    """Return the scenes of all parts, in their order."""
    return Scenes(**{f.name: torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Scenes)})


def _column(value: Tensor) -> Tensor:
    """Reshape [B] or [B, C] to broadcast over [B, C, H, W]."""
    return value.reshape(*value.shape, *([1] * (4 - value.dim()))) if value.dim() > 1 else value[:, None, None, None]


def _mix(base: Tensor, over: Tensor, alpha: Tensor) -> Tensor:
    return base + (over - base) * alpha


def _edge(distance: Tensor, size: int, softness: float = 1.2) -> Tensor:
    """Return 1 inside (negative distance), 0 outside, smooth over about `softness` pixels of a picture `size` pixels wide."""
    return torch.sigmoid(-distance * (size / softness))


def _sky(s: Scenes, x: Tensor, y: Tensor, size: int, stars: bool = True) -> Tensor:
    """Draw sky, moon and optionally stars at the points (x, y), each [B, 1, H, W] -> [B, 3, H, W]."""
    palette = _SKY.to(x.device)[s.time]
    height = ((y + 1) / (_column(s.horizon) + 1)).clamp(0, 1)
    top, middle, low = (_column(palette[:, i]) for i in range(3))
    colour = torch.where(height < 0.6, _mix(top, middle, height / 0.6), _mix(middle, low, ((height - 0.6) / 0.4) ** 1.6))
    # Thin bands of cloud catch the light of dusk and dawn.
    drift = torch.sin(3.1 * x + _column(s.phase[:, 0])) + 0.6 * torch.sin(5.3 * x + _column(s.phase[:, 1]))
    band = torch.exp(-(((y + 0.30 + 0.05 * drift) / 0.07) ** 2)) + 0.7 * torch.exp(-(((y - 0.0 + 0.04 * drift) / 0.05) ** 2))
    colour = colour + _column(_CLOUDS.to(x.device)[s.time]) * band
    if stars:
        # A star is an outer product of two bumps, one along each axis of the grid.
        spot = 0.016 / size
        bump_x = torch.exp(-((x[:, 0, 0, None, :] - s.stars[:, :, 0, None]) ** 2) / spot)
        bump_y = torch.exp(-((y[:, 0, :, 0, None].transpose(1, 2) - s.stars[:, :, 1, None]) ** 2) / spot)
        night = torch.tensor([0.25, 1.0, 0.0], device=x.device)[s.time]
        star = torch.einsum("bs,bsy,bsx->byx", s.stars[:, :, 2] * night[:, None] * (size / 128), bump_y, bump_x)[:, None]
        colour = colour + star * torch.tensor([0.8, 0.85, 1.0], device=x.device).view(1, 3, 1, 1)
    across, down = x - _column(s.moon_at[:, 0]), y - _column(s.moon_at[:, 1])
    distance = (across**2 + down**2).sqrt()
    halo = 0.30 * torch.exp(-((distance / 0.34) ** 2)) + 0.25 * torch.exp(-((distance / 0.19) ** 2))
    glow = torch.tensor([0.85, 0.88, 1.0], device=x.device).view(1, 3, 1, 1) * halo
    maria = 0.16 * torch.sin(26 * across + 1) * torch.sin(21 * down + 2)
    face = torch.tensor([1.9, 1.85, 1.6], device=x.device).view(1, 3, 1, 1) * (0.92 + maria)
    return torch.where(_column(s.moon) > 0, _mix(colour + glow, face, _edge(distance - 0.115, size)), colour)


def _land(s: Scenes, x: Tensor, y: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Draw hills or plain at the points (x, y) -> colour [B, 3, H, W], cover [B, 1, H, W]."""
    p, h = s.phase, _column(s.horizon)
    haze = _column(_SKY.to(x.device)[s.time, 2])
    light = _column(_DAYLIGHT.to(x.device)[s.time])
    base = _column(_GROUND.to(x.device)[s.place])
    is_hills = _column(s.place == 1)
    colour, cover = torch.zeros_like(x).expand(-1, 3, -1, -1), torch.zeros_like(x)
    for layer, (lift, swing, near) in enumerate(((-0.30, 0.13, 0.25), (-0.08, 0.10, 0.6), (0.12, 0.06, 1.0))):
        a, b = _column(p[:, 2 + layer]), _column(p[:, 5 + layer])
        ridge = h + lift + swing * torch.sin(2.2 * x + a) + 0.45 * swing * torch.sin(4.6 * x + b)
        flat = h + 0.10 * layer + 0.012 * torch.sin(3 * x + a)
        top = torch.where(is_hills, ridge, flat)
        depth = (y - top).clamp(min=0)
        furrow = torch.where(
            is_hills, 0.05 * torch.sin(9 * x + 14 * depth + a), 0.10 * torch.sin(34 * (y - h) / (0.35 + y - h).clamp(min=0.2) + a)
        )
        slope = base * light * (0.95 - 0.5 * depth + furrow) * (1.15 - 0.30 * near)
        slope = _mix(slope, haze * 0.55, torch.full_like(x, 0.55 * (1 - near)))
        alpha = _edge(top - y, size)
        colour, cover = _mix(colour, slope, alpha), cover + alpha * (1 - cover)
    return colour, cover


def _ripples(s: Scenes, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the crests of the lake's ripples at the points (x, y), and how far they bend reflections, each [B, 1, H, W]."""
    depth = (y - _column(s.horizon)).clamp(min=0)
    # Ripples crowd towards the horizon and bend the mirror more the nearer they are.
    waves = 58 * depth / (0.50 + depth) + 1.2 * torch.sin(3.7 * x + _column(s.phase[:, 5])) + _column(s.phase[:, 6])
    crest = torch.sin(waves)
    return crest, 0.6 * crest + 0.4 * torch.sin(5.0 * x + 16 * depth + _column(s.phase[:, 7]))


def _lake(s: Scenes, x: Tensor, y: Tensor, size: int) -> Tensor:
    """Draw the lake at the points (x, y) below the horizon, a rippled mirror of the sky -> [B, 3, H, W]."""
    h = _column(s.horizon)
    depth = (y - h).clamp(min=0)
    crest, bend = _ripples(s, x, y)
    mirrored = _sky(s, x + 0.11 * depth.sqrt() * bend, h - 1.30 * depth - 0.05 * crest * depth.sqrt(), size, stars=False)
    return mirrored * _column(_GROUND.to(x.device)[s.place]) * (0.80 + 0.22 * crest * depth.sqrt())


class Renderer:
    def __init__(self, pictures: Tensor, device: torch.device | str = "cpu") -> None:
        """`pictures`: the sprites of NOUNS, [N, 4, SPRITE, SPRITE] uint8, as `emoji.sprites` returns them."""
        self.pictures = torch.cat((pictures, torch.zeros_like(pictures[:1]))).to(device)  # the last is that of NONE
        alpha = self.pictures[:, 3].float() / 255
        # The part of a sprite that touches the ground: middle and half width of its lowest rows, in shares of its side.
        low = alpha[:, -MARGIN - 20 : -MARGIN].amax(1)
        axis = (torch.arange(SPRITE, device=device) + 0.5) / SPRITE - 0.5
        left = torch.where(low > 0.5, axis, 1.0).amin(1)
        right = torch.where(low > 0.5, axis, -1.0).amax(1)
        self.contact = torch.stack(((left + right) / 2, (right - left) / 2), -1) * (SPRITE / (SPRITE - 2 * MARGIN))
        colour = self.pictures[:, :3].float().sum((2, 3)) / (255 * alpha.sum((1, 2)).clamp(min=1))[:, None]
        self.colour = colour  # [N + 1, 3] mean colours

    def _sprite(self, s: Scenes, i: int, x: Tensor, y: Tensor) -> Tensor:
        """Sample sprite i of every scene at the points (x, y) -> [B, 4, H, W], colours multiplied by opacity."""
        found = x.new_zeros(len(x), 4, *x.shape[2:])
        rows = (s.kind[:, i] != NONE).nonzero()[:, 0]
        if not len(rows):
            return found
        side, foot = _column(s.side[rows, i].clamp(min=0.05)), s.foot[rows, i]
        scale = 2 * (SPRITE - 2 * MARGIN) / SPRITE
        across = scale * (x[rows] - _column(foot[:, 0])) / side
        down = 1 - 2 * MARGIN / SPRITE + scale * (y[rows] - _column(foot[:, 1])) / side
        grid = torch.cat((across, down), 1).permute(0, 2, 3, 1)
        pictures = self.pictures[s.kind[rows, i]].float() / 255
        if 2.5 * float(side.max()) * x.shape[-1] / 2 < SPRITE:  # small: the grid would skip pixels
            pictures = F.avg_pool2d(pictures, 2)
        found[rows] = F.grid_sample(pictures, grid, align_corners=False, padding_mode="zeros")
        return found

    def _smooth(self, s: Scenes, i: int, x: Tensor, y: Tensor, size: int) -> Tensor:
        """Return the mean of `_sprite` at four points of each pixel."""
        step = 0.5 / size
        return torch.stack([self._sprite(s, i, x + dx, y + dy) for dx in (-step, step) for dy in (-step, step)]).mean(0)

    @torch.no_grad()
    def __call__(self, scenes: Scenes, size: int = SIZE) -> Tensor:
        """Draw scenes on the sprites' device -> [B, 4, size, size] float32 in [0, 1].

        The first three channels are the picture. The last one is the share of each pixel that sprites cover.
        """
        s = scenes.to(self.pictures.device)
        batch, device = s.noun.shape[0], self.pictures.device
        axis = (torch.arange(size, device=device) + 0.5) * (2 / size) - 1
        x = axis.view(1, 1, 1, size).expand(batch, 1, size, size)
        y = axis.view(1, 1, size, 1).expand(batch, 1, size, size)
        is_lake = _column(s.place == 0).float()
        picture = _sky(s, x, y, size)
        land, on_land = _land(s, x, y, size)
        on_land = on_land * (1 - is_lake)
        on_lake = _edge(_column(s.horizon) - y, size) * is_lake
        glow = self._glow(s, x, y)
        picture = _mix(picture, land + glow * (0.25 + land), on_land)
        shore = 1 - 0.45 * torch.exp(-(((y - _column(s.horizon)) / 0.02) ** 2))
        picture = _mix(picture, _lake(s, x, y, size) * shore, on_lake) + 0.35 * glow
        picture = picture * (1 - self._shadows(s, x, y) * on_land)
        # A film curve: lights roll off softly instead of clipping.
        picture = (1 - torch.exp(-1.55 * picture.clamp(min=0))) ** 0.85
        light = self._light(s)
        cover = torch.zeros_like(x)
        order = s.ground.masked_fill(s.kind == NONE, -2).argsort(1)  # the farthest first
        s = Scenes(**{**{f.name: getattr(s, f.name) for f in fields(s)}, **_in_order(s, order)})
        light = light.gather(1, order)
        crest, bend = _ripples(s, x, y)
        for i in range(MAX_COUNT):
            self._reflect(s, i, x, y, crest, bend, picture, light[:, i], on_lake)
        for i in range(MAX_COUNT):
            sprite = self._smooth(s, i, x, y, size)
            alpha = sprite[:, 3:]
            # Light comes from above, so the lower part of a sprite gets less of it.
            shade = 1 - 0.16 * ((y - _column(s.foot[:, i, 1])) / _column(s.side[:, i].clamp(min=0.05)) + 0.5).clamp(0, 0.5)
            picture = picture * (1 - alpha) + sprite[:, :3] * _column(light[:, i]) * shade
            cover = cover + alpha * (1 - cover)
        return torch.cat((picture, cover), 1).clamp(0, 1)

    def _light(self, s: Scenes) -> Tensor:
        """Return the factor [B, 3] of the colours of every sprite."""
        return torch.where(_GLOW.to(s.kind.device)[s.kind], _GLOWING, _LIGHT)

    def _glow(self, s: Scenes, x: Tensor, y: Tensor) -> Tensor:
        """Draw the light that glowing sprites throw around them -> [B, 3, H, W]."""
        total = torch.zeros_like(x).expand(-1, 3, -1, -1)
        strength = torch.tensor([0.45, 0.55, 0.15], device=x.device)[s.time]
        for i in range(MAX_COUNT):
            side = s.side[:, i]
            middle = _column(s.foot[:, i, 1] - 0.5 * side)
            far = ((x - _column(s.foot[:, i, 0])) ** 2 + (y - middle) ** 2) / _column(side.clamp(min=0.05) ** 2)
            shines = strength * _GLOW.to(x.device)[s.kind[:, i]]
            colour = self.colour[s.kind[:, i]] ** 2 * shines[:, None]
            total = total + _column(colour) * (torch.exp(-far / 0.35) + 0.25 * torch.exp(-far / 1.6))
        return total

    def _shadows(self, s: Scenes, x: Tensor, y: Tensor) -> Tensor:
        """Return the share of the ground's light that sprites block, [B, 1, H, W] in [0, 1]."""
        lit = torch.ones_like(x)
        for i in range(MAX_COUNT):
            side, middle, half = s.side[:, i], *self.contact[s.kind[:, i]].unbind(-1)
            across = x - _column(s.foot[:, i, 0] + middle * side)
            down = y - _column(s.ground[:, i])
            lift = s.ground[:, i] - s.foot[:, i, 1]
            wide = (half * side * 1.12).clamp(min=0.07)
            near = torch.exp(-((across / _column(wide)) ** 4) - (down / _column((0.22 * wide).clamp(0.025, 0.06))) ** 2)
            soft = torch.exp(-(((x - _column(s.foot[:, i, 0])) / _column(0.52 * side + 0.05)) ** 2) - (down / 0.11) ** 2)
            touching = (s.kind[:, i] != NONE) * torch.exp(-((lift / 0.05) ** 2))
            below = (s.kind[:, i] != NONE) * torch.where(lift > 0.05, 0.30, 0.38)
            lit = lit * (1 - 0.62 * _column(touching) * near) * (1 - _column(below) * soft)
        return 1 - lit

    def _reflect(
        self,
        s: Scenes,
        i: int,
        x: Tensor,
        y: Tensor,
        crest: Tensor,
        bend: Tensor,
        picture: Tensor,
        light: Tensor,
        on_lake: Tensor,
    ) -> None:
        """Draw the reflection of sprite i of every scene in the lake, into `picture`."""
        below = (y - _column(s.ground[:, i])).clamp(min=0)
        mirror_x = x + 0.09 * below.sqrt() * bend
        mirror_y = _column(s.ground[:, i]) - 1.15 * below - 0.03 * crest * below.sqrt()
        sprite = self._sprite(s, i, mirror_x, mirror_y)
        strength = on_lake * (below > 0) * 0.62 * torch.exp(-1.1 * below)
        tint = torch.tensor([0.74, 0.82, 0.92], device=x.device).view(1, 3, 1, 1)
        dim = _column(light) * tint * (0.86 + 0.14 * crest * (below.sqrt() * 2).clamp(max=1))
        alpha = sprite[:, 3:] * strength
        picture.mul_(1 - alpha).add_(sprite[:, :3] * dim * strength)


def _in_order(s: Scenes, order: Tensor) -> dict[str, Tensor]:
    """Return the fields of the sprites in the order `order` [B, 3]."""
    foot = s.foot.gather(1, order[..., None].expand(-1, -1, 2))
    return {"foot": foot, **{name: getattr(s, name).gather(1, order) for name in ("kind", "side", "ground")}}


def contact_sheet(images: Tensor, columns: int) -> Image.Image:
    """Join pictures [B, 3, H, W] in [0, 1] to one picture, row by row. B is a multiple of `columns`."""
    rows = [torch.cat(tuple(row), -1) for row in images.split(columns)]
    return Image.fromarray((torch.cat(rows, -2).permute(1, 2, 0) * 255).round().byte().cpu().numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw emoji scenes into one picture and print their captions.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=SIZE, help=f"pixels a side of a scene (default: {SIZE})")
    args = parser.parse_args()
    scenes = sample_scenes(args.count, args.seed)
    contact_sheet(Renderer(sprites())(scenes, args.size)[:, :3], args.columns).save(args.out)
    rng = random.Random(args.seed)
    for index in range(args.count):
        print(f"{index // args.columns + 1}.{index % args.columns + 1} {caption(scenes.row(index), rng)}")


if __name__ == "__main__":
    main()
