"""The audit of losslessness: its laws, its statistics, and what it says of faulty methods."""

import json
import math
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from lantern_demo.bench import audit, toy
from lantern_demo.bench.audit import Cell, cells_of, main, rows_of, run_cell
from lantern_demo.bench.chi_square import chi_square, distance, expected_distance, worst_stretch
from lantern_demo.bench.toy import CASES, LENGTH, PREFIXES, VOCAB, Tables, ToyTarget
from lantern_demo.decoding.accept import Verdict
from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.interfaces import Pass
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.ops import Ops
from lantern_demo.decoding.rules import Rule
from lantern_demo.decoding.sampling import guide, probabilities
from lantern_demo.kernels import switch


@pytest.fixture(autouse=True)
def quick(same_threads: None) -> None:
    """The command computes with one thread, and sets that for its whole process."""
    torch.set_num_threads(1)


@pytest.mark.parametrize("case", CASES)
def test_the_exact_distribution_is_that_of_the_tables(case: str) -> None:
    tables, sampling = Tables(CASES[case]), CASES[case].sampling
    guided = [guide(rows, sampling.cfg_scale) for rows in (tables.target, tables.drafter)]
    p, q = (probabilities(rows, sampling)[:PREFIXES].double().numpy() for rows in guided)
    assert 0.1 < abs(p - q).sum(1).mean() / 2 < 0.7
    behind = tables.conditionals()
    numpy.testing.assert_allclose(behind, p, rtol=1e-5, atol=1e-30)
    assert case != "sharp" or behind.max() == pytest.approx(1 - 1e-6, abs=1e-9)
    exact, wanted = tables.sequences(), []
    for tokens in product(range(VOCAB), repeat=LENGTH):
        prefix, chance = 0, 1.0
        for token in tokens:
            chance *= behind[prefix, token]
            prefix = prefix * VOCAB + token + 1
        assert toy.index_of(list(tokens)) == len(wanted)
        wanted.append(chance)
    numpy.testing.assert_allclose(exact, wanted, rtol=1e-9)
    assert abs(exact.sum() - 1) < 1e-12


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
    assert chi_square(numpy.array([500, 0, 500]), probs) == 1.0
    assert chi_square(numpy.array([500, 1, 499]), probs) == 0.0, "what cannot be drawn fails"
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
    """The law, `far` from the exact, of a decoder whose conditionals are wrong by one share."""
    exact = Tables(CASES[case]).conditionals()
    signs = numpy.random.default_rng(0).choice([-1.0, 1.0], exact.shape)
    low, high = 0.0, 0.99
    for _ in range(20):
        share = (low + high) / 2
        wrong = exact * (1 + share * signs)
        wrong = toy.joint(wrong / wrong.sum(1, keepdims=True))
        if distance(wrong, toy.joint(exact)) > far:
            high = share
        else:
            low = share
    return wrong / wrong.sum()


@pytest.mark.parametrize("case", ["cold", "top-p"])
def test_a_row_finds_the_distance_that_it_says_nine_times_in_ten(case: str) -> None:
    """Of 50 audits 45 are expected; chance gives fewer than 38 once in 1,000."""
    shape = (VOCAB,) * LENGTH
    probs = Tables(CASES[case]).sequences().reshape(shape)

    def found(far: float, runs: int) -> int:
        generator = numpy.random.default_rng(0)
        draws = generator.multinomial(runs, at_distance(case, far), size=50)
        tests = (worst_stretch(counts.reshape(shape), probs) for counts in draws)
        return sum(p < audit.LEAST_P for _, p in tests)

    runs, cell = CASES[case].runs, Cell("eagle1", "independent", case)
    assert audit.sees(cell, runs) == audit.SEEN
    assert found(audit.SEEN, runs) >= 38 and found(audit.SEEN, runs // 2) < 38
    assert audit.sees(cell, runs // 4) == pytest.approx(0.1)
    assert found(0.1, runs // 4) >= 38 and found(0.0, runs) <= 1
    assert audit.sees(cell._replace(noise="shared"), 500) == 0.0046


def test_the_worst_stretch_finds_what_is_lost_among_sequences() -> None:
    """Two tokens in five hang together a little, as they should not."""
    probs, counts = numpy.full((4,) * 5, 4.0**-5), numpy.full((4,) * 5, 20)
    for i, j in product(range(4), repeat=2):
        counts[:, i, j] += 3 if (i + j) % 2 else -3
    assert chi_square(counts.ravel(), probs.ravel()) > 0.9
    stretch, p = worst_stretch(counts, probs)
    assert stretch == "2-3" and p < 1e-12


class Careless(Ops):
    """After a refusal the token is drawn from the whole distribution."""

    def decide(self, rule: Rule, p: Tensor, *given: Any) -> Verdict:
        return super().decide(rule, p, *given)._replace(residual=p)


WRONG: dict[str, tuple[Any, str, Any]] = {
    "rule": (Rule, "reject", lambda self, p, *_: p),
    "operations": (switch, "ops_of", lambda device, vocabulary: Careless()),
}


@pytest.mark.parametrize("part", WRONG)
def test_a_wrong_residual_is_found(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also that of operations such as kernels': runs have those of the switch."""
    monkeypatch.setattr(*WRONG[part])
    row = run_cell(Cell("eagle1", "independent", "top-p"), 300)
    assert row.stretch_p < 1e-6 and row.tvd > 1.2 * row.expected
    assert row.verdict.startswith("off by 0.")
    assert audit.faults([row]) == [row]


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
def test_a_wrong_target_shows(broken: type[ToyTarget], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "ToyTarget", broken)
    assert run_cell(Cell("eagle1", "independent", "top-p"), 60).stretch_p < 1e-6
    assert run_cell(Cell("eagle1", "shared", "top-p"), 12).differ


def test_relaxed_methods_show_their_distance_and_must() -> None:
    row = run_cell(Cell("lantern", "independent", "sharp"), 600)
    assert not row.lossless and not row.exact and float(row.verdict.removeprefix("off by ")) > 0.05
    unseen = replace(row, stretch_p=0.5)
    assert audit.faults([row, unseen]) == [unseen], "a lossy method that passes was not seen"


def test_every_method_of_the_table_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    later = Method("later", "Later", StaticTree, Rule(), True, "A row that was added.")
    monkeypatch.setitem(METHODS, "later", later)
    noises = {name: {cell.noise for cell in cells_of([name], ["cold"])} for name in METHODS}
    assert noises["lantern"] == noises["lantern++"] == {"independent"}
    assert noises["sjd"] == {"shared"}
    assert noises["vanilla"] == noises["later"] == {"shared", "independent"}
    assert run_cell(Cell("later", "shared", "cold"), 5).exact


def test_the_report_says_what_ran_and_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "audit.json"
    asked = ["--runs", "60", "--processes", "1", "--cases", "cold", "top-p", "--out", str(out)]
    # so few runs need not see what is lossy
    assert main(asked) in (0, 1)
    text = out.with_suffix(".md").read_text(encoding="utf-8")
    assert text.rstrip() == capsys.readouterr().out.rstrip()
    assert "60 seeds a row with shared noise, 60 runs a row of the others" in text
    assert "| vanilla | shared | yes | " in text and "\n| lantern | independent | no | " in text
    rows = rows_of(json.loads(out.read_text(encoding="utf-8")))
    assert {row.method for row in rows} == set(METHODS)
    for row in rows:
        assert row.exact or not row.lossless
        assert row.cell.paired == (row.verdict == "vanilla's own") == (row.stretch_p is None)
    wrong = replace(rows[0], stretch_p=1e-5)
    monkeypatch.setattr(audit, "run_cell", lambda of, *_, **__: replace(wrong, **of._asdict()))
    assert main([*asked, "--methods", "vanilla"]) == 1
    found = capsys.readouterr().out
    assert "Not as it should be: vanilla (shared) at cold; vanilla (shared) at top-p; " in found
