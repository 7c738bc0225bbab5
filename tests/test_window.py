"""Windows that the target guesses itself: vanilla at one place, and fewer passes where guesses are coupled. `test_distributions`
shows that they are exact in every coupling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runs import decode
from tables import ChainTarget, random_probs

from lantern_demo.bench.audit import Cell, run_cell
from lantern_demo.decoding import window
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import Drafts
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.window import CoupledWindow, Window

VOCAB = 6
EXACT = [("sjd", "inverse"), ("scd", "gumbel"), ("scd", "maximal")]
CHAIN = ChainTarget(random_probs(VOCAB, VOCAB, 7).log(), random_probs(VOCAB, VOCAB, 8).log())


def run(method: str, coupling: str, tokens: int, nodes: int = 5, **changes: Any) -> Any:
    tree = Window(nodes) if coupling == "inverse" else CoupledWindow(nodes, coupling=coupling)
    knobs: dict[str, Any] = {"sampling": Sampling(), "tree": tree, "row": 4, **changes}
    *_, last = decode(CHAIN, None, torch.tensor([0]), num_tokens=tokens, method=METHODS[method], **knobs)
    return last


@pytest.mark.slow
def test_a_guess_that_keeps_its_old_distribution_fails_the_audit() -> None:
    """Negative control: of a chain the tokens behind a token follow its distribution even so; here whole sequences count."""
    assert run_cell(Cell("scd", "released", "flat"), 2500).stretch_p < 1e-6
    assert run_cell(Cell("scd", "maximal", "flat"), 1000).stretch_p > 1e-5


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("method", "coupling"), EXACT)
def test_a_window_of_one_is_vanilla(method: str, coupling: str, temperature: float) -> None:
    sampling = Sampling(temperature)
    vanilla = run("vanilla", "inverse", 60, sampling=sampling, tree=Drafts())
    assert run(method, coupling, 60, sampling=sampling, nodes=1).tokens == vanilla.tokens


def test_coupled_guesses_need_fewer_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Than guesses that are drawn with new random numbers in every pass."""
    passes = {coupling: run(method, coupling, 2000, nodes=8).steps for method, coupling in EXACT}
    observe, generator = window.DrawnWindow.observe, torch.Generator().manual_seed(1)

    def observe_anew(self: window.DrawnWindow, *what: torch.Tensor) -> None:
        self.noise.uniform_(generator=generator)
        observe(self, *what)  # type: ignore[arg-type]

    monkeypatch.setattr(window.DrawnWindow, "observe", observe_anew)
    fresh = run("sjd", "inverse", 2000, nodes=8).steps
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
