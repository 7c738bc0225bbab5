"""The measures of quality, and the judge of things, each against its definition or a known case."""

import json
import math
from pathlib import Path

import numpy
import pytest
import torch
import torch.nn.functional as F
from passes import step
from PIL import Image
from tiny import command
from torch import Tensor

from examples.make_bundled_model import emoji
from examples.make_bundled_model.scenes import Renderer, sample
from examples.quality import intervals, judge, scenes, things, tokens
from examples.quality.classifier import READ, load_classifier
from lantern_demo import load
from lantern_demo.decoding.sampling import Sampling, guide, probabilities
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.scenes import THINGS, full_caption, with_article

PROMPTS = ["two red lanterns over a lake", "one blue sky lantern", "three lanterns at night"]


def test_the_interval_of_a_difference_holds_the_truth_as_often_as_it_says() -> None:
    """Of right and wrong pictures, three a caption; captions differ in how hard they are."""
    g, held, times = numpy.random.default_rng(5), 0, 100
    groups = numpy.arange(240) // 3
    for _ in range(times):
        hard = numpy.repeat(g.beta(2, 2, size=80), 3)
        ours, floor = (g.random(240) < 0.8 * hard), (g.random(240) < hard)
        found = intervals.compared(ours, floor, groups, 1, 0.9)
        assert found.difference == pytest.approx(ours.mean() - floor.mean())
        held += found.interval[0] <= -0.1 <= found.interval[1]
    assert 0.84 * times <= held <= 0.96 * times


@pytest.mark.parametrize("sampling", [Sampling(0.7, 9, cfg_scale=2.0), Sampling()])
@torch.inference_mode()
def test_nll_is_what_decoding_token_by_token_finds(pipe: Pipeline, sampling: Sampling) -> None:
    target, encoder, scale = pipe.networks.target, pipe.networks.text, sampling.cfg_scale
    ids = torch.randint(64, (3, 16), generator=torch.Generator().manual_seed(2))
    wanted, impossible = [], 0
    for prompt, row in zip(PROMPTS, ids, strict=True):
        encoded = encoder.encode(prompt)
        cache = target.new_cache(2 if scale != 1 else 1, 16)
        condition = target.condition(encoded.features, encoded.mask, scale != 1)
        hidden, chances = target.prefill(condition, cache), list[float]()
        for token in row:
            p = probabilities(guide(target.head(hidden[:, -1:]), scale), sampling)
            chances.append(p[0, token].item())
            hidden = step(target, token, cache)
        wanted.append(numpy.mean([-math.log(max(c, tokens.FLOOR)) for c in chances]))
        impossible += chances.count(0.0)
    found = tokens.nll(target, encoder, PROMPTS, ids, sampling, batch=2)
    assert found.tolist() == pytest.approx(wanted, rel=1e-4)
    assert (impossible > 0) == (sampling.top_k > 0)


def test_true_scenes_are_what_their_captions_say() -> None:
    some = scenes.truth(12)
    assert scenes.truth(4).captions == some.captions[:2]
    assert some.groups.tolist() == [i // 2 for i in range(12)]
    for i, prompt in enumerate(some.prompts):
        wanted = full_caption(**{k: int(v[i]) for k, v in some.wanted.items()})
        assert prompt == some.captions[i // 2] == wanted
    assert len({tuple(row) for row in some.scenes.phase.tolist()}) == 12
    assert not some.wanted["thing"].any(), "lanterns alone"
    with pytest.raises(ValueError, match="at most 8192, got 8194"):
        scenes.truth(8194)


def test_true_drawings_show_their_attributes_and_are_read_in_batches(
    sprites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenes, "BATCH", 3)
    bundled = load("lantern-scenes", device="cpu")
    classifier = load_classifier(bundled.info.folder, bundled.device)
    some = scenes.SceneSet(sample(8, 5, lanterns=1.0))
    images = scenes.draw_truth(Renderer(emoji.read(sprites), bundled.device), some.scenes)
    right = scenes.read(classifier, images, some.wanted)
    whole = classifier.read(images)
    assert set(right) == {*READ, scenes.ALL} and right[scenes.ALL].all()
    assert all((right[name] == (whole[name] == some.wanted[name]).numpy()).all() for name in READ)
    wrong = scenes.read(classifier, images, {**some.wanted, "moon": 1 - some.wanted["moon"]})
    assert not wrong["moon"].any() and not wrong[scenes.ALL].any()
    ids = scenes.true_tokens(bundled.networks, images)
    small = torch.nn.functional.avg_pool2d(images[:1], 2)
    assert torch.equal(ids[:1], bundled.networks.tokenizer.encode(small))
    with pytest.raises(ValueError, match="there is none in"):
        load_classifier(Path("nowhere"), bundled.device)


def coarse(pictures: Tensor) -> Tensor:
    """A stand-in for the outside network: means of the picture's parts."""
    return F.adaptive_avg_pool2d(pictures, 4).flatten(1)


def write_coloured(sprites: Path) -> None:
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


@pytest.mark.slow
def test_the_command_names_the_pictures_of_seeds_that_all_methods_share(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EAGLE-1 draws vanilla's pictures."""
    sprites, out, sheet = (tmp_path / name for name in ("sprites.npz", "things.json", "sheet.webp"))
    write_coloured(sprites)
    monkeypatch.setattr(things, "THINGS", dict.fromkeys(("cat", "apple")))
    monkeypatch.setattr(things, "outside", lambda: coarse)
    asked = "--methods", "vanilla", "eagle1", "lantern++", "--pictures", 3, "--seed", 7
    given = "--model", tiny_model, "--sprites", sprites, "--out", out, "--sheet", sheet
    command(things, *given, *asked, "--processes", 1)
    report = json.loads(out.read_text(encoding="utf-8"))
    pipe, renderer = load(tiny_model, "cpu"), Renderer(emoji.read(sprites), "cpu")
    known = {name: judge.drawings(renderer, name, 1) for name in ("cat", "apple")}
    names = judge.Judge(coarse, known.items())
    for row, (thing, seeds) in zip(report["things"], things.seeds_of(7, 3).items(), strict=True):
        assert row["thing"] == thing and row["vanilla"] == row["eagle1"]
        made = [pipe.generate(with_article(thing), "lantern++", seed=s).image for s in seeds]
        images = torch.stack([torch.from_numpy(numpy.array(one)) for one in made])
        found = names.named(images.permute(0, 3, 1, 2) / 255)
        assert row["lantern++"] == things.recognised(found, thing)
    assert things.recognised(["cat", "apple", "owl", "apple"], "apple")["share"] == 0.5
    shares = [row["lantern++"]["share"] for row in report["things"]]
    told = report["methods"]["lantern++"]
    assert told["mean_share"] == pytest.approx(sum(shares) / 2, abs=1e-4)
    assert told["least_share"] == min(shares)
    assert Image.open(sheet).height == things.HEAD + things.TILE
