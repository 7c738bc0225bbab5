"""The clock of a run, `Clock`: seconds of synchronised device work in each named part."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter, thread_time

import torch

Part = Callable[[str], AbstractContextManager[object]]  # a part's name -> the context that times it
DECODE_PARTS = ("prefill", "draft", "verify", "commit")
PARTS = ("text", "capture", *DECODE_PARTS, "image")


class _Segment:
    """Adds the time between enter and exit to one part. Made once per part: entering costs well
    under 2 us."""

    __slots__ = ("_clock", "_cpu", "_part", "_since")

    def __init__(self, clock: Clock, part: str) -> None:
        self._clock, self._part = clock, part
        self._since = self._cpu = 0.0

    def __enter__(self) -> None:
        self._clock.synchronize()
        self._since, self._cpu = perf_counter(), thread_time()

    def __exit__(self, *_: object) -> None:
        clock, part = self._clock, self._part
        clock.synchronize()
        seconds, cpu = perf_counter() - self._since, thread_time() - self._cpu
        clock.seconds[part] += seconds
        clock.waited[part] += max(0.0, seconds - cpu)


def _wait_for_stream(device: torch.device) -> None:
    """Wait for the work that this thread has queued. To wait for the whole device would break a
    capture in another thread."""
    torch.cuda.current_stream(device).synchronize()


class Clock:
    """Seconds per part of a run. Use as `with clock.measure("draft"): ...`; never yield inside. The
    device is synchronised at both ends of a segment, so that work is charged to the part that
    queued it."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._waits = _wait_for_stream if self._device.type == "cuda" else None
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        # seconds in which the calling thread had no processor; meaningless on a GPU, where it waits
        # for the device
        self.waited: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._segments = {part: _Segment(self, part) for part in PARTS}

    def measure(self, part: str) -> _Segment:
        """Return the context manager of one of PARTS."""
        return self._segments[part]

    def restart(self) -> None:
        """Forget the decode seconds, for a run that restarts."""
        for part in DECODE_PARTS:
            self.seconds[part] = self.waited[part] = 0.0

    def synchronize(self) -> None:
        """Wait until the device has finished its queued work, which on a CPU it always has."""
        if self._waits is not None:
            self._waits(self._device)

    @property
    def decode_seconds(self) -> float:
        """The seconds of prefill, draft, verify and commit together."""
        return sum(self.seconds[part] for part in DECODE_PARTS)

    @property
    def waited_seconds(self) -> float | None:
        """The decode seconds in which the calling thread had no processor; None on a GPU."""
        return None if self._waits is not None else sum(self.waited[part] for part in DECODE_PARTS)
