"""What a method changed, and what people are told of it.

Beside it the distance, which the bench alone measures.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_loop import DRAFTER, PREFIX, SETTINGS, TARGET

from lantern_demo.decoding.config import Config
from lantern_demo.decoding.evidence import own_logits, with_evidence
from lantern_demo.decoding.loop import Step, decode
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling, guide, probabilities
from lantern_demo.runs.pipeline import Pipeline

TOKENS = 30


def config_of(method: str, seed: int = 0, **changes: Any) -> Config:
    knobs = {"sampling": Sampling(cfg_scale=2.0), **SETTINGS[method], **changes}
    knobs["neighbours"] = (torch.arange(1, 12) + torch.arange(12).unsqueeze(1)) % 12
    return Config(num_tokens=TOKENS, seed=seed, **knobs)


def steps_of(config: Config) -> tuple[list[Step], list[int]]:
    *steps, last = decode(TARGET, DRAFTER, PREFIX, config)
    return steps, last.tokens  # type: ignore[return-value]


@pytest.mark.parametrize("noise", ["shared", "independent"])
@pytest.mark.parametrize("method", ["lantern", "lantern++"])
def test_a_changed_token_is_one_that_the_exact_rule_would_refuse(method: str, noise: str) -> None:
    """By the numbers that a draft was judged by: the uniform times q of it, and p of it alone."""
    seen = set()
    for seed in range(4):
        for step in steps_of(config_of(method, seed, noise=noise))[0]:
            judged = {one.node: one for one in with_evidence(step).judged}
            for kind, node in zip(step.kinds, step.path[1:], strict=False):
                seen.add(kind)
                assert (kind == "relaxed") == (judged[node].threshold >= judged[node].p)
    assert {"exact", "relaxed"} <= seen


def test_own_logits_are_the_models() -> None:
    """Of the table's target the distribution behind the last two tokens."""
    config = config_of("vanilla")
    tokens = steps_of(config)[1]
    with torch.inference_mode():
        logits = torch.cat(list(own_logits(TARGET, PREFIX, tokens, config)), 1)
    found = probabilities(guide(logits, 2.0), config.sampling)
    before = torch.tensor([*PREFIX[-2:].tolist(), *tokens])
    torch.testing.assert_close(
        found, TARGET.probs(before[:-2], before[1:-1], config.sampling), atol=1e-6, rtol=0
    )


def test_statistics_and_records_have_it(pipe: Pipeline) -> None:
    for method in ("vanilla", "sjd", "lantern"):
        done = pipe.generate("two red lanterns", method, seed=1)
        entry = done.record["methods"][method]
        count = entry["events"]["kinds"].count("r")
        assert entry["changed"] == done.changed == count / len(done.tokens)
        assert (count == 0) == METHODS[method].lossless
