"""Windows that the target guesses itself: fewer passes where a place has one number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runs import decode
from tables import ChainTarget, random_probs
from torch import Tensor

from lantern_demo.bench.audit import Cell, run_cell
from lantern_demo.decoding import window
from lantern_demo.decoding.drafting import RunContext
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.trees import VerifyOutput
from lantern_demo.decoding.window import Window

VOCAB = 6
CHAIN = ChainTarget(random_probs(VOCAB, VOCAB, 7).log(), random_probs(VOCAB, VOCAB, 8).log())
OBSERVE = window.SampledWindowProposer.observe


def steps_of_a_run() -> int:
    *_, last = decode(CHAIN, None, torch.tensor([0]), num_tokens=2000, method=METHODS["sjd"], tree=Window(8))
    return last.steps


@pytest.mark.slow
def test_a_guess_that_keeps_its_old_distribution_fails_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: of a chain the tokens behind a token follow its distribution even so; here whole sequences count."""
    assert run_cell(Cell("sjd", "independent", "flat"), 1000).stretch_p > 1e-5

    def observe(self: window.SampledWindowProposer, out: VerifyOutput, scores: Tensor) -> None:
        tokens, probs, ahead = self.tokens.clone(), self.probs.clone(), self.number + 1 + out.depth
        OBSERVE(self, out, scores)
        held = ahead.clamp(max=self.count - 1)
        kept = (ahead < self.count) & (self.tokens == tokens[held])
        self.probs.copy_(torch.where(kept.unsqueeze(1), probs[held], self.probs))

    monkeypatch.setattr(window.SampledWindowProposer, "observe", observe)
    assert run_cell(Cell("sjd", "independent", "flat"), 2500).stretch_p < 1e-6


def test_one_number_for_a_place_needs_fewer_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Than guesses that are drawn with new random numbers in every pass."""
    steady, generator = steps_of_a_run(), torch.Generator().manual_seed(1)

    def observe_anew(self: window.SampledWindowProposer, *what: Any) -> None:
        self.uniforms.uniform_(generator=generator)
        OBSERVE(self, *what)

    monkeypatch.setattr(window.SampledWindowProposer, "observe", observe_anew)
    assert steady < 0.9 * steps_of_a_run()


def test_the_numbers_of_a_place_are_the_runs_own() -> None:
    """Neighbouring seeds have numbers that have nothing in common."""
    tree = Window(12)
    proposer = window.SampledWindowProposer(tree, RunContext(Sampling(), torch.device("cpu"), VOCAB, 16))
    found = []
    for seed in range(20):
        proposer.begin(torch.tensor([1]), seed)
        found.append(proposer.uniforms.clone())
    correlation = torch.corrcoef(torch.stack(found)).fill_diagonal_(0.0)
    assert float(correlation.abs().max()) < 0.9
