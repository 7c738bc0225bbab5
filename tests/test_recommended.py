"""Settings that are recommended for a model: read with it, told by the API, and filled in on the page."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from lantern_demo import load
from lantern_demo.bench.quality.recommend import ENOUGH, FAST_LOSS
from lantern_demo.models.registry import REGISTRY
from lantern_demo.settings.recommended import FILE, KINDS, Recommendation, read_recommended
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.api import describe
from lantern_demo.ui.recommended_box import fill_in
from lantern_demo.ui.service import Service

RECOMMENDED: dict[str, Any] = {
    "device": "a slow machine",
    "level": 0.99,
    "measures": 13,
    "fast_loss": 0.05,
    "methods": {
        "lantern": {
            "careful": None,
            "fast": {
                "row": "lantern",
                "settings": {"lantern_delta": 0.15, "lantern_k": 50},
                "gain": 1.5,
                "loss": 0.031,
                "pictures": 1000,
            },
        },
        "lantern++": {
            "careful": {"row": "lantern++", "settings": {"lanternpp_lambda": 2.5}, "gain": 1.6, "loss": -0.002, "pictures": 1000},
            "fast": {"row": "lantern++", "settings": {"lanternpp_lambda": 4.0}, "gain": 1.7, "loss": 0.02, "pictures": 1000},
        },
        "zipar": {"careful": None, "fast": {"row": "zipar", "settings": {}, "gain": 3.3, "loss": 0.006, "pictures": 1000}},
    },
}


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    """A model with recommendations."""
    folder = tmp_path / "advised"
    shutil.copytree(tiny_model, folder)
    (folder / FILE).write_text(json.dumps(RECOMMENDED))
    return folder


def test_settings_by_kind(folder: Path) -> None:
    told = load(folder, device="cpu").recommended
    assert told is not None
    assert told.settings("careful") == {"lanternpp_lambda": 2.5}
    assert told.settings("fast") == {"lantern_delta": 0.15, "lantern_k": 50, "lanternpp_lambda": 4.0}


def test_a_model_without_recommendations(tiny_model: Path) -> None:
    assert load(tiny_model, device="cpu").recommended is None and read_recommended(None) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda told: told["methods"]["lantern"].pop("careful"),
        lambda told: told["methods"].update({"lantern+++": {"careful": None, "fast": None}}),
        lambda told: told["methods"]["lantern"]["fast"]["settings"].update(lantern_delta=7),
        lambda told: told["methods"]["lantern"]["fast"]["settings"].update(made_up=7),
        lambda told: told["methods"]["lantern"]["fast"].update(gain=None),
        lambda told: told.update(methods=[]),
    ],
)
def test_damaged_recommendations_are_named_when_the_model_is_loaded(folder: Path, damage: Any) -> None:
    told = json.loads(json.dumps(RECOMMENDED))
    damage(told)
    (folder / FILE).write_text(json.dumps(told))
    with pytest.raises(ValueError, match=f"{FILE} holds no recommended settings"):
        load(folder, device="cpu")
    assert describe(Service(folder, "cpu"))["models"][0]["recommended"] is None


def test_the_api_tells_them(folder: Path) -> None:
    by_id = {model["id"]: model["recommended"] for model in describe(Service(folder, "cpu"))["models"]}
    assert by_id["advised"] == {
        "device": "a slow machine",
        "careful": {
            "settings": {"lanternpp_lambda": 2.5},
            "measured": {"lantern++": {"gain": 1.6, "loss": -0.002, "pictures": 1000}},
        },
        "fast": {
            "settings": {"lantern_delta": 0.15, "lantern_k": 50, "lanternpp_lambda": 4.0},
            "measured": {
                "lantern": {"gain": 1.5, "loss": 0.031, "pictures": 1000},
                "lantern++": {"gain": 1.7, "loss": 0.02, "pictures": 1000},
                "zipar": {"gain": 3.3, "loss": 0.006, "pictures": 1000},
            },
        },
    }
    assert by_id["anole-7b"] is None


def test_the_page_fills_them_in_and_leaves_the_rest(folder: Path) -> None:
    service = Service(folder, "cpu")
    knobs = {name: name for name in ("temperature", "lantern_k", "lantern_delta", "lanternpp_lambda")}
    untouched = gr.update()
    assert fill_in(service, knobs, "careful", "advised") == {**dict.fromkeys(knobs, untouched), "lanternpp_lambda": 2.5}
    assert fill_in(service, knobs, "fast", "advised")["lantern_k"] == 50
    assert fill_in(service, knobs, "fast", "anole-7b") == dict.fromkeys(knobs, untouched)


def test_the_page_says_why(folder: Path) -> None:
    told = read_recommended(folder)
    assert told is not None
    text = texts.recommended(told)
    assert "none of 13 measures" in text and "(99% intervals)" in text and "at most 5 of 100 pictures" in text
    assert (
        "LANTERN, careful: none of those tried; fast: delta 0.15, k 50 (gains 1.50\u00d7; 3.1 fewer of 100 pictures show "
        "all that was asked for)"
    ) in text
    assert "lambda 2.5 (gains 1.60\u00d7; 0.2 more of 100 pictures show all that was asked for)" in text
    slower = replace(told, methods={"lantern": {"careful": None, "fast": Recommendation({"lantern_k": 50}, 0.91, 0.0, 1000)}})
    assert "fast: k 50 (slower: 0.91\u00d7; 0.0 more of 100" in texts.recommended(slower)
    assert "fast: its fitted window (gains 3.30\u00d7" in text
    assert "1,000 pictures of each setting, on a slow machine" in text


def test_the_bundled_models_preset_is_recommended() -> None:
    """What was measured is what the page starts with."""
    info = REGISTRY["lantern-scenes"]
    told = read_recommended(info.folder)
    assert told is not None and told.fast_loss == FAST_LOSS
    shared = [one for one in told.found if one.method == "lantern++" and one.settings.get("dice") != "own"]
    text = texts.recommended(told)
    assert (f"LANTERN++, careful: {texts.ONE_TRIED}; fast: lambda 30" in text) == (len(shared) == 1)
    found = [one for by_kind in told.methods.values() for kind in KINDS if (one := by_kind[kind])]
    assert found and all(one.pictures >= ENOUGH for one in found)
    preset = Settings(**info.preset).as_dict()
    assert {name: preset[name] for name in told.settings("fast")} == told.settings("fast")
