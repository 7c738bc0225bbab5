"""The fixed engine, and engines that outlive their run: caches, steps of fixed shapes and captured graphs, kept for the next run
of the same shape. Capturing takes as long as a decode, and a graph holds on to the tensors it was captured with. So a run borrows
a whole engine, fills it in place, and hands it back. What is lent is nobody else's: a second live run of the same shape gets an
engine of its own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from ..verify import Step
from .fixed import Fixed
from .graphs import Graphs, Steps, Waiting
from .plain import Run
from .waves import Wave

MOST = 16  # idle engines: all methods, and a few more
RESERVE = 0.1  # share of a GPU's memory that idle engines leave free


class Engines:
    """Idle engines by what their runs have in common, at most `most` of them; the one longest unused goes first."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._idle: list[tuple[Hashable, Steps]] = []  # the last used last
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, key: Hashable, make: Callable[[], Steps]) -> Steps:
        """An idle engine of this key, emptied, or a new one. Where memory does not suffice for a new one, the idle ones go
        first."""
        with self._lock:
            at = next((i for i in reversed(range(len(self._idle))) if self._idle[i][0] == key), None)
            engine = None if at is None else self._idle.pop(at)[1]
        if engine is not None:
            for cache in (engine.fixed.cache, engine.fixed.drafter_cache):
                if cache is not None:
                    cache.wipe()
            return engine
        try:
            return make()
        except torch.OutOfMemoryError:
            if not self.clear():
                raise
        return make()

    def give(self, key: Hashable, engine: Steps) -> None:
        """Hand an engine back whose run is over. It is dropped where it has been refused a capture."""
        if engine.reason:
            return
        with self._lock:
            self._idle.append((key, engine))
            while len(self._idle) > self.most or (self._idle and _scarce(engine.fixed.cache.k.device)):
                self._idle.pop(0)

    def clear(self) -> bool:
        """Let all idle engines go and give their memory back; whether there were any."""
        with self._lock:
            any_idle = bool(self._idle)
            self._idle.clear()
        if any_idle and torch.cuda.is_available():
            torch.cuda.empty_cache()
        return any_idle


class FixedRun(Run):
    """A run on steps of fixed shapes. `engines` lends what it works with; None: it makes its own. Up to `steps.ahead` steps are
    in flight, so that reading a result is the only wait, once per step. A step may be launched before the results of others are
    known when tokens will be missing even if those commit as many as they can, and when it is sure of which kind it is: the last
    token may need no drafts. exact: a wavefront on the plain engine, whose steps wait for the host."""

    def __init__(self, *parts: Any, engines: Engines | None, exact: bool = False) -> None:
        super().__init__(*parts)
        config = self.config
        self.engines, self.exact, self.room = engines, exact, config.num_tokens if exact else config.room or config.num_tokens
        self.lent: Steps | None = self._make() if engines is None else engines.take(self._key, self._make)
        self.steps, self.fixed = self.lent, self.lent.fixed
        self.cache, self.verifier = self.fixed.cache, self.fixed.verifier  # graphs hold on to a verifier
        self.steps.clock, self.name = self.clock, (Waiting if exact else Steps).name
        # steps whose results have not been read: without drafts or with them, and tokens at most
        self.flying: deque[tuple[bool, int]] = deque()
        self.launched = 0
        # how many tokens may be missing for a step of an unknown kind
        self.unsure = 0 if config.no_draft(1) == config.no_draft(2) else 1

    def _make(self) -> Steps:
        config = self.config
        slots = Fixed.room(self.room, config.tree)
        caches = self.target.new_cache(config.rows, slots), self.cache_for_drafter(slots)
        parts = self.target, self.drafter, *caches, config, self.source, self.verifier, self.room, self.uniforms
        fixed = Wave(*parts, exact=self.exact) if config.tree.side_by_side else Fixed(*parts)
        if self.exact:
            return Waiting(fixed)
        if config.torch_device.type != "cuda":
            return Steps(fixed)
        return Graphs(fixed, (lambda: False) if self.engines is None else self.engines.clear)

    @property
    def _key(self) -> tuple[object, ...]:
        """All that an engine's steps depend on, but for what a run fills in. How long the prefix is they read from the device."""
        c = self.config
        shape = (c.torch_device, c.rows, self.room, c.row_length, c.tree, c.sampling, c.rule, c.shared)
        return (*shape, id(self.target), id(self.drafter), id(c.neighbours))  # of things that a kept engine holds on to

    def begin(self, hidden: Tensor, root: Tensor) -> None:
        """Both caches hold the prefix then; the drafter reads it."""
        config, drafter, fixed = self.config, self.drafter, self.fixed
        hidden = self.for_drafter(hidden)
        if drafter is not None and not config.no_draft(config.num_tokens - 1):
            with self.clock.measure("draft"):
                # a step's stable pass takes the last of these slots again, with the output that it needs
                drafter.start(hidden, root, fixed.drafter_cache, self.condition)
        with self.clock.measure("prefill"):
            fixed.begin(hidden, root, self.uniforms, config.seed)
        if self.engines is not None:  # the next run is to find everything in place
            self.steps.prepare(fixed.shapes())

    def next(self, committed: int) -> Step:
        while len(self.flying) < self.steps.ahead:
            most = committed + sum(tokens for _, tokens in self.flying)  # once all that is in flight has come in
            missing = self.config.num_tokens - most
            if self.flying and missing <= self.unsure:
                break
            no_draft = self.config.no_draft(missing)
            self.steps.launch(self.launched + 1, self.fixed.bucket(most), no_draft)
            self.launched += 1
            self.flying.append((no_draft, 1 if no_draft else self.fixed.depth + 1))
        row = self.steps.row(self.launched - len(self.flying) + 1)
        return self.fixed.outcome(row, self.flying.popleft()[0])

    def close(self, whole: bool) -> None:
        """Hand the engine back; graphs may be in flight when the consumer gave up. After a fault nobody shall have it again."""
        lent, self.lent = self.lent, None
        if lent is None:
            return
        lent.close()
        self.name, self.reason = lent.name, lent.reason
        if whole and self.engines is not None:
            self.engines.give(self._key, lent)


def _scarce(device: torch.device) -> bool:
    """Whether a GPU has little memory left beside what is in use."""
    if device.type != "cuda":
        return False
    free, total = torch.cuda.mem_get_info(device)
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free < RESERVE * total
