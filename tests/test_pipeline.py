"""The pipeline and its record on a small random model: what is promised of inputs and outputs."""

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
from lantern_demo.decoding.drafting import DraftConfig, DynamicTree
from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.result import Result, record_of
from lantern_demo.settings.named_trees import DEFAULTS, DYNAMIC_TREES, drafts_by_device
from lantern_demo.settings.settings import Settings, drafts_of, planned, settings_of
from lantern_demo.ui import texts
from lantern_demo.ui.run_view import table

PROMPT = "two red box lanterns over a lake"


def test_unknown_words_and_what_nobody_sees_are_not_drawn(pipe: Pipeline) -> None:
    """Unknown words are named. What nobody sees is not in the record, and so not in the link."""
    drawn = pipe.generate("\ufefftwo Zeb\u00adra re\u200bd lanterns", "vanilla")
    known = pipe.generate("two red lanterns", "vanilla")
    record = drawn.record
    assert record["prompt"] == "two Zebra red lanterns" and record["unknown_words"] == ["Zebra"]
    assert record["completed"] == known.record["completed"] and drawn.warning is None
    assert drawn.tokens == known.tokens
    with pytest.raises(ValueError, match="prompt is empty"):
        pipe.request("\u200b \u2060")


def test_numpys_numbers_are_numbers(pipe: Pipeline) -> None:
    settings = pipe.settings(seed=numpy.int64(5), temperature=numpy.float32(0.5))
    assert settings == pipe.settings(seed=5, temperature=0.5)
    assert type(settings.seed) is int


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": None}, "^model must be a name or a folder"),
        ({"model": "a" * 10_000}, "a{60}"),
        ({"dtype": torch.int8}, r"^dtype must be one of auto, .*, got 'int8'$"),
    ],
)
def test_what_cannot_be_loaded_is_refused_by_a_sentence(given: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        load(device="cpu", **given)


def test_a_dtype_may_be_pytorchs(folder: Path) -> None:
    assert load(folder, device="cpu", dtype=torch.bfloat16).dtype == "bfloat16"


def test_a_picture_that_is_drawn_on_stays_the_callers(pipe: Pipeline) -> None:
    """The exact methods draw the same tokens, whose picture is decoded once."""
    first = pipe.generate("a red lantern", "vanilla", seed=3)
    before = first.image.tobytes()
    first.image.paste((0, 0, 0), (0, 0, *first.image.size))
    second = pipe.generate("a red lantern", "sjd", seed=3)
    assert second.tokens == first.tokens and second.image.tobytes() == before


def test_a_comparison_merges_into_one_record_and_a_table(pipe: Pipeline) -> None:
    """A tree's words tell where it comes from, and why it is not the one that was asked for."""
    chosen = ["lantern", "vanilla", "lantern++", "eagle1"]
    knobs = {"tree": "chain", "lantern_k": 5, "lanternpp_k": 10}
    events = pipe.compare("a lantern", chosen, **knobs)
    record = record_of([event for _, event in events if isinstance(event, Result)])
    assert record["order"] == ["vanilla", "eagle1", "lantern", "lantern++"]
    small = "dynamic tree of 7 in up to 3 levels (small, since chain is no dynamic tree)"
    chain = "static chain of 5 (chain)"
    assert [entry["tree"] for entry in record["methods"].values()][1:] == [chain, small, chain]
    rows = table(record)
    assert {len(row) for row in rows} == {len(texts.TABLE_HEAD)}
    dynamic, static = "tree of 7 in up to 3 levels, k 5, delta 0.2", "chain of 5, k 10, lambda 3"
    for row, words in zip(rows[1:], ("shared noise", dynamic, static), strict=True):
        assert words in row[-1]


def test_what_is_asked_for_is_no_named_tree() -> None:
    """Also where it is the default one, as in every link of a run."""
    shape = settings_of(DynamicTree(*DYNAMIC_TREES["small"]))
    for knobs in (shape, shape | {"tree": "0 00 000"}):
        assert planned(METHODS["lantern"], Settings(**knobs)).source == "as asked"


def test_a_repeated_race_draws_the_same_tokens_each_time(pipe: Pipeline) -> None:
    events = pipe.compare("a lantern", ["vanilla", "sjd"], repeats=3)
    drawn = [event for _, event in events if isinstance(event, Result)]
    assert sorted(one.method for one in drawn) == ["sjd"] * 3 + ["vanilla"] * 3
    assert len({tuple(one.tokens) for one in drawn}) == 1


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


def test_a_model_folder_brings_its_own_trees(folder: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(folder, tmp_path / "own"))
    config = json.loads((own / "config.json").read_text(encoding="utf-8"))
    config["trees"] = {"cpu": {"static": "0 1", "dynamic": [3, 1, 5], "window": 3}}
    (own / "config.json").write_text(json.dumps(config), encoding="utf-8")
    pipe = load(own, "cpu")
    found = [pipe.generate(PROMPT, name).tree_settings for name in ("eagle1", "eagle2", "sjd")]
    dynamic = {"draft_top_k": 3, "draft_depth": 1, "draft_nodes": 5}
    assert found == [{"tree": "0 1"}, dynamic, {"window": 3}]
    config["trees"]["cpu"]["window"] = 100  # a request could not ask for it
    (own / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match=r"window must be .* between 0 and 64, got 100"):
        load(own, "cpu")


def test_other_trees_of_a_folder_are_refused() -> None:
    right = {"static": "0", "dynamic": [1, 1, 2], "window": 2}
    wrong = [right | change for change in ({"static": "0 x"}, {"static": "00"})]
    wrong += [right | change for change in ({"dynamic": [1, 1]}, {"window": 0})]
    for told in ([], {"tpu": right}, {"cpu": {}}, *({"cpu": trees} for trees in wrong)):
        with pytest.raises(ValueError, match="trees"):
            drafts_by_device(told)


def test_a_cell_of_a_notebook_shows_a_line_and_the_picture(pipe: Pipeline) -> None:
    drawn = pipe.generate("a red lantern", "vanilla", seed=3)
    assert len(repr(pipe)) < 120 and repr(drawn).startswith("<Result of vanilla: 'a red lantern', ")
    picture = Image.open(BytesIO(drawn._repr_png_()))
    assert picture.tobytes() == drawn.image.tobytes()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_pipeline_is_loaded_anew_in_each_process(copied: Any, pipe: Pipeline) -> None:
    with pytest.raises(TypeError, match="a Pipeline cannot be copied or pickled"):
        copied(pipe)


def test_a_pipeline_is_called_with_a_prompt_or_several(pipe: Pipeline) -> None:
    one, other = (pipe("a red lantern", "vanilla", seed=seed) for seed in (3, 4))
    two = pipe(["a red lantern", "two lanterns"], "vanilla", seed=3)
    assert isinstance(one, Result) and isinstance(two, list)
    assert two[0].tokens == one.tokens != two[1].tokens
    assert other.tokens != one.tokens
    with pytest.raises(ValueError, match=r"unknown setting 'guidance_scale'; it is cfg_scale here"):
        pipe("a red lantern", guidance_scale=3.0)
