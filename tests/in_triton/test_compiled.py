"""What is launched compiles, which needs no GPU: it is traced on the device without values."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from launches import META, step_of
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from lantern_demo.kernels import layer, selection, switch, trial


@pytest.fixture(params=[86, 90])
def capability(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def compiled(capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What was compiled, in the place of launches, for a card that is not there."""
    card = SimpleNamespace(
        get_current_device=lambda: capability,  # kernels are kept by the number of their device
        get_current_stream=lambda device=None: 0,
        get_current_target=lambda: GPUTarget("cuda", capability, 32),
        get_active_torch_device=lambda: torch.device("cpu"),
    )
    launch, found = JITFunction.run, dict[str, Any]()

    def without_a_launch(kernel: Any, *given: Any, warmup: bool, **named: Any) -> None:
        made = launch(kernel, *given, warmup=True, **named)
        found[made.hash] = made.metadata

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(JITFunction, "run", without_a_launch)
    driver.set_active(card)
    return found


@torch.inference_mode()
def test_all_that_a_step_launches_compiles_and_fits_an_rtx_3090(
    capability: int, compiled: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every kernel of whole steps at published sizes."""
    early = capability >= 90
    for name in ("_could", "_wanted"):
        monkeypatch.setattr(switch, name, lambda *_: True)
    monkeypatch.setattr(trial, "LEFT_OUT", True)  # nothing has values
    monkeypatch.setattr(trial, "starts_early", lambda device: early)
    runs = [(method, "small", torch.bfloat16) for method in ("vanilla", "eagle1", "eagle2", "sjd")]
    runs += [(method, "paper", torch.bfloat16) for method in ("lantern", "lantern++")]
    runs += [("lantern++", "small", torch.float32), ("lantern", "paper", torch.float32)]
    if early:  # the same kernels but for their early launches
        runs = [runs[0], runs[1], runs[4]]
    for method, tree, dtype in runs:
        steps = step_of("llamagen-t2i-256", method, dtype, tree=tree)
        assert steps.target.fused
        shapes = steps.shapes()
        for shape in dict.fromkeys((*shapes[:2], *shapes[-2:])):
            steps.step(shape)
    # no model on offer has such wide heads
    qkv, turns = torch.empty(1, 16, 3, 1, 128), torch.empty(1, 16, 3, 1, 64, dtype=torch.complex64)
    bias, cache = torch.empty(1, 1, 16, 512), torch.empty(1, 2, 520, 128)
    given = qkv, turns, torch.arange(16), bias.bfloat16(), cache.bfloat16()
    layer.attend(*(x.to(META) for x in given), early=early)
    names = "_few _some _norm _gated _attend _cut _top _draw _decide"
    assert {one.name for one in compiled.values()} == set(names.split())
    linear = ("_few", "_some", "_attend")
    assert {one.launch_pdl for one in compiled.values() if one.name in linear} == {early}
    assert max(one.shared for one in compiled.values()) <= 99 * 1024


@pytest.mark.parametrize("capability", [86], indirect=True)
def test_a_visitors_top_k_compiles_nothing(compiled: dict[str, Any]) -> None:
    """Whatever it is divided by, a cut is the same kernel."""
    for k in (1, 1000, 1008):
        selection.cut(torch.empty(2, 16384, device="meta"), k, True)
    assert [one.name for one in compiled.values()] == ["_cut"]
