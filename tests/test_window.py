"""Windows that the target guesses itself: exact in every coupling, vanilla at one place, the same on both engines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runs import decode
from tables import ChainTarget, chi_square_p, random_probs

from lantern_demo.bench.audit import Cell, run_cell
from lantern_demo.decoding import window
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import Drafts
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.rules import Rule
from lantern_demo.decoding.sampling import Sampling, probabilities
from lantern_demo.decoding.window import CoupledWindow, Window

VOCAB, P_BOUND = 6, 1e-5
EXACT = [("sjd", "inverse"), ("scd", "gumbel"), ("scd", "maximal")]
SAMPLINGS = {"whole": Sampling(), "filtered": Sampling(0.6, top_k=4), "cold": Sampling(0.05)}
CHAIN = ChainTarget(random_probs(VOCAB, VOCAB, 7).log(), random_probs(VOCAB, VOCAB, 8).log())


def window_of(nodes: int, coupling: str, guess: str) -> Window:
    return Window(nodes, guess) if coupling == "inverse" else CoupledWindow(nodes, guess, coupling)


def run(method: str, coupling: str, tokens: int = 400, seed: int = 0, nodes: int = 5, guess: str = "left", **changes: Any) -> Any:
    knobs: dict[str, Any] = {"sampling": Sampling(), "tree": window_of(nodes, coupling, guess), "row": 4, **changes}
    *_, last = decode(CHAIN, None, torch.tensor([0]), num_tokens=tokens, method=METHODS[method], seed=seed, **knobs)
    return last


def p_value(runs: list[list[int]], sampling: Sampling) -> float:
    """The smallest p-value of the tokens behind each token under the target's distribution."""
    probs, counts = probabilities(CHAIN.rows[:VOCAB], sampling), torch.zeros(VOCAB, VOCAB)
    for tokens in runs:
        for last, token in zip([0, *tokens], tokens, strict=False):
            counts[last, token] += 1
    return min(chi_square_p(counts[i], probs[i]) for i in range(VOCAB) if counts[i].sum() >= 100)


@pytest.mark.parametrize(
    "sampling", [pytest.param(how, id=name, marks=[pytest.mark.slow] * (name != "whole")) for name, how in SAMPLINGS.items()]
)
@pytest.mark.parametrize(("method", "coupling"), EXACT)
def test_every_token_follows_the_target(method: str, coupling: str, sampling: Sampling) -> None:
    """The plain engine's by their distribution; the fixed engine's are the very same."""
    for guess in ("left", "above", "uniform"):
        knobs: dict[str, Any] = {"guess": guess, "sampling": sampling, "measure_distortion": False}
        runs = [run(method, coupling, seed=seed, engine="plain", **knobs).tokens for seed in range(3)]
        assert p_value(runs, sampling) > P_BOUND, guess
        assert run(method, coupling, engine="fixed", **knobs).tokens == runs[0], guess


@pytest.mark.parametrize(("method", "coupling"), EXACT)
def test_the_end_of_an_image_follows_the_target(method: str, coupling: str) -> None:
    """Runs of three tokens, which the window overshoots."""
    probs = probabilities(CHAIN.rows[:VOCAB], Sampling())
    runs = [run(method, coupling, 3, seed, measure_distortion=False).tokens for seed in range(1500)]
    cells = (torch.tensor(runs) * torch.tensor([VOCAB * VOCAB, VOCAB, 1])).sum(1)
    triples = probs[0].view(-1, 1, 1) * probs.unsqueeze(2) * probs
    assert chi_square_p(cells.bincount(minlength=VOCAB**3), triples) > P_BOUND


def test_what_is_not_exact_fails_the_same_test() -> None:
    """Negative control: the target's distribution in place of the residual."""
    assert (
        p_value([run("sjd", "inverse", 2000, seed, rule=Rule(residual="target")).tokens for seed in range(6)], Sampling()) < 1e-9
    )


@pytest.mark.slow
def test_a_guess_that_keeps_its_old_distribution_fails_the_audit() -> None:
    """Negative control: of a chain the tokens behind a token follow its distribution even so; here whole sequences count."""
    assert run_cell(Cell("scd", "released", "flat"), 4000).stretch_p < 1e-9
    assert run_cell(Cell("scd", "maximal", "flat"), 2000).stretch_p > P_BOUND


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("method", "coupling"), EXACT)
def test_a_window_of_one_is_vanilla(method: str, coupling: str, temperature: float) -> None:
    sampling = Sampling(temperature)
    vanilla = run("vanilla", "inverse", 60, sampling=sampling, tree=Drafts())
    assert run(method, coupling, 60, sampling=sampling, nodes=1).tokens == vanilla.tokens


def test_coupled_guesses_need_fewer_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Than guesses that are drawn with new random numbers in every pass."""
    passes = {coupling: run(method, coupling, 2000, nodes=8, measure_distortion=False).steps for method, coupling in EXACT}
    observe, generator = window.DrawnWindow.observe, torch.Generator().manual_seed(1)

    def observe_anew(self: window.DrawnWindow, *what: torch.Tensor) -> None:
        self.noise.uniform_(generator=generator)
        observe(self, *what)  # type: ignore[arg-type]

    monkeypatch.setattr(window.DrawnWindow, "observe", observe_anew)
    fresh = run("sjd", "inverse", 2000, nodes=8, measure_distortion=False).steps
    assert passes["gumbel"] < 0.85 * fresh and passes["maximal"] < 0.85 * fresh and passes["inverse"] < 0.9 * fresh


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ((0,), "window is 0"),
        ((4, "left", "odd"), "coupling is 'odd'"),
        ((4, "odd"), "guess is 'odd'; allowed are left, above, uniform"),
    ],
)
def test_values_out_of_range(values: tuple, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        CoupledWindow(*values)


def test_the_noise_of_a_place_is_the_runs_own() -> None:
    """Neighbouring seeds have noises that have nothing in common."""
    tree = CoupledWindow(3)
    source = window.DrawnWindow(tree, Config(METHODS["scd"], 16, tree=tree, row=4), VOCAB)
    found = []
    for seed in range(20):
        source.begin(torch.tensor([1]), seed)
        found.append(source.noise[:4].flatten().clone())
    correlation = torch.corrcoef(torch.stack(found)).fill_diagonal_(0.0)
    assert float(correlation.abs().max()) < 0.9
