"""How often drafts were kept, counted by hand: a chain, a tree with siblings, the picture's end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from lantern_demo.runs.acceptance import Acceptance, Depth, acceptance_of, total
from lantern_demo.ui.recorded import recorded_runs

NOTHING: dict[str, Any] = {"tokens": [], "parents": [], "path": []}
CHAIN = [0, 0, 1, 2]  # parents
TREE = [0, 0, 0, 0, 1, 1, 4]  # three children, two below the first, one below the first of these


def events_of(
    parents: list[int], *steps: tuple[int, list[int]], trials: tuple[list[list[float]], ...] = ()
) -> Any:
    """Events of steps, each with the tokens that it added and its path."""
    committed, trees = [1], [NOTHING]
    for added, path in steps:
        committed.append(committed[-1] + added)
        trees.append({"tokens": [7] * len(parents), "parents": parents, "path": path})
    rows = [[], *(trials or [[] for _ in steps])]
    return {"committed": committed, "trees": trees, "trials": rows}


def test_a_chain_is_kept_over_tried() -> None:
    """Of five steps three keep the first draft, two of these the second, none the third."""
    found = acceptance_of(
        events_of(CHAIN, (1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (3, [0, 1, 2]), (1, [0]))
    )
    assert found.depths == [Depth(5, 5, 3), Depth(3, 3, 2), Depth(2, 2, 0)]
    assert found.sizes == [2, 1, 2]
    assert [depth.chance for depth in found.depths] == [0.6, pytest.approx(2 / 3), 0.0]


def test_siblings_are_tried_until_one_is_kept() -> None:
    """Of the root's three children the second is kept, all are refused, the first is kept."""
    found = acceptance_of(events_of(TREE, (2, [0, 2]), (1, [0]), (3, [0, 1, 5])))
    assert found.depths == [Depth(2 + 3 + 1, 3, 2), Depth(2, 1, 1)]
    assert (found.depths[0].chance, found.depths[0].of_places) == (2 / 6, 2 / 3)


def test_what_the_drafter_could_not_draw_was_not_tried() -> None:
    """The rule's numbers name two of the three children."""
    trials = ([[1, 0.1, 0.1, 0.2], [2, 0.1, 0.1, 0.2]],)
    assert acceptance_of(events_of(TREE, (1, [0]), trials=trials)).depths == [Depth(2, 1, 0)]


def test_what_lies_past_the_pictures_end_does_not_count() -> None:
    """The last step had room for one token, though it kept three drafts."""
    found = acceptance_of(events_of(CHAIN, (4, [0, 1, 2, 3]), (1, [0, 1, 2, 3])))
    assert found.depths == [Depth(2, 2, 2), Depth(1, 1, 1), Depth(1, 1, 1)]
    assert found.sizes == [1, 0, 0, 1]


def test_runs_add_up() -> None:
    one = Acceptance([Depth(5, 5, 3)], [2, 1])
    two = Acceptance([Depth(1, 1, 1), Depth(4, 2, 1)], [0, 0, 1])
    assert total([one, two]) == ([(6, 6, 4), (4, 2, 1)], [2, 1, 1])
    assert total([one, Acceptance([], [])]) == one and total([]) == ([], [])


def test_the_recorded_examples_add_up() -> None:
    """Tokens are those of the steps; a place keeps what its tokens had before the last."""
    for entry in (entry for run in recorded_runs() for entry in run.record["methods"].values()):
        found, kinds = acceptance_of(entry["events"]), entry["events"]["kinds"]
        assert sum(found.sizes) == entry["steps"]
        assert sum(n * steps for n, steps in enumerate(found.sizes, 1)) == entry["tokens"] - 1
        assert sum(depth.kept for depth in found.depths) == len(kinds) - kinds.count("t")
        assert all(of.places <= before.kept for before, of in pairwise(found.depths))
