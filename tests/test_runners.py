"""The table of all runners: a model's networks, the same joined as on an accelerator, and a
processor's fused models make one run, and exact methods draw vanilla's tokens on each.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_models import MODELS, model_of, summary

from lantern_demo.decoding import graphs
from lantern_demo.decoding.loop import Decoded
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.step import Steps

WAYS: dict[str, dict[str, Any]] = {
    "shared noise": {"filters": (0.9, 20, 0.9), "noise": "shared"},
    "independent": {},
    "greedy": {"filters": (0.0, 0, 1.0)},
}
# Of one model and one method for a static and a dynamic tree: they are the loop's.
MORE: dict[str, dict[str, Any]] = {
    "no filters": {"noise": "shared"},
    "filtered": {"filters": (0.9, 20, 0.9)},
    "14 tokens": {"num_tokens": 14},
    **{f"{count} tokens": {"num_tokens": count, "seed": count} for count in (1, 3)},
}
LOOPED = ("lantern++", "eagle2")
CASES = [("llamagen", method, WAYS | MORE if method in LOOPED else WAYS) for method in METHODS]
CASES += [(model, method, WAYS) for model in MODELS if model != "llamagen" for method in LOOPED]


@pytest.mark.parametrize(
    ("model", "method", "ways"),
    [
        pytest.param(*case, id=" ".join(case[:2]), marks=[pytest.mark.slow] * ("guided" in case[0]))
        for case in CASES
    ],
)
def test_runners_make_the_same_run_and_exact_methods_draw_vanillas_tokens(
    model: str, method: str, ways: dict[str, dict[str, Any]]
) -> None:
    of = model_of(model)
    runners = of.runners
    for name, how in ways.items():
        found = [of.run(runner, method, **how) for runner in runners]
        assert all(summary(events) == summary(found[0]) for events in found), name
        if METHODS[method].lossless and ("noise" in how or name == "greedy"):
            assert found[0][-1].tokens == of.run(of.modules, "vanilla", **how)[-1].tokens, name


@pytest.mark.parametrize("method", ["vanilla", "lantern++"])
def test_launching_ahead_changes_nothing(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        graphs.Runner, "ahead", property(lambda runner: 1 if runner.steps.exact else 4)
    )
    of = model_of("llamagen")
    for how in ({}, {"num_tokens": 3}):
        assert summary(of.run(of.joined, method, **how)) == summary(
            of.run(of.modules, method, **how)
        )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vanilla", "eagle1", "eagle2", "lantern", "lantern++"])
def test_a_whole_step_is_one_graph(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `torch.compile`, which a break would refuse, with the sizes of captured steps."""
    model = model_of("llamagen")

    def tokens() -> list[int]:
        *_, last = model.run(model.joined, method, num_tokens=8)
        assert isinstance(last, Decoded)
        return last.tokens

    wanted = tokens()
    torch.compiler.reset()
    whole = torch.compile(Steps.step, backend="eager", fullgraph=True, dynamic=False)
    with monkeypatch.context() as patch:
        # a replayed step is not timed from inside either
        patch.setattr(Steps, "step", lambda self, shape, _: whole(self, shape))
        assert tokens() == wanted
    torch.compiler.reset()
