"""The noise that all methods share: each number comes of its seed, place and token alone, and draws
follow their distribution.
"""

from __future__ import annotations

from math import exp

import pytest
import torch
from torch import Tensor

from lantern_demo.decoding.noise import CHUNK, from_uniforms_, gumbel_

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15


def mixed(z: int) -> int:
    """SplitMix64's finaliser, as published."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


@pytest.mark.parametrize("seed", [0, 1, 7, 2**32 - 1])
def test_a_number_is_that_of_its_seed_place_and_token(seed: int) -> None:
    found = gumbel_(torch.empty(5, 40), seed)
    for place, token in ((0, 0), (0, 39), (4, 0), (3, 17)):
        key = mixed((mixed((seed + 1) * STEP & MASK) + (place + 1) * STEP) & MASK)
        bits = mixed((key + (token + 1) * STEP) & MASK) & (2**63 - 1)
        u = torch.tensor([bits / 2**63], dtype=torch.float64)
        assert float(found[place, token]) == pytest.approx(
            float(-(-torch.log1p(-u)).log()), rel=1e-5, abs=1e-5
        )


def test_it_does_not_hang_on_how_much_is_made() -> None:
    wide = gumbel_(torch.empty(9, CHUNK // 4), 3)  # in three pieces
    assert torch.equal(gumbel_(torch.empty(2, CHUNK // 4), 3), wide[:2])
    assert torch.equal(gumbel_(torch.empty(7, 60), 3), wide[:7, :60])
    assert not bool((gumbel_(torch.empty(9, 60), 4) == wide[:, :60]).any())


def test_no_number_is_infinite() -> None:
    bits = torch.tensor([0, 1, 2**62, 2**63 - 1])
    u = torch.empty(4).copy_(bits).add_(0.5).mul_(2.0**-63).clamp_(max=1 - 2.0**-24)
    assert float(u.min()) > 0 and float(u.max()) < 1
    found = from_uniforms_(u)
    assert bool(found.isfinite().all()) and found.tolist() == sorted(found.tolist(), reverse=True)
    assert float(found[0]) > 43 and float(found[-1]) == pytest.approx(-2.81, abs=0.01)


# -- the distribution of a draw, by integrals over what the float32 numbers really are


def chance(score: float, above: Tensor, equal: bool) -> Tensor:
    """The chance [n] float64 that a token's score with its noise is above (or equal to) numbers [n]
    float32: noise falls as its uniform rises, so that it is the uniform at which it no longer is,
    found among the float32 numbers by halving.
    """
    low, high = (
        torch.zeros(len(above), dtype=torch.int32),
        torch.full((len(above),), 0x3F7FFFFF, dtype=torch.int32),
    )
    for _ in range(31):
        middle = low + (high - low + 1) // 2
        value = score + from_uniforms_(middle.view(torch.float32).clone())
        is_above = (value >= above) if equal else (value > above)
        low, high = torch.where(is_above, middle, low), torch.where(is_above, high, middle - 1)
    # what is rounded to this number reaches half way to the next one
    here, following = (at.view(torch.float32).double() for at in (low, low + 1))
    return torch.where(low == 0, 0.0, torch.where(low >= 0x3F7FFFFF, 1.0, (here + following) / 2))


@pytest.mark.parametrize("height", [0.0, 20.0])
@pytest.mark.parametrize("gap", [0.0, 0.01, 1.0, 4.0, 7.0])
def test_a_draw_of_two_tokens_follows_its_distribution(gap: float, height: float) -> None:
    """Of equals the first wins. `height` is how large the logits are."""
    count = 2**15
    u = ((torch.arange(count, dtype=torch.float64) + 0.5) / count).float()
    mine = height + from_uniforms_(u)
    wins = 1 - float(chance(height - gap, mine, equal=False).mean())
    assert wins == pytest.approx(1 / (1 + exp(-gap)), abs=1e-6)


def worst_share(height: float) -> float:
    """How far the chances of 16,384 equal tokens are from equal, as a share of them: a bound of
    twice the total variation distance. The first has the best chance, since it wins where it is one
    of several, and the last the worst. The uniforms that are looked at are those of winners; each
    counts for as much as it is likelier there than elsewhere.
    """
    vocabulary, count = 16384, 2**15
    w = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    u = -torch.expm1(w.log() / vocabulary)  # the least of so many
    mine = height + from_uniforms_(u.float())
    found = []
    for equal in (False, True):
        others = chance(height, mine, equal)
        found.append(
            float(((vocabulary - 1) * (torch.log1p(-others) - torch.log1p(-u))).exp().mean())
        )
    assert found[0] >= found[1]
    return max(abs(share - 1) for share in found)


@pytest.mark.parametrize("height", [0.0, 20.0])
def test_a_draw_of_many_equal_tokens_follows_its_distribution(height: float) -> None:
    assert 0.5 * worst_share(height) < 1e-6


def test_large_scores_would_lose_digits() -> None:
    """Negative control, and why scores are held near 0 at temperatures that make them large."""
    assert 0.5 * worst_share(3000.0) > 1e-5
