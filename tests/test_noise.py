"""The noise that all methods share: each number comes of its seed, place and token alone."""

import pytest
import torch

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
    """Also the highest of many, whose uniform of 24 bits would have few digits."""
    assert CHUNK < 50 * 4000, "they are made in several pieces"
    found = gumbel_(torch.empty(50, 4000), seed)
    highest = divmod(int(found.argmax()), 4000)
    for place, token in ((0, 0), (0, 3999), (49, 0), (3, 17), highest):
        key = mixed((mixed((seed + 1) * STEP & MASK) + (place + 1) * STEP) & MASK)
        bits = mixed((key + (token + 1) * STEP) & MASK) & (2**63 - 1)
        u = torch.tensor([bits / 2**63], dtype=torch.float64)
        wanted = float(-(-torch.log1p(-u)).log())
        assert float(found[place, token]) == pytest.approx(wanted, rel=1e-5, abs=1e-5)


def test_noise_is_exact_from_the_least_uniform_to_the_largest() -> None:
    """From 2^-64 to the largest float32 below 1. Where few win, draws hang on the least ones."""
    one, least = 0x3F800000, 63 << 23  # as float32 numbers are written in bits
    u = torch.arange(one - 1, least - 1, -3079, dtype=torch.int32).view(torch.float32)
    assert float(u[0]) == 1 - 2.0**-24 and float(u[-1]) < 2.0**-63
    wanted = -(-torch.log1p(-u.double())).log()
    torch.testing.assert_close(from_uniforms_(u.clone()).double(), wanted, atol=5e-7, rtol=1e-6)
