"""The memory that is free for this process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import torch

from lantern_demo.models.machine.cgroups import control_groups

# Limits of a control group, in version 2 and in version 1. The last one, a line of memory.stat, is
# that of all groups around it, also of those that a container cannot see.
LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes", "hierarchical_memory_limit")
USES = ("memory.current", "memory.usage_in_bytes")


def free_memory(device: torch.device, root: Path = Path("/")) -> int | None:
    """Return the bytes free on a device, or None where the system does not report them.

    On a processor it is the least of what the machine and every control group around this process
    leave: a group's limit less its use. Pages of files count as free, since the kernel takes them
    back, but not weights that are mapped and read for every token. Above `memory.high` the kernel
    slows a process to a crawl, so this is a limit too. Swap does not count, being as slow.
    `root` is the folder of /proc and /sys.
    """
    if device.type == "cuda":
        try:
            # PyTorch keeps some for the next tensors
            held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            return torch.cuda.mem_get_info(device)[0] + held
        except RuntimeError:  # a device that is only lent for a run, as on ZeroGPU
            return None
    free = [_free_in(group) for group in control_groups("memory", root)]
    return min((size for size in (*free, _free_on_machine(root)) if size is not None), default=None)


def _free_in(group: Path) -> int | None:
    """Return the bytes that a control group leaves; None without a limit."""
    numbers = _numbers(group / "memory.stat")
    for name in (*LIMITS, *USES):
        with suppress(OSError, ValueError):  # another version's, or the word max
            numbers[name] = int((group / name).read_text(encoding="utf-8"))
    limits = [numbers[name] for name in LIMITS if name in numbers]
    if not limits:
        return None

    def size(*names: str) -> int:
        return next((numbers[name] for name in names if name in numbers), 0)

    idle = size("total_inactive_file", "inactive_file")
    files = idle + size("total_active_file", "active_file")
    free_files = max(idle, files - size("total_mapped_file", "file_mapped"))
    return max(0, min(limits) - size(*USES) + free_files)


def _free_on_machine(root: Path) -> int | None:
    """Return the bytes that the machine can give, or all that it has where it does not say."""
    available = _numbers(root / "proc/meminfo").get("MemAvailable:")
    if available is not None:
        return 1024 * available
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _numbers(path: Path) -> dict[str, int]:
    """Return the numbers of a file whose lines are a name and a number; none if it is absent."""
    try:
        rows = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return {}
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
