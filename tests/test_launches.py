"""Steps on an accelerator, without one: none waits for the host or launches more than it may."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from launches import BUDGETS, count_launches
from runs import OF_EACH_KIND

from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.llama import keeps_sums
from lantern_demo.models.registry import REGISTRY

# Settings that change what a step is made of: the rules' once, since no model has any of its own.
WAYS: list[dict[str, Any]] = [{}, {"no_draft": True}, {"cfg_scale": 1.0}, {"dtype": torch.float32}]
RULES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "no_draft": True},
    {"temperature": 0.7, "top_p": 0.9},
    {"noise": "independent"},
    {"dtype": torch.float16},
    {"tree": "small"},
]


@pytest.mark.slow
@pytest.mark.parametrize("method", OF_EACH_KIND)
@pytest.mark.parametrize("model", ["llamagen-t2i-256", "anole-7b"])
def test_steps_wait_for_nothing(model: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With three of a target's layers, which are all alike. Nothing reads a value."""
    info, text = REGISTRY[model], model == "llamagen-t2i-256"
    shallow = replace(info.published, target=replace(info.published.target, layers=3))
    monkeypatch.setitem(REGISTRY, model, replace(info, published=shallow))
    found = [count_launches(model, method, **way) for way in WAYS + RULES * text]
    assert all(launches.faults == [] and launches.kernels.total() > 50 for launches in found)
    if text and METHODS[method].needs_drafter:
        drafter = replace(shallow.drafter, feature_layers=(1, 3))
        reading = replace(info, published=replace(shallow, drafter=drafter))
        monkeypatch.setitem(REGISTRY, model, reading)
        assert count_launches(model, method).faults == []


@pytest.mark.skipif(
    not keeps_sums("meta", torch.bfloat16),
    reason="this PyTorch has no products with an output type",
)
@pytest.mark.parametrize("method", BUDGETS)
def test_budgets(method: str) -> None:
    """Without products with an output type, a product and the widening of its result are two."""
    found = count_launches("llamagen-t2i-256", method)
    assert found.faults == []
    assert found.kernels.total() <= BUDGETS[method], found.kernels
