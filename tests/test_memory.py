"""The memory and the processors that control groups leave, on trees of files as of Linux."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lantern_demo.models import device
from lantern_demo.models.device import free_memory

CPU = torch.device("cpu")
MIB = 2**20
NO_LIMIT = 9223372036854771712  # of version 1
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


def v2(limit: object, used: int, *, high: object = "max", **pages: int) -> dict[str, str]:
    """The files of a group of version 2; sizes in MiB."""
    stat = {"anon": 1, "file_mapped": 0, "active_file": 0, "inactive_file": 0} | pages
    numbers = {"memory.max": limit, "memory.high": high, "memory.current": used}
    files = {
        name: str(size * MIB if isinstance(size, int) else size) for name, size in numbers.items()
    }
    return files | {"memory.stat": "\n".join(f"{name} {size * MIB}" for name, size in stat.items())}


def v1(limit: int, used: int, around: int | None = None, **pages: int) -> dict[str, str]:
    """The files of a group of version 1; `around`: the least limit of the groups around it."""
    stat = {"total_mapped_file": 0, "total_active_file": 0, "total_inactive_file": 0} | pages
    rows = [f"inactive_file {9 * MIB}", f"hierarchical_memory_limit {(around or limit) * MIB}"]
    rows += [f"{name} {size * MIB}" for name, size in stat.items()]
    files = {"memory.limit_in_bytes": str(limit * MIB), "memory.usage_in_bytes": str(used * MIB)}
    return files | {"memory.stat": "\n".join(rows)}


def at(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in files.items()}


NONE = NO_LIMIT // MIB
IN_DOCKER = V1.format("/docker/0123", "/docker/0123")
ROOT = V2.format("/")
NESTED = at("a.slice", v2(1000, 900)) | at("a.slice/job", v2("max", 100)) | at("b.slice", v2(10, 1))
IN_POD = at(".", v2(2000, 500)) | at("job", v2(700, 500))
OLD_NESTED = at("memory/batch/job_7", v1(640, 600)) | at("memory/batch/job_7/step", v1(NONE, 300))
MEMORY = {
    "no group": ("", {}, MACHINE),
    "a container": (ROOT, at(".", v2(2000, 500)), 1500),
    "files of a process before": (ROOT, at(".", v2(2000, 1900, active_file=1800)), 1900),
    "mapped weights": (ROOT, at(".", v2(2000, 1900, active_file=1500, file_mapped=1500)), 100),
    "no limit": (ROOT, at(".", v2("max", 500)), MACHINE),
    "throttled, and used up": (ROOT, at(".", v2(2000, 1500, high=1000)), 0),
    "a limit alone": (ROOT, {"memory.max": str(2000 * MIB)}, 2000),
    "a job in a slice": (V2.format("/a.slice/job"), NESTED, 100),
    "a group in a container": (V2.format("/pod/one/job"), IN_POD, 200),
    "version 1": (IN_DOCKER, at("memory", v1(640, 140, total_inactive_file=50)), 550),
    "version 1, nested": (V1.format("/batch/job_7/step", "/"), OLD_NESTED, 40),
    "version 1, a limit outside": (IN_DOCKER, at("memory", v1(NONE, 100, around=640)), 540),
    "both, version 2 limits": (
        f"3:cpu:/\n{V2.format('/user')}",
        {"cpu/cpu.shares": "1024"} | at("unified/user", v2(640, 140)),
        500,
    ),
}


@pytest.mark.parametrize("case", MEMORY)
def test_free_memory_is_what_the_tightest_group_leaves(case: str, tmp_path: Path) -> None:
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
