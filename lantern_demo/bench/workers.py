"""Share a command's work between processes of one machine, with one thread each."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

import torch

Job = TypeVar("Job")
Result = TypeVar("Result")


def spread(call: Callable[[Job], Result], jobs: Sequence[Job], processes: int) -> Iterator[Result]:
    """Yield `call` of every job as it is done, in any order; one process, or one job, computes here. Raises what a job raises.

    `call` and jobs go to other processes, so both must be picklable.
    """
    if min(processes, len(jobs)) < 2:
        yield from map(call, jobs)
        return
    context = multiprocessing.get_context("spawn")  # neither CUDA nor OpenMP outlives a fork
    with ProcessPoolExecutor(min(processes, len(jobs)), context, torch.set_num_threads, (1,)) as pool:
        waiting = [pool.submit(call, job) for job in jobs]
        try:
            yield from (done.result() for done in as_completed(waiting))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
