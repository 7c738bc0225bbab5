"""A drafter for a published class-conditional model, trained from its files alone, on several processes, stopped and resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from published import CLASS_ID, GRID, tiny_info, write_class_model

from lantern_demo.models import checkpoints
from lantern_demo.models.registry import REGISTRY
from lantern_demo.pipeline import load
from lantern_demo.training import drafter, run


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LANTERN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(REGISTRY, CLASS_ID, tiny_info(CLASS_ID))
    return write_class_model(tmp_path / "files")


def train(files: Path, out: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[dict[str, float]]:
    """Run the trainer's command line -> the lines of its log."""
    given = {"target": CLASS_ID, "folder": files, "out": out, "own": 256, "batch": 8, "lr": 3e-3, "warmup": 5, **options}
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    monkeypatch.setattr(sys, "argv", ["drafter", *words])
    drafter.main()
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_class_model_gets_its_drafter(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = load(CLASS_ID, folder=files)
    assert pipe.available_methods == ["vanilla", "sjd", "scd", "gsd"]
    log = train(files, tmp_path / "out", monkeypatch, steps=120, validate_every=20)
    overlaps = [line["held_out_overlap0"] for line in log if "held_out_overlap0" in line]
    assert overlaps[-1] > overlaps[0] + 0.04
    shards = sorted(path.name for path in (tmp_path / "out").glob("own*.pt"))
    assert shards == [*(f"own0-{i}.pt" for i in range(4)), "own0-held-out.pt"]

    pipe = load(CLASS_ID, folder=files)
    assert "lantern++" in pipe.available_methods
    drawn = pipe.generate("7", "eagle1", seed=3)
    assert drawn.stats.mean_accepted_length > 1
    assert len(drawn.tokens) == GRID * GRID
    greedy = [pipe.generate("goldfish", method, temperature=0).tokens for method in ("vanilla", "eagle1", "eagle2")]
    assert greedy[0] == greedy[1] == greedy[2]


def test_a_stopped_training_goes_on_with_the_same_pictures(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = train(files, tmp_path / "whole", monkeypatch, steps=20)
    real = run.average_gradients

    def stop_in_the_middle(*given: Any) -> None:
        stop_in_the_middle.calls += 1  # type: ignore[attr-defined]
        if stop_in_the_middle.calls > 10:  # type: ignore[attr-defined]
            raise KeyboardInterrupt
        real(*given)

    stop_in_the_middle.calls = 0  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(run, "average_gradients", stop_in_the_middle)
        with pytest.raises(KeyboardInterrupt):
            train(files, tmp_path / "parts", patch, steps=20, save_every=10)
    times = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "parts").glob("own*.pt")}
    assert times
    resumed = train(files, tmp_path / "parts", monkeypatch, steps=20)
    assert all((tmp_path / "parts" / name).stat().st_mtime_ns == time for name, time in times.items())
    assert resumed[-1]["held_out_overlap0"] == pytest.approx(whole[-1]["held_out_overlap0"], abs=0.05)


SCRIPT = """
import sys
sys.path[:0] = [{tests!r}, {root!r}]
from published import CLASS_ID, tiny_info
from lantern_demo.models.registry import REGISTRY
from lantern_demo.training import drafter
REGISTRY[CLASS_ID] = tiny_info(CLASS_ID)
drafter.main()
"""


@pytest.mark.slow
def test_two_processes_draw_apart_and_learn_together(files: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    tests = Path(__file__).parent
    script.write_text(SCRIPT.format(tests=str(tests), root=str(tests.parent)))
    checkpoints.load_target(
        REGISTRY[CLASS_ID], torch.device("cpu"), torch.float32, files
    )  # two that convert at once get in each other's way
    out = tmp_path / "out"
    words = ["--target", CLASS_ID, "--folder", str(files), "--out", str(out), "--own", "64", "--batch", "4", "--steps", "4"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[:3000]
    assert {path.name for path in out.glob("own*-0.pt")} == {"own0-0.pt", "own1-0.pt"}
    first, second = (torch.load(out / f"own{rank}-0.pt", weights_only=True) for rank in (0, 1))
    assert not torch.equal(first[0], second[0])
    assert "now has a drafter" in done.stdout
