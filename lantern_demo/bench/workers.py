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
    """Yield the result of `call` for every job, in order of completion.

    A single process or job runs here.

    `call` and jobs must be picklable. An exception in a job is raised here.
    """
    if min(processes, len(jobs)) < 2:
        yield from map(call, jobs)
        return
    context = multiprocessing.get_context("spawn")  # neither CUDA nor OpenMP outlives a fork
    with ProcessPoolExecutor(
        min(processes, len(jobs)), context, torch.set_num_threads, (1,)
    ) as pool:
        waiting = [pool.submit(call, job) for job in jobs]
        try:
            yield from (done.result() for done in as_completed(waiting))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
