"""Temperature, top-k and top-p as LlamaGen applies them, and in LANTERN's order; ties at the top-k boundary."""

from __future__ import annotations

import re

import pytest
import torch
from released import Golden, cases, lantern_probabilities, parts_like
from torch import Tensor

from lantern_demo.decoding.sampling import Sampling, probabilities

ORDERS = {"llamagen": probabilities, "lantern": lantern_probabilities}


def same_probs(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, atol=2e-6, rtol=1e-5)
    assert torch.equal(got > 0, wanted > 0)


@pytest.mark.parametrize(("case", "key"), cases("sampling filters", parts_like(r"(\w+?_probs_t[\d.]+_k\d+_p[\d.]+)")))
def test_filters(case: Golden, key: str) -> None:
    code, temperature, top_k, top_p = re.fullmatch(r"(\w+)_probs_t(.+)_k(.+)_p(.+)", key).groups()  # type: ignore[union-attr]
    got = ORDERS[code](case.tensors["logits"], Sampling(float(temperature), int(top_k), float(top_p)))
    same_probs(got, case.tensors[key])


@pytest.mark.parametrize(("case", "key"), cases("sampling filters", parts_like(r"(tie_\w+_probs_k\d+)")))
def test_ties_at_the_top_k_boundary_stay(case: Golden, key: str) -> None:
    code, top_k = re.fullmatch(r"tie_(\w+)_probs_k(\d+)", key).groups()  # type: ignore[union-attr]
    same_probs(ORDERS[code](case.tensors["tie_logits"], Sampling(top_k=int(top_k))), case.tensors[key])
