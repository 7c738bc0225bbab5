"""How steps of fixed shapes are run and timed: one by one on any device, or as captured CUDA graphs.

Times of graphs. A step's seconds lie between two CUDA events, one before its replay and one behind the copy of its results:
device work, whatever the host or a consumer does meanwhile. Its parts are told apart by timing events inside the graph, where
torch can record them (`external=True`). A replay overwrites them, and steps are launched ahead of what has been read, so they are
read once, at the end: a graph's steps are all split in the proportions of its last replay. Until then, and where torch lacks such
events, a step counts as verify as a whole. Warm-up and capture are the clock's part "capture", no decode seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from ..timing import Clock
from .fixed import Fixed

WARM_UP = 2  # steps before an engine's first capture, in which libraries set themselves up; one before the others
AHEAD = 4  # replays in flight at most: enough that the device never waits for the host

# The streams that this process captures on, one per device: cuBLAS keeps a workspace for each stream it has seen.
_STREAMS: dict[torch.device, torch.cuda.Stream] = {}


class Steps:
    """Steps as they are written, each part timed where it runs."""

    ahead = 1  # how many may be in flight
    name = "fixed"  # what runs them: "fixed" or "graphs"
    reason = ""  # why it is not what it could be, if so
    clock: Clock  # of the run at hand

    def __init__(self, fixed: Fixed) -> None:
        self.fixed = fixed

    def prepare(self, shapes: list[tuple[int, bool]]) -> None:
        """Get ready for steps of these buckets and kinds, so that none of them has to."""

    def launch(self, index: int, slots: int, no_draft: bool) -> None:
        """Start step `index` (from 1, in order)."""
        self.fixed.step(slots, no_draft, self.clock.measure)

    def row(self, index: int) -> list[int]:
        """Wait for a step and read its results, once, in order; its seconds are on the clock from then on."""
        return self.fixed.results[index].tolist()

    def close(self) -> None:
        """Wait for what is in flight, and put its times where they belong."""


class Waiting(Steps):
    """Steps of the plain engine: the host waits for each."""

    ahead, name = 1, "plain"


@dataclass
class _Captured:
    """One graph, and the events inside it (none: torch cannot record them)."""

    graph: Any
    marks: list[torch.cuda.Event]
    seconds: float = 0.0  # of all its replays that were read


class Graphs(Steps):
    """Steps as replayed CUDA graphs, one per bucket and kind, captured when first asked for and sharing one memory pool. When a
    capture is refused the steps run as they are written, and `reason` says why. Memory that runs out and a device that is at
    fault are no refusals: they are raised. `free` gives back memory that others can spare and says whether there was any."""

    def __init__(self, fixed: Fixed, free: Callable[[], bool] = lambda: False) -> None:
        super().__init__(fixed)
        self.ahead, self.name, self.device, self.free = AHEAD, "graphs", fixed.config.torch_device, free
        # copied to without waiting
        self.host = torch.empty(fixed.results.shape, dtype=torch.int64, pin_memory=fixed.results.is_cuda)
        self.pool: Any = None
        self.graphs: dict[tuple[int, bool], _Captured] = {}
        self.flying: dict[int, tuple[_Captured, torch.cuda.Event, torch.cuda.Event]] = {}

    def prepare(self, shapes: list[tuple[int, bool]]) -> None:
        for slots, no_draft in shapes:
            self._graph(slots, no_draft)

    def launch(self, index: int, slots: int, no_draft: bool) -> None:
        captured = self._graph(slots, no_draft)
        if captured is None:
            super().launch(index, slots, no_draft)
            return
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        here = torch.cuda.current_stream(self.device)
        start.record(here)
        captured.graph.replay()
        self.host[index].copy_(self.fixed.results[index], non_blocking=True)
        end.record(here)
        self.flying[index] = (captured, start, end)

    def row(self, index: int) -> list[int]:
        if index not in self.flying:
            return super().row(index)
        captured, start, end = self.flying.pop(index)
        end.synchronize()
        seconds = start.elapsed_time(end) / 1000
        self.clock.seconds["verify"] += seconds
        captured.seconds += seconds
        return self.host[index].tolist()

    def close(self) -> None:
        self.clock.synchronize()
        self.flying.clear()
        for captured in self.graphs.values():
            if captured.seconds and captured.marks:
                draft, verify, commit = shares(captured.marks)
                for part, share in (("draft", draft), ("verify", verify - 1), ("commit", commit)):
                    self.clock.seconds[part] += share * captured.seconds
            captured.seconds = 0.0

    def _graph(self, slots: int, no_draft: bool) -> _Captured | None:
        """The graph of a bucket and kind; None once a capture was refused."""
        key = (slots, no_draft)
        if key not in self.graphs and not self.reason:
            # The end of the measure waits for the device: where that is at fault itself, this raises, and nothing will run on it.
            with self.clock.measure("capture"):
                try:
                    self.graphs[key] = self._captured(slots, no_draft)
                except RuntimeError as error:  # CUDA's errors and torch's own are of this kind
                    why = str(error).splitlines()[0] if str(error) else type(error).__name__
                    self.ahead, self.name, self.reason = Steps.ahead, Steps.name, f"without graphs: {why}"
                    _STREAMS.pop(self.device, None)  # it may be at fault
                    if (memory := _out_of_memory(error)) is not None:
                        raise memory from None
        return None if self.reason else self.graphs.get(key)

    def _captured(self, slots: int, no_draft: bool) -> _Captured:
        """`_capture`, once more where others could spare memory."""
        try:
            return self._capture(slots, no_draft)
        except RuntimeError as error:
            if _out_of_memory(error) is None or not self.free():
                raise
        return self._capture(slots, no_draft)

    def _capture(self, slots: int, no_draft: bool) -> _Captured:
        """Warm up and capture; where the run stands and the stream this thread works on are as before, also when it fails."""
        fixed, here = self.fixed, torch.cuda.current_stream(self.device)
        if self.device not in _STREAMS:
            _STREAMS[self.device] = torch.cuda.Stream(self.device)
        stream, kept = _STREAMS[self.device], [part.clone() for part in fixed.state()]
        stream.wait_stream(here)
        graph, marks = torch.cuda.CUDAGraph(), external_events()
        try:
            with torch.cuda.stream(stream):
                for _ in range(1 if self.graphs else WARM_UP):
                    fixed.step(slots, no_draft)
                    fixed.restore(kept)
            # thread_local: another thread's allocations are no fault of this capture
            with torch.cuda.graph(graph, pool=self.pool, stream=stream, capture_error_mode="thread_local"):
                before = iter(marks)
                fixed.step(slots, no_draft, lambda _: nullcontext(next(before).record() if marks else None))
                if marks:
                    next(before).record()
        finally:
            # a capture that cannot be ended raises before torch itself goes back to the stream from before
            torch.cuda.set_stream(here)
            here.wait_stream(stream)
            fixed.restore(kept)
        self.pool = graph.pool()
        return _Captured(graph, marks)


def _out_of_memory(error: BaseException | None) -> torch.OutOfMemoryError | None:
    """The lack of memory that an error is, or that it hides: ending a capture that failed may raise an error of its own."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return error
        error = error.__cause__ or error.__context__
    return None


def external_events() -> list[torch.cuda.Event]:
    """Four events to be recorded inside a graph, or none where torch or the driver has no such thing."""
    try:
        return [torch.cuda.Event(enable_timing=True, external=True) for _ in range(4)]
    except (TypeError, RuntimeError):
        return []


def shares(marks: list[Any]) -> list[float]:
    """The shares of draft, verify and commit, from the events before and behind them; all is verify's when they cannot be
    read."""
    try:
        times = [before.elapsed_time(behind) for before, behind in pairwise(marks)]
    except (RuntimeError, ValueError):  # ValueError: one of them was never recorded
        return [0.0, 1.0, 0.0]
    total = sum(times)
    return [time / total for time in times] if total > 0 else [0.0, 1.0, 0.0]
