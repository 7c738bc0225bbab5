"""Guidance, filters and draws."""

import threading

import pytest
import torch
from tables import chi_square_p, draw_without_replacement, random_probs

from lantern_demo.decoding import sampling
from lantern_demo.decoding.sampling import Sampling, draw, guide, probabilities


def test_top_p_keeps_the_best() -> None:
    p = probabilities(torch.tensor([[0.0, 3.0, 1.0]]), Sampling(top_p=1e-6))
    assert p.tolist() == [[0.0, 1.0, 0.0]]


def test_greedy_ignores_the_filters() -> None:
    logits = torch.randn(2, 9)
    assert torch.equal(probabilities(logits, Sampling(0, 2, 0.1)), logits.softmax(-1))


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


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"cfg_scale": -1.0}, "cfg_scale is -1.0"),
    ],
)
def test_bad_values_are_named(values: dict, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Sampling(**values)


def test_draw_is_the_inverse_cdf() -> None:
    probs = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    u = torch.tensor([0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-24])
    assert draw(probs.expand(6, -1), u).tolist() == [1, 1, 3, 3, 4, 4]


def test_draw_never_returns_probability_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(20_000, 33, generator=generator)
    probs[torch.rand(probs.shape, generator=generator) < 0.7] = 0.0
    probs[:, 7] += 1e-6
    extremes = torch.tensor([0.0, 1 - 2**-24, 1 - 2**-23])
    for u in (torch.rand(20_000, generator=generator), *(value.expand(20_000) for value in extremes)):
        token = draw(probs, u)
        assert bool((probs.gather(1, token.unsqueeze(1)) > 0).all())


def test_draw_distribution() -> None:
    probs = random_probs(1, 10, seed=3)[0]
    u = torch.rand(100_000, generator=torch.Generator().manual_seed(1))
    counts = draw(probs.expand(100_000, -1), u).bincount(minlength=10)
    assert chi_square_p(counts, probs) > 1e-4


def test_draws_without_replacement_follow_their_distribution() -> None:
    q = random_probs(1, 6, seed=4)[0]
    generator = torch.Generator().manual_seed(2)
    tokens = draw_without_replacement(q.expand(100_000, -1), torch.rand(100_000, 2, generator=generator))
    assert bool((tokens[:, 0] != tokens[:, 1]).all())
    pairs = q.unsqueeze(1) * q / (1 - q.unsqueeze(1))
    pairs.fill_diagonal_(0.0)
    counts = (tokens[:, 0] * 6 + tokens[:, 1]).bincount(minlength=36)
    assert chi_square_p(counts, pairs) > 1e-4


def test_draws_beyond_the_support_are_marked() -> None:
    q = torch.tensor([[0.0, 0.3, 0.7, 0.0], [0.0, 0.0, 1.0, 0.0]])
    tokens = draw_without_replacement(q, torch.rand(2, 4, generator=torch.Generator().manual_seed(0)))
    assert sorted(tokens[0, :2].tolist()) == [1, 2] and tokens[0, 2:].tolist() == [-1, -1]
    assert tokens[1].tolist() == [2, -1, -1, -1]
    assert draw_without_replacement(q, torch.rand(2, 0)).shape == (2, 0)


def test_draws_at_the_ends_of_a_row() -> None:
    q = torch.tensor([[0.0, 0.5, 0.0, 0.5, 0.0]])
    assert draw_without_replacement(q, torch.full((1, 2), sampling.TINY)).tolist() == [[1, 3]]
    assert draw_without_replacement(q, torch.tensor([[1 - 2**-24, 1 - 2**-24]])).tolist() == [[3, 1]]
    assert draw_without_replacement(torch.full((2, 5), torch.nan), torch.rand(2, 3)).tolist() == [[-1] * 3] * 2


def test_a_draw_says_where_there_is_no_distribution() -> None:
    probs = torch.tensor([[0.2, 0.8, 0.0], [0.0, 0.0, 0.0], [torch.nan] * 3, [0.0, 0.0, 1e-30]])
    assert sampling.draw(probs, torch.tensor([0.9, 0.5, 0.5, 0.0])).tolist() == [1, 3, 3, 2]
    assert sampling.draw(probs[:1], torch.tensor([0.1])).tolist() == [0]
    assert sampling.draw(probs[1:2], torch.tensor([0.1])).tolist() == [3]


def test_running_sums_never_scan_one_row_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU sums one long row in an order that varies."""
    scanned = []
    real, here = torch.Tensor.cumsum, threading.get_ident()

    def watched(self: torch.Tensor, dim: int, **options: torch.dtype) -> torch.Tensor:
        if threading.get_ident() == here:  # a model of another test may still be preparing itself
            scanned.append(self.numel() // self.shape[dim])
        return real(self, dim, **options)

    monkeypatch.setattr(torch.Tensor, "cumsum", watched)
    probs = torch.rand(1, 40, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(sampling.running_sums(probs), real(probs.double(), -1))
    torch.testing.assert_close(sampling.running_sums(probs[0]), real(probs[0].double(), -1))
    torch.testing.assert_close(sampling.running_sums(probs.expand(3, -1)), real(probs.double(), -1).expand(3, -1))
    sampling.draw(probs, torch.rand(1))
    draw_without_replacement(probs, torch.rand(1, 3))
    assert len(scanned) == 7 and min(scanned) > 1
