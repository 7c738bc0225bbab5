"""The trainers: what they teach is what decoding does, and a run that is stopped goes on where it
was.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_models import FULL, TEXT, networks
from tables import chi_square_p
from tiny import log_of, trained
from torch import Tensor, nn

from examples.make_bundled_model.world import vocabulary
from examples.train_drafter import drafter, run
from examples.train_drafter.own import sample_batch
from lantern_demo.decoding.sampling import Sampling, guide, probabilities


@pytest.mark.parametrize("scale", [1.0, 2.0])
@torch.inference_mode()
def test_batched_samples_follow_the_distribution_of_the_target(scale: float) -> None:
    """First tokens of many samples against the guided distribution itself."""
    target, _ = networks(replace(TEXT, grid=1))
    features = torch.randn(1, 7, TEXT.caption_dim, generator=torch.Generator().manual_seed(1))
    hidden = target.prefill(target.condition(features, FULL, True), target.new_cache(2, 8))
    sampling = Sampling(cfg_scale=scale)
    probs = probabilities(guide(target.head(hidden[:, -1:]), scale), sampling)[0]
    many = features.expand(4000, -1, -1), FULL.expand(4000, -1)
    first = sample_batch(target, *many, sampling, 1)[:, 0]
    assert chi_square_p(torch.bincount(first, minlength=TEXT.vocab), probs) > 1e-4


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Linear(3, 3, bias=False)
        self.weight = nn.Parameter(torch.zeros(3))


def train_line(folder: Path, steps: int, planned: int, muon: bool) -> Line:
    """Fit a line; `planned` fixes the learning rate schedule, `steps` is where this call stops."""
    folder.mkdir(exist_ok=True)
    opts = run.Options(folder, planned, 4, 0.05, 2, 0, 2, 4, 0.9, torch.device("cpu"), False, muon)
    torch.manual_seed(0)
    model = Line()

    def batch_loss(step: int) -> tuple[Tensor, dict[str, float]]:
        if step == steps:
            raise KeyboardInterrupt
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(opts.batch_seed(step)))
        return (model.turn(x) @ (model.weight - torch.tensor([1.0, -2.0, 0.5]))).square().mean(), {}

    with pytest.raises(KeyboardInterrupt) if steps < planned else nullcontext():
        run.train(model, opts, batch_loss, lambda: {"held_out": 0.0})
    return model


NO_MUON = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="Muon needs PyTorch 2.9")


@pytest.mark.parametrize("muon", [False, pytest.param(True, marks=NO_MUON)])
def test_a_stopped_run_resumes_to_the_same_weights(tmp_path: Path, muon: bool) -> None:
    whole = train_line(tmp_path / "whole", 12, 12, muon)
    train_line(tmp_path / "parts", 6, 12, muon)
    resumed = train_line(tmp_path / "parts", 12, 12, muon)
    assert torch.equal(whole.weight, resumed.weight) and torch.equal(
        whole.turn.weight, resumed.turn.weight
    )
    assert whole.weight.abs().sum() > 0
    last = log_of(tmp_path / "parts")[-1]
    assert last["step"] == 12 and "held_out" in last


def test_a_run_by_the_clock_ends_and_its_learning_rate_falls_with_it(tmp_path: Path) -> None:
    opts = run.Options(
        *(tmp_path, 1000, 1, 1.0, 10, 0, 500, 500, 0.9, torch.device("cpu"), False, False),
        minutes=60.0,
    )
    assert run.learning_rate(10, opts, 0) == pytest.approx(1.0)
    assert run.learning_rate(10, opts, 30) == pytest.approx(0.51)
    assert run.learning_rate(10, opts, 61) == pytest.approx(0.02)
    assert run.learning_rate(900, opts, 30) < 0.1  # the steps are nearer to their end
    opts.minutes = 0.0
    weight = nn.Linear(1, 1)
    run.train(
        weight, opts, lambda step: (weight(torch.ones(1)).sum(), {}), lambda: {"held_out": 1.0}
    )
    assert [line["step"] for line in log_of(tmp_path)] == [1] and (tmp_path / "last.pt").exists()


@pytest.mark.parametrize("more", [["--cfg-scale", 1, "--keep-states"], ["--guided"]], ids=str)
def test_a_drafter_of_a_model_folder_learns_from_captions_of_scenes(
    more: list[object], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drafter, "SHARD", 8)
    steps = "--steps 60 --validate-every 20 --warmup 5 --batch 4 --own 16 --ffn 64 --device cpu"
    words = "--target", folder, *steps.split(), *more
    log = trained(drafter, tmp_path / "out", *words)
    overlaps = [line["held_out_overlap0"] for line in log if "held_out_overlap0" in line]
    assert len(overlaps) == 3 and overlaps[2] > overlaps[0] + 0.005
    assert any((tmp_path / "out").glob("states*")) == ("--keep-states" in more)
    captions = torch.load(tmp_path / "out" / "own0-0.pt", weights_only=True)[1]
    known = set(vocabulary())
    assert len(captions) == 8 and all(known.issuperset(text.split()) for text in captions)
    assert {"lantern" in text for text in captions} == {True, False}
    trained(drafter, tmp_path / "again", *words, "--steps", 1)
    again = torch.load(tmp_path / "again" / "own0-0.pt", weights_only=True)
    assert again[1] == captions
