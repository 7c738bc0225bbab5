"""A GPU that is not used is told of; memory and processors are those that control groups leave."""

from pathlib import Path

import pytest
import torch

from lantern_demo.models import device
from lantern_demo.models.checkpoints import check
from lantern_demo.models.device import unused_gpu
from lantern_demo.models.memory import free_memory
from lantern_demo.models.registry import REGISTRY
from lantern_demo.ui.service import Service

VERSION = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\nGCC: 12\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build\n"


@pytest.fixture
def old_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose driver does not know the CUDA that PyTorch was built for."""
    file = tmp_path / "version"
    file.write_text(VERSION, encoding="utf-8")
    monkeypatch.setattr(device, "DRIVER", file)
    monkeypatch.setattr(device.shutil, "which", lambda _: None)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return file


def test_an_unused_gpu_is_told_of(old_driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = str(unused_gpu())
    assert "driver 535.104.05, " in told and "CUDA 13.0" in told and torch.__version__ in told
    with pytest.raises(ValueError, match="finds no GPU that it can use"):
        device.pick_device("cuda")
    old_driver.write_text(OPEN, encoding="utf-8")
    assert "driver 575.57.08, " in str(unused_gpu())
    for hidden, is_told in (("", False), ("-1", False), ("0", True)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert bool(unused_gpu()) == is_told
    old_driver.unlink()
    assert unused_gpu() is None


def test_without_cuda(old_driver: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows the usual build is one. Who asks for the processor gets it without a word."""
    monkeypatch.setattr(torch.version, "cuda", None)
    old_driver.unlink()
    with pytest.raises(ValueError, match=r"use auto or cpu$"):
        device.pick_device("cuda")
    monkeypatch.setattr(device.shutil, "which", {"nvidia-smi": "/bin/nvidia-smi"}.get)
    told = str(unused_gpu())
    assert f"PyTorch {torch.__version__} is built without CUDA" in told
    monkeypatch.setattr(Service, "_load", lambda *_: None)
    for asked, warning in (("auto", told), ("cpu", None)):
        assert (told in check(REGISTRY["llamagen-t2i-256"], asked)[0]) == (asked == "auto")
        assert Service(tiny_model, asked).warning == warning
    with pytest.raises(ValueError, match=r"use auto or cpu\. This machine .* built without CUDA"):
        device.pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # another maker's GPU
    assert unused_gpu() is None


def test_other_devices_are_refused_by_those_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("mps", "cuda:x", ""):
        with pytest.raises(ValueError, match="device must be auto, cpu, cuda or cuda:N, got"):
            device.pick_device(name)
    with pytest.raises(ValueError, match="'cuda:1' is not available here; use auto or cpu"):
        device.pick_device("cuda:1")
    assert device.pick_device("auto") == device.pick_device(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device.pick_device("cuda:1").index == 1
    with pytest.raises(ValueError, match="'cuda:2' is not available here; there are 2"):
        device.pick_device("cuda:2")


CPU = torch.device("cpu")
MACHINE = 8192  # bytes free
# The process's groups in version 2 and 1.
ROOT, JOB, IN_BOTH = "0::/", "0::/a/job", "3:cpu:/\n0::/user"
IN_DOCKER = "4:memory:/docker/0123\n1:cpu,cpuacct:/docker/0123"
LIMIT, QUOTA = "memory/memory.limit_in_bytes", "cpu/cpu.cfs_quota_us"
NO_LIMIT = "9223372036854771712"  # of version 1

# Groups, and files of /sys/fs/cgroup -> bytes free, and processors.
CASES = {
    "no group": ("", {}, MACHINE, 8),
    "no limit": (ROOT, {"memory.max": "max", "cpu.max": "max 100000"}, MACHINE, 8),
    "a container": (ROOT, {"memory.max": "2000", "cpu.max": "250000 100000"}, 2000, 2),
    "a larger limit": (ROOT, {"memory.max": "9000", "cpu.max": "50000 100000"}, MACHINE, 1),
    "a job's memory": (JOB, {"a/memory.max": "1000", "b/memory.max": "9", "a/job/x": ""}, 1000, 8),
    "a job": (JOB, {"a/cpu.max": "300000 100000", "a/job/cpu.max": "max 1"}, MACHINE, 3),
    "version 1": (IN_DOCKER, {LIMIT: "640", QUOTA: "200000"}, 640, 2),
    "version 1, no limit": (IN_DOCKER, {LIMIT: NO_LIMIT, QUOTA: "-1"}, MACHINE, 8),
    "both": (IN_BOTH, {"cpu/cpu.shares": "1024", "unified/user/memory.max": "500"}, 500, 8),
}


@pytest.mark.parametrize("case", CASES)
def test_memory_and_processors_are_the_machines_or_those_of_a_smaller_limit(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, files, memory, processors = CASES[case]
    monkeypatch.setattr(device, "_USUAL_THREADS", 8)
    written = {"proc/self/cgroup": groups and f"{groups}\n"}
    written["proc/meminfo"] = f"MemTotal: 99 kB\nMemAvailable: {MACHINE // 1024} kB\n"
    written["sys/fs/cgroup/cpu/cpu.cfs_period_us"] = "100000"
    written |= {f"sys/fs/cgroup/{name}": f"{text}\n" for name, text in files.items()}
    for name, text in written.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert (free_memory(CPU, tmp_path), device.processors(tmp_path)) == (memory, processors)
