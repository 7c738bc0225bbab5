"""The judge of things, against its definition written out slowly, and the command that asks it."""

from __future__ import annotations

import json
import math
import operator
import sys
from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tiny import command
from torch import Tensor

from examples.make_bundled_model import emoji
from examples.make_bundled_model.scenes import Renderer
from examples.quality import judge, things
from lantern_demo import load
from lantern_demo.scenes import PLACES, THINGS, TIMES, with_article


def coarse(pictures: Tensor) -> Tensor:
    """A stand-in for the outside network: means of the picture's parts."""
    return F.adaptive_avg_pool2d(pictures, 4).flatten(1)


def test_a_picture_gets_the_name_of_the_nearest_drawings_behind_the_mean_of_all() -> None:
    g = torch.Generator().manual_seed(3)
    true = {name: torch.rand(3, 3, 8, 8, generator=g) for name in "abcdef"}
    pictures = torch.rand(200, 3, 8, 8, generator=g)
    means = {name: coarse(some).double().mean(0).tolist() for name, some in true.items()}
    middle = [sum(values) / len(means) for values in zip(*means.values(), strict=True)]

    def less(values: list[float]) -> list[float]:
        return [value - mean for value, mean in zip(values, middle, strict=True)]

    def nearest(seen: list[float]) -> str:
        def cosine(name: str) -> float:
            a, b = less(means[name]), less(seen)
            return sum(map(operator.mul, a, b)) / math.hypot(*a) / math.hypot(*b)

        return max(means, key=cosine)

    slowly = [nearest(seen) for seen in coarse(pictures).double().tolist()]
    assert judge.Judge(coarse, true.items()).named(pictures) == slowly
    assert set(slowly) == set(true), "each is somebody's nearest"


def test_drawings_are_of_one_thing_at_every_place_and_time() -> None:
    sprites = torch.zeros(len(THINGS), 4, emoji.SPRITE, emoji.SPRITE, dtype=torch.uint8)
    sprites[:, 3] = 255
    sprites[list(THINGS).index("owl"), :3] = 255  # a white one; the others are black
    renderer = Renderer(sprites, "cpu")
    owls, others = (judge.drawings(renderer, "owl", seed) for seed in (1, 2))
    cats = judge.drawings(renderer, "cat", 1)
    assert len(owls) == len(PLACES) * len(TIMES)
    middle = (slice(None), slice(None), 140, 128)
    assert (owls[middle] > 0.7).all() and (cats[middle] < 0.1).all()
    assert not torch.equal(owls, others)
    corners = cats[:, :, -1, 0]  # the ground at a place and a time
    assert len(corners.unique(dim=0)) == len(owls)


def test_without_its_packages_the_judge_says_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for package in judge.PACKAGES.replace("-", "_").split():
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit, match=f"pip install --no-deps {judge.PACKAGES}"):
        judge.outside()


def test_the_outside_network_sees_a_picture_alone_and_at_any_size() -> None:
    for package in judge.PACKAGES.replace("-", "_").split():
        pytest.importorskip(package)
    rough = torch.rand(3, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    large = F.interpolate(rough, size=512, mode="bicubic").clamp(0, 1)
    features = judge.outside()
    with torch.inference_mode():
        found = features(large)
        alone = torch.cat([features(one[None]) for one in large])
        small = features(F.avg_pool2d(large, 2))
    assert found.shape == (3, 1280)
    torch.testing.assert_close(found, alone, atol=1e-4, rtol=1e-3)
    assert ((small - found).norm(dim=1) < 0.05 * torch.pdist(found).min()).all()


def test_seeds_are_drawn_and_all_differ() -> None:
    seeds = things.seeds_of(1, 20)
    assert list(seeds) == list(THINGS) and {len(some) for some in seeds.values()} == {20}
    assert len({seed for some in seeds.values() for seed in some}) == 20 * len(THINGS)
    assert seeds == things.seeds_of(1, 20) != things.seeds_of(2, 20)


def test_a_sheet_has_a_row_for_each_thing() -> None:
    """Down the first column of rows, then down the second."""
    shown = {
        str(row): {
            method: numpy.full((3, 32, 32, 3), 40 * row + 10 * column, numpy.uint8)
            for column, method in enumerate(things.SHOWN, 1)
        }
        for row in range(5)
    }
    image = things.sheet(shown)
    pixels = numpy.asarray(image)
    rows = 3
    assert image.height == things.HEAD + rows * things.TILE
    for row in range(5):
        top = things.HEAD + row % rows * things.TILE
        left = row // rows * image.width // things.BLOCKS
        part = pixels[top : top + things.TILE, left : left + image.width // things.BLOCKS]
        own = {40 * row + 10, 40 * row + 20}
        middle = part[things.TILE // 2, things.NAME :, 0]
        assert {*middle.tolist()} - {255} == own
        assert (part[:, : things.NAME] < 128).any(), "the name"


@pytest.mark.slow
def test_the_command_names_the_pictures_of_seeds_that_all_methods_share(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EAGLE-1 draws vanilla's pictures; LANTERN++ draws others."""
    coloured = torch.randint(
        256, (len(THINGS), 4, 8, 8), generator=torch.Generator().manual_seed(1), dtype=torch.uint8
    )
    coloured[:, 3] = 255
    sprites = tmp_path / "sprites.npz"
    emoji.write(sprites, coloured.repeat_interleave(32, 2).repeat_interleave(32, 3))
    monkeypatch.setattr(things, "THINGS", dict.fromkeys(("cat", "apple")))
    monkeypatch.setattr(things, "outside", lambda: coarse)
    asked = "--methods", "vanilla", "eagle1", "lantern++", "--pictures", 3, "--seed", 7
    out, sheet = tmp_path / "things.json", tmp_path / "sheet.webp"
    given = "--model", tiny_model, "--sprites", sprites, "--out", out, "--sheet", sheet
    command(things, *given, *asked, "--processes", 2)
    report = json.loads(out.read_text(encoding="utf-8"))
    assert [row["thing"] for row in report["things"]] == ["cat", "apple"]
    pipe = load(tiny_model, "cpu")
    renderer = Renderer(emoji.read(sprites), "cpu")
    known = {name: judge.drawings(renderer, name, 1) for name in ("cat", "apple")}
    names, shares = judge.Judge(coarse, known.items()), dict[str, list[float]]()
    for row in report["things"]:
        seeds = things.seeds_of(7, 3)[row["thing"]]
        assert row["vanilla"] == row["eagle1"]
        for method in ("vanilla", "lantern++"):
            made = [pipe.generate(with_article(row["thing"]), method, seed=s).image for s in seeds]
            images = torch.stack([torch.from_numpy(numpy.array(one)) for one in made])
            found = names.named(images.permute(0, 3, 1, 2) / 255)
            wrong = [name for name in found if name != row["thing"]]
            assert row[method]["share"] == round(1 - len(wrong) / 3, 4)
            assert row[method]["wrong"] == {name: wrong.count(name) for name in wrong}
            shares.setdefault(method, []).append(row[method]["share"])
        assert sum(row["true"]["wrong"].values()) == round(9 * (1 - row["true"]["share"]))
    for method, some in shares.items():
        told = report["methods"][method]
        assert told["mean_share"] == pytest.approx(sum(some) / 2, abs=1e-4)
        assert told["least_share"] == min(some)
    assert "| mean of all |" in out.with_suffix(".md").read_text(encoding="utf-8")
    assert Image.open(sheet).height == things.HEAD + things.TILE


def test_a_sheet_needs_its_methods(
    sprites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "--out", tmp_path / "a.json", "--sprites", sprites, "--sheet", tmp_path / "a.webp"
    with pytest.raises(SystemExit):
        command(things, *given, "--methods", "vanilla")
    assert "--sheet needs --methods vanilla lantern++" in capsys.readouterr().err
