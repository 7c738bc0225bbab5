"""Laws: lossless methods emit the target's distribution exactly, relaxed ones emit what brute force says they do, and
the measured distortion is what brute force measures.

Chi-square tests run with fixed seeds; with the bound P_BOUND on each p-value, and fewer than 100 of them in
this file, all pass together with probability above 0.99 over the choice of seeds if the code is right.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from runs import decode, dynamic_draft
from tables import TableDrafter, TableTarget, chi_square_p, decide, draw_without_replacement, neighbour_table, random_probs
from torch import Tensor

from lantern_demo.decoding.drafting import Drafts, DynamicTree, StaticTree
from lantern_demo.decoding.loop import Decoded, Step
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule
from lantern_demo.decoding.sampling import Sampling, draw
from lantern_demo.decoding.trees import Draft, static_tree
from lantern_demo.runs import distortion
from lantern_demo.runs.distortion import KEPT_BYTES, MAX_ROOTS, ProbsWatcher, Visit, fixed_shift, measure, roots, sampled_shift

P_BOUND = 1e-4
LOSSLESS = ["vanilla", "eagle1", "eagle2"]
TREES = {
    "vanilla": Drafts(),
    "eagle1": StaticTree([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]),
    "eagle2": DynamicTree(top_k=3, depth=2, nodes=9),
}
SAMPLINGS = [
    Sampling(cfg_scale=2.0),
    Sampling(temperature=0.7, top_k=5, cfg_scale=1.5),
    Sampling(temperature=1.3, top_p=0.85),
    Sampling(top_k=6, top_p=0.6),
]


def emit(
    rule: Rule,
    p: Tensor,
    tokens: Tensor,
    q: Tensor | None,
    neighbours: Tensor | None,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """One level of a step at each of P nodes: emitted tokens [P] and accepted draw numbers [P]."""
    u = torch.rand(p.shape[0], tokens.shape[1] + 1, generator=generator)
    verdict = decide(rule, p, tokens, q, neighbours, u)
    child = tokens.gather(1, verdict.rank.clamp(min=0).unsqueeze(1))[:, 0] if tokens.shape[1] else verdict.rank
    return torch.where(verdict.rank < 0, draw(verdict.residual, u[:, -1]), child), verdict.rank


class PairSampler:
    """Many two-token continuations of one context, level by level as the loop does it, all at once."""

    def __init__(self, method: str, sampling: Sampling, seed: int) -> None:
        self.method, self.sampling = method, sampling
        self.target = TableTarget(vocab=8, seed=seed)
        self.drafter = TableDrafter(self.target)
        self.generator = torch.Generator().manual_seed(seed)

    def grown(self, before: int, last: int) -> Draft:
        rows = 1 if self.sampling.cfg_scale == 1 else 2
        condition = torch.tensor([before])
        hidden = self.target.prefill(condition, self.target.new_cache(rows, 0))
        cache = self.drafter.new_cache(rows, 30)
        root = torch.tensor([last])
        output = self.drafter.start(hidden, root, cache)
        return dynamic_draft(TREES["eagle2"], root, output, self.drafter, self.target, cache, self.sampling)

    def proposals(self, draft: Draft | None, node: int, before: int, last: int, runs: int) -> tuple:
        """tokens [runs, C] proposed at a node behind the two tokens, and the distribution q they were drawn from."""
        if self.method == "vanilla":
            return torch.empty(runs, 0, dtype=torch.int64), None
        if draft is not None:
            return draft.drawn[node].expand(runs, -1), None
        q = self.drafter.probs(before, last, self.target, self.sampling).expand(runs, -1)
        return draw_without_replacement(q, torch.rand(len(q), 3, generator=self.generator)), q

    def pairs(self, before: int, last: int, runs: int) -> Tensor:
        """[runs, 2] tokens."""
        draft = self.grown(before, last) if self.method == "eagle2" else None
        tokens, q = self.proposals(draft, 0, before, last, runs)
        probs = self.target.probs(before, last, self.sampling).expand(runs, -1)
        first, rank = emit(Rule(), probs, tokens, q, None, self.generator)
        second = torch.empty_like(first)
        for token in first.unique().tolist():
            for accepted in (True, False):
                rows = ((first == token) & ((rank >= 0) == accepted)).nonzero()[:, 0]
                if not rows.numel():
                    continue
                here, node = draft, 0
                if here is not None and accepted:
                    node = int(here.tree.children[0, here.drawn[0].tolist().index(token)])
                elif here is not None:
                    here = self.grown(last, token)
                tokens, q = self.proposals(here, node, last, token, rows.shape[0])
                probs = self.target.probs(last, token, self.sampling).expand(rows.shape[0], -1)
                second[rows] = emit(Rule(), probs, tokens, q, None, self.generator)[0]
        return torch.stack([first, second], dim=1)


@pytest.mark.parametrize("method", LOSSLESS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_lossless_methods_emit_the_target_distribution(method: str, sampling: Sampling) -> None:
    """120,000 tokens per method and setting: single tokens and pairs."""
    sampler = PairSampler(method, sampling, seed=11)
    pairs = sampler.pairs(3, 5, runs=60_000)
    first = sampler.target.probs(3, 5, sampling)
    second = sampler.target.probs(torch.full((8,), 5), torch.arange(8), sampling)
    assert chi_square_p(pairs[:, 0].bincount(minlength=8), first) > P_BOUND
    counts = (pairs[:, 0] * 8 + pairs[:, 1]).bincount(minlength=64)
    assert chi_square_p(counts, first.unsqueeze(1) * second) > P_BOUND


@pytest.mark.parametrize("method", ["eagle1", "eagle2"])
@pytest.mark.parametrize("fault", ["bonus from p", "wrong q", "relaxed"])
def test_wrong_rules_fail_the_distribution_test(method: str, fault: str) -> None:
    """Negative control: the test above sees typical mistakes."""
    sampling = SAMPLINGS[0]
    sampler = PairSampler(method, sampling, seed=11)
    runs, probs = 60_000, sampler.target.probs(3, 5, sampling)
    draft = sampler.grown(3, 5) if method == "eagle2" else None
    tokens, q = sampler.proposals(draft, 0, 3, 5, runs)
    p, u = probs.expand(runs, -1), torch.rand(runs, 4, generator=sampler.generator)
    rule = Lantern(4, 0.2) if fault == "relaxed" else Rule()
    if fault == "wrong q":
        # fixed children taken for sampled ones, or sampled from another distribution than stated
        other = sampler.drafter.probs(3, 5 if q is None else 4, sampler.target, sampling)
        q = other.expand(runs, -1)
    verdict = decide(rule, p, tokens, q, neighbour_table(8), u)
    bonus = draw(p if fault == "bonus from p" else verdict.residual, u[:, -1])
    child = tokens.gather(1, verdict.rank.clamp(min=0).unsqueeze(1))[:, 0]
    counts = torch.where(verdict.rank < 0, bonus, child).bincount(minlength=8)
    assert chi_square_p(counts, probs) < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("method", LOSSLESS)
def test_lossless_loops_emit_the_target_distribution(method: str) -> None:
    """The whole loop: many short sequences, and the transitions of long ones."""
    sampling = Sampling(temperature=1.1, top_p=0.95, cfg_scale=1.5)
    target = TableTarget(vocab=4, seed=2, sharpness=1.0)
    drafter, condition = TableDrafter(target), torch.tensor([1, 2])

    def run(count: int, seed: int) -> list[int]:
        *_, result = decode(
            target,
            drafter,
            condition,
            num_tokens=count,
            method=METHODS[method],
            sampling=sampling,
            tree=TREES[method],
            seed=seed,
            measure_distortion=False,
        )
        assert isinstance(result, Decoded)
        return result.tokens

    short = torch.tensor([run(3, seed) for seed in range(600)])
    probs = target.probs(torch.arange(4).repeat_interleave(4), torch.arange(4).repeat(4), sampling).view(4, 4, 4)
    triples = probs[1, 2].view(4, 1, 1) * probs[2].unsqueeze(2) * probs
    cells = (short * torch.tensor([16, 4, 1])).sum(1)
    assert chi_square_p(cells.bincount(minlength=64), triples) > P_BOUND
    pairs = (short[:, 1:] * torch.tensor([4, 1])).sum(1)
    assert chi_square_p(pairs.bincount(minlength=16), triples.sum(0)) > P_BOUND

    long = torch.tensor(run(1500, seed=1))
    states = long[:-2] * 16 + long[1:-1] * 4 + long[2:]
    counts = states.bincount(minlength=64).view(16, 4).double()
    expected = counts.sum(1, keepdim=True) * probs.view(16, 4)
    kept = expected >= 5
    statistic = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    freedom = (kept.sum(1) - 1).clamp(min=0).sum().double()
    assert float(torch.special.gammaincc(freedom / 2, statistic / 2)) > P_BOUND


RELAXED = [
    Lantern(3, 0.2),
    Lantern(5, 0.9),
    LanternPlusPlus(2, 2.0),
    LanternPlusPlus(5, 6.0),
    Lantern(3, 0.2, residual="released"),
    LanternPlusPlus(4, 3.0, residual="released"),
]


def precise(probs: Tensor) -> Tensor:
    return probs.double() / probs.double().sum()


def slow_probs(rule: Rule, p: Tensor, q: Tensor | None, tokens: list[int], neighbours: Tensor, draws: int = 0) -> Tensor:
    """Law of the first emitted token by enumeration, float64, written out from the rules' statement.

    One-hot: `tokens` are the children. Sampled: all orders of `draws` tokens from q.
    """
    vocab = p.shape[0]
    if (q is None and not tokens) or (q is not None and draws == 0):
        return p
    probs = torch.zeros_like(p)
    chances = {tokens[0]: 1.0} if q is None else {x: float(q[x]) for x in range(vocab) if q[x] > 0}
    for x, proposed in chances.items():
        near: list[int] = []
        bound = rule.slack * (float(p[x]) if isinstance(rule, LanternPlusPlus) else 1.0)
        for other in neighbours[x, : rule.k].tolist() if isinstance(rule, Lantern) else ():
            if float(p[near].sum() + p[other]) > bound:
                break
            near.append(other)
        height = proposed if q is not None else 1.0
        accept = min(1.0, float(p[x] + p[near].sum()) / height)
        probs[x] += proposed * accept
        if accept == 1.0:
            continue
        left, without_x = p.clone(), None if q is None else q.clone()
        wide = neighbours[x, : rule.k + 1].tolist() if near else []
        if rule.residual == "set":
            left[near] = 0.0
            left[x] = 0.0
            if q is not None:
                left = (left - q).clamp(min=0)
        elif q is None:
            left[wide] = 0.0
            left[x] = 0.0
        else:
            masked = q.clone()
            masked[wide] = 0.0
            left = (p - masked).clamp(min=0)
        left = left / left.sum() if left.sum() > 0 else torch.full_like(p, 1 / vocab)
        if without_x is not None:
            without_x[x] = 0.0
            without_x = without_x / without_x.sum() if without_x.sum() > 0 else without_x
        probs += proposed * (1 - accept) * slow_probs(rule, left, without_x, tokens[1:], neighbours, draws - 1)
    return probs


@pytest.mark.parametrize("sampled", [False, True], ids=["one-hot", "sampled"])
@pytest.mark.parametrize("rule", [Rule(), *RELAXED], ids=str)
def test_emitted_distribution_equals_brute_force(rule: Rule, sampled: bool) -> None:
    p, q = random_probs(1, 7, 21)[0], random_probs(1, 7, 22)[0]
    neighbours, runs = neighbour_table(7), 100_000
    generator = torch.Generator().manual_seed(5)
    probs = slow_probs(rule, precise(p), precise(q) if sampled else None, [4, 1, 6], neighbours, draws=3)
    assert abs(float(probs.sum()) - 1) < 1e-9
    expanded = q.expand(runs, -1)
    tokens = (
        draw_without_replacement(expanded, torch.rand(len(expanded), 3, generator=generator))
        if sampled
        else torch.tensor([4, 1, 6]).expand(runs, -1)
    )
    emitted, _ = emit(rule, p.expand(runs, -1), tokens, expanded if sampled else None, neighbours, generator)
    assert chi_square_p(emitted.bincount(minlength=7), probs) > P_BOUND


@pytest.mark.parametrize("rule", [Rule(), *RELAXED], ids=str)
def test_measured_distortion_equals_brute_force(rule: Rule) -> None:
    neighbours, generator = neighbour_table(7), torch.Generator().manual_seed(1)
    offered = torch.ones(3, dtype=torch.bool)
    for seed in range(3):
        p, q = random_probs(1, 7, 30 + seed)[0], random_probs(1, 7, 40 + seed)[0]
        want = slow_probs(rule, precise(p), None, [4, 1, 6], neighbours) - p
        got = fixed_shift(rule, p, torch.tensor([4, -1, 1, 6]), neighbours)
        torch.testing.assert_close(got, want, atol=1e-6, rtol=0)
        want = slow_probs(rule, precise(p), precise(q), [], neighbours, draws=1) - p
        got, draws = sampled_shift(rule, p, q, offered[:1], neighbours, generator)
        assert draws == 0
        torch.testing.assert_close(got, want, atol=1e-6, rtol=0)
        want = slow_probs(rule, precise(p), precise(q), [], neighbours, draws=3) - p
        got, draws = sampled_shift(rule, p, q, offered, neighbours, generator, draws=20_000)
        assert draws == 20_000
        torch.testing.assert_close(got, want, atol=2e-3, rtol=0)


def test_lossless_distortion_is_zero_and_a_broken_rule_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    offered = torch.tensor([True, True, False, True])

    def visits() -> list[Visit]:
        found = []
        for seed in range(8):
            p, q = random_probs(1, 50, seed)[0], random_probs(1, 50, 100 + seed)[0]
            q = q.masked_fill(q < 0.02, 0.0)
            found.append(Visit(p, torch.tensor([3, 7, 9, 11]), offered, q / q.sum() if seed % 2 else None, 0))
        return found

    sound = measure(Rule(), visits(), None, greedy=False, seed=0)
    assert sound is not None and sound.tvd < 1e-6 and sound.method == "monte carlo (64 draws)"
    monkeypatch.setattr(Rule, "reject", lambda *_: None)
    broken = measure(Rule(), visits(), None, greedy=False, seed=0)
    assert broken is not None and broken.tvd > 0.02


def test_exhausted_drafts_distort_nothing() -> None:
    """q has one token, three are asked for: the second and third draw find nothing and are not tried."""
    p, q = random_probs(1, 6, 3)[0], torch.eye(6)[2]
    shift, _ = sampled_shift(Rule(), p, q, torch.ones(3, dtype=torch.bool), None, torch.Generator().manual_seed(0))
    assert float(shift.abs().sum()) < 1e-6


@pytest.mark.parametrize("rule", [LanternPlusPlus(3, 2.0), LanternPlusPlus(3, 6.0), Lantern(3, 0.2)])
def test_extra_acceptance_is_distortion(rule: Rule) -> None:
    """One sampled draft whose residual is norm([p - q]+): the one-step distance is the acceptance gained over
    the exact rule. The set rule has that residual when near(x) holds no token with p > q; else the distance
    is larger."""
    vocab, offered = 12, torch.ones(1, dtype=torch.bool)
    for seed in range(5):
        p, q = random_probs(1, vocab, 50 + seed)[0], random_probs(1, vocab, 60 + seed)[0]
        apart = neighbour_table(vocab)
        gaining = (p[apart] > q[apart]).int()
        table = apart.gather(1, torch.argsort(gaining, dim=1, stable=True))  # tokens with p <= q come first
        for neighbours, equal in ((table, int((p <= q).sum()) > rule.k), (apart, False)):
            moved = rule.near(p.unsqueeze(0), torch.arange(vocab).unsqueeze(0), neighbours).near_mass
            assert moved is not None
            gained = float((torch.minimum(q, p + moved[0]) - torch.minimum(q, p)).sum())
            shift, _ = sampled_shift(rule, p, q, offered, neighbours, torch.Generator())
            tvd = 0.5 * float(shift.abs().sum())
            assert tvd > gained - 1e-6
            assert not equal or tvd < gained + 1e-6


def watched(steps: int, vocabulary: int) -> list[list[tuple[int, Visit]]]:
    """What is kept of a run of so many steps without drafts, whose tokens are their steps' numbers."""
    tree, watcher = static_tree(()), ProbsWatcher()
    for step in range(steps):
        if watcher.wants(step):
            draft = Draft(tree, torch.tensor([0]), torch.empty(0, 0, dtype=torch.int64))
            watcher.add(draft, torch.ones(1, vocabulary), tree.nodes)
    return watcher.visits([Step(i, [i], 1, i + 1, 0.0, places=[i]) for i in range(steps + 1)])


def test_roots_are_few_and_evenly_spread() -> None:
    for steps in (1, 5, 16, 17, 100, 1023):
        kept = [visit.emitted for visit in roots(watched(steps, 1))]
        assert kept[0] == 1 and len(kept) == min(steps, len(kept)) <= MAX_ROOTS
        assert len(kept) >= min(steps, MAX_ROOTS // 2)
        assert len({b - a for a, b in pairwise(kept)}) <= 1


def test_distributions_of_all_steps_are_kept_where_they_fit() -> None:
    assert [place for step in watched(1000, 10) for place, _ in step] == list(range(1, 1001))
    most = KEPT_BYTES // 4 // 1_000_000
    kept = [visit.emitted for step in watched(3 * most, 1_000_000) for _, visit in step]
    assert kept == list(range(1, 3 * most + 1, 4)) and len(kept) <= most


@pytest.mark.parametrize("most", [16, 17, 18, 23])
def test_kept_distributions_are_those_of_their_steps(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there is room for, a number that is odd included."""
    monkeypatch.setattr(distortion, "KEPT_BYTES", most * 4 * 10)
    tree, watcher, empty = static_tree(()), ProbsWatcher(), torch.empty(0, 0, dtype=torch.int64)
    for step in range(100):
        if watcher.wants(step):
            watcher.add(Draft(tree, torch.tensor([0]), empty), torch.full((1, 10), float(step + 1)), tree.nodes)
    kept = [pair for step in watcher.visits([Step(i, [i], 1, i + 1, 0.0, places=[i]) for i in range(101)]) for pair in step]
    assert [place for place, _ in kept] == [int(visit.p[0]) for _, visit in kept]
    assert most // 2 < len(kept) <= most


def test_kept_distributions_fit_where_later_steps_have_more_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wavefront begins with one node, a tree's first path may be short."""
    monkeypatch.setattr(distortion, "KEPT_BYTES", 64 * 4 * 10)
    tree, watcher, empty = static_tree(()), ProbsWatcher(), torch.empty(0, 0, dtype=torch.int64)
    steps, first = [Step(0, [0], 1, 1, 0.0, places=[0])], 1
    for step in range(64):
        nodes = min(step + 1, 4)
        if watcher.wants(step):
            watcher.add(Draft(tree, torch.tensor([0]), empty), torch.ones(nodes, 10), torch.arange(nodes))
        places = list(range(first, first + nodes))
        steps.append(Step(step + 1, places, nodes, first + nodes, 0.0, places=places))
        first += nodes
    assert 32 < sum(map(len, watcher.visits(steps))) <= 64


def test_greedy_distortion_counts_missed_argmaxes() -> None:
    p, none = torch.tensor([0.2, 0.5, 0.3]), torch.empty(0, dtype=torch.int64)
    visits = [Visit(p, none, none.bool(), None, emitted) for emitted in (1, 1, 2, 1)]
    assert measure(Rule(), visits, None, greedy=True, seed=0) == (0.25, "closed form")
    assert measure(Rule(), [], None, greedy=True, seed=0) is None
