"""The bundled model's world: its scenes, seeded and in range, and their captions."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from examples.make_bundled_model.emoji import MARGIN, SPRITE
from examples.make_bundled_model.scenes import HORIZON, SHARE, SIZE, Renderer, sample
from examples.make_bundled_model.scenes import Scenes as Parameters
from examples.make_bundled_model.world import LONGEST, PICTURES, Captions, vocabulary
from lantern_demo.scenes import (
    ATTRIBUTES,
    COLOURS,
    MOST_LANTERNS,
    PLACES,
    SHAPES,
    THINGS,
    TIMES,
    full_caption,
    with_article,
)


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    """One whose things are white squares."""
    sprites = torch.zeros(len(THINGS), 4, SPRITE, SPRITE, dtype=torch.uint8)
    sprites[..., MARGIN:-MARGIN, MARGIN:-MARGIN] = 255
    return Renderer(sprites, "cpu")


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
    attributes, lantern = scenes.attributes(), scenes.thing == 0
    assert list(attributes) == list(ATTRIBUTES)
    assert lantern.float().mean() == pytest.approx(SHARE, abs=0.04)
    assert even(scenes.thing[~lantern] - 1, len(THINGS))
    assert even(scenes.count[lantern], MOST_LANTERNS) and not scenes.count[~lantern].any()
    for name, classes in (("colour", len(COLOURS)), ("shape", len(SHAPES))):
        assert even(attributes[name][lantern], classes)
        assert (attributes[name][~lantern] == classes).all() and not ATTRIBUTES[name][classes]
    for name, classes in (("place", len(PLACES)), ("time", len(TIMES)), ("moon", 2)):
        assert even(attributes[name], classes)
    again = sample(4000, 1, wanted=attributes)
    for name in ("centre", "radius", "horizon", "moon_at", "phase", "stars"):
        assert torch.equal(getattr(again, name), getattr(scenes, name)), "of the same seed"
    others = sample(4000, 2, wanted=attributes).attributes()
    assert all(torch.equal(others[name], values) for name, values in attributes.items())


def test_lanterns_are_in_the_picture_and_apart_and_the_moon_is_aside() -> None:
    scenes = sample(600, 3)
    lantern = scenes.thing == 0
    hung = (scenes.radius > 0).sum(1)
    assert torch.equal(hung, torch.where(lantern, scenes.count + 1, 0))
    aside, height = scenes.moon_at.unbind(1)
    assert {-1, 1} == {*aside[~lantern].sign().tolist()}
    assert aside[~lantern].abs().min() >= 0.62 and 0.50 <= aside[lantern].abs().min() < 0.62
    assert aside.abs().max() <= 0.80 and height.min() >= -0.82 and height.max() <= -0.62
    for place, (low, high) in enumerate((HORIZON[0], HORIZON[1], HORIZON[1])):
        horizons = scenes.horizon[scenes.place == place]
        assert low <= horizons.min() and horizons.max() <= high
    for row in lantern.nonzero()[:, 0].tolist():
        n = int(hung[row])
        x, half = scenes.centre[row, :n, 0], scenes.radius[row, :n]
        assert (x.abs() + half <= 1.0).all(), row
        assert (x.diff() >= (half[1:] + half[:-1]) * 0.97).all(), row


def test_pictures_are_in_range_and_depend_on_their_scene_alone(renderer: Renderer) -> None:
    """Not on the batch."""
    scenes = sample(6, 4)
    assert 0 < (scenes.thing == 0).sum() < 6
    pictures = renderer(scenes)
    assert pictures.shape == (6, 4, SIZE, SIZE) and pictures.dtype == torch.float32
    assert pictures.isfinite().all() and pictures.min() >= 0 and pictures.max() <= 1
    order = torch.tensor([4, 2])
    torch.testing.assert_close(renderer(scenes.rows(order)), pictures[order], atol=1e-5, rtol=0)


# -- captions


IDS = {word: number + 3 for number, word in enumerate(vocabulary())}


def written(scenes: int, lanterns: float, omit: bool) -> tuple[list[str], dict[str, list[int]]]:
    """Captions of random scenes, and the classes that they were made from."""
    attributes = sample(scenes, 5, lanterns=lanterns).attributes()
    ids = Captions(IDS)(attributes, 1, omit)
    assert ids.shape == (scenes, LONGEST)
    return Captions(IDS).text(ids), {name: of.tolist() for name, of in attributes.items()}


def test_every_thing_has_a_picture_in_the_order_of_the_things() -> None:
    assert list(PICTURES) == list(THINGS) == list(ATTRIBUTES["thing"])[1:]
    assert len({picture.file for picture in PICTURES.values()}) == len(PICTURES)


def test_captions_have_the_right_article_and_the_words_of_the_vocabulary() -> None:
    words = [caption.split() for caption in written(4000, 0.5, omit=True)[0]]
    pairs = {pair for caption in words for pair in pairwise(caption)}
    articles = {(a, b) for a, b in pairs if a in ("a", "an")}
    assert {("a", "fox"), ("an", "owl"), ("a", "jade"), ("an", "amber")} <= articles
    assert all(f"{a} {b}" == with_article(b) for a, b in articles)
    assert {word for caption in words for word in caption} == {*vocabulary()}
    assert {"kitten", "cats", "kittens"}.isdisjoint(vocabulary())


def test_captions_of_things_are_the_plainest_and_may_omit() -> None:
    told, classes = written(1000, 0.0, omit=False)
    assert told == [full_caption(*values) for values in zip(*classes.values(), strict=True)]
    told, classes = written(4000, 0.0, omit=True)
    names = [with_article(ATTRIBUTES["thing"][thing]) for thing in classes["thing"]]
    assert all(text.startswith(name) for text, name in zip(told, names, strict=True))
    for part in (("moon", "moonless"), ("at",), ("on", "in")):
        said = sum(not {*part}.isdisjoint(caption.split()) for caption in told) / len(told)
        assert said == pytest.approx(0.65 * 0.8, abs=0.04)
