"""What a node emits: the target's law with the exact rule, and with others the measured one."""

from typing import Any

import pytest
import torch
from runs import exact_ways, small
from tables import decide, emitted_at, neighbour_table, orders_of, random_probs
from test_loop import DRAFTER, NEIGHBOURS, PREFIX, TARGET
from torch import Tensor

from examples.quality.tvd import fixed_shift, picture_tvd, sampled_shift
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule
from lantern_demo.decoding.sampling import Sampling

WAYS = exact_ways()


def distance(way: dict[str, Any], tokens: int) -> float:
    config = Config(num_tokens=tokens, sampling=Sampling(), neighbours=NEIGHBOURS, **way)
    return picture_tvd(TARGET, DRAFTER, PREFIX, config)


@pytest.mark.parametrize("way", WAYS)
def test_exact_ways_have_no_distance(way: str) -> None:
    assert distance(WAYS[way], 20) < 1e-6


def test_a_relaxed_rule_has_a_distance() -> None:
    """Negative control of the test above."""
    assert distance(small("lantern"), 30) > 0.02


# What a sure drafter leaves behind its first draw: below 2^-126 float32 numbers lose digits.
RESTS = [1e-20, 1e-37, 2.0**-124, 2.0**-127, 4e-40, 3 * 2.0**-149, 0.0]


def sure(rest: float) -> Tensor:
    return torch.full((7,), rest / 6).index_fill(0, torch.tensor([0]), 1.0)


P, Q, FIXED = random_probs(1, 7, 21)[0], random_probs(1, 7, 22)[0], [4, 1, 6]
NEAR = neighbour_table(7)
DRAFTERS = {"one-hot": None, "sampled": Q} | {f"a rest of {rest:.0e}": sure(rest) for rest in RESTS}


def emitted(rule: Rule, q: Tensor | None, draws: int) -> Tensor:
    """The law of the first token behind so many drafts: fixed ones, or drawn from q."""
    fixed = torch.tensor([FIXED[:draws]]), torch.ones(1).double()
    return emitted_at(rule, P, q, *(fixed if q is None else orders_of(q, draws)), NEAR)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_exact_rule_emits_the_targets_distribution(drafter: str) -> None:
    """A sure drafter's rest is drawn and judged like anything."""
    for draws in (1, 2, 3):
        found = emitted(Rule(), DRAFTERS[drafter], draws)
        torch.testing.assert_close(found.float(), P, atol=1e-6, rtol=0)


RELAXED = [Lantern(3, 0.2), Lantern(5, 0.9), LanternPlusPlus(2, 2.0), LanternPlusPlus(5, 6.0)]


@pytest.mark.parametrize("rule", [Rule(), *RELAXED], ids=str)
def test_the_measured_distance_is_that_of_what_a_node_emits(rule: Rule) -> None:
    generator = torch.Generator().manual_seed(1)
    for draws in (1, 2, 3):
        with_a_gap = torch.tensor([FIXED[0], -1, *FIXED[1:draws]])
        shift = fixed_shift(rule, P, with_a_gap, NEAR)
        torch.testing.assert_close(shift, emitted(rule, None, draws) - P, atol=2e-6, rtol=0)
        shift = sampled_shift(rule, P, Q, draws, NEAR, generator, draws=20_000)
        near = 2e-6 if draws == 1 else 2e-3  # the first is a sum without random numbers
        torch.testing.assert_close(shift, emitted(rule, Q, draws) - P, atol=near, rtol=0)


@pytest.mark.parametrize("rule", [LanternPlusPlus(2, 1.5), Lantern(2, 0.25)], ids=str)
def test_a_neighbour_that_meets_the_bound_counts_and_one_above_it_does_not(rule: Rule) -> None:
    """The bound is .25 of p in float32: where p meets it but for rounding, rounding decides."""
    neighbours = torch.tensor([[1, 2], [2, 0], [1, 0]])
    met = torch.tensor([[0.5, 0.25, 0.25]])
    above = torch.nextafter(met, torch.tensor([[0.5, 1.0, 1.0]]))
    draft, u = torch.tensor([[0]]), torch.tensor([[0.6]])
    found = [decide(rule, p, draft, None, neighbours, u).rank.tolist() for p in (met, above)]
    assert found == [[0], [-1]]
