"""Processes that share a command's work, on one machine: one thread or a few each, and a GPU of its own where there are
several."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

import torch

Job = TypeVar("Job")
Result = TypeVar("Result")


def spread(call: Callable[[Job], Result], jobs: Sequence[Job], processes: int, threads: int) -> Iterator[Result]:
    """Yield `call` of every job as it is done, in any order; one process, or one job, computes here. Raises what a job raises.

    `call` and jobs go to other processes, so both must be picklable. `threads` are of each of several processes.
    """
    if min(processes, len(jobs)) < 2:
        yield from map(call, jobs)
        return
    context = multiprocessing.get_context("spawn")  # neither CUDA nor OpenMP outlives a fork
    gpus: Any = context.SimpleQueue()
    for place in range(processes):
        gpus.put(_gpu(place))
    with ProcessPoolExecutor(min(processes, len(jobs)), context, _begin, (threads, gpus)) as pool:
        waiting = [pool.submit(call, job) for job in jobs]
        try:
            yield from (done.result() for done in as_completed(waiting))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _gpu(place: int) -> str | None:
    """Which GPU a process is to see; None where there are none."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))
    return seen.split(",")[place % len(seen.split(","))] if seen else None


def _begin(threads: int, gpus: Any) -> None:
    gpu = gpus.get()
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu  # before CUDA is asked for the first time
    torch.set_num_threads(threads)
