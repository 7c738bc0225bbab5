"""The pipeline and its record on a small random model: what is promised of inputs, outputs, faults
and stopping.
"""

from __future__ import annotations

import copy
import json
import pickle
import shutil
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from PIL import Image

from lantern_demo import load
from lantern_demo.decoding.drafting import DraftConfig, DynamicTree, StaticTree
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.window import Window
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.result import Result, record_of
from lantern_demo.settings.named_trees import DEFAULTS, drafts_by_device
from lantern_demo.settings.settings import Settings, drafts_of, planned, settings_of
from lantern_demo.ui import texts
from lantern_demo.ui.run_view import table

PROMPT = "two red box lanterns over a lake"


def test_same_seed_same_picture_other_seed_another(pipe: Pipeline) -> None:
    first, again, other = (pipe.generate(PROMPT, method="lantern++", seed=s) for s in (5, 5, 6))
    assert first.tokens == again.tokens
    assert first.image.tobytes() == again.image.tobytes() != other.image.tobytes()
    assert first.tokens != other.tokens
    assert pipe.generate("a yellow sky lantern", method="lantern++", seed=5).tokens != first.tokens


def test_unknown_words_are_named_and_not_drawn(pipe: Pipeline) -> None:
    known, drawn = (pipe.generate(f"a {words} lantern", seed=3) for words in ("red", "Zebra red"))
    record = drawn.record
    assert record["unknown_words"] == ["Zebra"] and drawn.tokens == known.tokens
    assert record["completed"] == known.record["completed"] and drawn.warning is None


def test_numpys_numbers_are_numbers(pipe: Pipeline) -> None:
    settings = pipe.settings(seed=numpy.int64(5), temperature=numpy.float32(0.5))
    assert settings == pipe.settings(seed=5, temperature=0.5)
    assert type(settings.seed) is int


@pytest.mark.parametrize("model", [None, "a" * 10_000])
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
    chosen = ["lantern", "vanilla", "lantern++", "eagle1"]
    knobs = {"tree": "small", "lantern_k": 5, "lanternpp_k": 10}
    events = pipe.compare("a lantern", chosen, **knobs)
    record = record_of([event for _, event in events if isinstance(event, Result)])
    assert record["order"] == ["vanilla", "eagle1", "lantern", "lantern++"]
    rows = table(record)
    for row, words in zip(rows[1:], ("shared noise", "k 5, delta 0.2", "lambda 3"), strict=True):
        assert "tree of 7 in" in row[-1] and words in row[-1]
    assert {len(row) for row in rows} == {len(texts.TABLE_HEAD)}
    first, vanilla = record["methods"]["eagle1"], record["methods"]["vanilla"]
    timed = [name for name in first if name.endswith("_seconds")]
    again = []
    for times in (4, 1, 2):  # as long
        slow = first | {name: first[name] * times for name in timed if first[name]}
        slow["speedup"] = first["speedup"] / times
        again.append(record | {"methods": {"vanilla": vanilla, "eagle1": slow}})
    repeated, middle = table(record, again), table(again[2])[1]
    assert [repeated[1][2], repeated[1][5]] == [middle[2], middle[5]], "the medians of one race"
    assert repeated[1][1].startswith(f"{middle[1]} (") and repeated[2:] == rows[2:]


def test_what_nobody_sees_in_a_prompt_is_left_out(pipe: Pipeline) -> None:
    """In the record, the link and the words that are named, too."""
    request = pipe.request("\ufefftwo re\u200bd zeb\u00adra lanterns", ["vanilla"])
    assert request.prompt == "two red zebra lanterns"
    found = pipe.generate("two re\u200bd lanterns", "vanilla").record
    assert (found["prompt"], found["unknown_words"]) == ("two red lanterns", [])
    with pytest.raises(ValueError, match="prompt is empty"):
        pipe.request("\u200b \u2060")


def test_a_repeated_race_draws_the_same_tokens_each_time(pipe: Pipeline) -> None:
    events = pipe.compare("a lantern", ["vanilla", "sjd"], repeats=3)
    drawn = [event for _, event in events if isinstance(event, Result)]
    assert sorted(one.method for one in drawn) == ["sjd"] * 3 + ["vanilla"] * 3
    assert len({tuple(one.tokens) for one in drawn}) == 1


@pytest.mark.parametrize(
    ("method", "tree", "nodes", "told"),
    [
        ("eagle2", "paper", 59, "dynamic tree of 58 in up to 5 levels (paper)"),
        ("eagle2", "chain", 8, "tree of 7 in up to 3 levels (small, since chain is no dynamic"),
        ("eagle1", "chain", 6, "static chain of 5 (chain)"),
        ("eagle1", "0 1 00 01 000", 6, "static tree of 5 in 3 levels (0 1 00 01 000)"),
    ],
)
def test_a_tree_is_told_in_words(method: str, tree: str, nodes: int, told: str) -> None:
    plan = planned(METHODS[method], Settings(tree=tree))
    assert plan.drafts.nodes == nodes and told in plan.tree


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
        found, _ = drafts_of(DynamicTree, Settings(**given), DEFAULTS[device])
        assert found == DynamicTree(*shape), device


def test_a_method_whose_drafts_cannot_be_made_is_refused_by_name(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lacking(DraftConfig):
        def __init__(self, nodes: int) -> None: ...

    row = replace(METHODS["vanilla"], id="lacking", drafts=Lacking)
    monkeypatch.setitem(METHODS, row.id, row)
    with pytest.raises(ValueError, match=r"method lacking cannot be set up: TypeError: .* missing"):
        pipe.compare(PROMPT, ["vanilla", "lacking"])
    assert pipe.generate(PROMPT, "vanilla").tokens


def test_more_nodes_than_the_default_tree_can_have_are_refused(pipe: Pipeline) -> None:
    """By a sentence, although only a device has a default tree."""
    with pytest.raises(ValueError, match=r"draft_nodes must be at most 7, .*, got 50"):
        pipe.compare(PROMPT, ["vanilla"], draft_nodes=50)


@pytest.mark.parametrize("device", list(DEFAULTS))
@pytest.mark.parametrize("cls", [StaticTree, DynamicTree, Window])
def test_a_default_is_given_again_by_its_settings(device: str, cls: Any) -> None:
    drafts, source = drafts_of(cls, Settings(), DEFAULTS[device])
    again = Settings().with_changes(**settings_of(drafts))
    assert drafts_of(cls, again, DEFAULTS["cpu"])[0] == drafts
    assert source == "default"


def test_a_model_folder_brings_its_own_trees(folder: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(folder, tmp_path / "own"))
    config = json.loads((own / "config.json").read_text(encoding="utf-8"))
    config["trees"] = {"cpu": {"static": "0 1", "dynamic": [3, 1, 5], "window": 3}}
    (own / "config.json").write_text(json.dumps(config), encoding="utf-8")
    pipe = load(own, "cpu")
    found = [pipe.generate(PROMPT, name).tree_settings for name in ("eagle1", "eagle2", "sjd")]
    dynamic = {"draft_top_k": 3, "draft_depth": 1, "draft_nodes": 5}
    assert found == [{"tree": "0 1"}, dynamic, {"window": 3}]


RIGHT = {"static": "0", "dynamic": [1, 1, 2], "window": 2}
WRONG = [[], {"tpu": RIGHT}, {"cpu": {}}]
WRONG += [{"cpu": RIGHT | change} for change in ({"static": "0 x"}, {"dynamic": [1, 1]})]


@pytest.mark.parametrize("told", WRONG)
def test_other_trees_of_a_folder_are_refused(told: Any) -> None:
    with pytest.raises(ValueError, match="trees"):
        drafts_by_device(told)


# -- as a notebook or a worker meets it


def test_a_cell_of_a_notebook_shows_a_line_and_the_picture(pipe: Pipeline) -> None:
    drawn = pipe.generate("a red lantern", "vanilla", seed=3)
    assert len(repr(pipe)) < 120 and repr(drawn).startswith("<Result of vanilla: 'a red lantern', ")
    picture = Image.open(BytesIO(drawn._repr_png_()))
    assert picture.tobytes() == drawn.image.tobytes()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_pipeline_is_loaded_anew_in_each_process(copied: Any, pipe: Pipeline) -> None:
    with pytest.raises(TypeError, match="a Pipeline cannot be copied or pickled"):
        copied(pipe)


def test_a_dtype_is_a_name_or_pytorchs(folder: str) -> None:
    assert load(folder, device="cpu", dtype=torch.bfloat16).dtype == "bfloat16"
    with pytest.raises(ValueError, match=r"^dtype must be one of auto, .*, got 'int8'$"):
        load(folder, dtype=torch.int8)


def test_a_pipeline_is_called_with_a_prompt_or_several(pipe: Pipeline) -> None:
    one = pipe("a red lantern", "vanilla", seed=3)
    two = pipe(["a red lantern", "two lanterns"], "vanilla", seed=3)
    assert isinstance(one, Result) and isinstance(two, list)
    assert two[0].tokens == one.tokens != two[1].tokens
    with pytest.raises(ValueError, match=r"unknown setting 'guidance_scale'; it is cfg_scale here"):
        pipe("a red lantern", guidance_scale=3.0)
