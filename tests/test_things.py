"""The judge of things, against its definition written out slowly, and the command that asks it."""

from __future__ import annotations

import json
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


def write_coloured(sprites: Path) -> None:
    """Write a sprite of a few random colours for every thing."""
    g = torch.Generator().manual_seed(1)
    coloured = torch.randint(256, (len(THINGS), 4, 8, 8), generator=g)
    coloured[:, 3] = 255
    emoji.write(sprites, F.interpolate(coloured.byte(), scale_factor=32))


def test_a_picture_gets_the_name_of_the_nearest_drawings_behind_the_mean_of_all() -> None:
    g = torch.Generator().manual_seed(3)
    true = {name: torch.rand(3, 3, 8, 8, generator=g) for name in "abcdef"}
    pictures = torch.rand(200, 3, 8, 8, generator=g)
    means = {name: coarse(some).mean(0) for name, some in true.items()}
    middle = sum(means.values()) / len(means)

    def nearest(seen: Tensor) -> str:
        return max(means, key=lambda name: F.cosine_similarity(means[name] - middle, seen, dim=0))

    slowly = [nearest(seen - middle) for seen in coarse(pictures)]
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


def test_seeds_are_drawn_and_all_differ() -> None:
    seeds = things.seeds_of(1, 20)
    assert list(seeds) == list(THINGS) and {len(some) for some in seeds.values()} == {20}
    assert len({seed for some in seeds.values() for seed in some}) == 20 * len(THINGS)
    assert seeds == things.seeds_of(1, 20) != things.seeds_of(2, 20)


@pytest.mark.slow
def test_the_command_names_the_pictures_of_seeds_that_all_methods_share(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EAGLE-1 draws vanilla's pictures; LANTERN++ draws others."""
    sprites, out, sheet = (tmp_path / name for name in ("sprites.npz", "things.json", "sheet.webp"))
    write_coloured(sprites)
    monkeypatch.setattr(things, "THINGS", dict.fromkeys(("cat", "apple")))
    monkeypatch.setattr(things, "outside", lambda: coarse)
    asked = "--methods", "vanilla", "eagle1", "lantern++", "--pictures", 3, "--seed", 7
    given = "--model", tiny_model, "--sprites", sprites, "--out", out, "--sheet", sheet
    command(things, *given, *asked, "--processes", 2)
    report = json.loads(out.read_text(encoding="utf-8"))
    assert [row["thing"] for row in report["things"]] == ["cat", "apple"]
    pipe, renderer = load(tiny_model, "cpu"), Renderer(emoji.read(sprites), "cpu")
    known = {name: judge.drawings(renderer, name, 1) for name in ("cat", "apple")}
    names = judge.Judge(coarse, known.items())
    for row in report["things"]:
        assert row["vanilla"] == row["eagle1"]
        for method in ("vanilla", "lantern++"):
            seeds = things.seeds_of(7, 3)[row["thing"]]
            made = [pipe.generate(with_article(row["thing"]), method, seed=s).image for s in seeds]
            images = torch.stack([torch.from_numpy(numpy.array(one)) for one in made])
            found = names.named(images.permute(0, 3, 1, 2) / 255)
            assert row[method] == things.told(found, row["thing"])
    for method, told in report["methods"].items():
        shares = [row[method]["share"] for row in report["things"]]
        assert told["mean_share"] == pytest.approx(sum(shares) / 2, abs=1e-4)
        assert told["least_share"] == min(shares)
    assert things.told(["cat", "apple", "owl", "apple"], "apple") == {
        "share": 0.5,
        "wrong": {"cat": 1, "owl": 1},
    }
    assert "| mean of all |" in out.with_suffix(".md").read_text(encoding="utf-8")
    assert Image.open(sheet).height == things.HEAD + things.TILE
