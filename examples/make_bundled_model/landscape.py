"""Draw landscapes: a lake, hills or a plain, at dusk, night or dawn, with or without a moon.

Everything is closed-form torch arithmetic on a grid of points, on any device. Points x and y are
[B, 1, H, W] in [-1, 1], y downwards. Colours are linear RGB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from examples.make_bundled_model.scenes import Scenes

STARS = 20
# Sky colours per time of day: at the zenith, half way down, and at the horizon.
SKY = torch.tensor(
    [
        [[0.10, 0.08, 0.26], [0.44, 0.19, 0.40], [1.00, 0.48, 0.24]],
        [[0.010, 0.016, 0.055], [0.028, 0.045, 0.130], [0.070, 0.110, 0.220]],
        [[0.26, 0.50, 0.86], [0.62, 0.66, 0.84], [1.15, 0.78, 0.58]],
    ]
)
CLOUDS = torch.tensor([[0.30, 0.10, 0.06], [0.012, 0.018, 0.035], [0.20, 0.14, 0.10]])
# Ground colours per place, without the light of the hour. The lake's is the tint of its water.
GROUND = torch.tensor([[0.62, 0.72, 0.86], [0.14, 0.32, 0.17], [0.34, 0.38, 0.12]])
DAYLIGHT = torch.tensor([[0.80, 0.56, 0.54], [0.34, 0.44, 0.66], [1.22, 1.12, 0.98]])
RIDGES = ((-0.30, 0.13, 0.25), (-0.08, 0.10, 0.6), (0.12, 0.06, 1.0))  # lift, swing, nearness


def column(value: Tensor) -> Tensor:
    """Reshape [B] or [B, C] to broadcast over [B, C, H, W]."""
    return value.reshape(len(value), -1, 1, 1)


def mix(base: Tensor, over: Tensor, alpha: Tensor) -> Tensor:
    return base + (over - base) * alpha


def edge(distance: Tensor, size: int, softness: float = 1.2) -> Tensor:
    """Return 1 inside (negative distance), 0 outside, smooth over about `softness` pixels of a
    picture `size` pixels wide.
    """
    return torch.sigmoid(-distance * (size / softness))


def rgb(red: float, green: float, blue: float, device: torch.device) -> Tensor:
    """Return a colour as [1, 3, 1, 1]."""
    return torch.tensor([red, green, blue], device=device).view(1, 3, 1, 1)


def sky(s: Scenes, x: Tensor, y: Tensor, size: int, stars: bool = True) -> Tensor:
    """Draw sky, moon and optionally stars -> [B, 3, H, W]."""
    palette = SKY.to(x.device)[s.time]
    height = ((y + 1) / (column(s.horizon) + 1)).clamp(0, 1)
    top, middle, low = (column(palette[:, i]) for i in range(3))
    upper, lower = mix(top, middle, height / 0.6), mix(middle, low, ((height - 0.6) / 0.4) ** 1.6)
    colour = torch.where(height < 0.6, upper, lower)
    # Thin bands of cloud catch the light of dusk and dawn.
    drift = torch.sin(3.1 * x + column(s.phase[:, 0]))
    drift = drift + 0.6 * torch.sin(5.3 * x + column(s.phase[:, 1]))
    band = torch.exp(-(((y + 0.30 + 0.05 * drift) / 0.07) ** 2))
    band = band + 0.7 * torch.exp(-(((y + 0.04 * drift) / 0.05) ** 2))
    colour = colour + column(CLOUDS.to(x.device)[s.time]) * band
    if stars:
        colour = colour + _stars(s, x, y, size) * rgb(0.8, 0.85, 1.0, x.device)
    across, down = x - column(s.moon_at[:, 0]), y - column(s.moon_at[:, 1])
    distance = (across**2 + down**2).sqrt()
    halo = 0.30 * torch.exp(-((distance / 0.34) ** 2)) + 0.25 * torch.exp(-((distance / 0.19) ** 2))
    maria = 0.16 * torch.sin(26 * across + 1) * torch.sin(21 * down + 2)
    face = rgb(1.9, 1.85, 1.6, x.device) * (0.92 + maria)
    lit = mix(colour + rgb(0.85, 0.88, 1.0, x.device) * halo, face, edge(distance - 0.115, size))
    return torch.where(column(s.moon) > 0, lit, colour)


def _stars(s: Scenes, x: Tensor, y: Tensor, size: int) -> Tensor:
    """Return the light of stars [B, 1, H, W]. A star is an outer product of two bumps."""
    spot = 0.016 / size
    across = torch.exp(-((x[:, 0, 0, None, :] - s.stars[:, :, 0, None]) ** 2) / spot)
    down = torch.exp(-((y[:, 0, :, 0, None].mT - s.stars[:, :, 1, None]) ** 2) / spot)
    night = torch.tensor([0.25, 1.0, 0.0], device=x.device)[s.time]
    bright = s.stars[:, :, 2] * night[:, None] * (size / 128)
    return torch.einsum("bs,bsy,bsx->byx", bright, down, across)[:, None]


def land(s: Scenes, x: Tensor, y: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Draw hills or a plain -> colour [B, 3, H, W], cover [B, 1, H, W]."""
    p, h = s.phase, column(s.horizon)
    haze = column(SKY.to(x.device)[s.time, 2])
    light = column(DAYLIGHT.to(x.device)[s.time])
    base = column(GROUND.to(x.device)[s.place])
    hills = column(s.place == 1)
    colour, cover = torch.zeros_like(x).expand(-1, 3, -1, -1), torch.zeros_like(x)
    for layer, (lift, swing, near) in enumerate(RIDGES):
        a, b = column(p[:, 2 + layer]), column(p[:, 5 + layer])
        ridge = h + lift + swing * torch.sin(2.2 * x + a) + 0.45 * swing * torch.sin(4.6 * x + b)
        flat = h + 0.10 * layer + 0.012 * torch.sin(3 * x + a)
        top = torch.where(hills, ridge, flat)
        depth = (y - top).clamp(min=0)
        furrows = 0.10 * torch.sin(34 * (y - h) / (0.35 + y - h).clamp(min=0.2) + a)
        furrow = torch.where(hills, 0.05 * torch.sin(9 * x + 14 * depth + a), furrows)
        slope = base * light * (0.95 - 0.5 * depth + furrow) * (1.15 - 0.30 * near)
        slope = mix(slope, haze * 0.55, torch.full_like(x, 0.55 * (1 - near)))
        alpha = edge(top - y, size)
        colour, cover = mix(colour, slope, alpha), cover + alpha * (1 - cover)
    return colour, cover


def ripples(s: Scenes, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the crests of the lake's ripples, and how far they bend reflections, both
    [B, 1, H, W].

    Ripples crowd towards the horizon and bend the mirror more the nearer they are.
    """
    depth = (y - column(s.horizon)).clamp(min=0)
    waves = 58 * depth / (0.50 + depth) + 1.2 * torch.sin(3.7 * x + column(s.phase[:, 5]))
    crest = torch.sin(waves + column(s.phase[:, 6]))
    return crest, 0.6 * crest + 0.4 * torch.sin(5.0 * x + 16 * depth + column(s.phase[:, 7]))


def mirrored(s: Scenes, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the points that points of the lake mirror."""
    h = column(s.horizon)
    depth = (y - h).clamp(min=0)
    crest, bend = ripples(s, x, y)
    root = depth.sqrt()
    return x + 0.11 * root * bend, h - 1.30 * depth - 0.05 * crest * root


def lake_light(s: Scenes, x: Tensor, y: Tensor) -> Tensor:
    """Return the share [B, 3, H, W] of mirrored light that the lake returns."""
    crest, _ = ripples(s, x, y)
    depth = (y - column(s.horizon)).clamp(min=0)
    return column(GROUND.to(x.device)[s.place]) * (0.80 + 0.22 * crest * depth.sqrt())
