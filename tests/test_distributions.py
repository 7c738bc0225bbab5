"""What a node emits, by brute force: exact rules leave the target's distribution, relaxed ones have
the law that their statement says, and the measured distance is what brute force measures.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runs import exact_ways, small
from tables import emitted_at, near_of, neighbour_table, orders_of, random_probs
from test_loop import DRAFTER, NEIGHBOURS, PREFIX, TARGET, run
from torch import Tensor

from examples.quality.tvd import fixed_shift, picture_tvd, sampled_shift
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule
from lantern_demo.decoding.sampling import Sampling

WAYS = exact_ways()


def distance(way: dict[str, Any], tokens: int) -> float:
    """The measured distance of a run."""
    config = Config(num_tokens=tokens, sampling=Sampling(), neighbours=NEIGHBOURS, **way)
    return picture_tvd(TARGET, DRAFTER, PREFIX, config)


@pytest.mark.parametrize("way", WAYS)
def test_exact_ways_have_no_distance_and_draw_the_same_in_captured_sizes(way: str) -> None:
    """A picture ends otherwise than it goes on, and a captured run may have room for more."""
    how = WAYS[way]
    assert distance(how, 20) < 1e-6
    plain, fixed = (run("vanilla", 60, **how, **more)[1] for more in ({}, PADDED))
    assert fixed.tokens[:40] == plain.tokens[:40]


PADDED = {"padded": True, "room": 100}


def test_a_relaxed_rule_has_a_distance() -> None:
    """Negative control of the test above."""
    assert distance(small("lantern"), 30) > 0.02


RELAXED = [Lantern(3, 0.2), Lantern(5, 0.9), LanternPlusPlus(2, 2.0), LanternPlusPlus(5, 6.0)]


def precise(probs: Tensor) -> Tensor:
    return probs.double() / probs.double().sum()


def slow_probs(
    rule: Rule,
    p: Tensor,
    q: Tensor | None,
    tokens: list[int],
    neighbours: Tensor,
    draws: int = 0,
) -> Tensor:
    """Law of the first emitted token by enumeration, float64, written out from the rules'
    statement. One-hot: `tokens` are the children. Sampled: all orders of draws from q, for as long
    as q has a token left.
    """
    vocab = p.shape[0]
    if not tokens if q is None else not draws or q.sum() == 0:
        return p
    probs = torch.zeros_like(p)
    chances = {tokens[0]: 1.0} if q is None else {x: float(q[x]) for x in range(vocab) if q[x] > 0}
    for x, proposed in chances.items():
        near = near_of(rule, neighbours)(p.tolist(), x)
        height = proposed if q is not None else 1.0
        accept = min(1.0, float(p[x] + p[near].sum()) / height)
        left, without_x = p.clone(), None if q is None else q.clone()
        if without_x is not None:
            without_x[x] = 0.0
            without_x = without_x / without_x.sum() if without_x.sum() > 0 else without_x
        probs[x] += proposed * accept
        if accept == 1.0:
            continue
        left[[x, *near]] = 0.0
        if q is not None:
            left = (left - q).clamp(min=0)
        left = left / left.sum() if left.sum() > 0 else torch.full_like(p, 1 / vocab)
        after = slow_probs(rule, left, without_x, tokens[1:], neighbours, draws - 1)
        probs += proposed * (1 - accept) * after
    return probs


# What a sure drafter leaves behind its first draw: on both sides of 2^-126, below which float32
# numbers lose digits, down to the smallest of them, and nothing.
RESTS = [1e-20, 1e-37, 2.0**-124, 2.0**-127, 4e-40, 3 * 2.0**-149, 0.0]


def sure(rest: float) -> Tensor:
    return torch.full((7,), rest / 6).index_fill(0, torch.tensor([0]), 1.0)


P, Q, FIXED = random_probs(1, 7, 21)[0], random_probs(1, 7, 22)[0], [4, 1, 6]
DRAFTERS = {"one-hot": None, "sampled": Q} | {f"a rest of {rest:.0e}": sure(rest) for rest in RESTS}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("rule", [Rule(), *RELAXED], ids=str)
def test_what_a_node_emits_equals_brute_force(rule: Rule, drafter: str) -> None:
    """Whether its drafts are fixed or drawn, one to three of them; a sure drafter's rest is drawn
    and judged like anything. So does the measured distance.
    """
    q, neighbours, generator = (
        DRAFTERS[drafter],
        neighbour_table(7),
        torch.Generator().manual_seed(1),
    )
    for draws in (1, 2, 3):
        fixed = torch.tensor([FIXED[:draws]])
        rows = (fixed, torch.ones(1).double()) if q is None else orders_of(q, draws)
        exact = None if q is None else precise(q)
        want = slow_probs(rule, precise(P), exact, FIXED[:draws], neighbours, draws)
        assert abs(float(want.sum()) - 1) < 1e-9
        got, _ = emitted_at(rule, P, q, *rows, neighbours)
        torch.testing.assert_close(got, want, atol=1e-6, rtol=0)
        if drafter == "one-hot":
            with_a_gap = torch.tensor([FIXED[0], -1, *FIXED[1:draws]])
            shift = fixed_shift(rule, P, with_a_gap, neighbours)
            torch.testing.assert_close(shift, want - P, atol=1e-6, rtol=0)
        elif drafter == "sampled":
            shift = sampled_shift(rule, P, q, draws, neighbours, generator, draws=20_000)
            near = 1e-6 if draws == 1 else 2e-3  # the first is a sum without random numbers
            torch.testing.assert_close(shift, want - P, atol=near, rtol=0)


@pytest.mark.parametrize("rule", [LanternPlusPlus(2, 1.5), Lantern(2, 0.25)], ids=str)
def test_a_neighbour_that_meets_the_bound_counts_and_one_above_it_does_not(rule: Rule) -> None:
    """The bound is .25, of p as float32 numbers.

    Where p meets it but for rounding, rounding decides: a decoder in float64 may then have another
    law.
    """
    q, neighbours = torch.tensor([0.7, 0.1, 0.2]), torch.tensor([[1, 2], [2, 0], [1, 0]])
    met = torch.tensor([0.5, 0.25, 0.25])
    above = torch.nextafter(met, torch.tensor([0.5, 1.0, 1.0]))
    marks = [emitted_at(rule, p, q, *orders_of(q, 1), neighbours)[1] for p in (met, above)]
    assert marks[0] > 0.05 and marks[1] == 0
