"""The scenes of the bundled model's world: seeded, in range, truthful about their attributes."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from examples.make_bundled_model.emoji import SPRITE
from examples.make_bundled_model.scenes import HORIZON, LANTERNS, SIZE, TWINS, Renderer, sample
from examples.make_bundled_model.scenes import Scenes as Parameters
from lantern_demo.scenes import (
    ATTRIBUTES,
    COLOURS,
    MOST_LANTERNS,
    PLACES,
    SHAPES,
    THINGS,
    TIMES,
)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    """One whose things are white squares."""
    return Renderer(torch.full((len(THINGS), 4, SPRITE, SPRITE), 255, dtype=torch.uint8), "cpu")


def even(values: Tensor, classes: int) -> bool:
    """Whether every class has its even share, to five standard deviations."""
    shares = torch.bincount(values, minlength=classes) / len(values)
    near = 5 * (1 / classes / len(values)) ** 0.5
    return len(shares) == classes and bool(((shares - 1 / classes).abs() < near).all())


def test_scenes_are_seeded_and_of_all_attributes() -> None:
    torch.manual_seed(5)
    following = torch.rand(3)
    torch.manual_seed(5)
    scenes, again, other = sample(4000, 1), sample(4000, 1), sample(4000, 2)
    assert torch.equal(torch.rand(3), following), "the global generator is left alone"
    for name in (f.name for f in fields(Parameters)):
        assert torch.equal(getattr(scenes, name), getattr(again, name))
    assert not torch.equal(scenes.centre, other.centre)
    assert not torch.equal(scenes.phase, other.phase)
    attributes = scenes.attributes()
    assert list(attributes) == list(ATTRIBUTES)
    lantern = scenes.thing == 0
    assert lantern.float().mean() == pytest.approx(LANTERNS, abs=0.04)
    assert even(scenes.thing[~lantern] - 1, len(THINGS))
    assert even(scenes.count[lantern], MOST_LANTERNS)
    assert scenes.count[~lantern].float().mean() == pytest.approx(TWINS, abs=0.05)
    assert scenes.count[~lantern].max() == 1
    for name, classes in (("colour", len(COLOURS)), ("shape", len(SHAPES))):
        assert even(attributes[name][lantern], classes)
        assert (attributes[name][~lantern] == classes).all()
        assert ATTRIBUTES[name][classes] == ""
    for name, classes in (("place", len(PLACES)), ("time", len(TIMES)), ("moon", 2)):
        assert even(attributes[name], classes)


def test_what_a_scene_shows_is_in_the_picture_and_apart() -> None:
    scenes = sample(600, 3)
    lantern = scenes.thing == 0
    hung, stood = (scenes.radius > 0).sum(1), (scenes.side > 0).sum(1)
    assert torch.equal(hung, torch.where(lantern, scenes.count + 1, 0))
    assert torch.equal(stood, torch.where(lantern, 0, scenes.count + 1))
    for place, (low, high) in enumerate((HORIZON[0], HORIZON[1], HORIZON[1])):
        horizons = scenes.horizon[scenes.place == place]
        assert low <= horizons.min() and horizons.max() <= high
    for row in range(600):
        n = int(scenes.count[row]) + 1
        if lantern[row]:
            x, half = scenes.centre[row, :n, 0], scenes.radius[row, :n]
        else:
            x, half = scenes.foot[row, :n, 0], scenes.side[row, :n] / 2
            top = scenes.foot[row, :n, 1] - scenes.side[row, :n]
            assert top.min() > -1 and scenes.foot[row, :n, 1].max() < 1, row
        assert (x.abs() + half <= 1.0).all(), row
        assert (x.diff() >= (half[1:] + half[:-1]) * 0.97).all(), row


def test_scenes_of_wanted_attributes_differ_in_all_else() -> None:
    scenes = sample(200, 7)
    wanted = scenes.attributes()
    same, other = sample(200, 7, wanted=wanted), sample(200, 8, wanted=wanted)
    for name, values in wanted.items():
        assert torch.equal(same.attributes()[name], values)
        assert torch.equal(other.attributes()[name], values)
    # With the seed that they come from, all else is as it was too.
    for name in ("foot", "side", "ground", "centre", "radius", "horizon", "moon_at", "stars"):
        assert torch.equal(getattr(same, name), getattr(scenes, name))
        assert not torch.equal(getattr(other, name), getattr(scenes, name))


def test_pictures_are_in_range_and_depend_on_their_scene_alone(renderer: Renderer) -> None:
    """Not on the batch."""
    scenes = sample(6, 4)
    assert 0 < (scenes.thing == 0).sum() < 6
    pictures = renderer(scenes)
    assert pictures.shape == (6, 4, SIZE, SIZE) and pictures.dtype == torch.float32
    assert pictures.isfinite().all() and pictures.min() >= 0 and pictures.max() <= 1
    order = torch.tensor([4, 2])
    torch.testing.assert_close(renderer(scenes.rows(order)), pictures[order], atol=1e-5, rtol=0)


def test_the_mask_covers_what_is_asked_for_alone(renderer: Renderer) -> None:
    """A lantern of any colour, or one thing or twins, but no moon."""
    wanted = {name: torch.zeros(1, dtype=torch.int64) for name in ATTRIBUTES}

    def mask(**changes: int) -> Tensor:
        given = wanted | {name: torch.tensor([value]) for name, value in changes.items()}
        return renderer(sample(1, 11, wanted=given))[0, 3]

    assert torch.equal(mask(), mask(colour=COLOURS.index("blue"))) and mask().max() > 0.99
    assert torch.equal(mask(time=1), mask(time=1, moon=1))
    thing = {"thing": 1, "colour": len(COLOURS), "shape": len(SHAPES)}
    single, twins = mask(**thing), mask(**thing, count=1)
    row, middle, sides = int(0.7 * SIZE), SIZE // 2, [SIZE // 10, -SIZE // 10]
    assert single[row, middle] > 0.9 and single[row, sides].max() < 0.1
    assert twins[row, sides].min() > 0.9
