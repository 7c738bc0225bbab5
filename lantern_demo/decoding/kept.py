"""Engines that outlive their run: caches, steps of fixed shapes and captured graphs, kept for the next run of the same shape.

Capturing takes as long as a decode, and a graph holds on to the tensors it was captured with. So a run borrows a whole engine,
fills it in place, and hands it back. What is lent is nobody else's: a second live run of the same shape gets an engine of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch

from .cache import KVCache
from .fixed import Fixed
from .graphs import Steps

MOST = 6  # idle engines: the methods of a comparison, and one more
RESERVE = 0.1  # share of a GPU's memory that idle engines leave free


@dataclass
class Engine:
    """What one run at a time works with. `fixed` and `steps` are there from the first run's prefill on."""

    cache: KVCache
    drafter_cache: KVCache | None
    fixed: Fixed | None = None
    steps: Steps | None = None

    def empty(self) -> None:
        """Forget the run before. Its keys and values go too: what was not finite would reach a later run through a mask's 0 weight."""
        for cache in (self.cache, self.drafter_cache):
            if cache is not None:
                cache.reset()
                cache.both.zero_()


class Engines:
    """Idle engines by what their runs have in common, at most `most` of them; the one longest unused goes first."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._idle: list[tuple[Hashable, Engine]] = []  # the last used last
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, key: Hashable, make: Callable[[], Engine]) -> Engine:
        """An idle engine of this key, emptied, or a new one. Where memory does not suffice for a new one, the idle ones go first."""
        with self._lock:
            at = next((i for i in reversed(range(len(self._idle))) if self._idle[i][0] == key), None)
            engine = None if at is None else self._idle.pop(at)[1]
        if engine is not None:
            engine.empty()
            return engine
        try:
            return make()
        except torch.OutOfMemoryError:
            if not self.clear():
                raise
        return make()

    def give(self, key: Hashable, engine: Engine) -> None:
        """Hand an engine back whose run is over. It is dropped where another run could not use it."""
        if engine.fixed is None or engine.steps is None or not engine.steps.reusable:
            return
        with self._lock:
            self._idle.append((key, engine))
            while len(self._idle) > self.most or (self._idle and _scarce(engine.cache.k.device)):
                self._idle.pop(0)

    def clear(self) -> bool:
        """Let all idle engines go and give their memory back; whether there were any."""
        with self._lock:
            any_idle = bool(self._idle)
            self._idle.clear()
        if any_idle and torch.cuda.is_available():
            torch.cuda.empty_cache()
        return any_idle


def _scarce(device: torch.device) -> bool:
    """Whether a GPU has little memory left beside what is in use."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free < RESERVE * total
