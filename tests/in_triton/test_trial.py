"""The trial of kernels at load: it passes right ones, and notices wrong ones."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from small_models import TEXT, Model, of_llamagen

from lantern_demo.kernels import layer, selection, switch, trial

LAYERS = {
    "an unwritten slot is read": ("old = here_at < first", "old = here_at <= first"),
    "gate and up change places": (
        "total = total * tl.sigmoid(total) * by",
        "total = by * tl.sigmoid(by) * total",
    ),
    "the last block of K is left out": (
        "tl.range(0, K, S * BK, num_stages=STAGES)",
        "tl.range(0, K - S * BK, S * BK, num_stages=STAGES)",
    ),
    "queries turn the other way": (
        "q2 = (a * sin + b * cos).to(dtype)",
        "q2 = (b * cos - a * sin).to(dtype)",
    ),
    "keys are written a slot further": (
        "tl.store(keys + write + pair, new1, mask=here)",
        "tl.store(keys + write + D + pair, new1, mask=here)",
    ),
    "the last column is not added": (
        "tl.store(at, total.to(out.dtype.element_ty), mask=inside)\n\n\n@triton.jit\ndef _some",
        "tl.store(at, total.to(out.dtype.element_ty), mask=inside & (column < outputs - 1))\n\n\n"
        "@triton.jit\ndef _some",
    ),
}
SELECTIONS = {
    "numbers below 0 are in the wrong order": (
        "order = bits ^ ((bits >> 31) & 0x7FFFFFFF)",
        "order = bits",
    ),
    "a token is drawn twice": ("part = tl.where(token == drawn[t], 0.0, part)", "part = part + 0"),
    "neighbours keep their probability": (
        "tl.store(at + other, tl.zeros((NEAR,), tl.float32), mask=inside)",
        "pass",
    ),
    "a draft is accepted too often": ("tried & ((score > height)", "tried & ((2 * score > height)"),
}


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "CASES", ((2, 1, 1.0), (2, 6, 0.6)))
    monkeypatch.setattr(trial, "LEFT_OUT", False)


@pytest.fixture
def model() -> Model:
    return of_llamagen(replace(TEXT, layers=1))


def plant(
    module: ModuleType, right: str, wrong: str, folder: Path, patch: pytest.MonkeyPatch
) -> None:
    """Put what a module defines with a line of it changed in the place of its own."""
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    assert source.count(right) == 1
    path = folder / "planted.py"  # Triton reads the file
    path.write_text(source.replace(right, wrong), encoding="utf-8")
    spec = spec_from_file_location("planted", path)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(planted := module_from_spec(spec))
    for name, value in vars(planted).items():
        if not name.startswith("__"):
            patch.setattr(module, name, value)


def test_right_kernels_pass(model: Model) -> None:
    target, drafter, ops, _ = model.joined
    assert target.fused and drafter.fused and not ops.reason


@pytest.mark.parametrize("fault", [*LAYERS, *SELECTIONS])
def test_a_wrong_kernel_is_noticed_and_refuses_all(
    fault: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault in LAYERS:
        plant(layer, *LAYERS[fault], tmp_path, monkeypatch)
        begins, says = "layer 1 ", ""
    else:
        monkeypatch.setattr(trial, "CASES", ())
        plant(selection, *SELECTIONS[fault], tmp_path, monkeypatch)
        begins, says = "a ", "differs from PyTorch's"
    target, drafter, ops, _ = model.joined
    assert ops.reason.startswith(f"without kernels: {begins}") and "\n" not in ops.reason
    assert says in ops.reason and not target.fused and not drafter.fused


@pytest.mark.parametrize("both", [False, True])
def test_where_early_starts_alone_fail_the_others_run(
    both: bool, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a card whose early starts fail in the trial, and on one where all do."""
    tried: list[bool] = []
    worked: list[str] = []

    def check(network: Any, layers: Any) -> None:
        tried.append(layers[0].early)
        if layers[0].early or both:
            raise RuntimeError("invalid resource handle")

    work = switch.device_work
    monkeypatch.setattr(
        switch, "device_work", lambda device: worked.append(device.type) or work(device)
    )
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(trial, "starts_early", lambda device: True)
    monkeypatch.setattr(trial, "check_layers", check)
    monkeypatch.setattr(trial, "check_operations", lambda *_: None)
    target, _, ops, _ = model.joined
    assert tried == ([True, False] if both else [True, False] * 2) and worked == ["cpu"]
    assert bool(target.fused) != both
    assert ops.reason == ("without kernels: invalid resource handle" if both else "")
