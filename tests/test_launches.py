"""Steps on an accelerator, without one: nothing waits for the host, nothing lies askew, and no step
launches more than it may.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from launches import BUDGETS, META, Launches, Watch, count_launches
from runs import OF_EACH_KIND
from torch import Tensor

from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.llama import keeps_sums
from lantern_demo.models.registry import REGISTRY

# Without them a product and the widening of its result are two kernels.
counted = pytest.mark.skipif(
    not keeps_sums("meta", torch.bfloat16),
    reason="this PyTorch has no products with an output type",
)


# Settings that change what a step is made of: the rules' once, since no model has any of its own.
WAYS: list[dict[str, Any]] = [{}, {"no_draft": True}, {"cfg_scale": 1.0}, {"dtype": torch.float32}]
RULES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "no_draft": True},
    {"temperature": 0.7, "top_p": 0.9},
    {"noise": "independent"},
    {"dtype": torch.float16},
    {"tree": "16 nodes"},
]


@pytest.mark.slow
@pytest.mark.parametrize("method", OF_EACH_KIND)
@pytest.mark.parametrize("model", ["llamagen-t2i-256", "anole-7b"])
def test_steps_of_published_models_run_on_their_own(
    model: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With three of a target's layers, which are all alike.

    Nothing reads a value, so that all steps have one shape.
    """
    info = REGISTRY[model]
    shallow = replace(info.published, target=replace(info.published.target, layers=3))
    monkeypatch.setitem(REGISTRY, model, replace(info, published=shallow))
    found = [
        count_launches(model, method, **way) for way in WAYS + RULES * (model == "llamagen-t2i-256")
    ]
    assert all(launches.faults == [] and launches.total > 50 for launches in found)
    if model == "llamagen-t2i-256" and METHODS[method].needs_drafter:
        drafter = replace(shallow.drafter, feature_layers=(1, 3))
        monkeypatch.setitem(
            REGISTRY, model, replace(info, published=replace(shallow, drafter=drafter))
        )
        assert count_launches(model, method).faults == []


@counted
@pytest.mark.parametrize(
    "key",
    [
        pytest.param(
            key, marks=[pytest.mark.slow] * (key[0] != "llamagen-t2i-256"), id=" ".join(key)
        )
        for key in BUDGETS
    ],
)
def test_budgets(key: tuple[str, str, str]) -> None:
    found = count_launches(*key)
    assert found.faults == []
    assert found.total <= BUDGETS[key], found.kernels


def watched(step: Callable[[], Any]) -> Launches:
    """What is seen of a step; the meta device has no values to give."""
    found = Launches()
    with (
        suppress(RuntimeError, NotImplementedError),
        torch.inference_mode(),
        Watch(found.kernels["draft"], found.faults),
    ):
        step()
    return found


def attend(width: int, dtype: torch.dtype = torch.bfloat16, size: int = 16) -> Tensor:
    q, k = (torch.empty(1, 2, n, size, dtype=torch.bfloat16, device=META) for n in (3, width))
    mask = torch.empty(1, 1, 3, width, dtype=dtype, device=META)
    return F.scaled_dot_product_attention(q, k, k, attn_mask=mask)


X, MASK = torch.empty(4, 4, device=META), torch.empty(4, dtype=torch.bool, device=META)
# What a step does, and the fault that is seen, or how many kernels it launches.
SEEN: list[tuple[Callable[[], Any], str | int]] = [
    (lambda: X.sum().item(), "reads a value"),
    (lambda: bool(MASK.any()), "reads a value"),
    (lambda: X[MASK], "reads a value|by a mask"),
    (lambda: X.index_select(0, torch.tensor([1])), "mixes devices"),
    (lambda: attend(21), "mask is"),
    (lambda: attend(24, torch.float32), "mask is"),
    (lambda: attend(24, size=12), "over"),
    (lambda: attend(24), 1),
    (lambda: X[1:].add_(1), 1),
    (lambda: torch.addmm(X, X, X), 2),  # a copy and a product
    (lambda: X.addmm_(X, X), 1),
    (lambda: F.linear(X, X, X[0]), 1),
]


@pytest.mark.parametrize(("step", "wanted"), SEEN)
def test_what_an_accelerator_may_not_do_is_seen(step: Callable[[], Any], wanted: str | int) -> None:
    """Negative controls of the tests above, and of the count."""
    found = watched(step)
    if isinstance(wanted, int):
        assert (found.faults, found.total) == ([], wanted)
    else:
        assert any(re.search(wanted, fault) for fault in found.faults)
