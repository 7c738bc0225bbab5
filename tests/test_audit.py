"""The audit of losslessness: its exact distributions, its statistics, and that it tells sound
methods from faulty ones.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from launches import META, Launches, Watch
from torch import Tensor

from lantern_demo.bench import audit
from lantern_demo.bench.__main__ import main as commands
from lantern_demo.bench.audit import Cell, cells_of, main, rows_of, run_cell
from lantern_demo.bench.chi_square import chi_square, distance, expected_distance, worst_stretch
from lantern_demo.bench.toy import (
    CASES,
    LENGTH,
    VOCAB,
    Tables,
    ToyDrafter,
    ToyTarget,
    index_of,
    joint,
)
from lantern_demo.decoding import graphs, loop
from lantern_demo.decoding.accept import Verdict
from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.interfaces import Pass
from lantern_demo.decoding.loop import parts_of
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.ops import Ops
from lantern_demo.decoding.rules import Rule
from lantern_demo.decoding.sampling import guide, probabilities
from lantern_demo.decoding.step import Steps
from lantern_demo.kernels import switch


@pytest.fixture(autouse=True)
def quick(same_threads: None) -> None:
    """The command computes with one thread, and sets that for its whole process."""
    torch.set_num_threads(1)


@pytest.mark.parametrize("case", CASES)
def test_the_exact_distribution_is_that_of_brute_force(case: str) -> None:
    tables, sampling = Tables(CASES[case]), CASES[case].sampling
    exact = tables.sequences()
    assert exact.shape == (VOCAB**LENGTH,) and abs(exact.sum() - 1) < 1e-12
    rows = tables.target.double() if sampling.cfg_scale != 1 else tables.target[:1].double()
    probs = probabilities(guide(rows, sampling.cfg_scale).float(), sampling)
    prefixes = [
        prefix for length in range(LENGTH) for prefix in product(range(VOCAB), repeat=length)
    ]
    behind = dict(zip(prefixes, probs.double().tolist(), strict=False))
    chance = [
        math.prod(behind[tokens[:i]][token] for i, token in enumerate(tokens))
        for tokens in product(range(VOCAB), repeat=LENGTH)
    ]
    numpy.testing.assert_allclose(exact, chance, rtol=2e-5, atol=1e-30)
    assert [index_of(list(tokens)) for tokens in product(range(VOCAB), repeat=LENGTH)] == list(
        range(VOCAB**LENGTH)
    )


def test_the_distributions_are_what_they_are_called() -> None:
    assert ((Tables(CASES["top-k"]).conditionals() > 0).sum(1) == 3).all()
    kept = (Tables(CASES["top-p"]).conditionals() > 0).sum(1)
    assert kept.min() >= 1 and kept.max() < VOCAB
    sharp = Tables(CASES["sharp"])
    peaks = [table[0].double().softmax(-1).amax(-1) for table in (sharp.target, sharp.drafter)]
    target, drafter = (peak > 0.99999 for peak in peaks)
    assert peaks[0].max() == pytest.approx(1 - 1e-6, abs=1e-9)
    assert all(
        bool(both.any())
        for both in (target & drafter, target & ~drafter, ~target & drafter, ~target & ~drafter)
    )
    for name, case in CASES.items():  # the drafter is wrong, and similar
        tables = Tables(case)
        p, q = (
            probabilities(guide(rows, case.sampling.cfg_scale), case.sampling)
            for rows in (tables.target, tables.drafter)
        )
        assert 0.1 < float((p - q).abs().sum(-1).mean()) / 2 < 0.7, name


def test_the_test_is_pearsons_and_the_distance_is_half_the_sum() -> None:
    counts, probs = numpy.array([30, 50, 20]), numpy.array([0.25, 0.5, 0.25])
    # two degrees of freedom
    assert chi_square(counts, probs) == pytest.approx(math.exp(-(25 / 25 + 25 / 25) / 2))
    assert distance(counts, probs) == pytest.approx(0.05)
    # 2, 2 and 2 are expected of the first three, which are one cell, and 1 of the last, which goes
    # to the cell before
    found = chi_square(numpy.array([4, 2, 3, 90, 1]), numpy.array([0.02, 0.02, 0.02, 0.93, 0.01]))
    # one degree of freedom
    assert found == pytest.approx(math.erfc(math.sqrt((9 / 6 + 9 / 94) / 2)))
    assert chi_square(numpy.array([10]), numpy.array([1.0])) == 1.0
    probs = numpy.array([0.5, 0.0, 0.5])
    assert chi_square(numpy.array([500, 1, 499]), probs) == 0.0, (
        "what cannot be drawn fails by itself"
    )
    assert chi_square(numpy.array([500, 0, 500]), probs) == 1.0
    with pytest.raises(ValueError, match="counts hold 0"):
        chi_square(numpy.array([0, 0]), numpy.array([0.5, 0.5]))


def test_the_expected_distance_is_that_of_a_multinomial() -> None:
    """By de Moivre's mean absolute deviation of a binomial."""
    probs, runs, expected = numpy.random.default_rng(1).dirichlet(numpy.ones(40)), 300, 0.0
    for p in probs:
        k = math.floor(runs * p) + 1
        log = math.lgamma(runs + 1) - math.lgamma(k + 1) - math.lgamma(runs - k + 1)
        expected += 2 * k * math.exp(log + k * math.log(p) + (runs - k + 1) * math.log1p(-p))
    assert expected_distance(probs, runs) == pytest.approx(0.5 * expected / runs, rel=0.02)


def at_distance(case: str, far: float) -> numpy.ndarray:
    """The distribution of a decoder whose conditionals are wrong at random, `far` from the exact.

    A fault raises or lowers each conditional probability by one share.
    """
    exact = Tables(CASES[case]).conditionals()
    signs = numpy.random.default_rng(0).choice([-1.0, 1.0], exact.shape)
    low, high = 0.0, 0.99
    for _ in range(20):
        share = (low + high) / 2
        wrong = exact * (1 + share * signs)
        wrong = joint(wrong / wrong.sum(1, keepdims=True))
        if distance(wrong, joint(exact)) > far:
            high = share
        else:
            low = share
    return wrong / wrong.sum()


@pytest.mark.parametrize("case", ["cold", "top-p"])
def test_a_row_finds_the_distance_that_it_says_nine_times_in_ten(case: str) -> None:
    """In 50 simulated audits 45 are expected; fewer than 38 come by chance once in 1,000."""
    probs = Tables(CASES[case]).sequences()
    shape = (VOCAB,) * LENGTH

    def found(far: float, runs: int) -> int:
        generator = numpy.random.default_rng(0)
        draws = generator.multinomial(runs, at_distance(case, far), size=50)
        tests = (worst_stretch(d.reshape(shape), probs.reshape(shape)) for d in draws)
        return sum(p < audit.LEAST_P for _, p in tests)

    runs = CASES[case].runs
    assert found(audit.SEEN, runs) >= 38 and found(audit.SEEN, runs // 2) < 38
    cell = Cell("eagle1", "independent", case)
    assert audit.sees(cell, runs) == audit.SEEN
    assert audit.sees(cell, runs // 4) == pytest.approx(0.1)
    assert found(audit.sees(cell, runs // 4), runs // 4) >= 38
    assert audit.sees(cell._replace(noise="shared"), 500) == 0.0046


def test_the_worst_stretch_finds_what_is_lost_among_sequences() -> None:
    """Two tokens in five hang together a little, as they should not."""
    probs = numpy.full((4,) * 5, 4.0**-5)
    wrong = probs.copy()
    for i, j in product(range(4), repeat=2):
        wrong[:, i, j] *= 1.15 if (i + j) % 2 else 0.85
    generator = numpy.random.default_rng(1)
    counts = generator.multinomial(5000, wrong.ravel()).reshape(probs.shape)
    assert chi_square(counts.ravel(), probs.ravel()) > 1e-6
    stretch, p = worst_stretch(counts, probs)
    assert stretch == "2-3" and p < 1e-12
    fair = [
        worst_stretch(generator.multinomial(5000, probs.ravel()).reshape(probs.shape), probs)[1]
        for _ in range(100)
    ]
    assert min(fair) > 1e-4 and numpy.mean(numpy.array(fair) < 0.05) < 0.15


def test_with_shared_noise_they_draw_vanillas_sequences() -> None:
    for method, noise in (("eagle1", "shared"), ("sjd", "shared")):
        row = run_cell(Cell(method, noise, "guided"), 60)
        assert row.exact and row.verdict == "vanilla's own" and row.stretch_p is None
        assert audit.faults([row]) == []


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].lossless])
def test_whole_runs_of_lossless_methods_follow_the_target(method: str) -> None:
    for cell in cells_of([method], ["top-p"]):
        assert run_cell(cell, 200).exact, cell


def test_a_residual_that_returns_the_distribution_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rule, "reject", lambda self, p, *_: p)
    row = run_cell(Cell("eagle1", "independent", "top-p"), 300)
    assert row.stretch_p < 1e-6 and row.tvd > 1.2 * row.expected
    assert row.verdict.startswith("off by 0.")
    assert audit.faults([row]) == [row]


class Careless(Ops):
    """After a refusal the token is drawn from the whole distribution."""

    def decide(self, rule: Rule, p: Tensor, *given: Any) -> Verdict:
        return super().decide(rule, p, *given)._replace(residual=p)


def test_operations_of_another_law_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as kernels': runs have those of the switch."""
    monkeypatch.setattr(switch, "ops_of", lambda device, vocabulary: Careless())
    assert run_cell(Cell("eagle1", "independent", "top-p"), 300).stretch_p < 1e-6


class WrongMask(ToyTarget):
    """Every node sees itself alone."""

    def forward(self, nodes: Pass, cache) -> Tensor:
        if nodes.visible is not None:
            columns = torch.arange(nodes.end)
            alone = (columns < nodes.slots[0]) | (columns == nodes.slots[:, None])
            nodes = nodes._replace(visible=alone)
        return super().forward(nodes, cache)


class WrongCommit(ToyTarget):
    """Accepted nodes are taken for those that were written first."""

    def new_cache(self, rows: int, length: int):
        cache = super().new_cache(rows, length)
        cache.move = lambda source, slots: None
        return cache


@pytest.mark.parametrize("broken", [WrongMask, WrongCommit])
def test_what_a_target_is_told_wrongly_shows(
    broken: type[ToyTarget], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "ToyTarget", broken)
    assert run_cell(Cell("eagle1", "independent", "top-p"), 60).stretch_p < 1e-6
    assert run_cell(Cell("eagle1", "shared", "top-p"), 12).differ


# -- on a GPU, whose captured steps have their own sizes and runners that are kept


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of the sizes that a GPU captures, on kept runners."""
    kept = type("Kept", (graphs.Runner,), {"name": graphs.GraphRunner.name})
    monkeypatch.setattr(loop, "captures", lambda _: True)
    monkeypatch.setattr(loop, "GraphRunner", lambda steps, free: kept(steps))
    monkeypatch.setattr(Steps, "exact", False)


@pytest.mark.parametrize("method", ["eagle1", "eagle2", "sjd"])
def test_captured_steps_draw_the_same_sequences(
    method: str, captured: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = cells_of([method], ["guided"])[-1]
    play = audit.player(cell, audit.CPU)
    found = [play(seed).tokens for seed in range(12)]
    monkeypatch.undo()
    play = audit.player(cell, audit.CPU)
    assert found == [play(seed).tokens for seed in range(12)]


@pytest.mark.parametrize("method", METHODS)
def test_a_gpu_may_capture_a_step_of_the_toys(method: str) -> None:
    tables = Tables(CASES["guided"])
    for cell in cells_of([method], ["guided"]):
        config = audit.config_of(METHODS[method], cell.noise, CASES["guided"].sampling, META)
        models = ToyTarget(tables, META), ToyDrafter(tables, META)
        parts = parts_of(config, VOCAB)
        steps = Steps(*models, config, *parts)
        steps.cache.start(1)
        root, uniforms = torch.zeros(1).long(), torch.empty(LENGTH, steps.draws)
        steps.begin(torch.empty(2, 1, 1).to(META), root.to(META), uniforms.to(META), None)
        for shape in steps.shapes():
            steps.step(shape)  # what is worked out once is there from then on
            found = Launches()
            steps.step(shape, lambda _, seen=found: Watch(seen.kernels, seen.faults))
            assert found.faults == [] and found.kernels, (cell, shape)


def test_without_a_gpu_a_sentence_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as end:
        commands(["audit", "--device", "cuda"])
    assert end.value.code == 2 and capsys.readouterr().err.startswith(
        "python -m lantern_demo.bench audit: device 'cuda' is not available here; use auto or cpu"
    )


def test_the_report_says_whether_kernels_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    row = run_cell(Cell("vanilla", "shared", "cold"), 5)
    assert row.engine == audit.engine_of([row], audit.CPU) == ""
    monkeypatch.setattr(switch, "on", lambda device: True)
    assert audit.engine_of([row], audit.CPU) == "Triton kernels"
    without = replace(row, engine="without kernels: no Triton")
    assert audit.engine_of([row, without], audit.CPU) == "without kernels: no Triton"


def test_relaxed_methods_show_their_distance_and_must() -> None:
    row = run_cell(Cell("lantern", "independent", "sharp"), 600)
    assert not row.lossless and not row.exact and float(row.verdict.removeprefix("off by ")) > 0.05
    assert audit.faults([row, unseen := replace(row, stretch_p=0.5)]) == [unseen], (
        "a lossy method that passes was not seen"
    )


def test_every_method_of_the_table_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        METHODS,
        "later",
        Method("later", "Later", StaticTree, Rule(), True, "A row that was added."),
    )
    cells = cells_of(list(METHODS), ["cold"])
    assert {cell.method for cell in cells} == set(METHODS)
    both = ["shared", "independent"]
    ways = {
        name: [cell.noise for cell in cells if cell.method == name]
        for name in ("lantern", "lantern++", "later")
    }
    assert ways == {"lantern": ["independent"], "lantern++": ["independent"], "later": both}
    assert run_cell(Cell("later", "shared", "cold"), 5).exact


ASKED = "--runs 30 --processes 1 --cases cold top-p --out"


def command(out: Path, *more: str) -> list[str]:
    return [*ASKED.split(), str(out), *more]


def test_the_report_says_what_ran_and_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "audit.json"
    # so few runs need not see what is lossy
    assert main(command(out, "--methods", "vanilla", "eagle1", "lantern")) in (0, 1)
    text = out.with_suffix(".md").read_text(encoding="utf-8")
    assert text.rstrip() == capsys.readouterr().out.rstrip()
    assert "30 seeds a row with shared noise, 30 runs a row of the others" in text
    assert "| vanilla | shared | yes | 0.707 | at the noise | at the noise |" in text
    report = json.loads(out.read_text(encoding="utf-8"))
    assert report["machine"]["processors"] and "\n| lantern | independent | no | " in text
    wrong = replace(rows_of(report)[0], stretch_p=1e-5)
    monkeypatch.setattr(
        audit,
        "run_cell",
        lambda cell, runs, device: replace(wrong, noise=cell.noise, case=cell.case),
    )
    assert main(command(tmp_path / "wrong.json", "--methods", "vanilla")) == 1
    named = "; ".join(
        f"vanilla ({noise}) at {case}"
        for noise in ("shared", "independent")
        for case in ("cold", "top-p")
    )
    assert f"Not as it should be: {named}." in capsys.readouterr().out


def test_every_run_has_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: dict[Cell, list[int]] = {}

    def player(cell: Cell, device: torch.device):
        play, seeds[cell] = sound(cell, device), []
        return lambda seed: seeds[cell].append(seed) or play(seed)

    sound = audit.player
    monkeypatch.setattr(audit, "player", player)
    for cell in cells_of(["vanilla", "lantern++"], ["cold", "top-k"]):
        run_cell(cell, 10)
    assert len(seeds) == 6 and len({seed for used in seeds.values() for seed in used}) == 60
    assert all(0 <= seed < 2**32 for used in seeds.values() for seed in used)
