"""The commands that time models of published sizes, on a processor and on a GPU, in their small forms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lantern_demo.bench import gpu, models, sizes
from lantern_demo.bench.__main__ import main
from lantern_demo.models.machine.device import pick_threads
from lantern_demo.models.machine.matmul import OF_FORMAT
from lantern_demo.models.machine.sixteen import sixteen_bits


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lantern-scenes", "anole-7b"])
def test_the_report_of_sizes(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "FIT_ROUNDS", 1)
    out = tmp_path / "sizes.json"
    main(["sizes", "--small", "--models", model, "--kinds", "modules", "packed", "--nodes", "3", "--out", str(out)])
    report = json.loads(out.read_text())["models"][model]
    bundled = model == "lantern-scenes"
    assert report["threads"] == pick_threads(None, sizes.CPU, small=bundled).count and report["random_weights"] != bundled
    default = report["default_kind"]
    assert bundled or default == OF_FORMAT[sixteen_bits()]
    assert set(report["kinds"]) == {"modules", "packed", default}
    assert all(set(times) == {"1", "3"} and min(times.values()) > 0 for times in report["kinds"].values())
    vanilla = report["methods"]["vanilla"]
    assert (vanilla["tokens_per_step"], vanilla["speedup"], vanilla["nodes"]) == (1, 1, 1)
    assert list(report["methods"]) == ["vanilla", "eagle1", "lantern++"]
    for name, row in report["methods"].items():
        assert row["speedup"] == pytest.approx(vanilla["ms_per_token"] / row["ms_per_token"])
        assert row["picture_seconds"] == pytest.approx(row["ms_per_token"] * report["tokens"] / 1000)
        assert name == "vanilla" or (row["tokens_per_step"] > 1 and row["nodes"] > 1)
    printed = capsys.readouterr().out
    assert f"| {model} | lantern++ |" in printed and f"| {model} | modules |" in printed


@pytest.mark.slow
def test_the_small_form_of_gpu(tmp_path: Path) -> None:
    assert gpu.main(["--device", "cpu", "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert {row["model"] for row in report["identity"]} == {gpu.BUNDLED, gpu.XL}
    for row in report["identity"]:
        assert row["ok"] and row["same tokens"] == "10 of 10" and row["ran as"] == "fixed"
    for model in (gpu.BUNDLED, gpu.XL, gpu.ANOLE):
        rows = [row for row in report["speed"] if row["model"] == model]
        assert [row["method"] for row in rows] == gpu.FIXED and rows[0]["nodes"] == 1 and rows[1]["nodes"] == 8
        assert all(("gain" in row) == (model == gpu.BUNDLED) for row in rows)  # random weights accept nothing that means anything
    told = (tmp_path / "gpu.md").read_text()
    assert "these numbers say nothing about a GPU" in told and "| lantern-scenes | eagle1 | 8 |" in told


def test_tokens_that_differ_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = models.timed_model("llamagen-t2i-256", torch.device("cpu"), small=True)
    monkeypatch.setattr(gpu, "FIXED", ["vanilla"])
    seeds = iter((2, 3))
    decoded = models.TimedModel.decoded
    monkeypatch.setattr(
        models.TimedModel, "decoded", lambda self, method, **more: decoded(self, method, **more | {"seed": next(seeds)})
    )
    (row,) = gpu.identity(timed, torch.float32, 8)
    assert not row["ok"] and row["same tokens"] != "8 of 8"


@pytest.mark.parametrize("model", ["llamagen-t2i-256", "anole-7b", "janus-pro-7b"])
def test_a_small_model_of_every_family_draws_on_both_engines(model: str) -> None:
    """The fused models draw on the engine of GPUs what the plain engine draws."""
    timed = models.timed_model(model, torch.device("cpu"), small=True)
    fixed, plain = (timed.decoded("eagle1", tokens=4, seed=1, engine=engine) for engine in ("fixed", "plain"))
    assert (fixed.engine, plain.engine) == ("fixed", "plain") and fixed.tokens == plain.tokens
