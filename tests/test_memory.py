"""The memory and the processors that control groups leave, on trees of files as of Linux."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lantern_demo.models import device
from lantern_demo.models.memory import free_memory

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


def test_a_system_without_proc_has_all_its_memory(tmp_path: Path) -> None:
    free = free_memory(CPU, tmp_path)
    assert free is None or free > 100 * 2**20
