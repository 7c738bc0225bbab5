"""The renderer of lantern scenes: seeded, in range, truthful about its attributes and captions."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from examples.make_bundled_model.lanterns import (
    HORIZON,
    SIZE,
    Scenes,
    _edge,
    _line,
    render,
    sample_scenes,
)
from examples.make_bundled_model.tokenizer import psnr
from lantern_demo.scenes import ATTRIBUTES

# What each attribute may be called, written down here by itself so that a slip in the renderer's
# own lists is seen.
WORDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "count": (("one", "a", "an", "a single"), ("two", "a pair of"), ("three",), ("four",)),
    "colour": (
        ("red", "scarlet", "crimson"),
        ("orange", "amber"),
        ("yellow", "golden"),
        ("green", "jade"),
        ("blue", "azure"),
        ("purple", "violet"),
    ),
    "shape": (("round", "globe"), ("box", "square"), ("sky", "floating")),
    "place": (("lake", "water"), ("hills", "mountains"), ("plain", "fields", "meadow", "field")),
    "time": (("dusk", "sunset", "evening"), ("night", "midnight"), ("dawn", "sunrise", "morning")),
    "moon": (
        ("without a moon", "no moon", "moonless"),
        ("full moon", "the moon", "with a moon", "moonlight"),
    ),
}


def says(text: str, phrases: tuple[str, ...]) -> bool:
    return any(f" {phrase} " in f" {text.replace(',', ' ')} " for phrase in phrases)


def test_scenes_are_seeded_in_range_and_of_all_attributes() -> None:
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    scenes, again, other = sample_scenes(600, 1), sample_scenes(600, 1), sample_scenes(600, 2)
    render(scenes.rows(slice(1)))
    assert torch.equal(torch.rand(3), wanted), "the global generator is left alone"
    assert all(torch.equal(getattr(scenes, f.name), getattr(again, f.name)) for f in fields(Scenes))
    assert not torch.equal(scenes.centre, other.centre) and not torch.equal(
        scenes.phase, other.phase
    )
    assert list(scenes.attributes()) == list(ATTRIBUTES)
    for name, classes in ATTRIBUTES.items():
        share = torch.bincount(scenes.attributes()[name], minlength=len(classes)) / 600
        # five standard deviations around an even share
        assert len(share) == len(classes)
        assert ((share - 1 / len(classes)).abs() < 5 * (1 / len(classes) / 600) ** 0.5).all(), name
    assert torch.equal((scenes.radius > 0).sum(1), scenes.count + 1) and scenes.radius.max() < 0.35
    assert HORIZON[0] <= scenes.horizon.min() and scenes.horizon.max() <= HORIZON[1]
    for row in range(300):  # lanterns are in the picture, and apart
        n = int(scenes.count[row]) + 1
        x, r = scenes.centre[row, :n, 0], scenes.radius[row, :n]
        assert (x.abs() + r <= 1.0).all() and (x.diff() >= (r[1:] + r[:-1]) * 0.99).all(), row


def test_pictures_are_in_range_and_depend_on_their_scene_alone() -> None:
    """Not on the batch; a larger one shows the same scene."""
    scenes = sample_scenes(5, 4)
    pictures, large = render(scenes), render(scenes, 256)
    assert pictures.shape == (5, 3, SIZE, SIZE) and pictures.dtype == torch.float32
    assert large.shape == (5, 3, 256, 256)
    for drawn in (pictures, large):
        assert drawn.isfinite().all() and drawn.min() >= 0 and drawn.max() <= 1
    order = torch.tensor([4, 2])
    torch.testing.assert_close(render(scenes.rows(order)), pictures[order], atol=1e-5, rtol=0)
    assert psnr(F.interpolate(large, size=128, mode="area"), pictures).min() > 30
    with pytest.raises(ValueError, match="size must be at least 8 pixels, got 7"):
        render(scenes, 7)


def test_pictures_of_128_pixels_are_those_of_the_bundled_tokens() -> None:
    """On which the tokenizer was trained.

    A machine's own exponentials may move a pixel by a level of 255.
    """
    kept = torch.from_numpy(
        numpy.array(Image.open(Path(__file__).with_name("scenes128.png")))
    ).int()
    drawn = (
        (torch.cat(tuple(render(sample_scenes(6, 2026))), -1).permute(1, 2, 0) * 255).round().int()
    )
    assert (drawn - kept).abs().max() <= 1
    # and what depends on the size is, at 128, bit for bit what it was
    g = torch.Generator().manual_seed(0)
    distance = torch.randn(10_000, generator=g)
    assert torch.equal(_line(distance / 0.075, SIZE), torch.exp(-((distance / 0.075) ** 2)))
    assert torch.equal(_edge(distance, SIZE), torch.sigmoid(-distance * (128 * 2.0 / 1.2 / 2.0)))
    assert torch.equal(render(sample_scenes(2, 7), SIZE), render(sample_scenes(2, 7)))


def changed(scenes: Scenes, **values: int) -> Scenes:
    kept = {f.name: getattr(scenes, f.name) for f in fields(Scenes)}
    return Scenes(
        **{**kept, **{name: torch.full_like(kept[name], value) for name, value in values.items()}}
    )
