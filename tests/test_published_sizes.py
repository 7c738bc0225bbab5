"""What was measured of published sizes on a processor, as the page tells it, and what is estimated of them where nothing was
measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lantern_demo.models import estimate
from lantern_demo.models.registry import BUNDLED, REGISTRY
from lantern_demo.runs.fitting import chances, read_calibration
from lantern_demo.ui.published_sizes import NAMES, guess_costs, measured_sizes
from lantern_demo.ui.service import EXPECTED

DOCS = Path(__file__).parents[1] / "docs" / "benchmark.md"
# What `seconds_a_byte` of float16 weights, by rows, and `layer_seconds`, by heads and nodes, were on the machine of these docs.
RATES = {2: 28e-12, 8: 32e-12}
LAYERS = {(12, 1): 70e-6, (12, 4): 124e-6, (20, 1): 116e-6, (20, 4): 339e-6, (16, 1): 310e-6, (16, 4): 1054e-6}


def test_the_file_is_what_the_docs_tell() -> None:
    table = DOCS.read_text().split("| | XL: nodes |")[1].split("\n\n")[0]
    lines = {line.split("|")[1].strip(): line for line in table.splitlines()[2:]}
    sizes = measured_sizes()["models"]
    for method, label in (("vanilla", "Vanilla"), ("eagle1", "EAGLE-1"), ("lantern++", "LANTERN++")):
        cells = [cell.strip() for cell in lines[label].split("|")[2:-1]]
        parts = (("llamagen-t2i-256", cells[:4]), ("llamagen-c2i-b-256", cells[4:8]), ("janus-pro-1b", cells[8:]))
        for model, (nodes, each, picture, _) in parts:
            found = sizes[model]["methods"][method]
            assert (found["nodes"], f"{found['picture_seconds']:.1f} s") == (int(nodes), picture)
            assert found["ms_per_token"] == pytest.approx(float(each), abs=0.6)


def test_what_a_guess_cost_is_of_whole_steps() -> None:
    """A step of a tree, less one of vanilla: its guesses took the difference."""
    costs, sizes = {one["name"]: one for one in guess_costs()}, measured_sizes()["models"]
    for model, (name, short) in NAMES.items():
        guessing, alone = (sizes[model]["methods"][method] for method in ("lantern++", "vanilla"))
        step = guessing["ms_per_token"] * guessing["tokens_per_step"]
        guesses = guessing["nodes"] - 1
        assert guesses > 1 and name.endswith(short)
        assert guesses * costs[name]["cost"] * alone["ms_per_token"] == pytest.approx(step - alone["ms_per_token"], rel=0.05)
    assert all(one["device"] == "AMD EPYC (2 threads)" for one in costs.values())


def test_estimates_come_near_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """On that machine, where a product's own speed is known: within 1.5 times, either way."""
    monkeypatch.setattr(estimate, "seconds_a_byte", lambda kind, rows, threads: RATES[rows])
    monkeypatch.setattr(estimate, "layer_seconds", lambda heads, dim, ffn, positions, nodes, threads: LAYERS[heads, nodes])
    calibration = read_calibration(BUNDLED / "lantern-scenes")
    assert calibration is not None
    tokens = 1 + sum(chances(calibration.static["lantern++"], EXPECTED))
    for model, found in measured_sizes()["models"].items():
        published = REGISTRY[model].published
        assert published is not None and found["default_kind"] == "half"
        vanilla, fast = estimate.picture_seconds(published, "float16", len(EXPECTED), tokens)
        assert 1 / 1.5 < vanilla / found["methods"]["vanilla"]["picture_seconds"] < 1.5
        assert fast is None or 1 / 1.5 < fast / found["methods"]["lantern++"]["picture_seconds"] < 1.5


def test_an_estimate_is_of_a_machine_that_nothing_disturbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of three calls are interrupted and take ten times as long."""
    calls, now = [0], [0.0]

    def call(x: torch.Tensor) -> None:
        calls[0] += 1
        now[0] += 1e-3 if calls[0] % 3 == 0 else 1e-2

    made: list[Any] = []
    monkeypatch.setattr(estimate, "matmul", lambda weight, kind: made.append(weight) or call)
    monkeypatch.setattr(estimate, "perf_counter", lambda: now[0])
    estimate.seconds_a_byte.cache_clear()
    try:
        assert estimate.seconds_a_byte("bfloat16", 2, 1) == pytest.approx(1e-3 / (made[0].numel() * 2))
    finally:
        estimate.seconds_a_byte.cache_clear()
