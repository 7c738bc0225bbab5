"""Anole's fused models for accelerators against the modules: the same numbers, keys and tokens, whose weights are in memory
once."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from fused import same_numbers, same_runs, weights_once
from published import anole_networks
from runs import OF_EACH_KIND

from lantern_demo.models import cuda
from lantern_demo.models.anole.cuda import FusedAnole, FusedAnoleDrafter
from lantern_demo.models.anole.target import BEGIN_IMAGE, END_OF_TURN

IDS = torch.tensor([[0, 8712, 8713, 8715, END_OF_TURN, BEGIN_IMAGE]])

Pair = tuple[Any, Any]


def shaken() -> Pair:
    """The small Anole and its drafter; the norms of queries and keys of every head scale and shift, as trained ones do."""
    target, drafter = deepcopy(anole_networks()[:2])
    generator = torch.Generator().manual_seed(5)
    for part in (target, drafter):
        for name, weight in part.named_parameters():
            if "norm" in name:
                weight.data = weight + 0.3 * torch.randn(weight.shape, generator=generator)
    return target, drafter


@pytest.fixture(scope="module")
def modules() -> Pair:
    return shaken()


@pytest.fixture(scope="module")
def fused(modules: Pair) -> Pair:
    return FusedAnole(deepcopy(modules[0])), FusedAnoleDrafter(deepcopy(modules[1]))


@pytest.mark.parametrize("guided", [False, True], ids=["one row", "two rows, one padded"])
def test_the_same_numbers(modules: Pair, fused: Pair, guided: bool) -> None:
    same_numbers(modules, fused, IDS, guided, logits=1e-3)


@pytest.mark.parametrize("method", OF_EACH_KIND)
def test_the_same_runs(modules: Pair, fused: Pair, method: str) -> None:
    same_runs(modules, fused, IDS, method, scale=3.0)


def test_weights_are_in_memory_once_and_looked_up_when_they_are_used() -> None:
    for whole, rows in weights_once(shaken(), (FusedAnole, FusedAnoleDrafter)):
        # no tensor but the whole is kept, not even a view: ZeroGPU would pack it as one more
        assert all(value is whole for part in rows for value in part._whole)
        assert not any(list(part.parameters()) or list(part.buffers()) for part in rows)


def test_sums_are_kept_where_a_device_can() -> None:
    x, weight = torch.randn(3, 8), torch.randn(5, 8)
    assert not cuda.keeps_sums("cpu", torch.bfloat16), "a CPU rounds, and says so"
    for dtype in (torch.float32, torch.bfloat16):
        found = cuda.matmul(x.to(dtype), weight.to(dtype))
        assert found.dtype == torch.float32 and found.shape == (3, 5)
        torch.testing.assert_close(found, x @ weight.t(), atol=0.1 if dtype == torch.bfloat16 else 1e-5, rtol=0.05)


def test_a_cache_that_is_used_again_reads_like_a_new_one() -> None:
    """What a captured step reads stays in its place and holds the next prompt's numbers."""
    target = anole_networks()[0]
    kept = target.new_cache(2, 4)
    kept.set_padding(None)
    places = kept.shift.data_ptr(), kept.padding.data_ptr()
    for padded in (4, 1, 0, 2):
        real = torch.ones(2, 6, dtype=torch.bool)
        real[1, :padded] = False
        new = target.new_cache(2, 4)
        for cache in (kept, new):
            cache.set_padding(real)
        assert torch.equal(kept.shift, new.shift) and torch.equal(kept.padding, new.padding)
        assert (kept.visible is None) == (new.visible is None) == (padded == 0)
        assert (kept.shift.data_ptr(), kept.padding.data_ptr()) == places
