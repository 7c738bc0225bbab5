"""Networks as they run on an accelerator: products that read the same are one, with the same numbers and weights that are in
memory once. `test_runners` has the same runs."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from passes import begin, tree_pass
from published import anole_networks
from small_models import TEXT, model_of, networks
from torch import Tensor

from lantern_demo.models.llama import keeps_sums, wide

TREE = torch.tensor([0, 1, 1]), torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool()


def close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("model", ["llamagen", "anole", "anole, no guidance", "janus", "janus, padded"])
@torch.inference_mode()
def test_joined_products_give_the_same_numbers_and_keys(model: str) -> None:
    """A pass of three nodes by a target, and one of its drafter. The joined weights are all that is in memory."""
    of = model_of(model)
    rows, found = len(of.condition.features), []
    target, drafter, _ = of.joined
    for large, small in ((of.target, of.drafter), (target, drafter)):
        cache, own = large.new_cache(rows, 10), small.new_cache(rows, 10)
        hidden = large.prefill(of.condition, cache)
        states = tree_pass(large, torch.tensor([3, 9, 11]), *TREE, cache)
        output = begin(small, hidden, torch.tensor([3]), own, of.condition)
        found.append((states, large.head(states), output, cache.both, own.both))
    for ours, theirs in zip(*found, strict=True):
        close(ours, theirs)
    for ours, theirs in ((target, of.target), (drafter, of.drafter)):
        names = [name for name, _ in ours.named_parameters()]
        assert any("joined" in name for name in names) and not any(
            part in name for name in names for part in ("q_proj", "up_proj")
        )
        assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_half_precision(dtype: torch.dtype) -> None:
    """Close to float32; the rotary tables stay float32."""
    target = networks(TEXT)[0]
    half = deepcopy(target).to(dtype)
    half.rope, found = target.rope, []
    condition = target.condition(torch.randn(1, 7, 32), None, False)
    for of in (target, half):
        cache = of.new_cache(1, 8)
        of.prefill(condition, cache)
        found.append(of.head(tree_pass(of, torch.tensor([3, 9, 11]), *TREE, cache)))
    assert found[1].dtype == torch.float32
    torch.testing.assert_close(found[1], found[0], atol=0.3, rtol=0.1)


def test_sums_are_kept_where_a_device_can() -> None:
    x, part = torch.randn(1, 3, 8), torch.nn.Linear(8, 5, bias=False)
    assert not keeps_sums("cpu", torch.bfloat16), "a CPU rounds, and says so"
    for dtype in (torch.float32, torch.bfloat16):
        found = wide(deepcopy(part).to(dtype), x.to(dtype))
        assert found.dtype == torch.float32 and found.shape == (1, 3, 5)
        torch.testing.assert_close(found, part(x), atol=0.1 if dtype == torch.bfloat16 else 1e-5, rtol=0.05)


def test_a_padded_cache_that_is_used_again_counts_positions_anew() -> None:
    """What a captured step reads stays in its place."""
    target = anole_networks()[0]
    kept = target.new_cache(2, 4)
    place = kept.shift.data_ptr()
    for padded in (4, 1, 0, 2):
        real = torch.ones(2, 6, dtype=torch.bool)
        real[1, :padded] = False
        kept.start(6, real)
        assert kept.shift.tolist() == [0, padded] and kept.shift.data_ptr() == place
        assert kept.positions(torch.tensor([0, 5])).tolist() == [[0, 5], [0, 5 - padded]]
