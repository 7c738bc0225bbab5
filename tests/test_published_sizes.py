"""What was measured of published sizes on a processor, as the page tells it."""

from __future__ import annotations

from pathlib import Path

import pytest

from lantern_demo.ui.published_sizes import NAMES, guess_costs, measured_sizes

DOCS = Path(__file__).parents[1] / "docs" / "benchmark.md"


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
