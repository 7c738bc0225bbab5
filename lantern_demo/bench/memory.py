"""Peak memory: the GPU allocator's per run, or a process's resident memory since it started."""

from __future__ import annotations

import sys

import torch


def start_peak(device: torch.device) -> None:
    """Forget the allocator's peak so far; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def stop_peak(device: torch.device) -> int | None:
    """Most bytes allocated on the GPU since `start_peak`, weights included; None on a CPU, where no run can be told apart."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def peak_of_process() -> int | None:
    """Most bytes that were ever resident of this process; None where the system does not say."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # bytes there, KiB elsewhere
