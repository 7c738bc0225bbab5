"""One process among those that `torchrun` started: its share, its device, and the end of all."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from lantern_demo.models.device import pick_device

LONGEST = timedelta(days=7)  # that the first process to end waits for the last


class Place(NamedTuple):
    """A process's rank, from 0, the number of processes, and its device."""

    rank: int
    world: int
    device: torch.device


def place_of(device: str) -> Place:
    """Return the rank of this process, 0 of 1 without torchrun, and make its device current.

    With the device "auto" each process of a machine has its own GPU. Raise ValueError as
    `pick_device`, and for more processes than GPUs.
    """
    rank, world, local = (
        int(os.environ.get(name, default))
        for name, default in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
    )
    chosen = pick_device(device)
    if chosen.type == "cuda":
        if device == "auto":
            count = torch.cuda.device_count()
            if local >= count:
                raise ValueError(
                    "device auto gives every process its own GPU: --nproc-per-node must be at "
                    f"most {count} here"
                )
            chosen = torch.device("cuda", local)
        torch.cuda.set_device(chosen)
    return Place(rank, world, chosen)


def wait_for_all(place: Place) -> None:
    """Return once every process has called this; a single one does not wait.

    Raise RuntimeError after `LONGEST`.
    """
    if place.world > 1:
        dist.init_process_group("gloo", timeout=LONGEST)
        dist.barrier()
        dist.destroy_process_group()
