"""Lantern scenes: a batched, seeded renderer of captioned pictures with known attributes.

Every picture shows one to four paper lanterns of one colour and one shape. They hang over a lake,
hills or a plain, at dusk, night or dawn, with or without a moon. A scene has known attributes, so
that a model's picture can be compared with the request. Everything is closed-form torch arithmetic
on a pixel grid, on any device.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from lantern_demo.scenes import (
    ATTRIBUTES,
    COLOURS,
    MAX_COUNT,
    NOUN,
    PLACES,
    SHAPES,
    TIMES,
    WORDINGS,
)

SIZE = 128  # side of the image tokenizer's input in pixels; scenes can be drawn at other sizes
HORIZON = (0.34, 0.50)  # the range of the horizon's y; y runs from -1 at the top to 1 at the bottom
STARS = 16
HELD_OUT = 900_000_007  # seed of the scenes that no training batch uses

# Paper colour of a lantern, and the colour of the light it throws (linear RGB).
_PAPER = torch.tensor(
    [
        [0.95, 0.10, 0.07],
        [1.00, 0.42, 0.05],
        [1.00, 0.82, 0.14],
        [0.16, 0.80, 0.26],
        [0.14, 0.38, 1.00],
        [0.68, 0.22, 0.95],
    ]
)
# Sky colours per time of day at the zenith, half way down, and at the horizon.
_SKY = torch.tensor(
    [
        [[0.10, 0.08, 0.26], [0.44, 0.19, 0.40], [1.00, 0.48, 0.24]],
        [[0.010, 0.016, 0.055], [0.028, 0.045, 0.130], [0.070, 0.110, 0.220]],
        [[0.32, 0.50, 0.78], [0.66, 0.68, 0.80], [1.05, 0.82, 0.66]],
    ]
)
# Ground colours before the light of the hour, in the order of PLACES. The lake's is the tint of its
# water.
_GROUND = torch.tensor([[0.62, 0.72, 0.86], [0.16, 0.24, 0.20], [0.34, 0.30, 0.14]])
_DAYLIGHT = torch.tensor([0.55, 0.20, 1.10])  # ambient light on the ground by hour


@dataclass
class Scenes:
    """Parameters of B scenes. Every field is a tensor whose first dimension is B."""

    count: Tensor  # [B] int64, 0..3 stands for 1..4 lanterns
    colour: Tensor  # [B] int64, index into COLOURS
    shape: Tensor  # [B] int64, index into SHAPES
    place: Tensor  # [B] int64, index into PLACES
    time: Tensor  # [B] int64, index into TIMES
    moon: Tensor  # [B] int64, 0 or 1
    centre: Tensor  # [B, 4, 2] lantern centres, x and y in [-1, 1], y downwards
    radius: Tensor  # [B, 4] lantern radii; 0 where there is no lantern
    horizon: Tensor  # [B] y of the horizon
    moon_at: Tensor  # [B, 2]
    phase: Tensor  # [B, 8] phases of hills, ripples and grass
    stars: Tensor  # [B, STARS, 3] x, y, brightness

    def attributes(self) -> dict[str, Tensor]:
        """Return the class index of every attribute, [B] int64 each, keyed as in ATTRIBUTES."""
        return {name: getattr(self, name) for name in ATTRIBUTES}

    def rows(self, index: Tensor | slice) -> Scenes:
        """Return the scenes at an index."""
        return Scenes(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    def to(self, device: torch.device | str) -> Scenes:
        return Scenes(**{f.name: getattr(self, f.name).to(device) for f in fields(self)})


def sample_scenes(batch: int, seed: int, wanted: dict[str, Tensor] | None = None) -> Scenes:
    """Draw the parameters of `batch` scenes, with the attributes `wanted` [batch] if given.

    The same seed gives the same scenes on every machine (CPU generator)."""
    g = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=g)

    def pick(n: int) -> Tensor:
        return torch.randint(n, (batch,), generator=g)

    count, colour, shape = pick(MAX_COUNT), pick(len(COLOURS)), pick(len(SHAPES))
    place, time, moon = pick(len(PLACES)), pick(len(TIMES)), pick(2)
    if wanted is not None:
        count, colour, shape, place, time, moon = (wanted[name] for name in ATTRIBUTES)
    n = (count + 1)[:, None].float()
    slot = torch.arange(MAX_COUNT)[None].float()
    # Slots of equal width separate the lanterns. The jitter stays inside the free part of a slot.
    width = 1.84 / n
    radius = torch.minimum(uniform(0.205, 0.30, batch, 1), 0.42 * width) * uniform(
        0.92, 1.0, batch, MAX_COUNT
    )
    free = (0.5 * width - 1.06 * radius).clamp(min=0) * torch.where(n == 1, 0.8, 1.0)
    x = -0.92 + width * (slot + 0.5) + free * uniform(-1, 1, batch, MAX_COUNT)
    y = uniform(-0.34, 0.12, batch, 1) + uniform(-0.17, 0.17, batch, MAX_COUNT)
    y = torch.where((shape == 2)[:, None], y - 0.10 + uniform(-0.12, 0.12, batch, MAX_COUNT), y)
    radius = torch.where(slot < n, radius, torch.zeros(()))
    side = torch.where(uniform(0, 1, batch) < 0.5, -1.0, 1.0)
    moon_at = torch.stack((side * uniform(0.35, 0.78, batch), uniform(-0.80, -0.58, batch)), -1)
    stars = torch.stack(
        (
            uniform(-1, 1, batch, STARS),
            uniform(-1, 0.3, batch, STARS),
            uniform(0.2, 1, batch, STARS),
        ),
        -1,
    )
    return Scenes(
        count,
        colour,
        shape,
        place,
        time,
        moon,
        torch.stack((x, y), -1),
        radius,
        uniform(*HORIZON, batch),
        moon_at,
        uniform(0, 2 * math.pi, batch, 8),
        stars,
    )


def _edge(distance: Tensor, size: int, softness: float = 1.2) -> Tensor:
    """Return 1 inside (negative distance), 0 outside, smooth over about `softness` pixels of a
    picture `size` pixels wide.
    """
    return torch.sigmoid(-distance * (size * 2.0 / softness / 2.0))


def _line(distance: Tensor, size: int) -> Tensor:
    """Return the profile of a painted line, 1 in its middle, by the distance from there in half
    widths.

    It is a bell at 128 pixels. In a larger picture its top is flatter and its sides are steeper, at
    about the same width.
    """
    return torch.exp(-(distance.abs() ** (2.0 * size / SIZE)))


def _mix(base: Tensor, over: Tensor, alpha: Tensor) -> Tensor:
    return base + (over - base) * alpha


def _column(value: Tensor) -> Tensor:
    """Reshape [B] or [B, C] to broadcast over [B, C, H, W]."""
    return (
        value.reshape(*value.shape, *([1] * (4 - value.dim())))
        if value.dim() > 1
        else value[:, None, None, None]
    )


def _sky(s: Scenes, x: Tensor, y: Tensor, size: int, stars: bool = True) -> Tensor:
    """Draw sky, moon and optionally stars [B, 3, H, W] at points (x, y), each [B, 1, H, W]."""
    palette = _SKY.to(x.device)[s.time]
    height = ((y + 1) / (_column(s.horizon) + 1)).clamp(0, 1)
    top, middle, low = (_column(palette[:, i]) for i in range(3))
    colour = torch.where(
        height < 0.6,
        _mix(top, middle, height / 0.6),
        _mix(middle, low, ((height - 0.6) / 0.4) ** 1.6),
    )
    # Thin bands of cloud catch the light of dusk and dawn.
    drift = torch.sin(3.1 * x + _column(s.phase[:, 0])) + 0.6 * torch.sin(
        5.3 * x + _column(s.phase[:, 1])
    )
    band = torch.exp(-(((y + 0.22 + 0.05 * drift) / 0.07) ** 2)) + 0.7 * torch.exp(
        -(((y - 0.08 + 0.04 * drift) / 0.05) ** 2)
    )
    tint = torch.tensor(
        [[0.30, 0.10, 0.06], [0.012, 0.018, 0.035], [0.16, 0.13, 0.10]], device=x.device
    )[s.time]
    colour = colour + _column(tint) * band
    if stars:
        # A star is an outer product of two bumps, one along each axis of the grid, which avoids a
        # field of distances. A larger picture gathers the same light on a smaller spot.
        spot = 0.0003 * SIZE / size
        bump_x = torch.exp(-((x[:, 0, 0, None, :] - s.stars[:, :, 0, None]) ** 2) / spot)
        bump_y = torch.exp(
            -((y[:, 0, :, 0, None].transpose(1, 2) - s.stars[:, :, 1, None]) ** 2) / spot
        )
        night = torch.tensor([0.25, 1.0, 0.0], device=x.device)[s.time]
        star = torch.einsum(
            "bs,bsy,bsx->byx", s.stars[:, :, 2] * night[:, None] * (size / SIZE), bump_y, bump_x
        )[:, None]
        colour = colour + star * torch.tensor([0.8, 0.85, 1.0], device=x.device).view(1, 3, 1, 1)
    distance = ((x - _column(s.moon_at[:, 0])) ** 2 + (y - _column(s.moon_at[:, 1])) ** 2).sqrt()
    halo = 0.30 * torch.exp(-((distance / 0.34) ** 2)) + 0.25 * torch.exp(-((distance / 0.19) ** 2))
    glow = torch.tensor([0.85, 0.88, 1.0], device=x.device).view(1, 3, 1, 1) * halo
    maria = (
        0.16
        * torch.sin(26 * (x - _column(s.moon_at[:, 0])) + 1)
        * torch.sin(21 * (y - _column(s.moon_at[:, 1])) + 2)
    )
    face = torch.tensor([1.9, 1.85, 1.6], device=x.device).view(1, 3, 1, 1) * (0.92 + maria)
    return torch.where(
        _column(s.moon) > 0, _mix(colour + glow, face, _edge(distance - 0.115, size)), colour
    )


def _outlines(
    u: Tensor, v: Tensor, waist: Tensor, is_box: Tensor, is_sky: Tensor
) -> tuple[Tensor, Tensor]:
    """Return signed distances in units of the radius, of the body and of its dark caps or frame.

    The body is an oblate globe, a box, or a balloon that narrows to its flame.
    """
    globe = ((u / 1.0) ** 2 + (v / 0.86) ** 2).sqrt() - 1
    box = torch.maximum(u.abs() - 0.70, v.abs() - 0.92)
    balloon = torch.maximum(
        u.abs() - waist * (1 - 0.26 * torch.relu(-v - 0.35) ** 2 * 3.0), v.abs() - 1.0
    )
    cap_globe = torch.maximum(u.abs() - 0.36, (v.abs() - 0.88).abs() - 0.10)
    frame_box = torch.maximum(u.abs() - 0.80, (v.abs() - 0.92).abs() - 0.10)
    ring_sky = torch.maximum(u.abs() - 0.58, (v - 1.0).abs() - 0.06)
    body = torch.where(is_box, box, torch.where(is_sky, balloon, globe))
    return body, torch.where(is_box, frame_box, torch.where(is_sky, ring_sky, cap_globe))


def paper_lanterns(s: Scenes, x: Tensor, y: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw lanterns at the points (x, y) -> colour [B, 3, H, W], cover [B, 1, H, W], light around
    them [B, 3, H, W].
    """
    paper = _column(_PAPER.to(x.device)[s.colour])
    is_box, is_sky = _column(s.shape == 1), _column(s.shape == 2)
    colour, cover = torch.zeros_like(x).expand(-1, 3, -1, -1), torch.zeros_like(x)
    light = torch.zeros_like(x)
    for i in range(int((s.radius > 0).sum(1).max())):
        r = _column(s.radius[:, i])
        present = (r > 0).float()
        r = r.clamp(min=0.05)
        u, v = (x - _column(s.centre[:, i, 0])) / r, (y - _column(s.centre[:, i, 1])) / r
        rr = u * u + v * v
        waist = 0.80 - 0.13 * v - 0.10 * v * v
        body, cap = _outlines(u, v, waist, is_box, is_sky)
        inside = _edge(body * r, size)
        # Light falls off from the candle, which sits low in a sky lantern.
        candle = torch.where(is_sky, torch.full_like(v, 0.55), torch.full_like(v, 0.08))
        core = torch.exp(-(u * u * 1.9 + (v - candle) ** 2 * 1.5))
        shade = (
            paper * (0.50 + 0.85 * core)
            + torch.tensor([1.0, 0.78, 0.42], device=x.device).view(1, 3, 1, 1) * 0.62 * core**3
        )
        # Ribs: hoops on a globe, a lattice on a box, seams on a balloon.
        hoop = torch.cos(v * 3.55 * math.pi / 0.86)
        lattice = torch.maximum(_line(u / 0.075, size), _line((v.abs() - 0.36) / 0.07, size))
        seam = _line((u.abs() - 0.34 * waist) / 0.075, size)
        rib = torch.where(
            is_box, 1.15 * lattice, torch.where(is_sky, 0.75 * seam, 0.62 * torch.relu(hoop) ** 2)
        )
        shade = shade * (1 - 0.62 * rib)
        dark = _edge(cap * r, size)
        trim = (
            torch.tensor([0.20, 0.11, 0.05], device=x.device).view(1, 3, 1, 1) + 0.18 * paper * core
        )
        # A cord upwards and a tassel below, for lanterns that hang.
        cord = _edge((u.abs() * r - 0.008), size, 1.0) * (v < -0.9) * (~is_sky)
        tassel = _edge(
            torch.maximum(u.abs() - 0.07 - 0.05 * (v - 1), (v - 1.25).abs() - 0.24) * r, size
        ) * (~is_sky)
        flame = torch.exp(-((u / 0.16) ** 2 + ((v - 0.86) / 0.20) ** 2)) * is_sky
        layer = _mix(shade, trim, dark)
        layer = _mix(layer, 0.85 * paper * 0.8 + 0.05, tassel * (1 - inside))
        layer = _mix(layer, torch.full_like(layer, 0.07), cord * (1 - inside) * (1 - dark))
        layer = layer + torch.tensor([1.6, 1.2, 0.5], device=x.device).view(1, 3, 1, 1) * flame
        alpha = (1 - (1 - inside) * (1 - dark) * (1 - 0.9 * tassel) * (1 - 0.75 * cord)) * present
        colour, cover = _mix(colour, layer, alpha), cover + alpha * (1 - cover)
        light = light + present * (0.62 * torch.exp(-rr / 2.6) + 0.20 * torch.exp(-rr / 11.0))
    warm = 0.80 * paper + torch.tensor([0.16, 0.10, 0.03], device=x.device).view(1, 3, 1, 1)
    return colour, cover, warm * light


def _ground(s: Scenes, x: Tensor, y: Tensor, glow: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Draw hills or plain at the points (x, y), lit by the hour and the lanterns -> colour [B, 3,
    H, W], cover [B, 1, H, W].
    """
    p, h = s.phase, _column(s.horizon)
    haze = _column(_SKY.to(x.device)[s.time, 2])
    ambient = _column(_DAYLIGHT.to(x.device)[s.time])
    base = _column(_GROUND.to(x.device)[s.place])
    is_hills = _column(s.place == 1)
    colour, cover = torch.zeros_like(x).expand(-1, 3, -1, -1), torch.zeros_like(x)
    for layer, (lift, swing, near) in enumerate(
        ((-0.30, 0.13, 0.25), (-0.06, 0.11, 0.6), (0.24, 0.08, 1.0))
    ):
        a, b = _column(p[:, 2 + layer]), _column(p[:, 5 + layer])
        ridge = h + lift + swing * torch.sin(2.2 * x + a) + 0.45 * swing * torch.sin(4.6 * x + b)
        flat = h + 0.14 * layer + 0.012 * torch.sin(3 * x + a)
        top = torch.where(is_hills, ridge, flat)
        depth = (y - top).clamp(min=0)
        furrow = torch.where(
            is_hills,
            0.05 * torch.sin(9 * x + 14 * depth + a),
            0.16 * torch.sin(34 * (y - h) / (0.35 + y - h).clamp(min=0.2) + a),
        )
        slope = base * (ambient * (0.9 - 0.5 * depth + furrow)) * (1.15 - 0.45 * near)
        slope = _mix(slope, haze * 0.55, torch.full_like(x, 0.55 * (1 - near)))
        slope = slope + glow * (0.28 + 0.30 * near) * (0.6 + base)
        alpha = _edge(top - y, size)
        colour, cover = _mix(colour, slope, alpha), cover + alpha * (1 - cover)
    return colour, cover


def _water(s: Scenes, x: Tensor, y: Tensor, size: int) -> Tensor:
    """Draw the lake at the points (x, y) below the horizon, a rippled mirror of sky and lanterns ->
    [B, 3, H, W].
    """
    p, h = s.phase, _column(s.horizon)
    depth = (y - h).clamp(min=0)
    # Ripples crowd towards the horizon and bend the mirror more the nearer they are.
    crest = torch.sin(
        58 * depth / (0.50 + depth) + 1.2 * torch.sin(3.7 * x + _column(p[:, 5])) + _column(p[:, 6])
    )
    bend = torch.sin(5.0 * x + 16 * depth + _column(p[:, 7]))
    mirror_x = x + 0.11 * depth.sqrt() * (0.6 * crest + 0.4 * bend)
    mirror_y = h - 1.30 * depth - 0.05 * crest * depth.sqrt()
    sky = _sky(s, mirror_x, mirror_y, size, stars=False)
    lantern, cover, glow = paper_lanterns(s, mirror_x, mirror_y, size)
    tint = _column(_GROUND.to(x.device)[s.place])
    mirrored = _mix(sky * tint + 0.55 * glow, 0.62 * lantern, 0.85 * cover)
    return mirrored * (0.80 + 0.22 * crest * depth.sqrt()) + 0.10 * glow * (1 + crest)


def render(scenes: Scenes, size: int = SIZE) -> Tensor:
    """Draw the scenes on the device of their tensors -> [B, 3, size, size] float32 in [0, 1].

    A larger picture shows the same scene with sharper edges, stars, cords and lattices. Raises
    ValueError for a size below 8.
    """
    if size < 8:
        raise ValueError(f"size must be at least 8 pixels, got {size}")
    s, device = scenes, scenes.centre.device
    batch = s.count.shape[0]
    axis = (torch.arange(size, device=device) + 0.5) * (2 / size) - 1
    x = axis.view(1, 1, 1, size).expand(batch, 1, size, size)
    y = axis.view(1, 1, size, 1).expand(batch, 1, size, size)
    is_lake, is_land = _column(s.place == 0).float(), _column(s.place != 0).float()
    lantern, cover, glow = paper_lanterns(s, x, y, size)
    picture = _sky(s, x, y, size) + 0.55 * glow
    ground, on_ground = _ground(s, x, y, glow, size)
    picture = _mix(picture, ground, on_ground * is_land)
    # No horizon is higher than this row, so the mirror, the most expensive part, is computed only
    # below it.
    first = int((HORIZON[0] + 1) * size / 2)
    low_y, h = y[:, :, first:], _column(s.horizon)
    shore = 1 - 0.45 * torch.exp(-(((low_y - h) / 0.02) ** 2))
    low = _mix(
        picture[:, :, first:],
        _water(s, x[:, :, first:], low_y, size) * shore,
        _edge(h - low_y, size) * is_lake,
    )
    picture = torch.cat((picture[:, :, :first], low), 2)
    picture = _mix(picture, lantern, cover)
    # A film curve: lights roll off softly instead of clipping.
    return (1 - torch.exp(-1.55 * picture.clamp(min=0))) ** 0.85


def caption(scenes: Scenes, index: int, rng: random.Random, omit: float = 0.0) -> str:
    """Return a random wording of scene `index`.

    Each attribute but the count is omitted with probability `omit`.
    """

    def say(words: tuple[str, ...]) -> str:
        return "" if rng.random() < omit else rng.choice(words)

    n = int(scenes.count[index])
    number = rng.choice(WORDINGS["count"][n])
    colour, shape = (
        say(WORDINGS["colour"][int(scenes.colour[index])]),
        say(WORDINGS["shape"][int(scenes.shape[index])]),
    )
    if number == "a" and (colour or shape or "l")[0] in "aeiou":
        number = "an"
    noun = rng.choice((NOUN, f"paper {NOUN}")) + ("s" if n else "")
    subject = " ".join(w for w in (number, colour, shape, noun) if w)
    place, time = (
        say(WORDINGS["place"][int(scenes.place[index])]),
        say(WORDINGS["time"][int(scenes.time[index])]),
    )
    moon = say(WORDINGS["moon"][int(scenes.moon[index])])
    parts = [subject, place, time, moon]
    if rng.random() < 0.25:
        parts = [subject, time, place, moon]
    if moon and rng.random() < 0.25:
        moon_part = parts.pop(3)
        parts = [*parts, "and", moon_part] if moon_part == "no moon" else [*parts, moon_part]
    text = " ".join(p for p in parts if p)
    return rng.choice((text, text, text, "a picture of " + text, text + ", softly lit"))
