"""A Space on ZeroGPU, as far as that can be told without a GPU: see `zero_gpu`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny import ran

from lantern_demo.ui.recorded import recorded_runs

pytestmark = pytest.mark.slow  # a program of its own

MOST = 25  # seconds that a first click may cost a visitor, of the 120 that one without an account has in a day
DEAREST = 1.5  # so many times what is asked for has to be left


@pytest.fixture(scope="module")
def space(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of a Space and its visitors."""
    program = Path(__file__).with_name("zero_gpu.py")
    root, scratch = program.parent.parent, tmp_path_factory.mktemp("space")
    done = ran(sys.executable, program, tiny_model, scratch, cwd=root, env=os.environ | {"PYTHONPATH": str(root)})
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_the_model_is_there_before_the_page_is_launched(space: dict[str, Any]) -> None:
    assert space["state"] == "ready" and space["device"] == "cuda"


def test_who_asks_is_told_to_the_lender(space: dict[str, Any]) -> None:
    assert [asked["visitor"] for asked in space["asked"]] == ["one", "two"]
    assert all("quota" in answer for answer in space["answers"]), space["answers"]


def test_the_first_view_needs_no_gpu(space: dict[str, Any]) -> None:
    """The page opens on recorded runs."""
    assert recorded_runs()[0].record["prompt"] in space["opened"] and '"error"' not in space["opened"]
    assert space["asked_for_opening"] == 0


def test_a_first_click_leaves_most_of_a_day_to_a_visitor(space: dict[str, Any]) -> None:
    five, one = (asked["seconds"] / space["factor"] for asked in space["asked"])
    assert 5 < one < five and five * DEAREST <= MOST


def test_no_model_but_the_first_is_loaded(space: dict[str, Any]) -> None:
    assert all("runs only the model that it was started with" in answer for answer in space["other"]), space["other"]
    assert space["loaded"] == 1 and space["asked_for_others"] == 0


def test_who_hangs_up_while_waiting_for_a_gpu_gives_up_the_place(space: dict[str, Any]) -> None:
    assert space["told_of_leaving"]
