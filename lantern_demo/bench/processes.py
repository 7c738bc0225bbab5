"""The processes that share a benchmark's work, as torchrun starts them."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist


class Process(NamedTuple):
    """Which of how many processes this is, and which of its machine's."""

    rank: int = 0
    world: int = 1
    local: int = 0

    def takes_gpu(self, device: str) -> bool:
        """Whether a process of several is to take a GPU of its own."""
        return device in ("auto", "cuda") and self.world > 1 and torch.cuda.is_available()

    def device(self, device: str) -> str:
        """The device that was asked for, or this process's own GPU."""
        return f"cuda:{self.local}" if self.takes_gpu(device) else device

    def wait(self) -> None:
        """Until all processes are here."""
        if self.world > 1:
            dist.barrier()


def join() -> Process:
    """This process's place; joins the group when torchrun started it."""
    rank, world, local = (int(os.environ.get(k, d)) for k, d in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0")))
    if world > 1:
        # Little is exchanged but "done", for which the slowest may take its time.
        dist.init_process_group("gloo", timeout=timedelta(days=7))
    return Process(rank, world, local)


def leave(process: Process) -> None:
    """Leave the group that `join` joined."""
    if process.world > 1:
        dist.destroy_process_group()
