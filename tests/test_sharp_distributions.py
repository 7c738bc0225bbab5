"""Laws that are next to sure, through the code that runs: what is left behind a share of 1 - 1e-20 is drawn as exactly as the
rest, and where it is not, the measured distortion says so.

Chi-square tests run with fixed seeds, as in `test_distributions`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from runs import decode
from tables import ChainDrafter, ChainTarget, chi_square_p, draw_without_replacement
from torch import Tensor

from lantern_demo.decoding import drafting, sampling
from lantern_demo.decoding.drafting import DynamicTree, StaticTree
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling, draw, probabilities, uniforms_of
from lantern_demo.runs import distortion
from lantern_demo.runs.distortion import realised

P_BOUND = 1e-5
HIGHEST = 1 - 2.0**-48  # of the uniforms on a CPU
VOCAB = 6
STATIC = StaticTree([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (1, 1), (0, 0, 0)])
GAPS = StaticTree([(1,), (3,), (1, 1), (3, 0)])  # draws 0 and 2 are no nodes
DYNAMIC = DynamicTree(top_k=3, depth=2, nodes=8)


@dataclass(frozen=True)
class Case:
    """Logits of the target and of the drafter, by how far a token is behind the last one; those that are not told are 0."""

    target: dict[int, float]
    drafter: dict[int, float]
    sampling: Sampling = field(default_factory=Sampling)

    def models(self) -> tuple[ChainTarget, ChainDrafter]:
        target = ChainTarget(chain(self.target), chain(self.drafter))
        return target, ChainDrafter(target)


def chain(peaks: dict[int, float]) -> Tensor:
    """[V, V] logits: 0, and at so many tokens behind the last one as told; uneven, so that no mistake cancels out."""
    logits = torch.zeros(VOCAB, VOCAB)
    for last, (ahead, height) in itertools.product(range(VOCAB), peaks.items()):
        logits[last, (last + ahead) % VOCAB] = height
    return logits


CASES = {
    "drafter peaked on a wrong token, 1 - 8e-8": Case({2: -12.0}, {2: 18.0, 4: 0.5}),
    "drafter peaked on a wrong token, 1 - 5e-20": Case({3: -12.0}, {3: 46.0, 0: 1.0}),
    "drafter peaked on two wrong tokens": Case({3: -12.0, 1: -12.0}, {3: 80.0, 1: 40.0, 0: 1.0}),
    "drafter peaked on a right token": Case({1: 1.5}, {1: 17.0, 4: 1.0}),
    "drafter peaked on a right token, 1 - 1e-26": Case({1: 1.5}, {1: 60.0, 4: 1.0}),
    "target peaked": Case({1: 5.0}, {2: 1.0}),
    "target and drafter peaked apart": Case({1: 4.0, 5: 3.0}, {2: 30.0}),
    "cold": Case({1: 0.05, 2: -0.6}, {2: 0.85, 0: 0.1}, Sampling(temperature=0.05)),
    "cold, drafter peaked": Case({1: 0.05, 2: -0.6}, {2: 1.9, 0: 0.1}, Sampling(temperature=0.05)),
    "cold, filtered": Case({1: 0.05, 2: 0.1}, {2: 2.0, 0: 0.1, 4: 0.05}, Sampling(0.05, top_k=4, top_p=0.999)),
    "drafter's distribution of two tokens": Case({2: 0.3, 1: 0.1}, {2: 25.0, 0: 1.0}, Sampling(top_k=2)),
    "drafter's distribution of one token": Case({2: 0.3, 1: 0.2}, {2: 25.0}, Sampling(top_p=0.9)),
}
SHARP = ["drafter peaked on a wrong token, 1 - 8e-8", "drafter peaked on a right token", "cold"]
LOSSLESS = {"static": ("eagle1", STATIC), "gaps": ("eagle1", GAPS), "dynamic": ("eagle2", DYNAMIC)}
FAST = [(SHARP[0], "static"), (SHARP[0], "dynamic"), ("cold", "gaps")]
ALL_CASES = [
    pytest.param(name, tree, marks=() if (name, tree) in FAST else pytest.mark.slow) for name in CASES for tree in LOSSLESS
]


def run(case: Case, method: str = "eagle1", tokens: int = 400, seed: int = 0, **changes: Any) -> list[Any]:
    knobs = {"tree": STATIC, "sampling": case.sampling, **changes}
    condition = torch.tensor([0])
    return list(decode(*case.models(), condition, num_tokens=tokens, method=METHODS[method], seed=seed, **knobs))


def p_value(case: Case, runs: list[list[Any]]) -> float:
    """The smallest p-value of the tokens of runs under the target's distribution: of those behind each token, and of all together
    by how far they are behind the last one."""
    probs = probabilities(chain(case.target), case.sampling)
    counts = torch.zeros(VOCAB, VOCAB)
    for events in runs:
        for last, token in itertools.pairwise([0, *events[-1].tokens]):
            counts[last, token] += 1
    pooled = sum(row.roll(-last) for last, row in enumerate(counts))
    return min(
        chi_square_p(pooled, probs[0]), *(chi_square_p(counts[i], probs[i]) for i in range(VOCAB) if counts[i].sum() >= 100)
    )


def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first draw of a row follows its distribution, and those behind it are simply the next tokens."""
    real, told = drafting.draw_in_turn, distortion.realised

    def drawn(q: Tensor, u: Tensor, out: Tensor) -> list[Tensor]:
        masses = real(q, u, out)
        out.copy_((out[:1] + torch.arange(len(out)).unsqueeze(1)) % q.shape[1])
        return masses

    def probs(q: Tensor, history: Tensor) -> Tensor:
        behind = history.shape[1]
        return torch.nn.functional.one_hot((history[:, 0] + behind) % len(q), len(q)).double() if behind else told(q, history)

    monkeypatch.setattr(drafting, "draw_in_turn", drawn)
    monkeypatch.setattr(distortion, "realised", probs)


# -- distributions of whole runs


# The plain engine's runs are held against the distribution. The fixed engine has to draw the very same tokens, which says more
# than a test of its distribution and takes one run.


def follows(case: Case, seeds: int, method: str = "eagle1", **changes: Any) -> None:
    """Assert that runs of so many seeds follow the target's distribution with no distortion, and that the fixed engine draws the
    first one's tokens."""
    runs = [run(case, method, seed=seed, engine="plain", **changes) for seed in range(seeds)]
    assert p_value(case, runs) > P_BOUND, method
    fixed = run(case, method, engine="fixed", **changes)
    assert fixed[-1].tokens == runs[0][-1].tokens, method
    assert all(events[-1].one_step_tvd < 1e-6 for events in (*runs, fixed)), method


@pytest.mark.parametrize(("name", "tree"), ALL_CASES)
def test_lossless_runs_follow_the_target(name: str, tree: str) -> None:
    method, policy = LOSSLESS[tree]
    follows(CASES[name], 4, method, tree=policy)


@pytest.mark.slow
@pytest.mark.parametrize("gap", [92.0, 101.0])
def test_shares_too_small_for_a_normal_float(gap: float) -> None:
    """Behind its top the drafter's distribution holds 4e-40 or 5e-44 in all: one over that is no float32. Such draws are not
    tried."""
    follows(Case({3: -12.0}, {3: gap, 0: 1.0, 5: 2.0}), 4)


@pytest.mark.parametrize("name", [SHARP[0], "cold"])
def test_the_end_of_an_image_follows_the_target(name: str) -> None:
    """Runs of three tokens: the last is drawn alone, or is the overshoot's."""
    case = CASES[name]
    runs, fixed = (
        [run(case, tokens=3, seed=seed, engine=engine, measure_distortion=False)[-1].tokens for seed in range(count)]
        for engine, count in (("plain", 700), ("fixed", 100))
    )
    assert fixed == runs[:100]
    probs = probabilities(chain(case.target), case.sampling)
    triples = probs[0].view(-1, 1, 1) * probs.unsqueeze(2) * probs
    cells = (torch.tensor(runs) * torch.tensor([VOCAB * VOCAB, VOCAB, 1])).sum(1)
    assert chi_square_p(cells.bincount(minlength=VOCAB**3), triples) > P_BOUND


@pytest.mark.parametrize("name", SHARP)
def test_draws_that_do_not_follow_their_distribution_fail_the_tests_and_show_as_distortion(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the tests above, and of the measured distance."""
    case = CASES[name]
    careless(monkeypatch)
    runs = [run(case, seed=seed, engine="plain") for seed in range(4)]
    assert p_value(case, runs) < 1e-9
    assert min(events[-1].one_step_tvd for events in runs) > 0.02


# -- draws


def sharp_probs(vocabulary: int, seed: int) -> Tensor:
    """[24, V] distributions, from flat to next to sure, some with tokens of no mass."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.tensor([1.0, 3.0, 10.0, 30.0, 60.0, 100.0]).repeat(4).unsqueeze(1)
    logits = spread * torch.rand(24, vocabulary, generator=generator)
    logits[:, 3] += spread[:, 0]  # a gap behind the best
    logits[12:] = logits[12:].masked_fill(torch.rand(12, vocabulary, generator=generator) < 0.5, -torch.inf)
    return logits.softmax(-1)


def misplaced(vocabulary: int, draws: int = 5) -> float:
    """The largest distance of the distribution of a draw, behind others, from what it should be."""
    worst = 0.0
    for seed in range(3):
        q = sharp_probs(vocabulary, seed)
        tokens = draw_without_replacement(q, torch.rand(24, draws, generator=torch.Generator().manual_seed(seed)))
        for probs, row in zip(q, tokens, strict=True):
            for i in range(draws):
                history = row[:i].view(1, -1)
                if (history < 0).any():
                    break
                left = probs.double().scatter(0, history[0], 0.0)
                want = left / left.sum().clamp(min=1e-300)
                worst = max(worst, 0.5 * float((realised(probs, history)[0] - want).abs().sum()))
    return worst


@pytest.mark.parametrize("vocabulary", [8, 2048, 16384])
def test_every_draw_follows_what_is_left(vocabulary: int) -> None:
    assert misplaced(vocabulary) < 1e-9 * vocabulary**0.5


def test_sums_that_are_not_made_anew_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the widths of the steps of the first running sum, of which the rest is lost."""

    def once(q: Tensor, history: Tensor) -> Tensor:
        widths = (
            sampling.running_sums(q.unsqueeze(0))
            .diff(prepend=torch.zeros(1, 1))
            .expand(len(history), -1)
            .scatter(1, history, 0.0)
        )
        return widths / widths.sum(-1, keepdim=True).clamp(min=1e-300)

    monkeypatch.setitem(globals(), "realised", once)
    assert misplaced(2048) > 0.1


def test_draws_behind_a_sure_one() -> None:
    """First and second draw are next to sure, the second by 1 - 7e-18. Then three tokens as 1 to 2 to 4, against enumeration."""
    q = torch.tensor([1e-36, 1e-18, 2e-36, 1.0, 0.0, 4e-36])
    u = torch.rand(20_000, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    tokens = draw_without_replacement(q.expand(20_000, -1), u)
    assert bool((tokens[:, 0] == 3).all()) and bool((tokens[:, 1] == 1).all())
    rest = q.double()[[0, 2, 5]] / q.double()[[0, 2, 5]].sum()
    pairs = (rest.unsqueeze(1) * rest / (1 - rest.unsqueeze(1))).fill_diagonal_(0.0)
    cell = torch.tensor([0, -1, 1, -1, -1, 2])
    assert chi_square_p((cell[tokens[:, 2]] * 3 + cell[tokens[:, 3]]).bincount(minlength=9), pairs) > P_BOUND
    assert bool((tokens.sort(1).values == torch.tensor([0, 1, 2, 3, 5])).all())


def test_draws_are_different_tokens_of_mass_at_any_height() -> None:
    for vocabulary in (2, 5, 300):
        q = sharp_probs(max(vocabulary, 4), 7)[:, :vocabulary]
        for value in (sampling.TINY, 2.0**-48, 0.5, 1 - 2.0**-24, HIGHEST, 1 - 2.0**-53, 1.0):
            u = torch.full((24, min(vocabulary, 9)), value, dtype=torch.float64)
            for probs, row in zip(q, draw_without_replacement(q, u).tolist(), strict=True):
                found = [token for token in row if token >= 0]
                assert len(set(found)) == len(found) >= min(len(row), int((probs > 1e-36).sum())), (
                    "what is left next to nothing ends it"
                )
                assert all(probs[token] > 0 for token in found) and row[len(found) :] == [-1] * (len(row) - len(found))


def test_a_tail_of_a_large_vocabulary_is_drawn() -> None:
    """16,000 tokens of 1e-9 each behind one that has the rest: with heights from 0 to 1 - 2^-24, what a float32 sum loses."""
    p = torch.full((16_384,), 1e-9)
    p[100] = 1.0
    tail = float(p[101:].double().sum() / p.double().sum())
    u = 1 - tail * torch.linspace(0.999, 0.001, 500, dtype=torch.float64)
    tokens = draw(p.expand(500, -1), u)
    assert len(tokens.unique()) == 500 and bool((tokens > 100).all())


def test_uniforms_are_finer_than_a_float32() -> None:
    rows = uniforms_of(3, torch.device("cpu"), 200, 8 * (3 + 1) + 6)
    assert rows.dtype == torch.float64 and float(rows.min()) >= 0 and float(rows.max()) <= HIGHEST
    assert torch.equal((rows * 2.0**48).floor(), rows * 2.0**48)
    fine = (rows * 2.0**24).frac()
    assert chi_square_p((fine * 16).long().flatten().bincount(minlength=16), torch.full((16,), 1 / 16)) > P_BOUND
