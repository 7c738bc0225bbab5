"""The default draft trees: constants by kind of device, or those that a model folder brings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lantern_demo import load
from lantern_demo.decoding.drafting import DynamicTree, StaticTree
from lantern_demo.decoding.window import Window
from lantern_demo.runs.record import parsed
from lantern_demo.settings.settings import Settings, choice_of, settings_of
from lantern_demo.settings.trees import DEFAULTS, drafts_by_device

PROMPT = "two blue sky lanterns"
OWN = {"cpu": {"static": "0 1", "dynamic": [3, 1, 5], "window": 3}}


@pytest.mark.parametrize("device", list(DEFAULTS))
@pytest.mark.parametrize("kind", [StaticTree, DynamicTree, Window])
def test_a_default_is_given_again_by_its_settings(device: str, kind: Any) -> None:
    found = choice_of(kind, Settings(), DEFAULTS[device])
    again = Settings().with_changes(**settings_of(found.policy))
    assert choice_of(kind, again, DEFAULTS["cpu"]).policy == found.policy
    assert found.reason.endswith(" (default)")


def test_a_model_folder_brings_its_own_trees(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(folder, own)
    config = json.loads((own / "config.json").read_text(encoding="utf-8"))
    (own / "config.json").write_text(json.dumps(config | {"trees": OWN}), encoding="utf-8")
    usual, other = load(folder, "cpu"), load(own, "cpu")
    assert usual.generate(PROMPT, "eagle1").stats.tree_settings == {"tree": "0 00 000"}
    assert other.generate(PROMPT, "eagle1").stats.tree_settings == {"tree": "0 1"}
    dynamic = other.generate(PROMPT, "eagle2").stats.tree_settings
    assert dynamic == {"draft_top_k": 3, "draft_depth": 1, "draft_nodes": 5}
    assert other.generate(PROMPT, "sjd").stats.tree_settings == {"window": 3}


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


def test_a_record_with_a_fitted_tree_loads_and_says_which_one_ran(folder: Path) -> None:
    """As version 0.2 wrote it, with settings of methods that left."""
    record = load(folder, "cpu").generate(PROMPT, "lantern++", tree="0 1").record
    gone = {"opt_chance": 0.0, "zipar_window": 0, "zipar_changed": 0.14}
    old = record | {"settings": record["settings"] | {"tree": "fit"} | gone}
    found = parsed(json.loads(json.dumps(old)))
    assert found["settings"]["tree"] == "default"
    assert found["methods"]["lantern++"]["tree_settings"] == {"tree": "0 1"}
