"""The memory and the processors that control groups leave, on trees of files as of Linux."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lantern_demo.models import device
from lantern_demo.models.memory import free_memory

CPU = torch.device("cpu")
MIB = 2**20
NO_LIMIT = "9223372036854771712"  # of version 1
V1, V2 = "4:memory:{}\n1:cpu,cpuacct:{}", "0::{}"
MACHINE = 8000  # MiB free


def tree(root: Path, groups: str, files: dict[str, str]) -> Path:
    """Write /proc and /sys/fs/cgroup: the process's groups, and files of the latter."""
    proc = root / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(groups and f"{groups}\n", encoding="utf-8")
    (root / "proc" / "meminfo").write_text(
        f"MemTotal: 9999999 kB\nMemAvailable: {MACHINE * 1024} kB\n", encoding="utf-8"
    )
    for name, text in files.items():
        path = root / "sys" / "fs" / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    return root


IN_DOCKER = V1.format("/docker/0123", "/docker/0123")
ROOT = V2.format("/")


def limits(**sizes: int) -> dict[str, str]:
    """The limits of groups of version 2 by their folder, in MiB."""
    return {f"{folder}/memory.max": str(size * MIB) for folder, size in sizes.items()}


MEMORY = {
    "no group": ("", {}, MACHINE),
    "no limit": (ROOT, {"memory.max": "max"}, MACHINE),
    "a limit that is larger": (ROOT, {"memory.max": str(2 * MACHINE * MIB)}, MACHINE),
    "a container": (ROOT, {"memory.max": str(2000 * MIB)}, 2000),
    "a job in a slice": (V2.format("/a/job"), limits(a=1000, b=10) | {"a/job/x": ""}, 1000),
    "version 1": (IN_DOCKER, {"memory/memory.limit_in_bytes": str(640 * MIB)}, 640),
    "version 1, no limit": (IN_DOCKER, {"memory/memory.limit_in_bytes": NO_LIMIT}, MACHINE),
    "both, version 2 limits": (
        f"3:cpu:/\n{V2.format('/user')}",
        {"cpu/cpu.shares": "1024", "unified/user/memory.max": str(500 * MIB)},
        500,
    ),
}


@pytest.mark.parametrize("case", MEMORY)
def test_free_memory_is_the_machines_or_a_smaller_limit_around_this_process(
    case: str, tmp_path: Path
) -> None:
    groups, files, expected = MEMORY[case]
    assert free_memory(CPU, tree(tmp_path, groups, files)) == expected * MIB


def test_a_system_without_proc_has_all_its_memory(tmp_path: Path) -> None:
    free = free_memory(CPU, tmp_path)
    assert free is None or free > 100 * MIB


QUOTA = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"
PROCESSORS = {
    "no group": ("", {}, 8),
    "no quota": (ROOT, {"cpu.max": "max 100000"}, 8),
    "a quota": (ROOT, {"cpu.max": "250000 100000"}, 2),
    "less than one": (ROOT, {"cpu.max": "50000 100000"}, 1),
    "a service": (V2.format("/a/b"), {"a/cpu.max": "300000 100000", "a/b/cpu.max": "max 1"}, 3),
    "version 1": (IN_DOCKER, dict(zip(QUOTA, ("200000", "100000"), strict=True)), 2),
    "version 1, no quota": (IN_DOCKER, dict(zip(QUOTA, ("-1", "100000"), strict=True)), 8),
}


@pytest.mark.parametrize("case", PROCESSORS)
def test_threads_are_at_most_the_processors_of_a_quota(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups, files, expected = PROCESSORS[case]
    monkeypatch.setattr(device, "_USUAL_THREADS", 8)
    assert device.processors(tree(tmp_path, groups, files)) == expected
