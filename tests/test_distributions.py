"""Distributions: exact ways to decode emit the target's distribution, flat or next to sure and to
the last token of a picture; relaxed rules emit what brute force says they do, and the measured
distance is what brute force measures.

Chi-square tests run with fixed seeds; with the bound P_BOUND on each p-value, and some 500 of them
here, all pass together with probability above 0.99 over the choice of seeds if the code is right.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from runs import decode, exact_ways, small
from tables import (
    ChainDrafter,
    ChainTarget,
    TableDrafter,
    TableTarget,
    chi_square_p,
    draw_without_replacement,
    near_of,
    neighbour_table,
    random_probs,
)
from torch import Tensor

from examples.quality import tvd
from examples.quality.tvd import fixed_shift, picture_tvd, sampled_shift
from lantern_demo.decoding import accept
from lantern_demo.decoding.accept import Children
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.ops import Ops
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule
from lantern_demo.decoding.sampling import Sampling, probabilities

P_BOUND = 1e-5
VOCAB = 6
WAYS = exact_ways()
# whose tokens all exact ways draw then
WAYS["vanilla with shared noise"] = {**WAYS["vanilla"], "noise": "shared"}


# -- distributions of whole runs


@dataclass(frozen=True)
class Case:
    """Logits of the target and of the drafter, by how far a token is behind the last one; those
    that are not told are 0.
    """

    target: dict[int, float]
    drafter: dict[int, float]
    sampling: Sampling = field(default_factory=Sampling)

    def models(self) -> tuple[ChainTarget, ChainDrafter]:
        target = ChainTarget(chain(self.target), chain(self.drafter))
        return target, ChainDrafter(target)


def chain(peaks: dict[int, float]) -> Tensor:
    """[V, V] logits: 0, and at so many tokens behind the last one as told; uneven, so that no
    mistake cancels out.
    """
    logits = torch.zeros(VOCAB, VOCAB)
    for last, (ahead, height) in itertools.product(range(VOCAB), peaks.items()):
        logits[last, (last + ahead) % VOCAB] = height
    return logits


CASES = {
    "flat": Case({1: 0.7, 3: -0.6}, {2: 0.9, 1: 0.3}),
    "flat, filtered": Case(
        {1: 0.7, 3: -0.6, 4: 0.2}, {2: 0.9, 1: 0.3}, Sampling(0.7, top_k=5, top_p=0.9)
    ),
    "drafter peaked on a wrong token, 1 - 8e-8": Case({2: -12.0}, {2: 18.0, 4: 0.5}),
    "drafter peaked on two wrong tokens": Case({3: -12.0, 1: -12.0}, {3: 80.0, 1: 40.0, 0: 1.0}),
    "drafter peaked on a right token": Case({1: 1.5}, {1: 17.0, 4: 1.0}),
    "target peaked": Case({1: 5.0}, {2: 1.0}),
    "target and drafter peaked apart": Case({1: 4.0, 5: 3.0}, {2: 30.0}),
    "cold": Case({1: 0.05, 2: -0.6}, {2: 0.85, 0: 0.1}, Sampling(temperature=0.05)),
    "cold, drafter peaked": Case({1: 0.05, 2: -0.6}, {2: 1.9, 0: 0.1}, Sampling(temperature=0.05)),
    "cold, filtered": Case(
        {1: 0.05, 2: 0.1}, {2: 2.0, 0: 0.1, 4: 0.05}, Sampling(0.05, top_k=4, top_p=0.999)
    ),
    "drafter's distribution of two tokens": Case(
        {2: 0.3, 1: 0.1}, {2: 25.0, 0: 1.0}, Sampling(top_k=2)
    ),
    "drafter's distribution of one token": Case({2: 0.3, 1: 0.2}, {2: 25.0}, Sampling(top_p=0.9)),
}
FEW = ["flat", "drafter peaked on a wrong token, 1 - 8e-8", "cold"]


def run(case: Case, way: dict[str, Any], tokens: int = 500, seed: int = 0, **changes: Any) -> Any:
    """The result of a run."""
    knobs = {"sampling": case.sampling, "neighbours": neighbour_table(VOCAB), **way, **changes}
    *_, last = decode(*case.models(), torch.tensor([0]), num_tokens=tokens, seed=seed, **knobs)
    return last


def distance(case: Case, way: dict[str, Any], tokens: int) -> float:
    """The measured distance of a run."""
    config = Config(
        num_tokens=tokens, sampling=case.sampling, neighbours=neighbour_table(VOCAB), **way
    )
    return picture_tvd(*case.models(), torch.tensor([0]), config)


def p_value(case: Case, tokens: list[int]) -> float:
    """The smallest p-value of tokens under the target's distribution: behind each token, and of all
    together.
    """
    probs = probabilities(chain(case.target), case.sampling)
    counts = torch.zeros(VOCAB, VOCAB)
    for last, token in itertools.pairwise([0, *tokens]):
        counts[last, token] += 1
    pooled = sum(row.roll(-last) for last, row in enumerate(counts))
    alone = [chi_square_p(counts[i], probs[i]) for i in range(VOCAB) if counts[i].sum() >= 100]
    return min([chi_square_p(pooled, probs[0]), *alone])


ONE_OF_EACH = [*METHODS, "lantern lantern_delta 0", "lantern++ lanternpp_lambda 1"]
# Children drawn from q are a static tree's; a drafter's peaks matter there alone.
DRAWN = {way for way in ONE_OF_EACH if way in WAYS and WAYS[way]["method"].drafts is StaticTree}


def told(way: str, name: str) -> bool:
    """Whether a way is run in a case: other shapes of drafts in the sharpest alone."""
    if way not in ONE_OF_EACH:
        return name == FEW[1]
    return name in FEW or way in DRAWN or not name.startswith("drafter")


RUNS = [
    pytest.param(way, name, marks=[] if name in FEW else [pytest.mark.slow])
    for name in CASES
    for way in WAYS
    if told(way, name)
]


@pytest.mark.parametrize(("way", "name"), RUNS)
def test_exact_ways_follow_the_target(way: str, name: str) -> None:
    """500 tokens by chi-square, the law of 20 exactly, and a run of captured sizes."""
    how, case = WAYS[way], CASES[name]
    plain = run(case, how)
    assert p_value(case, plain.tokens) > P_BOUND
    assert distance(case, how, 20) < 1e-6
    fixed = run(case, how, 100, padded=True, room=500)
    # a picture ends otherwise than it goes on
    assert fixed.tokens[:80] == plain.tokens[:80]


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in METHODS if name in WAYS])
def test_the_end_of_a_picture_follows_the_target(method: str) -> None:
    """Pictures of three guided tokens: the last is drawn alone, or is the overshoot's."""
    target = TableTarget(VOCAB, seed=2, sharpness=1.0)
    models = target, TableDrafter(target), torch.tensor([1, 2])
    guided = Sampling(temperature=1.1, top_p=0.95, cfg_scale=1.5)
    knobs = {"sampling": guided, "neighbours": neighbour_table(VOCAB), "num_tokens": 3}
    cells = torch.zeros(VOCAB**3)
    for seed in range(800):
        *_, last = decode(*models, seed=seed, **knobs, **WAYS[method])
        first, second, third = last.tokens
        cells[(first * VOCAB + second) * VOCAB + third] += 1
    states = torch.arange(VOCAB)
    probs = target.probs(states.unsqueeze(1), states, guided)
    law = probs[1, 2].view(-1, 1, 1) * probs[2].unsqueeze(2) * probs
    assert chi_square_p(cells, law) > P_BOUND


def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first draw of a row follows its distribution, and those behind it are simply the next
    tokens.
    """
    real, told = Ops.draw_in_turn, tvd.realised

    def drawn(q: Tensor, u: Tensor) -> Tensor:
        return (real(q, u)[:, :1] + torch.arange(u.shape[1])) % q.shape[1]

    def probs(q: Tensor, history: Tensor) -> Tensor:
        behind = history.shape[1]
        return (
            torch.nn.functional.one_hot((history[:, 0] + behind) % len(q), len(q)).double()
            if behind
            else told(q, history)
        )

    monkeypatch.setattr(Ops, "draw_in_turn", staticmethod(drawn))
    monkeypatch.setattr(tvd, "realised", probs)


@dataclass(frozen=True)
class NothingLeaves(Rule):
    """The bonus token is drawn from p where the residual belongs, as Lumina-mGPT 2.0's own decoder
    does by our reading.
    """

    def reject(self, p: Tensor, *_: Any) -> Tensor:
        return p


NO_RESIDUAL = {"method": replace(METHODS["eagle1"], rule=NothingLeaves()), "rule": NothingLeaves()}
# Wrong ways, and how many tokens show them: 500 a law that is off by 0.12.
WRONG: list[tuple[str, str, dict[str, Any], int]] = [
    *(("careless draws", name, WAYS["eagle1"], 500) for name in (FEW[1], "cold")),
    ("careless draws", "drafter peaked on a right token", WAYS["eagle1"], 500),
    ("what is left is p", "flat", WAYS["eagle1"] | NO_RESIDUAL, 4500),
    ("a relaxed rule", "flat", small("lantern"), 500),
]


@pytest.mark.parametrize(("fault", "name", "way", "tokens"), WRONG, ids=lambda part: str(part)[:40])
def test_a_wrong_law_fails_the_test_and_shows_as_distance(
    fault: str, name: str, way: dict[str, Any], tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the tests above, and of the measured distance."""
    if fault == "careless draws":
        careless(monkeypatch)
    case = CASES[name]
    assert p_value(case, run(case, way, tokens).tokens) < 1e-9
    assert distance(case, way, 30) > 0.02


# -- the distributions of relaxed rules


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


def orders_of(q: Tensor, draws: int) -> tuple[Tensor, Tensor]:
    """All orders [n, draws] in which tokens can be drawn from q, as the program draws them, and
    their chances [n].
    """
    tokens = (q > 0).nonzero()[:, 0].tolist()
    some = min(draws, len(tokens))  # further draws find nothing
    heights, chances, orders = [], [], []
    for order in itertools.permutations(tokens, some):
        left, row, chance = q.double(), [0.5] * draws, 1.0
        for i, x in enumerate(order):
            sums = left.cumsum(0)
            row[i] = float((sums[x] - left[x] / 2) / sums[-1])
            chance *= float(left[x] / sums[-1])
            left = left.index_fill(0, torch.tensor([x]), 0.0)
        if chance > 1e-15:
            heights, chances, orders = [*heights, row], [*chances, chance], [*orders, order]
    u = torch.tensor(heights, dtype=torch.float64)
    drawn = draw_without_replacement(q.expand(len(u), -1), u)
    assert drawn.tolist() == [[*order, *[-1] * (draws - some)] for order in orders]
    return drawn, torch.tensor(chances, dtype=torch.float64)


def emitted_at(
    rule: Rule, p: Tensor, q: Tensor | None, drawn: Tensor, reached: Tensor, neighbours: Tensor
) -> tuple[Tensor, float]:
    """The law of the first emitted token, and the chance that it is marked as relaxed, of rows of
    drafts with their chances. The program judges them.
    """
    count, draws = drawn.shape
    children = Children(drawn, None if q is None else q.expand(count, -1), neighbours)
    verdict = accept.decide(rule, p.expand(count, -1), children, torch.ones(count, draws))
    # A threshold is u q(x), or u, at u = 1. Behind a draft that is always accepted is no number.
    accepted, exactly = (
        (part.double() / verdict.threshold.clamp(min=1e-30)).nan_to_num().clamp(max=1.0)
        * verdict.tried
        for part in (verdict.score, verdict.mass)
    )
    law, marked = torch.zeros_like(p).double(), 0.0
    for i in range(draws):
        law.index_add_(0, drawn[:, i].clamp(min=0), reached * accepted[:, i])
        marked += float((reached * (accepted - exactly)[:, i]).sum())
        reached = reached * (1 - accepted[:, i])
    residual = (verdict.residual / verdict.residual.sum(-1, keepdim=True)).nan_to_num()
    return law + (reached.unsqueeze(1) * residual.double()).sum(0), marked


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
