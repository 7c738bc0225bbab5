"""The table of what works on which machine: every model once, and memory by the estimates."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from lantern_demo.models.checkpoints import has_drafter
from lantern_demo.models.files import needs
from lantern_demo.models.registry import REGISTRY

CARDS = (8, 16, 24)  # GB, taken as GiB


def table() -> dict[str, list[str]]:
    text = (Path(__file__).parent.parent / "docs" / "operations.md").read_text()
    section = text.split("## What works on your machine today\n")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")]
    return {cells[0].strip("`"): cells[1:] for cells in rows}


def test_every_model_is_there() -> None:
    assert list(table()) == list(REGISTRY)


@pytest.mark.parametrize("name", [info.id for info in REGISTRY.values() if info.published])
def test_memory_and_cards_are_those_of_the_estimate(name: str) -> None:
    published = REGISTRY[name].published
    assert published is not None
    methods, memory, _, *cards, zero = table()[name]
    needed = needs.memory(published, "bfloat16") / needs.GIB
    assert memory == f"{needed:.1f} GiB"
    for card, told in zip(CARDS, cards, strict=True):
        assert (told == "no") == (needed > card), f"{card} GB: {told}"
        assert told == "no" or "not checked" in told
    assert zero == "not checked"
    assert methods.startswith("all") == has_drafter(REGISTRY[name]) or published.drafter is not None
    assert (methods == "without a drafter") == (published.drafter is None)


def test_seconds_are_those_of_the_benchmark() -> None:
    benchmark = (Path(__file__).parent.parent / "docs" / "benchmark.md").read_text()

    def rows(head: str) -> dict[str, list[str]]:
        lines = benchmark.split(head)[1].splitlines()[2:]
        found = (line.strip("|").split("|") for line in itertools.takewhile(lambda line: line.startswith("|"), lines))
        return {cells[0].strip(): [cell.strip() for cell in cells] for cells in found}

    speeds, sizes = rows("| method | nodes | MAL |"), rows("| | XL: nodes | ms a token |")
    own = {method: 256 / float(speeds[method][8].split()[0]) for method in ("Vanilla", "EAGLE-1")}
    rows_of = table()
    assert rows_of["lantern-scenes"][2] == f"checked: vanilla {own['Vanilla']:.2f} s, EAGLE-1 {own['EAGLE-1']:.2f} s"
    xl, small, janus = (
        {method: float(sizes[method][at].split()[0]) for method in ("Vanilla", "LANTERN++", "SJD")} for at in (3, 7, 11)
    )
    assert f"vanilla {xl['Vanilla']:.0f} s, LANTERN++ {xl['LANTERN++']:.0f} s" in rows_of["llamagen-t2i-256"][2]
    assert f"vanilla {small['Vanilla']:.1f} s, SJD {small['SJD']:.1f} s" in rows_of["llamagen-c2i-b-256"][2]
    assert f"vanilla {janus['Vanilla']:.0f} s, LANTERN++ {janus['LANTERN++']:.0f} s" in rows_of["janus-pro-1b"][2]
    assert not re.search(
        r"\d s",
        "".join(
            cells[2]
            for name, cells in rows_of.items()
            if name not in ("lantern-scenes", "llamagen-t2i-256", "llamagen-c2i-b-256", "janus-pro-1b")
        ),
    )
