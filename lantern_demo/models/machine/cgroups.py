"""Control groups: the shares of the machine that Linux lets a container, a service or a job use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


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
