"""The trial of kernels at load: it passes right ones, and notices wrong ones."""

import re
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import TEXT, Model, of_llamagen

from lantern_demo.kernels import layer, selection, switch, trial

# A fault, and what it changes of which file.
FAULTS = {
    "an unwritten slot is read": (layer, "old = here_at < first", "old = here_at <= first"),
    "the last block of K is left out": (layer, "range(0, K, S", "range(0, K - S * BK, S"),
    "queries turn the other way": (layer, "q2 = (a * sin + b * cos)", "q2 = (b * cos - a * sin)"),
    "keys are written a slot further": (layer, "keys + write + pair", "keys + write + D + pair"),
    "a column is missing": (layer, "inside = column < outputs", "inside = column < outputs - 1"),
    "negatives are in the wrong order": (selection, "bits ^ ((bits >> 31) & 0x7FFFFFFF)", "bits"),
    "a token is drawn twice": (selection, "tl.where(token == drawn[t], 0.0, part)", "part + 0"),
    "neighbours keep their probability": (selection, "tl.zeros((NEAR,), tl.float32)", "by"),
    "a draft is accepted too often": (selection, "(score > height)", "(2 * score > height)"),
}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "CASES", ((2, 1, 1.0), (2, 6, 0.6)))
    monkeypatch.setattr(trial, "LEFT_OUT", False)


@pytest.fixture
def model() -> Model:
    return of_llamagen(replace(TEXT, layers=1))


def test_right_kernels_pass(model: Model) -> None:
    target, drafter, ops, _ = model.joined
    assert target.fused and drafter.fused and not ops.reason


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_is_noticed_and_refuses_all(
    fault: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, right, wrong = FAULTS[fault]
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    assert source.count(right) == 1
    path = tmp_path / "planted.py"  # Triton reads the file
    path.write_text(source.replace(right, wrong), encoding="utf-8")
    spec = spec_from_file_location("planted", path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(planted := module_from_spec(spec))
    for name, value in vars(planted).items():
        if not name.startswith("__"):
            monkeypatch.setattr(module, name, value)
    if module is selection:
        monkeypatch.setattr(trial, "CASES", ())
    target, drafter, ops, _ = model.joined
    told = "layer 1 .*" if module is layer else "a .* differs from PyTorch's"
    assert re.fullmatch(f"without kernels: {told}", ops.reason)
    assert not target.fused and not drafter.fused


@pytest.mark.parametrize("both", [False, True])
def test_where_early_starts_alone_fail_the_others_run(
    both: bool, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a card whose early starts fail in the trial, and on one where all do."""
    tried, worked = list[bool](), list[str]()

    def check(network: Any, layers: Any) -> None:
        tried.append(layers[0].early)
        if layers[0].early or both:
            raise RuntimeError("invalid resource handle")

    work = switch.device_work
    noted = lambda device: worked.append(device.type) or work(device)  # noqa: E731
    monkeypatch.setattr(switch, "device_work", noted)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(trial, "starts_early", lambda device: True)
    monkeypatch.setattr(trial, "check_layers", check)
    monkeypatch.setattr(trial, "check_operations", lambda *_: None)
    target, _, ops, _ = model.joined
    assert tried == ([True, False] if both else [True, False] * 2) and worked == ["cpu"]
    assert bool(target.fused) != both
    assert ops.reason == ("without kernels: invalid resource handle" if both else "")
