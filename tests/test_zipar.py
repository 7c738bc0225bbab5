"""examples/zipar.py: its plan against the rule played through, and its tokens against vanilla's."""

import pytest

from examples import zipar
from lantern_demo.runs.pipeline import Pipeline

SHAPES = [*((16, 4, window) for window in (1, 2, 4, 9)), (14, 4, 3), (3, 4, 2), (256, 16, 5)]


@pytest.mark.parametrize(("tokens", "row", "window"), SHAPES)
def test_the_plan_is_the_rule_played_through(tokens: int, row: int, window: int) -> None:
    """A row opens when the row above has `window` tokens or is full."""
    sizes = [min(row, tokens - first) for first in range(0, tokens, row)]
    counts, number = [1] + [0] * (len(sizes) - 1), 0
    while counts != sizes:
        number += 1
        ready = [r == 0 or counts[r - 1] >= min(window, sizes[r - 1]) for r in range(len(sizes))]
        some = [r for r in range(len(sizes)) if ready[r] and counts[r] < sizes[r]]
        drawn = [r * row + counts[r] for r in some]
        nodes = zipar.nodes_of(number, tokens, row, window)
        assert [place for *_, place in nodes if place < tokens] == drawn
        for read, at, place in nodes:
            assert read // row < len(sizes)
            assert read % row < counts[read // row], "what is read has been drawn"
            assert place == tokens or at == place - 1
        for place in drawn:
            counts[place // row] += 1
    assert not any(place < tokens for *_, place in zipar.nodes_of(number + 1, tokens, row, window))


def test_a_window_of_a_row_is_vanilla_and_a_smaller_one_takes_fewer_passes(pipe: Pipeline) -> None:
    grid = pipe.info.grid
    vanilla = pipe.generate("two red lanterns", "vanilla", seed=3).tokens
    assert zipar.run(pipe, "two red lanterns", 3, grid)[:3] == (vanilla, grid * grid - 1, 0.0)
    drawn = zipar.run(pipe, "two red lanterns", 3, 1)
    assert drawn.passes == grid - 1 + (grid - 1) * 1 and drawn.tokens[0] == vanilla[0]
    assert 0 < drawn.changed < 1
    raced = zipar.race(pipe, 1, 2)
    assert raced["mean_accepted_length"] == pytest.approx((grid * grid - 1) / (2 * grid - 2))
    assert 0 < raced["changed"] < 1 and raced["speedup"] > 0
