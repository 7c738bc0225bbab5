"""The words of the bundled model's world: captions of scenes, and the pictures of their things."""

from __future__ import annotations

from itertools import pairwise

import pytest

from examples.make_bundled_model.scenes import sample
from examples.make_bundled_model.world import LONGEST, PICTURES, Captions, vocabulary
from lantern_demo.scenes import ATTRIBUTES, THINGS, WORDINGS, full_caption, with_article

IDS = {word: number + 3 for number, word in enumerate(vocabulary())}


def written(scenes: int, lanterns: float, omit: bool) -> tuple[list[str], dict[str, list[int]]]:
    """Captions of random scenes, and the classes that they were made from."""
    attributes = sample(scenes, 5, lanterns=lanterns).attributes()
    ids = Captions(IDS)(attributes, 1, omit)
    assert ids.shape == (scenes, LONGEST)
    return Captions(IDS).text(ids), {name: of.tolist() for name, of in attributes.items()}


def without(said: list[str], *words: str) -> float:
    """The share of captions that have none of the words."""
    return sum({*words}.isdisjoint(caption.split()) for caption in said) / len(said)


MOON = "moon", "moonless", "moonlight"


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
    for part in (MOON, ("at",), ("on", "in")):
        assert without(told, *part) == pytest.approx(0.35 + 0.65 * 0.2, abs=0.04)


def test_captions_of_lanterns_have_all_wordings_and_may_omit() -> None:
    told, classes = written(4000, 1.0, omit=False)
    for part in ("place", "time"):
        wordings = (WORDINGS[part][kind] for kind in classes[part])
        assert all(
            any(one in said for one in some) for said, some in zip(told, wordings, strict=True)
        )
    shares = {("picture", "photo"): 0.6, ("softly",): 0.8, ("paper",): 0.5, MOON: 0.0}
    for words, share in shares.items():
        assert without(told, *words) == pytest.approx(share, abs=0.04)
    told = written(4000, 1.0, omit=True)[0]
    assert without(told, *MOON) == pytest.approx(0.15 + 0.85 * 0.06, abs=0.03)
