"""The bundled model's world: its scenes, seeded and in range, and their captions."""

from dataclasses import fields
from itertools import pairwise

import torch

from examples.make_bundled_model.emoji import MARGIN, SPRITE
from examples.make_bundled_model.scenes import SIZE, Renderer, sample
from examples.make_bundled_model.scenes import Scenes as Parameters
from examples.make_bundled_model.world import LONGEST, PICTURES, Captions, vocabulary
from lantern_demo.scenes import ATTRIBUTES, THINGS, full_caption, with_article


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
    assert list(attributes) == list(ATTRIBUTES) and not scenes.count[~lantern].any()
    for name, classes in ATTRIBUTES.items():
        assert attributes[name].unique().tolist() == [*range(len(classes))]
        if not classes[-1]:  # which things have, and no lantern
            assert torch.equal(attributes[name] == len(classes) - 1, ~lantern)
    again = sample(4000, 1, wanted=attributes)
    for name in ("centre", "radius", "horizon", "moon_at", "phase", "stars"):
        assert torch.equal(getattr(again, name), getattr(scenes, name)), "of the same seed"
    others = sample(4000, 2, wanted=attributes).attributes()
    assert all(torch.equal(others[name], values) for name, values in attributes.items())


def test_pictures_are_in_range_and_depend_on_their_scene_alone() -> None:
    """Not on the batch. Things are white squares."""
    sprites = torch.zeros(len(THINGS), 4, SPRITE, SPRITE, dtype=torch.uint8)
    sprites[..., MARGIN:-MARGIN, MARGIN:-MARGIN] = 255
    scenes, renderer = sample(6, 4), Renderer(sprites, "cpu")
    assert 0 < (scenes.thing == 0).sum() < 6
    pictures = renderer(scenes)
    assert pictures.shape == (6, 4, SIZE, SIZE) and pictures.dtype == torch.float32
    assert pictures.isfinite().all() and pictures.min() >= 0 and pictures.max() <= 1
    order = torch.tensor([4, 2])
    torch.testing.assert_close(renderer(scenes.rows(order)), pictures[order], atol=1e-5, rtol=0)


def written(lanterns: float, omit: bool) -> tuple[list[str], dict[str, list[int]]]:
    """Captions of random scenes, and the classes that they were made from."""
    captions = Captions({word: number + 3 for number, word in enumerate(vocabulary())})
    attributes = sample(4000, 5, lanterns=lanterns).attributes()
    ids = captions(attributes, 1, omit)
    assert ids.shape == (4000, LONGEST)
    return captions.text(ids), {name: of.tolist() for name, of in attributes.items()}


def test_every_thing_has_a_picture_in_the_order_of_the_things() -> None:
    assert list(PICTURES) == list(THINGS) == list(ATTRIBUTES["thing"])[1:]
    assert len({picture.file for picture in PICTURES.values()}) == len(PICTURES)


def test_captions_have_the_right_article_and_the_words_of_the_vocabulary() -> None:
    words = [caption.split() for caption in written(0.5, omit=True)[0]]
    pairs = {pair for caption in words for pair in pairwise(caption)}
    articles = {(a, b) for a, b in pairs if a in ("a", "an")}
    assert {("a", "fox"), ("an", "owl"), ("a", "jade"), ("an", "amber")} <= articles
    assert all(f"{a} {b}" == with_article(b) for a, b in articles)
    assert {word for caption in words for word in caption} == {*vocabulary()}
    assert {"kitten", "cats", "kittens"}.isdisjoint(vocabulary())


def test_captions_of_things_are_the_plainest() -> None:
    told, classes = written(0.0, omit=False)
    assert told == [full_caption(*values) for values in zip(*classes.values(), strict=True)]
