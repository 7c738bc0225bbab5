"""COOL-SD's rule: its distribution by formula, what depth does, and where it is exact."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import decode
from tables import ChainDrafter, ChainTarget, chi_square_p, decide, draw_without_replacement, random_probs
from tiny import write_tiny_model
from torch import Tensor

from lantern_demo import load
from lantern_demo.bench.tvd import sampled_shift
from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.rules import Rule
from lantern_demo.decoding.sampling import Sampling, probabilities
from lantern_demo.decoding.successors import Weighted

TREE = StaticTree([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)])
P_BOUND = 1e-4


def emitted(w: float, p: Tensor, q: Tensor) -> Tensor:
    """The distribution of the first token behind one draft, as the rule says it."""
    accepted = torch.minimum(q, w * p)
    left = (p - accepted).clamp(min=0)
    return accepted + (1 - accepted.sum()) * left / left.sum()


@pytest.mark.parametrize("rule", [Weighted(b, mu=mu) for b, mu in ((1.1, 0.0), (2.0, 0.0), (0.6, 0.0), (2.0, 0.5))], ids=str)
@pytest.mark.parametrize("depth", [0, 1, 3])
def test_one_draft_follows_the_formula(rule: Rule, depth: int) -> None:
    p, q = random_probs(1, 8, 3)[0], random_probs(1, 8, 4)[0]
    runs = 200_000
    generator = torch.Generator().manual_seed(5)
    tokens = draw_without_replacement(q.expand(runs, -1), torch.rand(runs, 1, generator=generator))
    u = torch.rand(runs, 2, generator=generator)
    verdict = decide(rule, p.expand(runs, -1), tokens, q.expand(runs, -1), None, u, depth=torch.full((runs, 1), depth))
    bonus = torch.multinomial(verdict.residual, 1, generator=generator)[:, 0]
    found = torch.where(verdict.rank < 0, bonus, tokens[:, 0]).bincount(minlength=8)
    probs = emitted(rule.bound * math.exp(-0.7 * depth - rule.mu), p, q)
    assert chi_square_p(found, probs) > P_BOUND
    if depth == 0:
        shift, _ = sampled_shift(rule, p, q, torch.tensor([True]), None, generator)
        torch.testing.assert_close(shift, (probs - p).double(), atol=1e-6, rtol=0)


def test_weights_fall_with_depth() -> None:
    found = Weighted(2.0, mu=0.1).weight(torch.tensor([[0], [1], [2]]))
    assert found is not None
    torch.testing.assert_close(found[:, 0], 2.0 * torch.exp(-torch.tensor([0.1, 0.8, 1.5])))


def models() -> tuple[ChainTarget, ChainDrafter, Tensor]:
    logits, drafted = (random_probs(6, 6, seed).log() for seed in (7, 8))
    target = ChainTarget(logits, drafted)
    return target, ChainDrafter(target), logits


def run(
    rule: Rule, engine: str, seed: int, tokens: int = 400, temperature: float = 1.0, method: str = "cool-sd", **changes: Any
) -> Any:
    target, drafter, _ = models()
    knobs: dict[str, Any] = ({"tree": TREE, "rule": rule} if method == "cool-sd" else {}) | changes
    *_, last = decode(
        target,
        drafter,
        torch.tensor([0]),
        num_tokens=tokens,
        method=METHODS[method],
        sampling=Sampling(temperature),
        seed=seed,
        engine=engine,
        **knobs,
    )
    return last


def transitions(rule: Rule) -> float:
    """The smallest p-value of the tokens behind each token, under the target's distribution."""
    counts = torch.zeros(6, 6)
    for seed in range(6):
        for last, token in itertools.pairwise([0, *run(rule, "plain", seed).tokens]):
            counts[last, token] += 1
    probs = probabilities(models()[2], Sampling())
    return min(chi_square_p(counts[i], probs[i]) for i in range(6) if counts[i].sum() > 100)


@pytest.mark.slow
def test_a_weight_of_one_and_below_leaves_the_distribution_as_it_is() -> None:
    """What is accepted too seldom comes back with the residual, at every depth and for every sibling."""
    rule = Weighted(0.8)
    assert transitions(rule) > P_BOUND
    assert transitions(Weighted(6.0)) < 1e-6, "a weight above one does not"
    plain, fixed = (run(rule, engine, 1) for engine in ("plain", "fixed"))
    assert fixed.tokens == plain.tokens


@pytest.mark.slow
def test_the_exact_rules_residual_would_be_wrong_below_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test above: [p - q]+ is right for weights of one and above alone."""
    monkeypatch.setattr(Weighted, "reject", Rule.reject)
    assert transitions(Weighted(0.8)) < 1e-6


@pytest.mark.parametrize("engine", ["plain", "fixed"])
def test_greedy_is_vanillas(engine: str) -> None:
    assert run(Weighted(2.0), engine, 0, 60, 0.0).tokens == run(Rule(), engine, 0, 60, 0.0, "vanilla").tokens


def test_what_is_no_weight_is_refused() -> None:
    for values in ({"bound": 0.0}, {"bound": math.inf}, {"bound": 1.0, "mu": math.nan}):
        with pytest.raises(ValueError, match="they must be finite numbers, delta above 0"):
            Weighted(**values)


def test_the_row_is_all_that_the_program_needs(tmp_path: Path) -> None:
    pipe = load(write_tiny_model(tmp_path / "tiny", grid=4), device="cpu")
    found = {
        m: e for m, e in pipe.compare("a lantern", ["cool-sd", "vanilla"], cool_delta=1.5, tree="small") if hasattr(e, "record")
    }
    assert set(found) == {"vanilla", "cool-sd"}
    record = found["cool-sd"].record  # type: ignore[union-attr]
    assert record["settings"]["cool_delta"] == 1.5 and record["methods"]["cool-sd"]["nodes"] == 8
    assert "cool-sd" not in pipe.default_methods and "cool-sd" in pipe.available_methods
