"""Apple's MPS by its rules, without a Mac: what decides stays on the processor, networks use no float64 and no operation that
PyTorch lacks there, and what is drawn is what the same networks draw without the way over the device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import write_tiny_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lantern_demo.decoding.loop import decode
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.timing import Clock
from lantern_demo.models import bundled
from lantern_demo.models.families import hosted_runners
from lantern_demo.models.files import dryrun
from lantern_demo.models.machine import device
from lantern_demo.models.machine.mps import UNTRIED, Hosted
from lantern_demo.models.registry import REGISTRY
from lantern_demo.runs.pipeline import Pipeline, load
from lantern_demo.settings.settings import Settings

IDS = list({method.drafts: name for name, method in METHODS.items()}.values())  # one of every kind of drafts
ATTENTION = (
    torch.ops.aten.scaled_dot_product_attention.default
)  # which PyTorch makes of other operations on MPS than on a processor


class Operations(TorchDispatchMode):
    """What runs while networks are called: the names of the operations, and the number formats of their tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.names, self.formats = set[str](), set[torch.dtype]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not ATTENTION and func._can_decompose():  # what is made of others is looked at as these
            with self:
                out = func.decompose(*args, **(kwargs or {}))
            if out is not NotImplemented:
                return out
        out = func(*args, **(kwargs or {}))
        self.names.add(func.name())
        self.formats |= {t.dtype for t in tree_leaves((args, kwargs, out)) if isinstance(t, Tensor)}
        return out


@contextmanager
def watched(patch: pytest.MonkeyPatch) -> Iterator[Operations]:
    """Watch every call of a hosted network."""
    seen, call = Operations(), Hosted.call

    def watching(self: Hosted, name: str, *given: Any) -> Tensor:
        with seen:
            return call(self, name, *given)

    patch.setattr(Hosted, "call", watching)
    yield seen
    patch.undo()


def lacking_on_mps() -> set[str]:
    """The operations of this PyTorch that have no kernel for MPS and are not made of others."""
    torchgen = pytest.importorskip("torchgen.gen", reason="PyTorch's list of operations cannot be read")
    from torchgen.model import DispatchKey

    folder = files("torchgen") / "packaged" / "ATen" / "native"
    parsed = torchgen.parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    kernels = parsed.backend_indices[DispatchKey.MPS].index
    return {
        f"aten::{f.func.name}"
        for f in parsed.native_functions
        if f.func.name not in kernels and f.structured_delegate not in kernels and not f.has_composite_kernel
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def hosted(folder: Path, dtype: str) -> Pipeline:
    """A pipeline whose networks are called as on MPS, with the processor in the device's place."""
    networks = bundled.load(folder, torch.device("cpu"), device.DTYPES[dtype])
    runners = hosted_runners(networks, torch.device("cpu"))
    pipe = load(folder, "cpu", fit_trees=False)
    pipe.networks, pipe.target, pipe.drafter = networks, runners.target, runners.drafter
    return pipe


def plain(folder: Path, dtype: str) -> Pipeline:
    """The same networks, called directly."""
    pipe = load(folder, "cpu", fit_trees=False)
    pipe.networks = bundled.load(folder, torch.device("cpu"), device.DTYPES[dtype])
    pipe.target, pipe.drafter = pipe.networks.target, pipe.networks.drafter
    return pipe


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_networks_keep_to_the_rules_of_mps(folder: Path, monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    pipe, straight = hosted(folder, dtype), plain(folder, dtype)
    drawn: dict[tuple[str, str], list[int]] = {}
    with watched(monkeypatch) as seen:
        for dice in ("same", "own"):
            for method in IDS:
                asked: dict[str, Any] = {"seed": 5, "tree": "small", "dice": dice}
                drawn[method, dice] = pipe.generate("a red lantern", method, **asked).tokens
    assert not seen.names & lacking_on_mps()
    assert torch.float64 not in seen.formats and device.DTYPES[dtype] in seen.formats
    assert ATTENTION.name() in seen.names and seen.names & {"aten::mm", "aten::addmm"}  # networks were watched
    for (method, dice), tokens in drawn.items():
        found = straight.generate("a red lantern", method, seed=5, tree="small", dice=dice)
        assert tokens == found.tokens, (method, dice)


def test_the_rules_can_fail() -> None:
    lacking = lacking_on_mps()
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in lacking and "aten::add.Tensor" not in lacking
    with Operations() as seen:
        torch.ones(2, dtype=torch.float64).cumsum(0)
    assert torch.float64 in seen.formats and seen.names


class Apart(TorchDispatchMode):
    """Raises where an operation mixes tensors of the device, for which `meta` stands, with those of the processor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        where = {t.device.type for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dim() > 0}
        if len(where) > 1 and "copy" not in func.name():
            raise AssertionError(f"{func.name()} mixes {sorted(where)}")
        return func(*args, **(kwargs or {}))


def test_nothing_of_the_device_meets_what_is_on_the_processor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = hosted(folder, "float32")
    encoded, asked = pipe.read("a red lantern").encoded, Settings(tree="small", lantern_k=8, cfg_scale=2.0)
    runs = []
    for method in ("eagle2", "lantern++", "sjd"):
        tree = pipe.tree_of(METHODS[method], asked).policy
        config, condition = pipe._asked_for(METHODS[method], asked, encoded, 6, tree, kept=False)
        runs.append((config, replace(condition, mask=None)))  # whether anything is padded is read back, which `meta` cannot
    for runner in (pipe.target, pipe.drafter):
        assert isinstance(runner, Hosted)
        runner.network.to("meta")
        runner.device = torch.device("meta")

    def calling(self: Hosted, name: str, *given: Any) -> Tensor:
        """What came of it has a shape, and no numbers."""
        out = getattr(self.network, name)(*map(self._there, given))
        assert out.device.type == "meta"
        return torch.zeros(out.shape, dtype=out.dtype)

    monkeypatch.setattr(Hosted, "call", calling)
    for config, condition in runs:
        with Apart():
            assert len(list(decode(pipe.target, pipe.drafter, condition, config))) > 1


def test_a_mac_is_offered_it_and_others_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="device 'mps' is not available here; use auto or cpu"):
        device.pick_device("mps")
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda, cuda:N or mps, got 'apple'"):
        device.pick_device("apple")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    chosen = device.pick_device("mps")
    assert chosen.type == "mps" and device.pick_device("auto").type != "mps"
    assert device.device_name(chosen).startswith("Apple GPU by MPS")
    assert device.pick_dtype("auto", chosen, large=True) == "float16"
    assert device.pick_dtype("auto", chosen, large=False) == "float32"
    with pytest.raises(ValueError, match="dtype bfloat16 is not for device mps; use auto, float32 or float16"):
        device.pick_dtype("bfloat16", chosen, large=True)
    assert device.pick_threads(None, chosen, small=True).reason != ""
    lines, _ = dryrun.report(REGISTRY["janus-pro-1b"], "mps", "auto", None)
    assert UNTRIED in lines


def test_the_clock_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(torch.mps, "synchronize", lambda: calls.append("waited"))
    clock = Clock("mps")
    with clock.measure("verify"):
        pass
    assert len(calls) == 2 and clock.waited_seconds is None
