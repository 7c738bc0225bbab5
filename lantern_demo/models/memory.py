"""The memory that is free for this process, and its control groups.

Control groups are the shares of the machine that Linux lets a container, a service or a job use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path, PurePosixPath

import torch


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Yield the folders of this process's control groups, from its own to the outermost.

    `controller` is memory or cpu. Version 1 mounts a hierarchy for each controller, version 2 one
    for all, and a machine may have both. A container sees only its own part of a hierarchy, while
    its path may still be the machine's: the longest end of the path that exists is taken.
    """
    top = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:  # no Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        names = [name for name in PurePosixPath(path).parts if name not in ("/", "..")]
        for mount in (top / controller,) if controllers else (top, top / "unified"):
            ends = (mount.joinpath(*names[i:]) for i in range(len(names)))
            group = next((end for end in ends if end.is_dir()), mount)
            while group != mount:
                yield group
                group = group.parent
            yield mount


LIMITS = ("memory.max", "memory.limit_in_bytes")  # of a control group, in version 2 and 1


def free_memory(device: torch.device, root: Path = Path("/")) -> int | None:
    """Return the bytes free on a device, or None where the system does not report them.

    On a processor it is what the machine can give, or the limit of a control group around this
    process where that is smaller. `root` is the folder of /proc and /sys.
    """
    if device.type == "cuda":
        try:
            # PyTorch keeps some for the next tensors
            held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
            return torch.cuda.mem_get_info(device)[0] + held
        except RuntimeError:  # a device that is only lent for a run, as on ZeroGPU
            return None
    sizes = [_free_on_machine(root)]
    for group, name in product(control_groups("memory", root), LIMITS):
        with suppress(OSError, ValueError):  # another version's, or the word max
            sizes.append(int((group / name).read_text(encoding="utf-8")))
    return min((size for size in sizes if size is not None), default=None)


def _free_on_machine(root: Path) -> int | None:
    """Return the bytes that the machine can give, or all that it has if that is unknown."""
    with suppress(OSError):  # no Linux
        text = (root / "proc/meminfo").read_text(encoding="utf-8")
        if found := re.search(r"MemAvailable:\s+(\d+) kB", text):
            return 1024 * int(found[1])
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None
