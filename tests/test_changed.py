"""What a method changed, and what people are told of it."""

from __future__ import annotations

import pytest
import torch
from test_loop import run

from lantern_demo.decoding.evidence import with_evidence
from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.pipeline import Pipeline

NEAREST = (torch.arange(1, 12) + torch.arange(12).unsqueeze(1)) % 12


@pytest.mark.parametrize("noise", ["shared", "independent"])
@pytest.mark.parametrize("method", ["lantern", "lantern++"])
def test_a_changed_token_is_one_that_the_exact_rule_would_refuse(method: str, noise: str) -> None:
    """By the numbers that a draft was judged by: the uniform times q of it, and p of it alone."""
    seen = set()
    for seed in range(4):
        for step in run(method, seed=seed, noise=noise, neighbours=NEAREST)[0]:
            judged = {one.node: one for one in with_evidence(step).judged}
            for kind, node in zip(step.kinds, step.path[1:], strict=False):
                seen.add(kind)
                assert (kind == "relaxed") == (judged[node].threshold >= judged[node].p)
    assert {"exact", "relaxed"} <= seen


def test_statistics_and_records_have_it(pipe: Pipeline) -> None:
    for method in ("vanilla", "sjd", "lantern"):
        done = pipe.generate("two red lanterns", method, seed=1)
        entry = done.record["methods"][method]
        count = entry["events"]["kinds"].count("r")
        assert entry["changed"] == done.changed == count / len(done.tokens)
        assert (count == 0) == METHODS[method].lossless
