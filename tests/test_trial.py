"""The trial of kernels at load: it passes right ones, and notices wrong ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from test_kernels import Prints, forks, triton_alone

pytestmark = pytest.mark.slow(9)

# a module with a line of it changed, then a small network on its kernels
PLANTED = """
import sys
import tempfile
from dataclasses import replace
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
import torch
from small_models import TEXT, of_llamagen

def plant(name, right, wrong):
    source = Path(find_spec(name).origin).read_text()
    assert source.count(right) == 1, source.count(right)
    path = Path(tempfile.mkdtemp()) / "planted.py"
    path.write_text(source.replace(right, wrong))
    sys.modules[name] = module = module_from_spec(spec := spec_from_file_location(name, path))
    spec.loader.exec_module(module)
    package, _, child = name.rpartition(".")
    setattr(sys.modules[package], child, module)

if sys.argv[1:]:
    plant(*sys.argv[1:])
from lantern_demo.kernels import switch, trial
trial.CASES = (2, 1, 1.0), (2, 6, 0.6)
trial.LEFT_OUT = False
model = of_llamagen(replace(TEXT, layers=1))
"""

TRIED = """
print(model.joined[2].reason or "right")
"""

# modules draw, and the record says why
DRAWN = """
filters = (1.0, 20, 1.0)
drawn = model.run(model.joined, "lantern++", filters)[-1]
assert drawn.tokens == model.run(model.modules, "lantern++", filters)[-1].tokens
print(drawn.runner_reason)
"""

# the toy models' few tokens
AUDITED = """
import os
from collections import Counter
from lantern_demo.bench import audit
from lantern_demo.kernels import selection

calls = Counter()

def counted(name, real):
    return lambda *given, **more: calls.update([name]) or real(*given, **more)

for name in ("cut", "top", "draw_in_turn", "decide"):
    setattr(selection, name, counted(name, getattr(selection, name)))
for cell in audit.cells_of(["eagle1", "lantern"], ["top-k"]):
    calls.clear()
    draws = [audit.player(cell, audit.CPU)]
    assert {"cut", "top", "draw_in_turn", "decide"} == set(calls), "none was tried"
    os.environ["LANTERN_KERNELS"] = "0"
    draws.append(audit.player(cell, audit.CPU))
    os.environ["LANTERN_KERNELS"] = "1"
    calls.clear()
    found, wanted = ([play(seed) for seed in range(4)] for play in draws)
    assert [one.tokens for one in found] == [one.tokens for one in wanted], cell
    assert calls["cut"] and not any(one.runner_reason for one in found)
    assert (calls["decide"] > 0) == (cell.noise == "independent"), cell
print("alike")
"""

# a card whose early starts fail in the trial, and one where all do
EARLY = """
tried, worked = [], []

def check(network, layers):
    tried.append(layers[0].early)
    if layers[0].early or sys.argv[1:]:
        raise RuntimeError("invalid resource handle")

real = switch.device_work
switch.device_work = lambda device: worked.append(device.type) or real(device)
torch.cuda.synchronize = lambda device: None
trial.starts_early = lambda device: True
trial.check_layers = check
trial.check_operations = lambda *_: None
target, _, ops, _ = model.joined
print(*tried, *worked, bool(target.fused), ops.reason)
"""

KERNELS, SELECTION = "lantern_demo.kernels.layer", "lantern_demo.kernels.selection"
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
        "q2 = (a * sin + b * cos).to(kind)",
        "q2 = (b * cos - a * sin).to(kind)",
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


@pytest.fixture(scope="module")
def interpreted() -> Iterator[Prints]:
    """What runs programs in Triton's interpreter."""
    with forks(TRITON_INTERPRET="1", LANTERN_KERNELS="1") as prints:
        yield prints


@triton_alone
def test_right_kernels_pass(interpreted: Prints) -> None:
    assert interpreted(PLANTED + TRIED) == "right\n"


@triton_alone
def test_the_audit_draws_by_kernels_that_pass(interpreted: Prints) -> None:
    assert interpreted(PLANTED + AUDITED) == "alike\n"


@triton_alone
@pytest.mark.parametrize("fault", LAYERS)
def test_a_wrong_kernel_of_a_layer_is_noticed(fault: str, interpreted: Prints) -> None:
    told = interpreted(PLANTED + TRIED, KERNELS, *LAYERS[fault])
    assert told.startswith("without kernels: layer 1 ") and told.count("\n") == 1, told


@triton_alone
@pytest.mark.parametrize("fault", SELECTIONS)
def test_a_wrong_selection_is_noticed(fault: str, interpreted: Prints) -> None:
    told = interpreted(PLANTED + "trial.CASES = ()\n" + TRIED, SELECTION, *SELECTIONS[fault])
    assert told.startswith("without kernels: a ") and told.count("\n") == 1, told
    assert "differs from PyTorch's" in told


@triton_alone
def test_a_wrong_kernel_refuses_all_before_any_picture(interpreted: Prints) -> None:
    told = interpreted(PLANTED + DRAWN, KERNELS, *LAYERS["gate and up change places"])
    assert told.startswith("without kernels: layer 1 is off by "), told


@triton_alone
def test_where_early_starts_alone_fail_the_others_run(interpreted: Prints) -> None:
    """The words of `EARLY` belong to it, so that nothing is planted."""
    program = PLANTED.replace("if sys.argv[1:]:", "if False:") + EARLY
    assert interpreted(program) == "True False True False cpu True \n"
    told = "True False cpu False without kernels: invalid resource handle\n"
    assert interpreted(program, "both") == told
