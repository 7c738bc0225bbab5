"""What turns Triton's kernels on and off; how they compute is told by the files of `in_triton`."""

import os
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from unittest.mock import Mock

import pytest
import torch
from small_models import model_of
from tiny import ran

from lantern_demo.decoding.graphs import GraphRunner
from lantern_demo.decoding.ops import KernelError, Ops
from lantern_demo.decoding.timing import Clock
from lantern_demo.kernels import switch
from lantern_demo.kernels.launch import guarded, why_off

CUDA = torch.device("cuda", 0)
FILES = Path(__file__).parent / "in_triton"
INTERPRETED = {"TRITON_INTERPRET": "1", "LANTERN_KERNELS": "1"}


def check_file(name: str, **variables: str) -> None:
    """Run the tests of a file of `in_triton`, of which none may be skipped."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", FILES / name]
    done = ran(*command, env=os.environ | variables, timeout=1800)
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout


# none takes longer, so that none may come last
@pytest.mark.slow(30)
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("name", sorted(path.name for path in FILES.glob("test_*.py")))
def test_in_triton(name: str) -> None:
    check_file(name, **({} if name == "test_compiled.py" else INTERPRETED))


@pytest.mark.parametrize("version", [None, "", "3.4.0"], ids=["absent", "broken", "old"])
def test_without_triton_modules_draw(version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    triton = None if version is None else ModuleType("triton")
    if version:
        monkeypatch.setattr(triton, "__version__", version, raising=False)
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setattr(switch, "INTERPRETED", True)
    monkeypatch.setenv("LANTERN_KERNELS", "1")
    model = model_of("llamagen")
    drawn = model.run(model.joined, "lantern++")[-1]
    assert drawn.runner_reason.startswith("without kernels: ")
    assert "triton" in drawn.runner_reason.lower()
    assert ("3.4.0 is older than 3.5" in drawn.runner_reason) == (version == "3.4.0")
    assert drawn.tokens == model.run(model.modules, "lantern++")[-1].tokens


# Who else might run kernels: an older card, AMD's, and one that is only lent.
OTHERS = [
    (torch.cuda, "get_device_capability", lambda device: (7, 5)),
    (torch.version, "hip", "6.4"),
    (switch, "LENT", True),
]


def test_kernels_run_if_turned_on_and_on_no_other_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(switch, "INTERPRETED", False)
    monkeypatch.setenv("LANTERN_KERNELS", "1")
    assert switch.on(CUDA)
    for other in OTHERS:
        with monkeypatch.context() as patch:
            patch.setattr(*other)
            assert not switch.on(CUDA) and switch.ops_of(CUDA, 60).reason == ""
    for change in (monkeypatch.delenv, partial(monkeypatch.setenv, value="0")):
        change("LANTERN_KERNELS")
        off = switch.ops_of(CUDA, 60)
        assert not switch.on(CUDA) and type(off) is Ops
        assert off.reason == "without kernels: LANTERN_KERNELS=1 turns them on"
    monkeypatch.setenv("LANTERN_KERNELS", "yes")
    with pytest.raises(ValueError, match=r"is 'yes'; allowed are 0 \(off\) and 1 \(on\)"):
        switch.ops_of(CUDA, 60)


def test_a_compiler_that_fails_is_named_without_its_command() -> None:
    launch = guarded(Mock(side_effect=subprocess.CalledProcessError(1, ["cc", "main.c"])))
    with pytest.raises(KernelError) as found:
        launch()
    assert why_off(found.value).endswith("the C compiler failed; it needs Python's headers")


def test_an_error_of_a_kernel_is_no_refused_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also once memory was freed: the run begins anew, and is captured without kernels."""
    ends = [torch.OutOfMemoryError(), KernelError("no")]
    monkeypatch.setattr(GraphRunner, "_capture", Mock(side_effect=ends))
    runner = object.__new__(GraphRunner)
    runner.free, runner.graphs, runner.clock = lambda: True, {}, Clock("cpu")
    with pytest.raises(KernelError):
        runner._graph("a shape")  # type: ignore[arg-type]
    assert not runner.reason
