"""A Space on ZeroGPU, as far as that can be told without a GPU: see `zero_gpu`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tiny import ran

from lantern_demo.ui.recorded import recorded_runs

# seconds that a first click may cost a visitor, of the 120 that one without an account has in a day
MOST = 25
DEAREST = 1.5  # so many times what is asked for has to be left


@pytest.mark.slow  # a program of its own
def test_a_space_and_its_visitors(tiny_model: Path, tmp_path: Path) -> None:
    """The page opens on recorded runs, without a GPU. Whoever leaves while waiting for one gives up
    the place.
    """
    root = Path(__file__).resolve().parents[1]
    program = root / "tests" / "helpers" / "zero_gpu.py"
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = ran(sys.executable, program, tiny_model, tmp_path, cwd=root, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    space = json.loads(done.stdout.splitlines()[-1])
    assert space["state"] == "ready" and space["device"] == "cuda", "before the page is launched"
    assert recorded_runs()[0].record["prompt"] in space["opened"]
    assert space["asked_for_opening"] == 0
    visitors = [asked["visitor"] for asked in space["asked"]]
    assert visitors == ["one", "two"], "the lender is told who asks"
    assert all("quota" in answer for answer in space["answers"]), space["answers"]
    five, one = (asked["seconds"] / space["factor"] for asked in space["asked"])
    assert 5 < one < five and five * DEAREST <= MOST, "a first click leaves a visitor most of a day"
    assert space["told_of_leaving"]
