"""Rows drawn side by side: the plan against its rule played through, and the distributions against one pass."""

from __future__ import annotations

import pytest
import torch
from small_models import model_of

from lantern_demo.bench.tvd import watched
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import ZipAR, nodes_at_most
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling, guide, probabilities
from lantern_demo.decoding.zipar import nodes_of, plan_of

SHAPES = [(16, 4, window) for window in (1, 2, 3, 4, 9)] + [(14, 4, 1), (14, 4, 3), (5, 2, 1), (3, 4, 2), (256, 16, 5)]


@pytest.mark.parametrize(("tokens", "row", "window"), SHAPES)
def test_the_plan_is_the_rule_played_through(tokens: int, row: int, window: int) -> None:
    """A row is open from when the row above has `window` tokens, or all of its own, until it is full."""
    sizes = [min(row, tokens - first) for first in range(0, tokens, row)]
    counts, number = [1] + [0] * (len(sizes) - 1), 0
    while counts != sizes:
        number += 1
        ready = [r == 0 or counts[r - 1] >= min(window, sizes[r - 1]) for r in range(len(sizes))]
        drawn = [r * row + counts[r] for r in range(len(sizes)) if ready[r] and counts[r] < sizes[r]]
        nodes = nodes_of(number, tokens, row, window)
        assert [place for *_, place in nodes if place < tokens] == drawn
        assert len(nodes) <= nodes_at_most(row, window)
        for read, at, place in nodes:
            assert read // row < len(sizes) and read % row < counts[read // row], "what is read has been drawn"
            if place < tokens:
                assert at == place - 1
        for place in drawn:
            counts[place // row] += 1
    assert number == len(plan_of(tokens, row, window, torch.device("cpu")).passes) - 1
    if tokens % row == 0:
        assert number == row - 1 + (len(sizes) - 1) * min(window, row)


def test_the_first_tokens_of_a_picture_do_not_hang_on_how_many_there_are() -> None:
    of = model_of("full prompt")
    whole, part = (of.run(of.modules, "zipar", num_tokens=count)[-1].tokens for count in (16, 10))
    assert part == whole[:10]


@pytest.mark.parametrize("window", [1, 2, 3, 4])
def test_distributions_are_those_of_one_pass_under_the_whole_mask(window: int) -> None:
    """A node sees what was read up to its own pass at places up to its own, at each place the newest."""
    target, condition = model_of("full prompt").target, model_of("full prompt").condition
    config = Config(METHODS["zipar"], 16, Sampling(1.0, cfg_scale=2.0), tree=ZipAR(window), seed=5, row=4)
    with torch.inference_mode():
        visits, tokens = watched(target, None, condition, config)
        passes = len(plan_of(16, 4, window, torch.device("cpu")).passes)
        inputs = [(number, *node) for number in range(1, passes) for node in nodes_of(number, 16, 4, window)]
        prefix = target.read(condition)
        t, n = prefix.shape[1], len(inputs)
        sees = torch.zeros(t + n, t + n, dtype=torch.bool)
        sees[:, :t] = torch.ones(t + n, t, dtype=torch.bool).tril()
        for i, (number, _, at, _) in enumerate(inputs):
            newest = {place: j for j, (earlier, _, place, _) in enumerate(inputs) if earlier <= number and place <= at}
            sees[t + i, [t + j for j in newest.values()]] = True
        x = target.tok_embeddings(torch.tensor([tokens[read] for _, read, _, _ in inputs])).expand(2, -1, -1)
        rope = target.rope[[*range(t), *(t + at for _, _, at, _ in inputs)]][None]
        hidden = target.run(torch.cat((prefix, x), 1), rope, sees, None)[:, t:]
        expected = probabilities(guide(target.head(hidden), 2.0), config.sampling)
        of = {place: probs for (*_, place), probs in zip(inputs, expected, strict=True) if place < 16}
    assert len(visits) == 16 and sorted(of) == list(range(1, 16))
    for place, probs in of.items():
        torch.testing.assert_close(visits[place].p, probs, atol=1e-5, rtol=1e-4)
