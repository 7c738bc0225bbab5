"""What is kept and shared: records read back, links, files that say what they are, and the recorded
examples.
"""

from __future__ import annotations

import copy
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from PIL import Image
from tiny import write_tiny_model

from lantern_demo import load
from lantern_demo.decoding.drafting import DynamicTree, StaticTree
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.window import Window
from lantern_demo.models.registry import BUNDLED, REGISTRY
from lantern_demo.runs.pipeline import Generation, Pipeline
from lantern_demo.runs.record import merge_records, parsed, same_decoder
from lantern_demo.settings.settings import Choice, Settings
from lantern_demo.ui import link, recorded, texts
from lantern_demo.ui.contact_sheet import contact_sheet
from lantern_demo.ui.files import write_picture
from lantern_demo.ui.run_view import picture_address, picture_of, results_view
from lantern_demo.version import __version__

TINY = replace(REGISTRY["lantern-scenes"], id="tiny")
DYNAMIC = {"draft_top_k": 4, "draft_depth": 2, "draft_nodes": 8}  # the small one


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return load(write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", grid=8), "cpu")


@pytest.fixture(scope="module")
def runs(pipe: Pipeline) -> list[Generation]:
    names = ["vanilla", "lantern", "lantern++"]
    events = pipe.compare("a lantern \u706f", names, seed=5, lantern_k=10, tree="small")
    found = {name: event for name, event in events if isinstance(event, Generation)}
    return [found[name] for name in names]


@pytest.fixture(scope="module")
def record(runs: list[Generation]) -> dict[str, Any]:
    return merge_records([run.record for run in runs])


def test_a_record_is_read_as_it_was_written(record: dict[str, Any], pipe: Pipeline) -> None:
    assert parsed(json.loads(json.dumps(record))) == json.loads(json.dumps(record))
    written = pipe.generate("a lantern", "sjd", window=3).record
    assert written["methods"]["sjd"]["tree_settings"] == {"window": 3}
    assert parsed(merge_records([written])) == json.loads(json.dumps(written))
    for gone in ("zipar", "opt-tree"):
        named = {**written, "order": [gone], "methods": {gone: written["methods"]["sjd"]}}
        with pytest.raises(ValueError, match=f"methods: '{gone}' is no method of this program,"):
            parsed(named)


def test_a_record_of_another_version_is_refused(record: dict[str, Any]) -> None:
    patched = ".".join(__version__.split(".")[:2]) + ".77"
    assert parsed({**record, "lantern_demo": patched})["lantern_demo"] == patched
    for other in ("0.1.0", "0.2.0", "1.0.0", "nonsense", ""):
        with pytest.raises(ValueError, match=f"lantern_demo: the record is of version '{other}',"):
            parsed({**record, "lantern_demo": other})


def test_what_is_not_known_is_not_kept(record: dict[str, Any]) -> None:
    more = copy.deepcopy(record) | {"note": "<b>"}
    more["methods"]["vanilla"]["speedup"] = 99.0
    more["methods"]["vanilla"]["extra"] = {}
    read = parsed(more)
    assert "note" not in read and "extra" not in read["methods"]["vanilla"]
    assert read["methods"]["vanilla"]["speedup"] == 1, "speedups are computed, not believed"


VANILLA, LANTERN = ("methods", "vanilla"), ("methods", "lantern", "events")
SPOILT: list[tuple[tuple[Any, ...], Any, str]] = [
    (("prompt",), ["x"], "prompt: must be text"),
    (("prompt",), "x" * 1001, "prompt: must have at most 1000 characters"),
    (("device",), "a\x1b[31m", "device: must be text without control characters"),
    (("created",), "yesterday", "created: must be a date and time"),
    (("order",), ["vanilla"], "order must name the record's methods"),
    (("settings",), {"seed": 1}, "settings: must be seed, temperature"),
    (("settings", "tree"), "<img>", "tree must be one of"),
    ((*VANILLA, "token_ids"), [1, 2], "methods.vanilla: token_ids must have 64 entries"),
    ((*VANILLA, "token_ids", 0), -1, "token_ids.0: must be greater than or equal to 0"),
    ((*VANILLA, "decode_seconds"), 10**400, "decode_seconds: must be a number"),
    ((*VANILLA, "method"), "lantern", "says that it is of 'lantern'"),
    ((*VANILLA, "tree_settings"), {"window": 99}, "window must be a whole number between 0 and"),
    ((*VANILLA, "events", "kinds"), "x" * 64, "kinds must have one of the letters"),
    ((*VANILLA, "events", "committed", 3), 200, "committed must rise"),
    ((*VANILLA, "events", "milliseconds", 3), 1e8, "milliseconds must not fall"),
    ((*LANTERN, "trees", 1, "parents"), [7] * 8, "trees.1: must list parents before their"),
    ((*LANTERN, "trees", 1, "path"), [0, 99], "before their children, and a path"),
    ((*LANTERN, "trials", 1), [[99, 0.5, 0, 0]], "trials must list a node of the tree"),
    (("model", "trained"), {"a": {"b": {"c": {"d": {}}}}}, "at most 20000 characters, 4 levels"),
    (("versions",), {}, "versions.python: must be given"),
]


@pytest.mark.parametrize(("path", "value", "sentence"), SPOILT)
def test_a_spoilt_record_is_refused(
    record: dict[str, Any], path: tuple[Any, ...], value: Any, sentence: str
) -> None:
    spoilt = copy.deepcopy(record)
    *way, last = path
    inner: Any = spoilt
    for key in way:
        inner = inner[key]
    inner[last] = value
    with pytest.raises(ValueError, match=sentence.replace("(", r"\(")):
        parsed(spoilt)


def test_a_record_of_an_older_version_is_read(pipe: Pipeline) -> None:
    """It has `compared`, which follows from the trees and the tokens."""
    written = pipe.generate("a lantern", "eagle1", tree="small", seed=5).record
    older = copy.deepcopy(written)
    older["methods"]["eagle1"]["events"]["compared"] = [[]]
    assert parsed(older) == parsed(written)


def test_what_is_no_record_is_refused() -> None:
    for found in (7, [], {"prompt": "a lantern"}):
        with pytest.raises(ValueError, match="this is not a run record"):
            parsed(found)


def test_a_picture_says_what_it_shows(runs: list[Generation], tmp_path: Path) -> None:
    with Image.open(write_picture(tmp_path, runs[2])) as picture:
        told = picture.info
    said = [told[name] for name in ("prompt", "seed", "method", "model")]
    assert said == ["a lantern \u706f", "5", "lantern++", "tiny"]
    settings = json.loads(told["settings"])
    assert settings["lantern_k"] == 10 and settings["tree"] == "0 1 2 00 01 10 000", "what ran"


def test_the_contact_sheet_holds_every_picture(
    runs: list[Generation], record: dict[str, Any]
) -> None:
    pictures = {run.method: run.image for run in runs}
    with Image.open(io.BytesIO(contact_sheet(record, pictures))) as sheet:
        assert sheet.width > 3 * 64 and sheet.height > 64
        assert sheet.info["prompt"] == record["prompt"] and "method" not in sheet.info
    long = record | {"prompt": "lantern " * 200 + "x" * 500}
    with Image.open(io.BytesIO(contact_sheet(long, {}))) as sheet:
        assert sheet.height < 800


def test_a_link_gives_the_settings_back(record: dict[str, Any]) -> None:
    text = link.query(record, Settings(**TINY.preset))
    asked = link.read(dict(parse_qsl(text[1:])), TINY)
    assert asked is not None
    assert (asked.prompt, asked.methods, asked.seeded) == (record["prompt"], record["order"], True)
    assert asked.settings.as_dict() == record["settings"] | {
        "tree": "0 1 2 00 01 10 000",
        **DYNAMIC,
    }
    assert link.read({"utm_source": "somewhere", "__theme": "dark"}, TINY) is None
    unseeded = link.read({"noise": "independent"}, TINY)
    assert unseeded is not None and unseeded.settings.noise == "independent" and not unseeded.seeded


def test_a_link_draws_its_pictures_where_other_trees_are_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens come back, the relaxed methods' too, on a machine that chooses other trees by
    itself.
    """
    pipe = load(write_tiny_model(tmp_path / "tiny", grid=4), "cpu")
    methods = ["lantern", "lantern++", "sjd"]  # one of each kind of drafts

    def drawn(**settings: Any) -> dict[str, Generation]:
        events = pipe.compare("a lantern", methods, **settings)
        return {name: event for name, event in events if isinstance(event, Generation)}

    there = (StaticTree(((0,), (1,), (0, 0))), DynamicTree(1, 2, 4), Window(3))

    def chosen_there(_: Pipeline, method: Method, __: Settings) -> Choice:
        return Choice(next(tree for tree in there if type(tree) is method.drafts), "elsewhere")

    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(Pipeline, "tree_of", chosen_there)
        runs = drawn(seed=5)
    record = merge_records([run.record for run in runs.values()])
    assert record["settings"] == pipe.settings(seed=5).as_dict(), "nobody asked for these trees"
    text = link.query(record, pipe.defaults)
    assert len(text) < 300, "compact"
    asked = link.read(dict(parse_qsl(text[1:])), pipe.info)
    assert asked is not None
    again, without = drawn(**asked.settings.as_dict()), drawn(seed=5)
    for name, run in runs.items():
        assert again[name].tokens == run.tokens, name
        assert again[name].stats.tree_settings == run.stats.tree_settings
    for name in ("lantern", "lantern++"):
        assert without[name].tokens != runs[name].tokens, "the trees matter"


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"tree": "<img src=x>"}, "tree must be one of"),
        ({"seed": "1e400"}, "seed must be a whole number"),
        ({"temperature": "[" * 50_000}, "temperature must be a number"),
        ({"draft_nodes": "100", "draft_top_k": "2", "draft_depth": "1"}, "must be at most 7"),
        ({"model": "../../etc"}, "model must be tiny"),
        ({"methods": "vanilla,scd"}, "method must be one of vanilla, .* got 'scd'"),
        ({"prompt": "x" * 5000}, "prompt has 5000 characters, at most 200 are allowed"),
    ],
)
def test_a_bad_link_is_refused_with_a_sentence(parameters: dict[str, str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        link.read({"top_p": "0.5", **parameters}, TINY)


def test_a_run_that_begins_has_a_link(pipe: Pipeline) -> None:
    request = pipe.request("a lantern", ["vanilla", "lantern"], seed=9, lantern_k=7)
    asked = link.read(dict(parse_qsl(link.query_of(request, pipe.defaults)[1:])), pipe.info)
    assert asked is not None and asked.settings == request.settings["lantern"]
    assert (asked.prompt, asked.methods) == ("a lantern", ["vanilla", "lantern"])


def test_the_view_has_all_that_the_scripts_need(
    runs: list[Generation], record: dict[str, Any]
) -> None:
    shown = results_view(record, {run.method: picture_address(run.image) for run in runs}, "live")
    assert shown["grid"] == 8
    assert [lane["id"] for lane in shown["lanes"]] == record["order"]
    assert "(at most 0.2)" in json.dumps(shown["lanes"][1]["evidence"])
    rows = [row for step in shown["lanes"][1]["trials"] for row in step]
    assert rows and {len(row) for row in rows} == {4}, "a guess and its three numbers"
    assert picture_of(shown["lanes"][0]["picture"]).size == (64, 64)
    alone = merge_records([runs[2].record])
    assert results_view(alone, {}, "live")["lanes"][0]["shares"] is False


def test_the_recorded_examples_are_whole() -> None:
    found = recorded.recorded_runs()
    config = (BUNDLED / "lantern-scenes" / "config.json").read_text(encoding="utf-8")
    asked = [(run.record["prompt"], run.record["settings"]["seed"]) for run in found]
    default = [method.id for method in METHODS.values() if method.default]
    assert asked == list(texts.EXAMPLES)
    for run in found:
        assert run.record["order"] == list(run.pictures) == default
        assert run.record["model"]["id"] == "lantern-scenes"
        assert same_decoder(run.record["model"]["trained"], json.loads(config)["trained"])
        assert picture_of(run.pictures["vanilla"]).size == (256, 256)
    assert sum(path.stat().st_size for path in recorded.FOLDER.iterdir()) < 1_500_000
