"""GSD's rule: a guess counts together with the tokens that are about as likely."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runs import decode
from tables import ChainTarget, decide, random_probs

from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.rules import Rule
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.successors import Grouped
from lantern_demo.decoding.window import Window

VOCAB = 30
CHAIN = ChainTarget(random_probs(6, 6, 7).log(), random_probs(6, 6, 8).log())


def group(p: list[float], x: int, delta: float) -> list[int]:
    """x and up to 7 tokens before and 6 behind it in the order of p that are about as likely, one by one."""
    order = sorted(range(len(p)), key=lambda token: (-p[token], token))
    at = order.index(x)
    return [y for y in order[max(0, at - 7) : at + 7] if y == x or abs(p[y] - p[x]) < delta]


def chance(p: list[float], q: list[float], x: int, delta: float) -> float:
    near = group(p, x, delta)
    return min(1.0, sum(p[y] for y in near) / sum(q[y] for y in near))


@pytest.mark.parametrize("delta", [0.003, 0.02, 1.0])
def test_it_is_what_it_says(delta: float) -> None:
    """Just below the chance a guess is accepted, just above it is not, and then what is left is [p - q]+."""
    p, q = random_probs(VOCAB, VOCAB, 1), random_probs(VOCAB, VOCAB, 2)
    x = torch.arange(VOCAB).unsqueeze(1)
    wanted = torch.tensor([chance(p[i].tolist(), q[i].tolist(), i, delta) for i in range(VOCAB)]).unsqueeze(1)
    assert 0 < int((wanted < 1).sum()) < VOCAB or delta == 1.0
    rule = Grouped(delta)
    below, above = (decide(rule, p, x, q, None, u) for u in (wanted - 1e-5, (wanted + 1e-5).clamp(max=1 - 1e-6)))
    assert bool((below.rank == 0).all())
    refused = wanted[:, 0] < 1 - 1e-5
    assert torch.equal(above.rank < 0, refused)
    torch.testing.assert_close(above.residual, (p - q).clamp(min=0))
    exact = (p.diagonal() / q.diagonal()).clamp(max=1)
    assert below.relaxed is not None
    assert torch.equal(below.relaxed[:, 0], (wanted[:, 0] - 1e-5) >= exact)


def run(method: str, bound: float, seed: int = 0, temperature: float = 1.0, **changes: Any) -> Any:
    rule = Grouped(bound) if method == "gsd" else Rule()
    knobs: dict[str, Any] = {"tree": Window(5), "sampling": Sampling(temperature), "rule": rule, **changes}
    *_, last = decode(CHAIN, None, torch.tensor([0]), num_tokens=200, method=METHODS[method], seed=seed, **knobs)
    return last


def test_no_difference_is_sjd() -> None:
    for seed in range(3):
        assert run("gsd", 0.0, seed).tokens == run("sjd", 0.0, seed).tokens
    lossy = run("gsd", 0.15)
    assert lossy.steps < run("sjd", 0.0).steps


def test_greedy_is_sjds() -> None:
    assert run("gsd", 0.15, temperature=0.0).tokens == run("sjd", 0.0, temperature=0.0).tokens
