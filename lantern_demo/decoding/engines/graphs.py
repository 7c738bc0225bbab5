"""How steps of fixed shapes are run and timed: one by one on any device, or as captured CUDA graphs.

Times of graphs. A step's seconds lie between two CUDA events, one before its replay and one behind the copy of its results: device
work, whatever the host or a consumer does meanwhile. Its parts are told apart by timing events inside the graph, where torch can
record them (`external=True`). A replay overwrites them, and steps are launched ahead of what has been read, so they are read once,
at the end: a graph's steps are all split in the proportions of its last replay. Until then, and where torch lacks such events, a step
counts as verify as a whole. Warm-up and capture are the clock's part "capture", no decode seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..protocols import Watcher
from ..timing import Clock
from ..verify import Outcome
from .fixed import Eager, Fixed, StepLaw

WARM_UP = 2  # steps before an engine's first capture, in which libraries set themselves up; one before the others
AHEAD = 4  # replays in flight at most: enough that the device never waits for the host


class Steps(Protocol):
    """Runs steps: `launch` starts one, `row` waits for it."""

    ahead: int  # how many may be in flight
    name: str  # what runs the steps: "fixed" or "graphs"
    reason: str  # why it is not what it could be, if so

    @property
    def reusable(self) -> bool:
        """Whether another run may use it."""
        ...

    def begin(self, clock: Clock) -> None:
        """Start over for another run, on its clock."""
        ...

    def prepare(self, shapes: list[tuple[int, bool]]) -> None:
        """Get ready for steps of these buckets and kinds, so that none of them has to."""
        ...

    def launch(self, index: int, slots: int, bare: bool) -> StepLaw:
        """Start step `index` (from 1, in order)."""
        ...

    def row(self, index: int) -> list[int]:
        """The results of a step, read once, in order; its seconds are on the clock from then on."""
        ...

    def close(self) -> None:
        """Wait for what is in flight and split what can be split."""
        ...


@dataclass
class _Captured:
    """One graph, what it leaves on the device, and the events inside it (none: torch cannot record them)."""

    graph: Any
    law: StepLaw
    marks: list[torch.cuda.Event]
    seconds: float = 0.0  # of all its replays that were read


class Graphs:
    """Steps as replayed CUDA graphs, one per bucket and kind, captured when first asked for and sharing one memory pool.

    When a capture is refused the steps run one by one, and `reason` says why. Memory that runs out and a device that is at
    fault are no refusals: they are raised. `free` gives back memory that others can spare and says whether there was any.
    """

    def __init__(self, fixed: Fixed, clock: Clock, device: torch.device, free: Callable[[], bool] = lambda: False) -> None:
        self.fixed, self.clock, self.device, self.free = fixed, clock, device, free
        self.ahead, self.name, self.reason = AHEAD, "graphs", ""
        self.eager = Eager(fixed, clock)
        self.host = pinned(fixed.state.results)
        self.pool: Any = None
        self.graphs: dict[tuple[int, bool], _Captured] = {}
        self.flying: dict[int, tuple[_Captured, torch.cuda.Event, torch.cuda.Event]] = {}

    @property
    def reusable(self) -> bool:
        return self.name == "graphs"

    def begin(self, clock: Clock) -> None:
        self.clock = self.eager.clock = clock

    def prepare(self, shapes: list[tuple[int, bool]]) -> None:
        for slots, bare in shapes:
            self._graph(slots, bare)

    def launch(self, index: int, slots: int, bare: bool) -> StepLaw:
        captured = self._graph(slots, bare)
        if captured is None:
            return self.eager.launch(index, slots, bare)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        here = torch.cuda.current_stream(self.device)
        start.record(here)
        captured.graph.replay()
        self.host[index].copy_(self.fixed.state.results[index], non_blocking=True)
        end.record(here)
        self.flying[index] = (captured, start, end)
        return captured.law

    def row(self, index: int) -> list[int]:
        if index not in self.flying:
            return self.eager.row(index)
        captured, start, end = self.flying.pop(index)
        end.synchronize()
        seconds = start.elapsed_time(end) / 1000
        self.clock.seconds["verify"] += seconds
        captured.seconds += seconds
        found: list[int] = self.host[index].tolist()
        return found

    def close(self) -> None:
        self.clock.synchronize()
        self.flying.clear()
        for captured in self.graphs.values():
            if captured.seconds and captured.marks:
                draft, verify, commit = shares(captured.marks)
                for part, share in (("draft", draft), ("verify", verify - 1), ("commit", commit)):
                    self.clock.seconds[part] += share * captured.seconds
            captured.seconds = 0.0

    def _graph(self, slots: int, bare: bool) -> _Captured | None:
        """The graph of a bucket and kind; None once a capture was refused."""
        key = (slots, bare)
        if key not in self.graphs and self.name == "graphs":
            # The end of the measure waits for the device: where that is at fault itself, this raises, and nothing will run on it.
            with self.clock.measure("capture"):
                try:
                    self.graphs[key] = self._captured(slots, bare)
                except RuntimeError as error:  # CUDA's errors and torch's own are of this kind
                    self.name, self.reason = (
                        "fixed",
                        f"without graphs: {str(error).splitlines()[0] if str(error) else type(error).__name__}",
                    )
                    self.ahead = self.eager.ahead
                    _STREAMS.pop(self.device, None)  # it may be at fault
                    if (memory := _out_of_memory(error)) is not None:
                        raise memory from None
        return self.graphs.get(key) if self.name == "graphs" else None

    def _captured(self, slots: int, bare: bool) -> _Captured:
        """`_capture`, once more where others could spare memory."""
        try:
            return self._capture(slots, bare)
        except RuntimeError as error:
            if _out_of_memory(error) is None or not self.free():
                raise
        return self._capture(slots, bare)

    def _capture(self, slots: int, bare: bool) -> _Captured:
        """Warm up and capture; where the run stands and the stream this thread works on are as before, also when it fails."""
        fixed, here = self.fixed, torch.cuda.current_stream(self.device)
        stream = capture_stream(self.device)
        kept = fixed.state.copies()
        stream.wait_stream(here)
        graph, marks = torch.cuda.CUDAGraph(), external_events()
        try:
            with torch.cuda.stream(stream):
                for _ in range(1 if self.graphs else WARM_UP):
                    fixed.step(slots, bare)
                    fixed.state.restore(kept)
            # thread_local: another thread's allocations are no fault of this capture
            with torch.cuda.graph(graph, pool=self.pool, stream=stream, capture_error_mode="thread_local"):
                law = fixed.step(slots, bare, lambda i: marks[i].record() if marks else None)
        finally:
            # a capture that cannot be ended raises before torch itself goes back to the stream from before
            torch.cuda.set_stream(here)
            here.wait_stream(stream)
            fixed.state.restore(kept)
        self.pool = graph.pool()
        return _Captured(graph, law, marks)


_STREAMS: dict[torch.device, torch.cuda.Stream] = {}


def capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that this process captures on, one per device: cuBLAS keeps a workspace for each stream it has seen."""
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)
    return _STREAMS[device]


def _out_of_memory(error: BaseException | None) -> torch.OutOfMemoryError | None:
    """The lack of memory that an error is, or that it hides: ending a capture that failed may raise an error of its own."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return error
        error = error.__cause__ or error.__context__
    return None


def pinned(results: Tensor) -> Tensor:
    """An empty tensor on the host, of the same shape, that a device can copy to without waiting."""
    return torch.empty(results.shape, dtype=results.dtype, pin_memory=True)


def external_events() -> list[torch.cuda.Event]:
    """Four events to be recorded inside a graph, or none where torch or the driver has no such thing."""
    try:
        return [torch.cuda.Event(enable_timing=True, external=True) for _ in range(4)]
    except (TypeError, RuntimeError):
        return []


def shares(marks: list[Any]) -> list[float]:
    """The shares of draft, verify and commit, from the events before and behind them; everything is verify's when they cannot be
    read."""
    try:
        times = [before.elapsed_time(behind) for before, behind in pairwise(marks)]
    except (RuntimeError, ValueError):  # ValueError: one of them was never recorded
        return [0.0, 1.0, 0.0]
    total = sum(times)
    return [time / total for time in times] if total > 0 else [0.0, 1.0, 0.0]


class _Flying(NamedTuple):
    """A step whose result has not been read."""

    number: int
    bare: bool
    most: int  # tokens it commits at most


class LaunchQueue:
    """Keeps up to `steps.ahead` steps in flight.

    A step may be launched before the results of others are known when tokens will be missing even if those commit as many as they
    can, and when it is sure of which kind it is: the step that has one token left to find may need no drafts. So
    reading a result is the only wait, once per step, and a run that is given up has at most `steps.ahead` steps too many.
    """

    def __init__(self, fixed: Fixed, steps: Steps, num_tokens: int, watcher: Watcher | None) -> None:
        self.fixed, self.steps, self.num_tokens, self.watcher = fixed, steps, num_tokens, watcher
        self.flying: deque[_Flying] = deque()
        self.launched = 0

    def next(self, committed: int) -> Outcome:
        """The next step's outcome, with `committed` tokens so far, fewer than the run needs."""
        while len(self.flying) < self.steps.ahead and self._certain(committed):
            self._launch(committed)
        done = self.flying.popleft()
        return self.fixed.outcome(self.steps.row(done.number), done.bare)

    def _most(self, committed: int) -> int:
        """Tokens committed at most once all that is in flight has come in."""
        return committed + sum(step.most for step in self.flying)

    def _certain(self, committed: int) -> bool:
        known = self.fixed.config.bare(1) == self.fixed.config.bare(2)  # the last step is of the same kind as the others
        return not self.flying or self._most(committed) < self.num_tokens - (0 if known else 1)

    def _launch(self, committed: int) -> None:
        most = self._most(committed)
        bare = self.fixed.config.bare(self.num_tokens - most)
        law = self.steps.launch(self.launched + 1, self.fixed.bucket(most), bare)
        if self.watcher is not None and self.watcher.wants(self.launched):
            self.watcher.add(law.draft, law.root_law, law.emitted.clone())
        self.launched += 1
        self.flying.append(_Flying(self.launched, bare, 1 if bare else self.fixed.depth + 1))
