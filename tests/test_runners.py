"""The table of all runners: a model's networks, the same joined as on an accelerator, and a
processor's fused models make one run, and exact methods draw vanilla's tokens on each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from small_models import MODELS, model_of, summary

from lantern_demo.decoding import graphs
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.loop import Decoded, parts_of
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.step import Steps
from lantern_demo.models.bundled import Networks
from lantern_demo.models.families import blank_network, joined_runners
from lantern_demo.models.registry import REGISTRY, Sizes
from lantern_demo.settings.settings import Settings, choice_of

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


META = torch.device("meta")
SETTINGS: list[dict[str, Any]] = [{}, {"temperature": 0.0}, {"cfg_scale": 1.0, "top_p": 0.9}]


def placed(sizes: Sizes) -> Any:
    """A network in bfloat16 on the meta device, its rotary table in float32."""
    part = blank_network(sizes).bfloat16().requires_grad_(False)
    part.rope = torch.empty_like(part.rope, dtype=torch.float32, device=META)
    part.prefill = lambda *_: None
    return part


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["llamagen-t2i-256", "anole-7b"])
def test_a_step_of_a_published_model_reads_no_value(model: str, method: str) -> None:
    """On the meta device, which has no values: a GPU replays the step without the host."""
    info, chosen = REGISTRY[model], METHODS[method]
    own = placed(replace(info.published.target, layers=2))
    small = placed(info.published.drafter)
    runners = joined_runners(Networks(None, own, small, None, {}))  # type: ignore[arg-type]
    vocab = own.config.vocab
    near = torch.empty(vocab, 1001, dtype=torch.int32, device=META)
    for changes in SETTINGS:
        knobs = Settings(**{**info.preset, "tree": "paper", **changes})
        how = knobs.rule(chosen), choice_of(chosen.drafts, knobs).policy, near
        config = Config(chosen, info.tokens, knobs.sampling(), *how, device=META)
        proposer, verifier = parts_of(config, vocab)
        drafter = runners.drafter if chosen.needs_drafter else None
        steps = Steps(runners.target, drafter, config, proposer, verifier)
        for cache in steps.caches:  # the prompt is there, and of some padding
            cache.length, cache.padded = 120, True
        hidden = torch.empty(config.rows, 1, own.config.dim, device=META, dtype=torch.bfloat16)
        root = torch.zeros(1, dtype=torch.int64, device=META)
        steps.begin(hidden, root, torch.empty(info.tokens, steps.draws, device=META), None)
        for shape in steps.shapes()[-2:]:
            steps.step(shape)
