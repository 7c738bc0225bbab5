"""The pipeline and its record on a small random model: what is promised of inputs, outputs, faults
and stopping.
"""

from __future__ import annotations

import inspect
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest

from lantern_demo import load
from lantern_demo.decoding.drafting import DraftConfig, DynamicTree, StaticTree
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.window import Window
from lantern_demo.prompt_words import NotDrawn
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.result import Result, record_of
from lantern_demo.settings.knobs import DEFAULT_SEED, KNOBS
from lantern_demo.settings.settings import Settings, choice_of, planned, settings_of
from lantern_demo.settings.trees import DEFAULTS, drafts_by_device
from lantern_demo.ui import texts
from lantern_demo.ui.run_view import table

PROMPT = "two red box lanterns over a lake"


def test_same_seed_same_picture_other_seed_another(pipe: Pipeline) -> None:
    first, again, other = (pipe.generate(PROMPT, method="lantern++", seed=s) for s in (5, 5, 6))
    assert first.tokens == again.tokens
    assert first.image.tobytes() == again.image.tobytes() != other.image.tobytes()
    assert first.tokens != other.tokens
    assert pipe.generate("a yellow sky lantern", method="lantern++", seed=5).tokens != first.tokens


def test_unknown_words_are_named(pipe: Pipeline) -> None:
    drawn = pipe.generate("two Purple zebras lanterns over a lake")
    record = drawn.record
    assert record["unknown_words"] == ["zebras"] and record["settings"]["seed"] == DEFAULT_SEED
    assert drawn.warning is None
    assert record["completed"] == "two purple round lanterns over a lake at dusk"
    kittens = pipe.generate("two KITTENS up the hill, purring").record
    assert kittens["unknown_words"] == ["up", "purring"], "read, if not by the model"
    assert kittens["completed"] == "a cat in the hills" and "one of a thing" in kittens["warning"]
    with pytest.raises(NotDrawn, match="Try: "):
        pipe.generate("two Purple zebras over a lake")


def test_a_picture_is_drawn_without_unknown_words(pipe: Pipeline) -> None:
    known, more = (
        pipe.generate(prompt, seed=3).tokens
        for prompt in ("a red lantern", "a fluffy red zebra lantern")
    )
    assert more == known


def test_numpys_numbers_are_numbers(pipe: Pipeline) -> None:
    settings = pipe.settings(seed=numpy.int64(5), temperature=numpy.float32(0.5))
    assert settings == pipe.settings(seed=5, temperature=0.5)
    assert type(settings.seed) is int


@pytest.mark.parametrize("model", [None, 3, "a" * 10_000])
def test_what_names_no_model_is_refused_by_a_sentence(model: Any) -> None:
    with pytest.raises(ValueError, match=r"model must be a name or a folder|a{60}"):
        load(model, "cpu")


def test_a_picture_that_is_drawn_on_stays_the_callers(pipe: Pipeline) -> None:
    """The exact methods draw the same tokens, whose picture is decoded once."""
    first = pipe.generate("a red lantern", "vanilla", seed=3)
    before = first.image.tobytes()
    first.image.paste((0, 0, 0), (0, 0, *first.image.size))
    second = pipe.generate("a red lantern", "sjd", seed=3)
    assert second.tokens == first.tokens and second.image.tobytes() == before


def test_a_comparison_merges_into_one_record_and_a_table(pipe: Pipeline) -> None:
    chosen, knobs = (
        ["lantern", "vanilla", "lantern++", "eagle1"],
        {"tree": "small", "lantern_k": 5, "lanternpp_k": 10},
    )
    runs = [
        event
        for _, event in pipe.compare("a lantern", chosen, **knobs)
        if isinstance(event, Result)
    ]
    record = record_of(runs)
    assert record["order"] == ["vanilla", "eagle1", "lantern", "lantern++"]
    assert [row[-1] for row in table(record)[1:]] == [
        "static tree of 7 in 3 levels, shared noise",
        "dynamic tree of 7 in up to 3 levels, k 5, delta 0.2, independent noise",
        "static tree of 7 in 3 levels, k 10, lambda 3, independent noise",
    ]
    assert re.fullmatch(r"[\d.]+ \+ [\d.]+ \+ [\d.]+ \(c [\d.]+\)", table(record)[1][5])
    assert {len(row) for row in table(record)} == {len(texts.TABLE_HEAD)}
    first, vanilla = record["methods"]["eagle1"], record["methods"]["vanilla"]
    timed = [name for name in first if name.endswith("_seconds")]
    races = []
    for times in (4, 1, 2):  # as long
        slow = first | {name: first[name] * times for name in timed if first[name]}
        races.append({"vanilla": vanilla, "eagle1": slow | {"speedup": first["speedup"] / times}})
    row, middle = table(record, races)[1], table(record | {"methods": races[2]})[1]
    assert [row[2], row[5]] == [middle[2], middle[5]], "the medians of one race agree"
    assert row[3].startswith(f"{middle[3]} (") and table(record, races)[2:] == table(record)[2:]


def test_what_nobody_sees_in_a_prompt_is_left_out(pipe: Pipeline) -> None:
    """In the record, the link and the words that are named, too."""
    request = pipe.request("\ufefftwo re\u200bd zeb\u00adra lanterns", ["vanilla"])
    assert request.prompt == "two red zebra lanterns"
    found = pipe.generate("two re\u200bd lanterns", "vanilla").record
    assert (found["prompt"], found["unknown_words"]) == ("two red lanterns", [])
    with pytest.raises(ValueError, match="prompt is empty"):
        pipe.request("\u200b \u2060")


def test_help_lists_the_settings_and_names_no_default_of_another_model(pipe: Pipeline) -> None:
    told = inspect.getdoc(pipe.generate) or ""
    assert all(f"    {name}: " in told for name in KNOBS) and "; default" not in told


def test_a_repeated_race_draws_the_same_tokens_each_time(pipe: Pipeline) -> None:
    events = pipe.compare("a lantern", ["vanilla", "sjd"], repeats=3)
    drawn = [event for _, event in events if isinstance(event, Result)]
    assert sorted(one.method for one in drawn) == ["sjd"] * 3 + ["vanilla"] * 3
    assert len({tuple(one.tokens) for one in drawn if one.method == "sjd"}) == 1
    with pytest.raises(ValueError, match="repeats must be a whole number between 1 and 20, got 0"):
        pipe.compare("a lantern", repeats=0)


def test_a_tree_of_ones_own(pipe: Pipeline) -> None:
    for method, named, nodes in (
        ("eagle2", "paper", 59),
        ("lantern++", "paper", 58),
        ("eagle1", "chain", 6),
    ):
        assert planned(METHODS[method], Settings(tree=named)).drafts.nodes == nodes
    stats = pipe.generate("a lantern", "eagle1", tree="0 1 00 01 000")
    assert (stats.nodes, stats.tree_settings) == (6, {"tree": "0 1 00 01 000"})
    assert stats.tree == "static tree of 5 in 3 levels (0 1 00 01 000)"
    dynamic = pipe.generate("a lantern", "eagle2", tree="small")
    own = dynamic.tree_settings
    assert own == {"draft_top_k": 4, "draft_depth": 2, "draft_nodes": 8}
    assert pipe.generate("a lantern", "eagle2", **own).tokens == dynamic.tokens
    for method, tree, told in (
        ("eagle2", "paper", "dynamic tree of 58 in up to 5 levels (paper)"),
        ("eagle2", "chain", "tree of 7 in up to 3 levels (small, since chain is no dynamic tree)"),
        ("eagle1", "chain", "static chain of 5 (chain)"),
    ):
        assert planned(METHODS[method], pipe.settings(tree=tree)).tree.endswith(told)


@pytest.mark.parametrize(
    ("given", "cpu", "cuda"),
    [
        ({"draft_depth": 3}, (2, 3, 4), (10, 3, 59)),
        ({"draft_top_k": 1}, (1, 1, 3), (1, 4, 6)),
        ({"draft_nodes": 7}, (2, 1, 7), (10, 4, 7)),
        ({"draft_top_k": 3, "tree": "chain"}, (3, 2, 8), (3, 2, 8)),
        ({"draft_depth": 0, "tree": "paper"}, (10, 0, 11), (10, 0, 11)),
    ],
)
def test_what_is_not_given_of_a_dynamic_tree_is_the_trees(
    given: dict[str, Any], cpu: tuple[int, ...], cuda: tuple[int, ...]
) -> None:
    """Of the device's default tree where no tree is named; never more nodes than there can be."""
    for device, shape in (("cpu", cpu), ("cuda", cuda)):
        found, _ = choice_of(DynamicTree, Settings(**given), DEFAULTS[device])
        assert found == DynamicTree(*shape), device


def test_a_method_whose_drafts_cannot_be_made_is_refused_by_name(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lacking(DraftConfig):
        def __init__(self, nodes: int) -> None: ...

    row = replace(METHODS["vanilla"], id="lacking", drafts=Lacking)
    monkeypatch.setitem(METHODS, row.id, row)
    told = "method lacking cannot be set up: TypeError: .* missing 1 required positional argument"
    with pytest.raises(ValueError, match=told):
        pipe.compare(PROMPT, ["vanilla", "lacking"])
    assert pipe.generate(PROMPT, "vanilla").tokens


def test_more_nodes_than_the_default_tree_can_have_are_refused(pipe: Pipeline) -> None:
    """By a sentence, although only a device has a default tree."""
    assert Settings(draft_nodes=50).draft_nodes == 50
    told = "draft_nodes must be at most 7, the nodes that draft_top_k 2 and draft_depth 1 make, got"
    with pytest.raises(ValueError, match=f"{told} 50"):
        pipe.compare(PROMPT, ["vanilla"], draft_nodes=50)


def test_a_label_that_says_what_0_stands_for_is_of_a_setting_that_takes_it() -> None:
    told = [name for name, knob in KNOBS.items() if "(0:" in knob.label]
    assert told and all(Settings(**{name: 0}).as_dict()[name] == 0 for name in told)


OWN = {"cpu": {"static": "0 1", "dynamic": [3, 1, 5], "window": 3}}


@pytest.mark.parametrize("device", list(DEFAULTS))
@pytest.mark.parametrize("kind", [StaticTree, DynamicTree, Window])
def test_a_default_is_given_again_by_its_settings(device: str, kind: Any) -> None:
    drafts, source = choice_of(kind, Settings(), DEFAULTS[device])
    again = Settings().with_changes(**settings_of(drafts))
    assert choice_of(kind, again, DEFAULTS["cpu"])[0] == drafts
    assert source == "default"


def test_a_model_folder_brings_its_own_trees(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(folder, own)
    config = json.loads((own / "config.json").read_text(encoding="utf-8"))
    (own / "config.json").write_text(json.dumps(config | {"trees": OWN}), encoding="utf-8")
    usual, other = load(folder, "cpu"), load(own, "cpu")
    assert usual.generate(PROMPT, "eagle1").tree_settings == {"tree": "0 00 000"}
    assert other.generate(PROMPT, "eagle1").tree_settings == {"tree": "0 1"}
    dynamic = other.generate(PROMPT, "eagle2").tree_settings
    assert dynamic == {"draft_top_k": 3, "draft_depth": 1, "draft_nodes": 5}
    assert other.generate(PROMPT, "sjd").tree_settings == {"window": 3}


@pytest.mark.parametrize(
    "told",
    [
        [],
        {"tpu": {}},
        {"cpu": {}},
        {"cpu": {"static": "0 x", "dynamic": [1, 1, 2], "window": 2}},
        {"cpu": {"static": "0", "dynamic": [1, 1], "window": 2}},
    ],
)
def test_other_trees_of_a_folder_are_refused(told: Any) -> None:
    with pytest.raises(ValueError, match="trees"):
        drafts_by_device(told)
