"""What is kept and shared: links, files that say what they are, and the recorded examples."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from PIL import Image, ImageFont

from lantern_demo.decoding.drafting import DynamicTree, StaticTree
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.window import Window
from lantern_demo.faults import NotAllowed
from lantern_demo.models.registry import BUNDLED, REGISTRY
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.record import Entry
from lantern_demo.runs.result import Result, record_of
from lantern_demo.settings.knobs import DEFAULT_SEED
from lantern_demo.settings.settings import Planned, Settings
from lantern_demo.ui import link, recorded, texts
from lantern_demo.ui.files import facts, write_picture, write_sheet
from lantern_demo.ui.run_view import picture_of

TINY = replace(REGISTRY["lantern-scenes"], id="tiny")
TREE = "0 1 2 00 01 10 000"  # the small one


@pytest.fixture(scope="module")
def runs(pipe: Pipeline) -> list[Result]:
    names = ["vanilla", "lantern", "lantern++"]
    events = pipe.compare("a lantern \u706f", names, seed=5, lantern_k=10, tree="small")
    found = {name: event for name, event in events if isinstance(event, Result)}
    return [found[name] for name in names]


def test_a_picture_says_what_it_shows(runs: list[Result], tmp_path: Path) -> None:
    with Image.open(write_picture(tmp_path, runs[2])) as picture:
        told = picture.info
    said = [told[name] for name in ("prompt", "seed", "method", "model")]
    assert said == ["a lantern \u706f", "5", "lantern++", "tiny"]
    settings = json.loads(told["settings"])
    assert settings["lantern_k"] == 10 and settings["tree"] == TREE, "what ran"


def test_the_sheet_holds_every_picture_and_its_facts(runs: list[Result], tmp_path: Path) -> None:
    """Settings that are not the preset's, and its address."""
    record, pictures = record_of(runs), {run.method: run.image for run in runs}
    with Image.open(write_sheet(tmp_path, record, pictures)) as sheet:
        assert sheet.width > 3 * 256 and sheet.height > 256
        assert sheet.info["prompt"] == record["prompt"] and "method" not in sheet.info
    long = record | {"prompt": "lantern " * 200 + "x" * 500}
    with Image.open(write_sheet(tmp_path, long, {}, "a.host/?" + "x" * 900)) as sheet:
        assert sheet.height < 800
    first, *_, last = facts(record, "a.host/?seed=5", ImageFont.load_default(13), 2000)
    assert first.startswith("seed 5") and "LANTERN k 10" in first and "lambda" not in first
    assert last == "a.host/?seed=5"


def test_a_link_draws_its_pictures_where_other_trees_are_chosen(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens come back, those of relaxed methods, too."""
    methods = ["lantern", "lantern++", "sjd"]  # one of each kind of drafts

    def drawn(**settings: Any) -> dict[str, Result]:
        events = pipe.compare("a lantern", methods, **settings)
        return {name: event for name, event in events if isinstance(event, Result)}

    there = (StaticTree(((0,), (1,), (0, 0))), DynamicTree(1, 2, 4), Window(3))

    def planned_there(_: Pipeline, method: Method, settings: Settings) -> Planned:
        drafts = next(tree for tree in there if type(tree) is method.drafts)
        return Planned(method, settings, drafts, "elsewhere", settings.rule(method))

    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(Pipeline, "planned", planned_there)
        runs = drawn(seed=5)
    record = record_of(runs.values())
    assert record["settings"] == pipe.settings(seed=5).as_dict(), "nobody asked for these trees"
    text = link.query(record, pipe.defaults)
    asked = link.read(dict(parse_qsl(text[1:])), pipe.info)
    assert len(text) < 300 and asked is not None and asked.seeded
    assert (asked.prompt, asked.methods) == (record["prompt"], record["order"])
    again, without = drawn(**asked.settings.as_dict()), drawn(seed=5)
    for name, run in runs.items():
        assert again[name].tokens == run.tokens, name
        assert again[name].tree_settings == run.tree_settings
        assert name == "sjd" or without[name].tokens != run.tokens, "the trees matter"


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", "[" * 50_000), ("model", "../../etc"), ("prompt", "x" * 5000)],
)
def test_a_bad_link_is_refused_with_a_sentence(name: str, value: str) -> None:
    with pytest.raises(NotAllowed, match=f"^{name} "):
        link.read({"top_p": "0.5", name: value}, TINY)


def test_the_recorded_examples_are_whole() -> None:
    found = recorded.recorded_runs()
    config = (BUNDLED / "lantern-scenes" / "config.json").read_text(encoding="utf-8")
    trained = json.loads(config)["trained"]
    asked = [(run.record["prompt"], run.record["settings"]["seed"]) for run in found]
    default = [method.id for method in METHODS.values() if method.default]
    assert asked == [(prompt, DEFAULT_SEED) for prompt in texts.EXAMPLES], "no seed is chosen"
    for run in found:
        model, entries = run.record["model"], run.record["methods"].values()
        assert run.record["order"] == list(run.pictures) == default
        assert model["id"] == "lantern-scenes"
        assert all(entry.keys() >= {*Entry.__annotations__} for entry in entries)
        for part in ("tokenizer", "picture"):
            assert model["trained"].get(part) == trained.get(part)
        assert picture_of(run.pictures["vanilla"]).size == (256, 256)
    assert sum(path.stat().st_size for path in recorded.FOLDER.iterdir()) < 1_500_000
