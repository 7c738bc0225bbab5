"""Janus-Pro's fused models for accelerators against the modules: the same numbers, keys and tokens, whose weights are in memory
once."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from fused import same_numbers, same_runs, weights_once
from published import janus_drafter, janus_target
from runs import OF_EACH_KIND

from lantern_demo.models.janus.cuda import FusedJanus, FusedJanusDrafter

IDS = torch.tensor([[0, 23, 20, 24, 22, 10, 11, 12, 25, 23, 21, 24, 22, 3]])

Pair = tuple[Any, Any]


@pytest.fixture(scope="module")
def modules() -> Pair:
    return janus_target(), janus_drafter()


@pytest.fixture(scope="module")
def fused(modules: Pair) -> Pair:
    return FusedJanus(deepcopy(modules[0])), FusedJanusDrafter(deepcopy(modules[1]))


@pytest.mark.parametrize("guided", [False, True], ids=["one row", "two rows"])
def test_the_same_numbers(modules: Pair, fused: Pair, guided: bool) -> None:
    same_numbers(modules, fused, IDS, guided, logits=1e-4)


@pytest.mark.parametrize("method", OF_EACH_KIND)
def test_the_same_runs(modules: Pair, fused: Pair, method: str) -> None:
    same_runs(modules, fused, IDS, method, scale=5.0)


def test_weights_are_in_memory_once() -> None:
    assert len(weights_once((janus_target(), janus_drafter()), (FusedJanus, FusedJanusDrafter))) == 4
