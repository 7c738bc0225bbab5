"""The words of the bundled model's world: captions of scenes, and the pictures of their things."""

from __future__ import annotations

from itertools import pairwise

import pytest

from examples.make_bundled_model.scenes import sample
from examples.make_bundled_model.world import LONGEST, PICTURES, Captions, vocabulary
from lantern_demo.scenes import ATTRIBUTES, THINGS, full_caption, with_article

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
