"""Draw paper lanterns.

Everything is closed-form torch arithmetic on a grid of points, on any device. Colours are linear
RGB.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from examples.make_bundled_model.landscape import column, edge, mix, rgb

if TYPE_CHECKING:
    from examples.make_bundled_model.scenes import Scenes

# Paper colour of a lantern, and the colour of the light it throws (linear RGB).
PAPER = torch.tensor(
    [
        [0.95, 0.10, 0.07],
        [1.00, 0.42, 0.05],
        [1.00, 0.82, 0.14],
        [0.16, 0.80, 0.26],
        [0.14, 0.38, 1.00],
        [0.68, 0.22, 0.95],
    ]
)


def _line(distance: Tensor, size: int) -> Tensor:
    """Return the profile of a painted line, 1 in its middle, by the distance from there in half
    widths.

    It is a bell at 128 pixels. In a larger picture its top is flatter and its sides are steeper, at
    about the same width.
    """
    return torch.exp(-(distance.abs() ** (2.0 * size / 128)))


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
    paper = column(PAPER.to(x.device)[s.colour])
    is_box, is_sky = column(s.shape == 1), column(s.shape == 2)
    colour, cover = torch.zeros_like(x).expand(-1, 3, -1, -1), torch.zeros_like(x)
    light = torch.zeros_like(x)
    for i in range(int((s.radius > 0).sum(1).max())):
        r = column(s.radius[:, i])
        present = (r > 0).float()
        r = r.clamp(min=0.05)
        u, v = (x - column(s.centre[:, i, 0])) / r, (y - column(s.centre[:, i, 1])) / r
        rr = u * u + v * v
        waist = 0.80 - 0.13 * v - 0.10 * v * v
        body, cap = _outlines(u, v, waist, is_box, is_sky)
        inside = edge(body * r, size)
        # Light falls off from the candle, which sits low in a sky lantern.
        candle = torch.where(is_sky, torch.full_like(v, 0.55), torch.full_like(v, 0.08))
        core = torch.exp(-(u * u * 1.9 + (v - candle) ** 2 * 1.5))
        shade = paper * (0.50 + 0.85 * core) + rgb(1.0, 0.78, 0.42, x.device) * 0.62 * core**3
        # Ribs: hoops on a globe, a lattice on a box, seams on a balloon.
        hoop = torch.cos(v * 3.55 * math.pi / 0.86)
        lattice = torch.maximum(_line(u / 0.075, size), _line((v.abs() - 0.36) / 0.07, size))
        seam = _line((u.abs() - 0.34 * waist) / 0.075, size)
        rib = torch.where(
            is_box, 1.15 * lattice, torch.where(is_sky, 0.75 * seam, 0.62 * torch.relu(hoop) ** 2)
        )
        shade = shade * (1 - 0.62 * rib)
        dark = edge(cap * r, size)
        trim = rgb(0.20, 0.11, 0.05, x.device) + 0.18 * paper * core
        # A cord upwards and a tassel below, for lanterns that hang.
        cord = edge((u.abs() * r - 0.008), size, 1.0) * (v < -0.9) * (~is_sky)
        tassel = edge(
            torch.maximum(u.abs() - 0.07 - 0.05 * (v - 1), (v - 1.25).abs() - 0.24) * r, size
        ) * (~is_sky)
        flame = torch.exp(-((u / 0.16) ** 2 + ((v - 0.86) / 0.20) ** 2)) * is_sky
        layer = mix(shade, trim, dark)
        layer = mix(layer, 0.85 * paper * 0.8 + 0.05, tassel * (1 - inside))
        layer = mix(layer, torch.full_like(layer, 0.07), cord * (1 - inside) * (1 - dark))
        layer = layer + rgb(1.6, 1.2, 0.5, x.device) * flame
        alpha = (1 - (1 - inside) * (1 - dark) * (1 - 0.9 * tassel) * (1 - 0.75 * cord)) * present
        colour, cover = mix(colour, layer, alpha), cover + alpha * (1 - cover)
        light = light + present * (0.62 * torch.exp(-rr / 2.6) + 0.20 * torch.exp(-rr / 11.0))
    warm = 0.80 * paper + rgb(0.16, 0.10, 0.03, x.device)
    return colour, cover, warm * light
