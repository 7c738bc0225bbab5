"""Race the runs of a comparison: equal slices of device time, in rotation.

So a disturbance of the machine affects all methods equally, and no method pays for its position in
the order. Each run has a separate cache, clock and random numbers, so its tokens are those of a run
alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from time import perf_counter

from lantern_demo.decoding.loop import Step
from lantern_demo.runs.result import MethodFailed, Result
from lantern_demo.settings.settings import Planned

SLICE_SECONDS = 0.08  # of decoding; a slice is at least one step

Event = Step | Result | MethodFailed
# (method id, event); None after a step of a warm-up, so that a caller may stop in between.
RunEvents = Generator[tuple[str, Event | None], None, None]


@dataclass(frozen=True)
class Request:
    """A checked comparison of methods on one prompt and model."""

    model: str
    prompt: str
    runs: dict[str, Planned]  # by method, in the order they run

    @property
    def methods(self) -> list[str]:
        return list(self.runs)

    @property
    def seed(self) -> int:
        return next(iter(self.runs.values())).settings.seed

    @property
    def keep(self) -> tuple[int, ...]:
        """The tokens of the upper rows, where only the rest is drawn."""
        return next(iter(self.runs.values())).keep

    def with_seed(self, seed: int) -> Request:
        seeded = {
            name: replace(run, settings=run.settings.with_changes(seed=seed))
            for name, run in self.runs.items()
        }
        return replace(self, runs=seeded)


class Rotation:
    """Choose the run that has the next slice, until each is out.

    A rotation takes every run to the same decode seconds. So a run with steps longer than a slice
    gets no more than the others. Every rotation begins with another run, so that no run is
    always the first.
    """

    def __init__(self, runs: Iterable[str]) -> None:
        self.spent = dict.fromkeys(runs, 0.0)  # decode seconds of the runs that are not out
        self._waiting: list[str] = []  # runs still waiting in this rotation, the current one first
        self._rotations = 0
        self._end = 0.0  # decode seconds to which this rotation takes every run

    def next(self) -> str:
        """Return the run that has the current slice. At least one run must be left."""
        while True:
            while self._waiting:
                if self.spent.get(self._waiting[0], self._end) < self._end:
                    return self._waiting[0]
                del self._waiting[0]
            left = list(self.spent)
            first = self._rotations % len(left)
            self._waiting = left[first:] + left[:first]
            self._end = max(self._end, min(self.spent.values())) + SLICE_SECONDS
            self._rotations += 1


class Limit:
    """The seconds from now on that a comparison may take; None: no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.began = perf_counter()

    def over(self) -> bool:
        return self.seconds is not None and perf_counter() - self.began > self.seconds

    def failure(self, method: str) -> tuple[str, MethodFailed]:
        """Return the event of a method that was not done in time."""
        why = f"A run may take {self.seconds:g} seconds here, and they were over."
        return method, MethodFailed(method, f"{why} Ask for fewer methods or a smaller draft tree.")
