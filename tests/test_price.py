"""What look-alikes cost: the command that measures it, and the panel's script."""

import json
from pathlib import Path
from statistics import mean, median
from typing import Any
from unittest.mock import patch

import gradio as gr
import numpy
import pytest
import torch
from PIL import Image
from test_quality import coarse, write_coloured
from tiny import command

from examples.make_bundled_model import emoji
from examples.make_bundled_model.scenes import Renderer
from examples.quality import judge, price, things
from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.result import Result
from lantern_demo.scenes import THINGS, with_article
from lantern_demo.settings.knobs import DEFAULT_SEED
from lantern_demo.ui import recorded
from lantern_demo.ui.price import add_price
from lantern_demo.ui.run_view import colour, picture_address

SOME = ("owl", "apple")
VALUES = {"lantern": [0, 0.2, 1], "lantern++": [1, 3, 40]}  # with the presets'


@pytest.mark.slow
def test_a_price_is_measured_against_vanillas_pictures_of_the_same_seeds(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every number is computed again, slowly. The lowest value keeps no look-alikes."""
    drawn: dict[tuple[str, str, float | None], list[Result]] = {}
    generate = Pipeline.generate

    def noted(self: Pipeline, prompt: str, method: str, **settings: Any) -> Result:
        done = generate(self, prompt, method, **settings)
        bound = settings.get("lantern_delta", settings.get("lanternpp_lambda"))
        drawn.setdefault((method, prompt, bound), []).append(done)
        return done

    monkeypatch.setattr(Pipeline, "generate", noted)
    monkeypatch.setattr(price, "BOUNDS", {"lantern_delta": (0, 1), "lanternpp_lambda": (1, 40)})
    monkeypatch.setattr(price, "outside", lambda: coarse)
    for module in (price, things):
        monkeypatch.setattr(module, "THINGS", dict.fromkeys(SOME))
    sprites, out = tmp_path / "sprites.npz", tmp_path / "price.json"
    write_coloured(sprites)
    given = "--model", tiny_model, "--sprites", sprites, "--out", out
    command(price, *given, "--pictures", 2, "--seed", 7)
    told = json.loads(out.read_text(encoding="utf-8"))
    assert (told["things"], told["pictures"], told["grid"]) == (2, 4, 16)
    renderer = Renderer(emoji.read(sprites), "cpu")
    names = judge.Judge(coarse, ((name, judge.drawings(renderer, name, 1)) for name in SOME))
    seeds = things.seeds_of(7, 2)

    def found(method: str, bound: float | None) -> tuple[list[Result], list[bool]]:
        every, right = list[Result](), list[bool]()
        for thing in SOME:
            done = drawn[method, with_article(thing), bound]
            assert [one.task["settings"]["seed"] for one in done] == seeds[thing]
            images = torch.stack([torch.from_numpy(numpy.array(one.image)) for one in done])
            right += [name == thing for name in names.named(images.permute(0, 3, 1, 2) / 255)]
            every += done
        return every, right

    alone, alone_right = found("vanilla", None)
    assert told["vanilla"]["share"] == pytest.approx(mean(alone_right), abs=1e-4)
    assert {one["id"]: [p["value"] for p in one["points"]] for one in told["methods"]} == VALUES
    for one in told["methods"]:
        assert one["preset"] == VALUES[one["id"]][1]
        first, *_, last = one["points"]
        assert first["alike"] == [] and first["changed"] == 0 and last["alike"]
        for point in one["points"]:
            done, right = found(one["id"], point["value"])
            pairs = zip(alone, done, strict=True)
            gain = median(a.decode_seconds / b.decode_seconds for a, b in pairs)
            assert point["speedup"] == pytest.approx(gain, abs=1e-3)
            assert point["changed"] == pytest.approx(mean(b.changed for b in done), abs=1e-4)
            assert point["share"] == pytest.approx(mean(right), abs=1e-4)
            less = mean(right) - mean(alone_right)
            assert point["less"][0] == pytest.approx(less, abs=2e-4)
            (run,) = drawn[one["id"], price.PROMPT, point["value"]]
            assert run.task["settings"]["seed"] == told["seed"] == DEFAULT_SEED
            assert run.noise == "independent" and point["steps"] == run.steps
            assert len(point["alike"]) == round(run.changed * len(run.tokens))


def made_price() -> dict[str, Any]:
    """Measurements by which LANTERN breaks from its middle on, and LANTERN++ holds."""

    def point(value: float, alike: int, share: float, tint: str) -> dict[str, Any]:
        drawn = {"value": value, "steps": 200 - alike, "alike": list(range(alike))}
        drawn |= {"speedup": 1.1 + alike / 100, "changed": alike / 256, "share": share}
        drawn |= {"less": [share - 0.98, share - 1.01, share - 0.95]}
        return drawn | {"picture": picture_address(Image.new("RGB", (64, 64), tint))}

    lost = point(0, 0, 0.98, "red"), point(0.2, 20, 0.8, "lime"), point(1, 90, 0.1, "blue")
    kept = point(1, 0, 0.97, "red"), point(3, 16, 0.98, "lime"), point(40, 45, 0.97, "blue")
    told = {"created": "2026-11-29T12:00:00+00:00", "device": "a <b>machine</b>", "grid": 16}
    told |= {"model": "lantern-scenes", "prompt": "a cat", "seed": 7, "things": 50, "pictures": 200}
    methods = [
        {"id": "lantern", "knob": "delta", "preset": 0.2, "points": lost},
        {"id": "lantern++", "knob": "lambda", "preset": 3.0, "points": kept},
    ]
    return told | {"vanilla": {"share": 0.98, "steps": 255}, "methods": methods}


def made_script(folder: Path) -> str:
    path = folder / "price.json"
    path.write_text(json.dumps(made_price()), encoding="utf-8")
    with patch.object(recorded, "PRICE", path), gr.Blocks():
        (script,) = add_price().values()
    return script


def test_without_measurements_there_is_no_panel(tmp_path: Path) -> None:
    with patch.object(recorded, "PRICE", tmp_path / "price.json"), gr.Blocks() as page:
        assert add_price() == {}
    assert not any(isinstance(one, gr.HTML) for one in page.blocks.values())
    script = made_script(tmp_path)
    told = json.loads(script.partition(";\n")[0].removeprefix("const PRICE = "))
    named = {one["id"]: (one["label"], one["colour"]) for one in told["methods"]}
    assert named == {name: (METHODS[name].label, colour(name)) for name in VALUES}


def test_the_measurements_of_the_package_are_whole_and_small() -> None:
    assert recorded.PRICE.stat().st_size < 150_000
    told = json.loads(recorded.PRICE.read_text(encoding="utf-8"))
    assert told["pictures"] >= 4 * len(THINGS) == 4 * told["things"]
    for one in told["methods"]:
        assert one["preset"] in [point["value"] for point in one["points"]]
        assert not one["points"][0]["alike"] and one["points"][-1]["alike"]
