"""Runners of steps: `Runner` runs them one by one on any device, `GraphRunner` as captured CUDA
graphs. `Runners` keeps them for later runs.

Timing of graphs: a step's seconds lie between two CUDA events, one before its replay and one after
the copy of its results. They are device time, independent of the host and of a consumer. Timing
events inside the graph separate its parts, where torch can record them (`external=True`). A replay
overwrites them, and steps are launched ahead of the results read. So they are read once, at the
end: a graph's steps are all split in the proportions of its last replay. Until then, and where
torch lacks such events, a step counts wholly as verify. Warm-up and capture are the clock's part
"capture", which is outside the decode seconds.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from .config import Config
from .results import Kept, Step
from .step import Shape, Steps
from .timing import Clock

# steps before a runner's first capture, in which libraries initialise; one before later captures
WARM_UP = 2
AHEAD = 4  # most replays in flight: enough that the device never waits for the host
MOST = 16  # idle runners: all methods, and a few more
RESERVE = 0.1  # share of a GPU's memory that idle runners leave free

# The streams that this process captures on, one per device: cuBLAS keeps a workspace for each
# stream it has seen. Work of another pipeline would enter the graph.
_STREAMS: dict[torch.device, torch.cuda.Stream] = {}
_CAPTURING = threading.Lock()


def captures(device: torch.device) -> bool:
    """Return whether steps on a device are captured as graphs."""
    return device.type == "cuda"


class Runner:
    """Runs steps one by one, and times each part as it runs."""

    name = "plain"
    ahead = 1  # most steps in flight: reading their results is the only wait
    reason = ""  # why it fell back to plain steps; empty: it did not
    clock: Clock  # of the current run

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        # of steps not read yet: number, whether they draft, and their most tokens
        self.flying: deque[tuple[int, bool, int]] = deque()

    def begin(self, config: Config, clock: Clock, condition: Any) -> int:
        """Start a run and return its first token."""
        self.clock, self.launched = clock, 0
        self.flying.clear()  # the last run may have stopped early
        return self.steps.prefill(config, condition)

    def prepare(self) -> None:
        """Prepare all steps of the run, so that `launch` does not have to."""

    def next(self, committed: int) -> Step:
        """Launch steps after `committed` tokens, as many as may be in flight, and read the oldest
        one. The clock then includes its seconds."""
        while len(self.flying) < self.ahead:
            most = committed + sum(tokens for *_, tokens in self.flying)
            upcoming = self.steps.upcoming(most, bool(self.flying))
            if upcoming is None:
                break
            shape, tokens = upcoming
            self.launched += 1
            self.launch(self.launched, shape)
            self.flying.append((self.launched, shape.drafts, tokens))
        number, drafts, _ = self.flying.popleft()
        row, kept = self.result(number)
        return self.steps.unpack(row, drafts, number, committed, self.clock.decode_seconds, kept)

    def launch(self, number: int, shape: Shape) -> None:
        """Start step `number` (from 1, in order)."""
        self.steps.step(shape, self.clock.measure)

    def result(self, number: int) -> tuple[list[int], Kept]:
        """Wait for a step and return its row and its kept tensors, once, in order."""
        with self.clock.measure("commit"):
            return self.steps.results[number].tolist(), self.steps.kept

    def close(self) -> None:
        """Wait for the steps in flight, and add their times to the clock."""


@dataclass
class _Captured:
    """One graph, and the events inside it (empty: torch cannot record them)."""

    graph: Any
    marks: list[torch.cuda.Event]
    seconds: float = 0.0  # of all its replays that were read


class GraphRunner(Runner):
    """Runs steps as replayed CUDA graphs, one per shape, captured at its first use; all share one
    memory pool. When torch refuses a capture the steps run one by one, and `reason` states why.
    Out-of-memory errors and faults of the device are raised. `free` releases memory that idle
    runners hold and returns whether there was any."""

    name = "graphs"

    def __init__(self, steps: Steps, free: Callable[[], bool] = lambda: False) -> None:
        super().__init__(steps)
        self.ahead, self.device, self.free = AHEAD, steps.config.torch_device, free
        # pinned, so that copies to it do not wait
        self.host = torch.empty(
            steps.results.shape, dtype=torch.int64, pin_memory=steps.results.is_cuda
        )
        self.pool: Any = None
        self.graphs: dict[Shape, _Captured] = {}
        # of replays not read yet, by number: their graph, and the events around them
        self.replays: dict[int, tuple[_Captured, torch.cuda.Event, torch.cuda.Event]] = {}

    def prepare(self) -> None:
        for shape in self.steps.shapes():
            self._graph(shape)

    def launch(self, number: int, shape: Shape) -> None:
        captured = self._graph(shape)
        if captured is None:
            super().launch(number, shape)
            return
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        here = torch.cuda.current_stream(self.device)
        start.record(here)
        captured.graph.replay()
        self.host[number].copy_(self.steps.results[number], non_blocking=True)
        end.record(here)
        self.replays[number] = (captured, start, end)

    def result(self, number: int) -> tuple[list[int], Kept]:
        if number not in self.replays:
            return super().result(number)
        captured, start, end = self.replays.pop(number)
        end.synchronize()
        seconds = start.elapsed_time(end) / 1000
        self.clock.seconds["verify"] += seconds
        captured.seconds += seconds
        return self.host[number].tolist(), None

    def close(self) -> None:
        self.clock.synchronize()
        self.replays.clear()
        for captured in self.graphs.values():
            if captured.seconds and captured.marks:
                draft, verify, commit = shares(captured.marks)
                for part, share in (("draft", draft), ("verify", verify - 1), ("commit", commit)):
                    self.clock.seconds[part] += share * captured.seconds
            captured.seconds = 0.0

    def _graph(self, shape: Shape) -> _Captured | None:
        """Return the graph of a shape; None after a refused capture."""
        if shape not in self.graphs and not self.reason:
            # The end of the measure waits for the device. A fault of the device itself raises
            # there, and nothing can run on it.
            with self.clock.measure("capture"):
                try:
                    with _CAPTURING:
                        self.graphs[shape] = self._captured(shape)
                except RuntimeError as error:  # the type of CUDA's errors and of torch's own
                    why = str(error).splitlines()[0] if str(error) else type(error).__name__
                    self.ahead = Runner.ahead
                    self.name = Runner.name
                    self.reason = f"without graphs: {why}"
                    _STREAMS.pop(self.device, None)  # the stream may be at fault
                    if (memory := _out_of_memory(error)) is not None:
                        raise memory from None
        return None if self.reason else self.graphs.get(shape)

    def _captured(self, shape: Shape) -> _Captured:
        """Call `_capture`, and again if idle runners released memory."""
        try:
            return self._capture(shape)
        except RuntimeError as error:
            if _out_of_memory(error) is None or not self.free():
                raise
        return self._capture(shape)

    def _capture(self, shape: Shape) -> _Captured:
        """Warm up and capture. Restore the state of the steps and the current stream, also after an
        error."""
        steps, here = self.steps, torch.cuda.current_stream(self.device)
        if self.device not in _STREAMS:
            _STREAMS[self.device] = torch.cuda.Stream(self.device)
        stream, kept = _STREAMS[self.device], [part.clone() for part in steps.state()]
        stream.wait_stream(here)
        graph, marks = torch.cuda.CUDAGraph(), external_events()
        try:
            with torch.cuda.stream(stream):
                for _ in range(1 if self.graphs else WARM_UP):
                    steps.step(shape)
                    restore(steps, kept)
            clear_workspaces()
            # thread_local: another thread's allocations must not end this capture
            with torch.cuda.graph(
                graph, pool=self.pool, stream=stream, capture_error_mode="thread_local"
            ):
                before = iter(marks)
                steps.step(shape, lambda _: nullcontext(next(before).record() if marks else None))
                if marks:
                    next(before).record()
        finally:
            # a failed end of a capture raises before torch restores the previous stream
            torch.cuda.set_stream(here)
            here.wait_stream(stream)
            clear_workspaces()
            restore(steps, kept)
            steps.kept = None  # a replay would change its tensors
        self.pool = graph.pool()
        return _Captured(graph, marks)


def clear_workspaces() -> None:
    """Make cuBLAS allocate its next workspace, which in a capture lies in the graph's own memory.
    PyTorch may free a stream's shared workspace with any of its graphs, while other graphs still
    use it (pytorch/pytorch#193402)."""
    getattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: None)()


def restore(steps: Steps, copies: list[Tensor]) -> None:
    """Restore the steps' `state` from copies."""
    for part, copy in zip(steps.state(), copies, strict=True):
        part.copy_(copy)


def _out_of_memory(error: BaseException | None) -> torch.OutOfMemoryError | None:
    """Return the out-of-memory error that an error is or hides: the end of a failed capture may
    raise another error."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            return error
        error = error.__cause__ or error.__context__
    return None


def external_events() -> list[torch.cuda.Event]:
    """Return four events to be recorded inside a graph, or an empty list where torch or the driver
    lacks them."""
    try:
        return [torch.cuda.Event(enable_timing=True, external=True) for _ in range(4)]
    except (TypeError, RuntimeError):
        return []


def shares(marks: list[Any]) -> list[float]:
    """Return the shares of draft, verify and commit, from the events before and after them; 0, 1, 0
    if these cannot be read."""
    try:
        times = [before.elapsed_time(behind) for before, behind in pairwise(marks)]
    except (RuntimeError, ValueError):  # ValueError: one of them was never recorded
        return [0.0, 1.0, 0.0]
    total = sum(times)
    return [time / total for time in times] if total > 0 else [0.0, 1.0, 0.0]


class Runners:
    """Keeps at most `most` idle runners by the key that their runs share; the one longest unused
    goes first. Capturing takes as long as a decode, and a graph keeps the tensors of its capture.
    So a run borrows a whole runner, overwrites its tensors, and returns it. Two live runs never
    share a runner: the second one of the same shape gets another."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._idle: list[tuple[Hashable, Runner]] = []  # the most recently used last
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._idle)

    def fitting(self, keys: Iterable[Hashable]) -> int:
        """Return how many of the runs with these keys find an idle runner."""
        idle = Counter(known for known, _ in self._idle)
        return (idle & Counter(keys)).total()

    def take(self, key: Hashable, make: Callable[[], Runner]) -> Runner:
        """Return an idle runner of this key with empty caches, or a new one. If memory is short for
        a new one, release the idle ones first."""
        with self._lock:
            idle = [runner for known, runner in self._idle if known == key]
            if idle:
                self._idle.remove((key, idle[-1]))
        if idle:
            for cache in idle[-1].steps.caches:
                cache.wipe()
            return idle[-1]
        try:
            return make()
        except torch.OutOfMemoryError:
            if not self.clear():
                raise
        return make()

    def give(self, key: Hashable, runner: Runner) -> None:
        """Take a runner back after its run. Drop one without graphs, which a new one equals."""
        if runner.name == Runner.name:
            return
        with self._lock:
            self._idle.append((key, runner))
            while len(self._idle) > self.most or (
                self._idle and _scarce(runner.steps.results.device)
            ):
                self._idle.pop(0)

    def clear(self) -> bool:
        """Release all idle runners and their memory; return whether there were any."""
        with self._lock:
            any_idle = bool(self._idle)
            self._idle.clear()
        if any_idle and torch.cuda.is_available():
            torch.cuda.empty_cache()
        return any_idle


def _scarce(device: torch.device) -> bool:
    """Return whether less than `RESERVE` of a GPU's memory is free."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free < RESERVE * total
