"""Guidance, filters and draws."""

import pytest
import torch
from tables import draw_without_replacement
from torch import Tensor

from lantern_demo.decoding import sampling
from lantern_demo.decoding.sampling import Sampling, draw, guide, probabilities, uniforms_of

HIGHEST = 1 - 2.0**-48  # of the uniforms on a CPU


def test_guidance() -> None:
    logits = torch.randn(2, 3, 5).half()
    want = logits[1].float() + 3.0 * (logits[0].float() - logits[1].float())
    got = guide(logits, 3.0)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, want)
    assert torch.equal(guide(logits[:1], 7.0), logits[0].float())
    assert torch.equal(guide(logits, 1.0), logits[0].float())
    with pytest.raises(ValueError, match="3 rows"):
        guide(torch.zeros(3, 1, 2), 2.0)


def test_draw_is_the_inverse_cdf() -> None:
    """And says where there is no distribution, by a number that is no token."""
    probs = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    u = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-24])
    assert draw(probs.expand(6, -1), u).tolist() == [1, 1, 3, 3, 4, 4]
    none = torch.tensor([[0.0, 0.0, 0.0], [torch.nan] * 3, [0.0, 0.0, 1e-30]])
    assert draw(none, torch.tensor([0.5, 0.5, 0.0])).tolist() == [3, 3, 2]


@pytest.mark.parametrize("temperature", [1e-3, 1e-10, 1e-38, 1e-45, 5e-324])
def test_temperatures_near_zero_are_the_likeliest_token(temperature: float) -> None:
    logits = torch.tensor([[-1e4, 3.0, 2.5, 1e4], [0.5, -0.5, 0.25, 0.0], [7.0, 7.0, -7.0, 0.0]])
    cool = Sampling(temperature=temperature)
    probs = probabilities(logits, cool)
    assert probs.tolist() == [[0, 0, 0, 1], [1, 0, 0, 0], [0.5, 0.5, 0, 0]]
    assert draw(probs[:2], torch.tensor([0.999, 0.0])).tolist() == [3, 0]
    highest = sampling.scores(logits, cool).amax(-1)
    assert not highest.any(), "noise would lose digits beside large scores"


def test_one_token_left() -> None:
    logits = torch.randn(6, 30, generator=torch.Generator().manual_seed(1))
    best = torch.nn.functional.one_hot(logits.argmax(-1), 30).float()
    for one in (Sampling(top_k=1), Sampling(top_p=1e-9), Sampling(0.01, top_k=1, top_p=0.05)):
        torch.testing.assert_close(probabilities(logits, one), best)
    equal = torch.zeros(1, 4)
    assert probabilities(equal, Sampling(top_k=1)).tolist() == [[0.25] * 4], "ties all stay"
    assert probabilities(equal, Sampling(top_p=0.05)).tolist() == [[1.0, 0.0, 0.0, 0.0]]


def sharp_probs(vocabulary: int) -> Tensor:
    """[24, V] distributions, from flat to next to sure, half of them with tokens of no mass."""
    generator = torch.Generator().manual_seed(7)
    spread = torch.tensor([1.0, 3.0, 10.0, 30.0, 60.0, 100.0]).repeat(4).unsqueeze(1)
    logits = spread * torch.rand(24, vocabulary, generator=generator)
    logits[:, 3] += spread[:, 0]  # a gap behind the best
    dropped = torch.rand(12, vocabulary, generator=generator) < 0.5
    logits[12:] = logits[12:].masked_fill(dropped, -torch.inf)
    return logits.softmax(-1)


def test_draws_are_different_tokens_of_mass_at_any_height() -> None:
    nothing = torch.full((1, 5), torch.nan)
    assert draw_without_replacement(nothing, torch.rand(1, 3)).tolist() == [[-1] * 3]
    for vocabulary in (2, 5, 300):
        q = sharp_probs(max(vocabulary, 4))[:, :vocabulary]
        for value in (sampling.TINY, 2.0**-48, 0.5, 1 - 2.0**-24, HIGHEST, 1 - 2.0**-53, 1.0):
            u = torch.full((24, min(vocabulary, 9)), value, dtype=torch.float64)
            for probs, row in zip(q, draw_without_replacement(q, u).tolist(), strict=True):
                found = [token for token in row if token >= 0]
                assert len(set(found)) == len(found) == min(len(row), int((probs > 0).sum()))
                assert all(probs[token] > 0 for token in found)
                assert all(token == -1 for token in row[len(found) :])


def test_a_token_is_drawn_at_all_heights_of_its_step() -> None:
    """Just above the foot of its step and just below the top, for every 128th of 16,384 tokens."""
    p = 0.5 + torch.rand(16_384, generator=torch.Generator().manual_seed(2))
    tokens, sums = torch.arange(0, len(p), 128), p.double().cumsum(0)
    for share in (1e-4, 0.9999):
        u = ((sums - (1 - share) * p) / sums[-1])[tokens]
        assert torch.equal(draw(p.expand(len(u), -1), u), tokens)


def test_uniforms_are_finer_than_a_float32() -> None:
    """No two are equal; of 100,000 numbers of 24 bits some 300 would be."""
    rows = uniforms_of(5, torch.device("cpu"), 1000, 100)
    assert len(rows.unique()) == rows.numel()
    assert rows.dtype == torch.float64 and float(rows.min()) >= 0 and float(rows.max()) <= HIGHEST
    assert torch.equal((rows * 2.0**48).floor(), rows * 2.0**48)
