"""Numbers at the edge: underflow, one token left, temperatures near 0, k and bounds at their ends, codebooks with equal vectors,
pictures that end inside a tree, residuals of zero. All against the slow fused model, which does what the rules say one token at a
time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from runs import decode
from tables import TableDrafter, TableTarget, decide, draw_without_replacement, neighbour_table
from test_acceptance import near_of
from torch import Tensor

from lantern_demo.decoding.drafting import Drafts, DynamicTree, StaticTree
from lantern_demo.decoding.loop import Decoded
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule
from lantern_demo.decoding.sampling import Sampling, draw, probabilities
from lantern_demo.models.neighbours import neighbour_table as measured_neighbours

VOCAB = 10
ENDS = [
    Rule(),
    *(Lantern(k, delta) for k in (0, 1, VOCAB - 1) for delta in (0.0, 1e-30, 1.0)),
    *(LanternPlusPlus(k, bound) for k in (0, 1, VOCAB - 1) for bound in (1.0, 1 + 1e-12, 1e30)),
]


def slow_step(
    rule: Rule, p: list[float], tokens: list[int], q: list[float] | None, neighbours: Tensor, u: list[float]
) -> tuple[int, list[float]]:
    """Which child of a node is accepted, -1 for none, and the distribution of the bonus token; with residuals that come out
    empty: what is left of p without x stands in, and p itself where it is x alone."""
    p, q = [value / sum(p) for value in p], None if q is None else list(q)  # the sum of float32 numbers may pass a bound of 1
    for rank, x in enumerate(tokens):
        if x < 0:
            continue
        near = near_of(rule, neighbours)(p, x)
        mass = sum(p[y] for y in near)
        if u[rank] * (q[x] if q else 1.0) < p[x] + mass:
            return rank, p
        left = [0.0 if y in near or y == x else value for y, value in enumerate(p)]
        left = [max(0.0, a - b) for a, b in zip(left, q, strict=True)] if q else left
        rest = [0.0 if y == x else value for y, value in enumerate(p)]
        p = next((probs for probs in (left, rest) if sum(probs) > 0), p)
        p = [value / sum(p) for value in p]
        if q:
            q = [0.0 if y == x else value for y, value in enumerate(q)]
            q = [value / (sum(q) or 1.0) for value in q]
    return -1, p


def edge_probs(seed: int) -> Tensor:
    """[nodes, V]: point masses, two tokens, tiny numbers beside large ones, flat ones, and one that underflows."""
    generator = torch.Generator().manual_seed(seed)
    eye = torch.eye(VOCAB)
    pairs = eye * 0.5 + eye.roll(1, 0) * 0.5
    logits = torch.randn(VOCAB, VOCAB, generator=generator)
    tiny = torch.full((VOCAB, VOCAB), 1e-40)  # subnormal beside 1
    tiny[:, seed % VOCAB] = 1.0
    return torch.cat([eye, pairs, (60 * logits).softmax(-1), (200 * logits).softmax(-1), tiny, torch.full((VOCAB, VOCAB), 0.1)])


def agree(got: Tensor, want: list[float]) -> None:
    torch.testing.assert_close(got, torch.tensor(want), atol=2e-5, rtol=1e-3)


@pytest.mark.parametrize("sampled", [False, True], ids=["one-hot", "sampled"])
@pytest.mark.parametrize("rule", ENDS, ids=str)
def test_verdicts_at_the_edges(rule: Rule, sampled: bool) -> None:
    """Uniforms keep away from where a verdict hangs on rounding."""
    p, q = edge_probs(1), edge_probs(2).roll(3, 0)
    generator = torch.Generator().manual_seed(3)
    tokens = draw_without_replacement(q, torch.rand(len(q), 4, generator=generator))
    neighbours = neighbour_table(VOCAB)
    uniforms = 0.05 + 0.9 * torch.rand(len(q), 4, generator=generator)
    verdict = decide(rule, p, tokens, q if sampled else None, neighbours, uniforms)
    assert bool((verdict.residual >= 0).all()) and bool((verdict.residual.sum(-1) > 0)[verdict.rank < 0].all())
    compared = 0
    for i in range(len(p)):
        probs = q[i].double().tolist() if sampled else None
        rank, left = slow_step(rule, p[i].double().tolist(), tokens[i].tolist(), probs, neighbours, uniforms[i].tolist())
        if sampled and tiny_rest(p[i], q[i]):
            continue  # p and q are equal but for rounding: which tokens rounding leaves differs, and none is wrong
        assert int(verdict.rank[i]) == rank
        if rank < 0:
            agree(verdict.residual[i] / verdict.residual[i].sum(), left)
        compared += 1
    assert compared >= len(p) // 2


def tiny_rest(p: Tensor, q: Tensor) -> bool:
    return bool(0 < float((p - q).clamp(min=0).sum()) < 1e-5)


# -- distributions


@pytest.mark.parametrize("temperature", [1e-3, 1e-4, 1e-10, 1e-30, 1e-38, 1e-45, 1e-320, 5e-324])
def test_temperatures_near_zero_are_the_likeliest_token(temperature: float) -> None:
    logits = torch.tensor([[-1e4, 3.0, 2.5, 1e4], [0.5, -0.5, 0.25, 0.0], [7.0, 7.0, -7.0, 0.0]])
    probs = probabilities(logits, Sampling(temperature=temperature))
    torch.testing.assert_close(probs, torch.tensor([[0.0, 0, 0, 1], [1, 0, 0, 0], [0.5, 0.5, 0, 0]]))
    assert draw(probs[:2], torch.tensor([0.999, 0.0])).tolist() == [3, 0]


def test_a_cool_temperature_is_what_it_says() -> None:
    """Where care begins, the distribution is that of the plain formula."""
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)) * 1e-3
    for temperature in (9.9e-4, 1.01e-3, 0.02):
        want = (logits.double() / temperature).softmax(-1).float()
        torch.testing.assert_close(probabilities(logits, Sampling(temperature=temperature)), want, atol=1e-5, rtol=1e-3)


def test_one_token_left() -> None:
    logits = torch.randn(6, 30, generator=torch.Generator().manual_seed(1))
    best = torch.nn.functional.one_hot(logits.argmax(-1), 30).float()
    for sampling in (Sampling(top_k=1), Sampling(top_p=1e-9), Sampling(top_k=1, top_p=0.05), Sampling(0.01, top_k=1)):
        torch.testing.assert_close(probabilities(logits, sampling), best)
    equal = torch.zeros(1, 4)
    torch.testing.assert_close(probabilities(equal, Sampling(top_k=1)), torch.full((1, 4), 0.25))  # ties all stay
    assert probabilities(equal, Sampling(top_p=0.05)).tolist() == [[1.0, 0.0, 0.0, 0.0]]


def test_masses_that_underflow_are_never_drawn_nor_lost() -> None:
    logits = torch.tensor([[0.0, -120.0, -200.0, -math.inf]])
    probs = probabilities(logits, Sampling())
    assert float(probs[0, 0]) == 1 and float(probs.sum()) == 1
    for u in (0.0, 0.5, 1 - 2**-24):
        assert draw(probs, torch.tensor([u])).tolist() == [0]
    rows = draw_without_replacement(torch.tensor([[1.0, 1e-42, 0.0]]), torch.tensor([[0.3, 0.9, 0.9]]))
    assert rows[0, 0] == 0 and rows[0, 2] == -1 and 2 not in rows


# -- whole runs


def run(method: str, tokens: int, tree: Drafts | None = None, rule: Rule | None = None, **options: Any) -> list[int]:
    target = TableTarget(vocab=VOCAB, seed=4, sharpness=2.0)
    drafter = options.pop("drafter", TableDrafter(target))
    *_, done = decode(
        target,
        drafter,
        torch.tensor([1, 2]),
        num_tokens=tokens,
        method=METHODS[method],
        rule=rule or Rule(),
        tree=tree or Drafts(),
        neighbours=neighbour_table(VOCAB),
        **options,
    )
    assert isinstance(done, Decoded)
    return done.tokens


DEEP = StaticTree([(0,) * depth for depth in range(1, 9)])
WIDE = DynamicTree(top_k=5, depth=7, nodes=100)


@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 8, 9, 17])
@pytest.mark.parametrize(
    ("method", "tree", "rule"),
    [
        ("eagle1", DEEP, None),
        ("eagle2", WIDE, None),
        ("lantern", WIDE, Lantern(VOCAB - 1, 1.0)),
        ("lantern++", DEEP, LanternPlusPlus(VOCAB - 1, 1e6)),
    ],
)
def test_a_picture_may_end_inside_a_tree(method: str, tree: Drafts, rule: Rule | None, tokens: int) -> None:
    """A tree deeper than what is left, also deeper than the whole picture. What is drawn does not depend on where the end is."""
    for seed in range(3):
        drawn = run(method, tokens, tree, rule, seed=seed, sampling=Sampling(1.0))
        assert len(drawn) == tokens and all(0 <= token < VOCAB for token in drawn)
        if method in ("eagle1", "eagle2"):
            greedy = Sampling(0.0)
            assert run(method, tokens, tree, rule, seed=seed, sampling=greedy) == run("vanilla", tokens, sampling=greedy)


class Mistaken(TableDrafter):
    """A drafter that bets everything on what the target never draws."""

    def _blend(self, hidden: Tensor, tokens: Tensor, before: int | None = None) -> Tensor:
        return -20.0 * super()._blend(hidden, tokens, before)


@pytest.mark.parametrize(("method", "tree"), [("eagle1", DEEP), ("eagle2", WIDE)])
def test_all_siblings_rejected(method: str, tree: Drafts) -> None:
    """Top-k 1 makes both distributions point masses, mostly on different tokens: every draft is refused and the target's own
    token remains."""
    target = TableTarget(vocab=VOCAB, seed=4, sharpness=2.0)
    sampling = Sampling(top_k=1)
    wanted = run("vanilla", 30, sampling=sampling)
    assert run(method, 30, tree, sampling=sampling, drafter=Mistaken(target)) == wanted
    assert run(method, 30, tree, sampling=Sampling(temperature=1e-30), drafter=Mistaken(target)) == wanted


# -- the codebook


def test_a_codebook_with_equal_vectors() -> None:
    """Each token's neighbours are the nearest others, never itself, however many are equal to it; against sorting by distance."""
    generator = torch.Generator().manual_seed(0)
    book = torch.nn.functional.normalize(torch.randn(20, 8, generator=generator), dim=-1)
    book[5] = book[11] = book[2]
    book[17] = book[16]
    for k in (0, 1, 3, 19):
        table = measured_neighbours(book, k)
        assert table.shape == (20, k)
        for token, row in enumerate(table.tolist()):
            assert token not in row and len(set(row)) == k
            distance = (book.double() - book[token].double()).norm(dim=-1)
            nearest = sorted(float(d) for i, d in enumerate(distance) if i != token)[:k]
            torch.testing.assert_close(distance[row].float(), torch.tensor(nearest), atol=1e-3, rtol=0)
    assert set(measured_neighbours(book, 2)[2].tolist()) == {5, 11}
    same = measured_neighbours(torch.ones(6, 4), 5)
    assert all(sorted(row) == [i for i in range(6) if i != token] for token, row in enumerate(same.tolist()))
