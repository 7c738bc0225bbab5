"""Scenes: their words, their renderer, and the pinned packages of their pictures."""

from __future__ import annotations

import io
import random
import re
import tarfile
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from examples.make_bundled_model import emoji, render, tokenizer
from lantern_demo.scenes import (
    ATTRIBUTES,
    NOUNS,
    WORDINGS,
    caption,
    full_caption,
    nearest,
    plural_of,
    read,
    some_scene,
    vocabulary,
)


def of(count: int, **said: int | Tensor) -> dict[str, Tensor]:
    """Return attributes of `count` scenes: one thing on a lake, except for those in `said`."""
    wanted = {name: torch.zeros(count, dtype=torch.int64) for name in ATTRIBUTES}
    return wanted | {name: torch.as_tensor(value).expand(count) for name, value in said.items()}


# -- words


def test_a_name_or_keyword_means_one_noun_and_words_are_plain() -> None:
    assert 300 <= len({noun.file for noun in NOUNS}) == len(NOUNS) <= 500
    found = [form for noun in NOUNS for form in {form for forms in noun.phrases for form in forms}]
    assert len(found) == len(set(found))
    # the words of a landscape are no nouns
    assert not set(found) & {phrase for classes in WORDINGS.values() for phrases in classes for phrase in phrases}
    assert all(re.fullmatch(r"[a-z0-9]+|,", word) for word in vocabulary()), "a text encoder splits them as captions do"
    assert len(vocabulary()) == len(set(vocabulary())) < 2000


def test_a_caption_is_read_as_what_it_was_written_of() -> None:
    rng = random.Random(5)
    for _ in range(200):
        scene = some_scene(rng)
        for text in (caption(scene, rng), full_caption(scene)):
            reading = read(text)
            assert (reading.said, reading.unknown) == (scene, ()), text


def test_every_name_and_keyword_is_read() -> None:
    for index, noun in enumerate(NOUNS):
        singular, plural = noun.phrases[index % len(noun.phrases)]
        assert read(f"a {singular} at night").said["noun"] == index, singular
        several = read(f"two {plural} at night").said
        assert (several["noun"], several["count"]) == (index, 0 if noun.mass else 1), plural


@pytest.mark.parametrize(
    ("prompt", "noun", "count"),
    [
        ("Kittens", "cat", "2"),
        ("3 mice", "mouse", "3"),
        ("a fire truck", "fire truck", "1"),
        ("an orange cat", "cat", "1"),
        ("two sheep", "sheep", "2"),
        ("a bow and arrow", "bow and arrow", "1"),
        ("a cat and a cat", "cat", "1"),
        ("three very fluffy cats", "cat", "3"),
        ("two cats and dogs", "cat", "2"),
        ("a picture of cats", "cat", "2"),
        ("a four-leaf clover", "clover", "1"),
        ("a cat at seven in the morning", "cat", "1"),
        ("\uff43\uff41\uff54", "cat", "1"),
    ],
)
def test_what_people_type(prompt: str, noun: str, count: str) -> None:
    said = read(prompt).said
    assert [ATTRIBUTES[part][said[part]] for part in ("noun", "count")] == [noun, count]


def test_unknown_words_are_told_and_the_nearest_prompt_has_none() -> None:
    assert read("a robot dancing by the lake").unknown == ("robot", "dancing")
    assert read("four cats").number == "four" and not read("a four leaf clover").unknown
    assert read("a cat at 7").number is None and read("an owl near mountains, full moon").said["moon"] == 1
    assert read("an orange cat and an owl").second == "owl" and read("a cat and a kitten").second is None
    assert not read("a robot at night").drawable and read("owls").drawable
    assert nearest("2 fluffy kittens in a field at noon") == "two cats on a plain at dusk under the moon"
    assert nearest("a robot at night without a moon") == "a cat on a lake at night without a moon"


def test_plurals_and_articles() -> None:
    plurals = {"fox": "foxes", "butterfly": "butterflies", "monkey": "monkeys", "peach": "peaches", "cat": "cats"}
    assert {one: plural_of(one) for one in plurals} == plurals
    scene = {"count": 0, "place": 2, "time": 1, "moon": 0}
    for name, said in {"owl": "an owl", "unicorn": "a unicorn", "hourglass": "an hourglass", "popcorn": "popcorn"}.items():
        text = full_caption(scene | {"noun": ATTRIBUTES["noun"].index(name)})
        assert text == f"{said} on a plain at night without a moon"


# -- packages and their pictures


def test_archives_are_pinned_and_others_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in (emoji.PICTURES, emoji.NAMES):
        assert re.fullmatch(r"[0-9a-f]{64}", package.sha256) and re.fullmatch(r"[0-9a-f]{128}", package.sha512)
        assert re.fullmatch(r"\d+\.\d+\.\d+", package.version) and package.version in package.file
    (tmp_path / emoji.PICTURES.file).write_bytes(b"something else")
    with pytest.raises(ValueError, match="sha256"):
        emoji.archive_of(emoji.PICTURES, tmp_path)
    monkeypatch.setattr(emoji.shutil, "which", lambda _: None)
    with pytest.raises(RuntimeError, match=r"npm is needed.*put emojibase-data-17.0.0.tgz into"):
        emoji.archive_of(emoji.NAMES, tmp_path)


def test_a_missing_picture_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "empty.tgz"
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("package/package.json"), io.BytesIO())
    monkeypatch.setattr(emoji, "archive_of", lambda *_: path)
    with pytest.raises(ValueError, match="has no picture of monkey, gorilla"):
        emoji.sprites(NOUNS[:2])


@pytest.mark.skipif(
    not all((emoji.CACHE / package.file).exists() for package in (emoji.PICTURES, emoji.NAMES)),
    reason="the packages have not been downloaded: python examples/make_bundled_model/emoji.py --sheet FILE",
)
@pytest.mark.slow
def test_every_noun_has_a_picture_and_a_name_in_the_packages() -> None:
    sprites = emoji.sprites()
    assert sprites.shape == (len(NOUNS), 4, emoji.SPRITE, emoji.SPRITE)
    assert (sprites[:, 3].float().mean((1, 2)) > 20).all()
    known = emoji.keywords()
    assert [noun.name for noun in NOUNS if noun.file.replace("-fe0f", "") not in known] == []


def test_a_picture_is_fitted_to_what_it_shows() -> None:
    picture = Image.new("RGBA", (256, 256))
    picture.paste((255, 0, 0, 255), (100, 50, 140, 130))
    sprite = emoji.fitted(picture)
    shown = (sprite[3] > 128).nonzero()
    assert sprite.shape == (4, emoji.SPRITE, emoji.SPRITE) and sprite.dtype == torch.uint8
    assert shown[:, 0].min() == emoji.MARGIN and shown[:, 0].max() == emoji.SPRITE - emoji.MARGIN - 1
    assert shown[:, 1].float().mean() == pytest.approx(emoji.SPRITE / 2 - 0.5)
    assert (sprite[1] == 0).all() and (sprite[0] <= sprite[3]).all()
    # the foot cut off, the rest is enlarged
    assert (emoji.fitted(picture, crop=0.5)[3] > 128).sum() > (sprite[3] > 128).sum()


# -- scenes

PLAIN = next(i for i, noun in enumerate(NOUNS) if not (noun.air or noun.glow or noun.mass))


@pytest.fixture(scope="module")
def renderer() -> render.Renderer:
    """Return a renderer with an opaque square of one colour for every noun."""
    sprites = torch.zeros(1, 4, emoji.SPRITE, emoji.SPRITE, dtype=torch.uint8)
    inside = slice(emoji.MARGIN, -emoji.MARGIN)
    sprites[:, :, inside, inside] = torch.tensor([200, 120, 60, 255], dtype=torch.uint8)[None, :, None, None]
    return render.Renderer(sprites.expand(len(NOUNS), -1, -1, -1))


def test_scenes_hold_what_their_attributes_say() -> None:
    scenes = render.sample_scenes(2000, 11)
    attributes = scenes.attributes()
    for name, values in attributes.items():
        assert values.min() >= 0 and values.max() < len(ATTRIBUTES[name])
        assert torch.equal(render.sample_scenes(2000, 4, attributes).attributes()[name], values), "wanted ones are drawn"
    there = scenes.kind != render.NONE
    shown = there.sum(1)
    assert torch.equal(shown, scenes.count + 1)
    assert (scenes.count[torch.tensor([NOUNS[n].mass for n in scenes.noun])] == 0).all()
    assert torch.equal(scenes.side > 0, there)
    # one large thing most of the time
    assert 0.5 < (shown == 1).float().mean() < 0.8 and scenes.side[shown == 1].amax(1).min() > 0.9
    # in the picture, with feet on the ground
    x, y = scenes.foot[there].unbind(-1)
    side = scenes.side[there]
    assert (x.abs() + 0.5 * side <= 1.0 + 1e-5).all() and (y - side > -1 - 1e-5).all() and (scenes.ground[there] < 0.95).all()
    assert (scenes.ground > scenes.horizon[:, None]).all()
    standing = there & ~torch.tensor([noun.air for noun in NOUNS] + [False])[scenes.kind]
    assert torch.equal(scenes.foot[..., 1][standing], scenes.ground[standing])


def test_pictures_are_seeded_and_show_the_same_when_larger(renderer: render.Renderer) -> None:
    picture = renderer(render.sample_scenes(3, 5), 64)
    assert picture.shape == (3, 4, 64, 64) and picture.dtype == torch.float32
    assert picture.min() >= 0 and picture.max() <= 1 and bool(torch.isfinite(picture).all())
    assert torch.equal(picture, renderer(render.sample_scenes(3, 5), 64))
    assert not torch.equal(picture, renderer(render.sample_scenes(3, 6), 64))
    large = renderer(render.sample_scenes(3, 5), 128)
    assert (torch.nn.functional.avg_pool2d(large, 2) - picture).abs().mean() < 0.02


def test_a_sprite_keeps_its_colours_at_every_hour(renderer: render.Renderer) -> None:
    scenes = render.sample_scenes(3, 2, of(3, noun=PLAIN, place=2, time=torch.arange(3)))
    picture = renderer(scenes, 128)
    colours = []
    for i in range(3):
        x, y = scenes.foot[i, 0].tolist()
        row, column = (int((v + 1) * 64) for v in (y - 0.75 * scenes.side[i, 0].item(), x))
        assert picture[i, 3, row, column] == 1.0
        colours.append(picture[i, :3, row, column])
    assert torch.allclose(torch.stack(colours), colours[0], atol=1e-4)
    dusk, night, dawn = picture[:, :3, -4:].mean((1, 2, 3)).tolist()  # of the ground
    assert night < dusk < dawn
    # half the side squared, of a picture four wide and high
    cover = picture[:, 3].mean((1, 2))
    assert torch.allclose(cover, scenes.side[:, 0] ** 2 / 4, atol=0.02)


def test_a_bank_keeps_what_it_drew(tmp_path: Path, renderer: render.Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "SIZE", 64)
    bank = tokenizer.Bank(tmp_path, renderer, 8, 77)
    picture, cover = bank(0, 4)
    assert picture.shape == (4, 3, 64, 64) and cover.shape == (4, 1, 64, 64)
    assert (renderer(render.sample_scenes(8, 77), 64)[:4, :3] - picture).abs().max() < 0.003
    again = tokenizer.Bank(tmp_path, None, 8, 77)  # type: ignore[arg-type]  # draws nothing
    assert torch.equal(again(0, 4)[0], picture)
    # the second pass has the same scenes, mirrored
    second = torch.cat([again(step, 4)[0] for step in (2, 3)])
    first = torch.cat([again(step, 4)[0] for step in (0, 1)])
    assert sorted(second.flip(-1).sum((1, 2, 3)).tolist()) == pytest.approx(sorted(first.sum((1, 2, 3)).tolist()))


def test_tokens_and_pictures_have_their_sizes() -> None:
    torch.manual_seed(0)
    model = tokenizer.SceneTokenizer(64).eval()
    with torch.no_grad():
        ids = model.encode(torch.rand(1, 3, 256, 256))
        assert ids.shape == (1, 256) and ids.max() < 64
        assert model.picture(model.tokenizer.vectors(ids)).shape == (1, 3, 256, 256)
    learnt = {name.split(".")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert learnt == {"tokenizer", "picture"}
