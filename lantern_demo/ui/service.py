"""The model that the program serves, and the runs on the device.

On ZeroGPU a run is another process, so the arguments and items of `_frames` can be pickled.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from contextvars import copy_context
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, TypeVar

import spaces

from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.checkpoints import files_folder, no_drafter
from lantern_demo.models.device import pick_device, pick_threads, unused_gpu
from lantern_demo.runs.load import check_id, info_of, load
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.race import Request
from lantern_demo.runs.result import MethodFailed, Result
from lantern_demo.ui import texts
from lantern_demo.ui.frames import Frame, Frames
from lantern_demo.ui.log import of_prompt

# an environment variable: how long one comparison may keep the device
RUN_SECONDS = "LANTERN_RUN_SECONDS"
# The most seconds of a shared GPU that a run requests. On the larger cards 1.5 times as many are
# charged: 120, the daily quota of a visitor without an account.
MOST_LEASED = 80
# Seconds until the first step: a lent GPU starts a process, and the gigabytes of a published model
# are moved there.
SMALL_STARTS, LARGE_STARTS = 4, 10
PROMPT = "prompt"  # the first part to be made ready

Answer = TypeVar("Answer")
Item = Frame | Result | MethodFailed  # of a comparison

_LOG = logging.getLogger(__name__)


class Refused(ValueError):
    """A request that cannot be met. Its text is a sentence for the visitor."""


class Service:
    """Loads one model, and runs comparisons on it."""

    def __init__(
        self,
        model: str | Path,
        device: str,
        threads: int | None = None,
        folder: str | Path | None = None,
    ) -> None:
        """Start to load a model and to prepare it, without waiting for it.

        `folder` may have the files of a published one. Raise ValueError for an unknown model or
        device, an invalid number of threads, and for a folder that is none or not needed.
        """
        self._device, self._threads = device, threads
        self.run_seconds = run_seconds()
        self.info = info_of(model)
        self.folder = files_folder(self.info, folder)
        pick_threads(threads, pick_device(device), small=True)  # refused before the page is there
        self.unused_gpu = unused_gpu() if device == "auto" else None
        self._seconds = 0.0  # the longest that a method's run has taken
        self.last_seconds = 0.0  # that the last finished comparison kept the device
        # On a CPU every thread that computes keeps a pool of helpers. With more helpers than cores
        # OpenMP lets them sleep between operations: steps took 1.9 times as long. So one thread
        # does all timed work, of the run whose turn it is, and no other long-lived thread computes.
        self._worker = ThreadPoolExecutor(1, "device")
        self._pipe: Future[Pipeline] = Future()
        if on_zero_gpu():
            # Until the page is launched, `spaces` emulates CUDA only in the thread that imported
            # it.
            self._load(model)
        else:
            # A thread that ends with the load, for the reason given above.
            loading = threading.Thread(target=self._load, args=(model,), name="load", daemon=True)
            loading.start()
        # A no-op except on ZeroGPU, where one lease of the device spans all methods of a
        # comparison.
        self._leased = spaces.GPU(duration=lambda _, lease: lease)(self._frames)

    def _load(self, model: str | Path) -> None:
        """Load the model, and choose trees and warm up before a visitor waits for it."""
        try:
            pipe = load(model, self._device, folder=self.folder, threads=self._threads)
            self.info = pipe.info
            if not on_zero_gpu():  # a device that is only lent for runs is not there yet
                self._compute(pipe.prepare)
                self._compute(pipe.images.palette)
            # Half a million library objects stay for good. Python would scan them all once, for
            # half a second, in the middle of one of the first races.
            gc.collect()
            gc.freeze()
        except ValueError as error:
            self._pipe.set_exception(error)
        except BaseException as error:  # such as too little memory
            _LOG.exception("model %s could not be loaded", self.info.id)
            self._pipe.set_exception(ValueError(texts.load_failed(self.info.id, error)))
        else:
            self._pipe.set_result(pipe)

    def wait(self) -> Pipeline:
        """Wait until the model is loaded and prepared, and return it.

        Raise ValueError, as `load` does, if it cannot be.
        """
        return self._pipe.result()

    @property
    def loaded(self) -> Pipeline | None:
        """Return the loaded model, or None before that and after a fault."""
        return self.wait() if self.state == "ready" else None

    @property
    def state(self) -> Literal["loading", "ready", "failed"]:
        """Return the state of the model."""
        if not self._pipe.done():
            return "loading"
        return "failed" if self._pipe.exception() else "ready"

    @property
    def warning(self) -> str | None:
        """Return the faults in sentences for page, /model and /healthz, or None.

        That is an unused GPU, or a model whose folder has no drafter.
        """
        missing = no_drafter(self.info, self.folder)
        told = [self.unused_gpu, missing and texts.without_drafter(missing)]
        return " ".join(filter(None, told)) or None

    @property
    def on_gpu(self) -> bool:
        """Return whether the program computes on a GPU."""
        return pick_device(self._device).type != "cpu"

    @property
    def busy(self) -> bool:
        """Return whether something runs on the device, from here or from Python."""
        pipe = self.loaded
        return pipe is not None and pipe.busy

    @property
    def unavailable(self) -> list[str]:
        """Return the ids of the methods that the model cannot be decoded with."""
        if no_drafter(self.info, self.folder) is None:
            return []
        return [method.id for method in METHODS.values() if method.needs_drafter]

    def request(
        self,
        prompt: object,
        methods: object,
        knobs: dict[str, Any],
        trees: dict[str, dict[str, Any]] | None = None,
        model: str | None = None,
        keep: object = None,
    ) -> Request:
        """Check a comparison's values; None stands for the default.

        `model` is that of a record, or of the tokens to `keep`. Raise NotAllowed as
        `Pipeline.request` does, and for another model than this one; raise Refused where the model
        could not be loaded.
        """
        given = {name: value for name, value in knobs.items() if value is not None}
        check_id(self.info, self.info.id if model is None else model)
        try:
            pipe = self.wait()
        except ValueError as error:
            raise Refused(str(error)) from None
        return pipe.request(prompt, methods, trees, keep, **given)

    def frames(self, request: Request) -> Generator[Item, None, None]:
        """Race the methods, one caller after the other.

        Yield a Frame now and then, and for each method its Result with its last token, or
        MethodFailed.

        Closing it frees the device within a step. A comparison that lasts too long ends with
        MethodFailed for unfinished methods.
        """
        with self.wait().turn():  # who waited in the worker would block the run that goes on
            frames, start = self._leased(request, self._lease(request)), perf_counter()
            ended: dict[str, Result | MethodFailed] = {}
            try:
                while (item := self._compute(next, frames, None)) is not None:
                    if not isinstance(item, Frame):
                        ended[item.method] = item
                    if isinstance(item, Result):
                        self._seconds = max(self._seconds, sum(item.seconds.values()))
                    yield item
                self.last_seconds = perf_counter() - start
            finally:
                self._compute(frames.close)
                _log(request, ended, perf_counter() - start)

    def pipe_of(self, model: object) -> Pipeline | None:
        """Return the model if it is loaded and has this id: a recording may be of another."""
        return self.loaded if model == self.info.id else None

    def palette(self, model: str) -> bytes | None:
        """Return the colours of a model's tokens, three bytes each, or None if it is not loaded."""
        pipe = self.pipe_of(model)
        # On ZeroGPU only a run can decode: here only colours that came with the model are known.
        if pipe is None or (on_zero_gpu() and pipe.networks.palette is None):
            return None
        return pipe.images.palette().numpy().tobytes()

    def at_once(self, call: Callable[..., Answer], *args: object) -> Answer | None:
        """Return the result of a short call in the thread that computes, or None during a run.

        Nothing may delay a timed run.
        """
        with self.wait().turn(wait=False) as mine:
            return self._compute(call, *args) if mine else None

    def in_turn(self, call: Callable[..., Answer], *args: object) -> Answer:
        """Return the result of a call in the thread that computes, once nothing runs."""
        with self.wait().turn():
            return self._compute(call, *args)

    def _compute(self, call: Callable[..., Answer], *args: object) -> Answer:
        """Return the result of a call in the thread that computes, in the context of the caller.

        On ZeroGPU the context identifies the client, whose GPU quota is spent, and whether it is
        still connected.
        """
        return self._worker.submit(copy_context().run, call, *args).result()

    def _frames(self, request: Request, lease: int) -> Iterator[Item]:
        """Yield the items of a race within the `lease`, the seconds of a shared GPU.

        ZeroGPU runs this in another process, which does not know how long earlier runs took.
        """
        pipe = self.wait()
        seconds = self.run_seconds
        if on_zero_gpu():
            # It takes its device back without notice; the finished pictures should be sent by then.
            seconds = min(seconds, lease - 2)
        if pipe.info.published is not None:  # its text encoder is as large as the rest
            yield Frame({}, {}, ready=PROMPT)
        frames = Frames()
        with closing(pipe.race(request, seconds)) as events:
            for method, event in events:
                if isinstance(event, Step):
                    frames.add(method, event)
                elif event is not None:
                    if not frames.empty:
                        yield frames.take()
                    yield event
                    continue
                if frames.due:
                    yield frames.take(method if event is None else "")

    def _lease(self, request: Request) -> int:
        """Return the seconds of a shared GPU to request.

        They last until the model is on it, then for each method its run and the capture of its
        steps. The time of a method is an estimate at first, later twice that of the longest run,
        since each is warmed up. Unused seconds are given back, but a visitor with less than 1.5
        times as much left is refused.
        """
        small = self.info.published is None
        estimate = 2.0 if small else 2 + 0.006 * self.info.tokens
        per_method = 1 + 2 * self._seconds if self._seconds else estimate
        return min(
            MOST_LEASED,
            (SMALL_STARTS if small else LARGE_STARTS) + round(per_method * len(request.methods)),
        )


def _log(request: Request, ended: dict[str, Result | MethodFailed], seconds: float) -> None:
    failed = any(isinstance(one, MethodFailed) for one in ended.values())
    _LOG.info(
        "run: model %s, seed %s, prompt %s, %s: %s; %.2f s on the device",
        request.model,
        request.seed,
        of_prompt(request.prompt),
        "stopped" if len(ended) < len(request.runs) else "failed" if failed else "done",
        ", ".join(f"{method} {_ended(ended.get(method))}" for method in request.methods),
        seconds,
    )


def _ended(outcome: Result | MethodFailed | None) -> str:
    if isinstance(outcome, Result):
        return f"{outcome.decode_seconds:.2f} s"
    return "stopped" if outcome is None else f"failed ({outcome.message})"


def run_seconds() -> float:
    """Return the most seconds that a comparison may keep the device.

    That is LANTERN_RUN_SECONDS, else two minutes on a Space and an hour elsewhere. Raise ValueError
    for an invalid number.
    """
    given = os.environ.get(RUN_SECONDS)
    if not given:
        return 120.0 if on_space() else 3600.0
    try:
        seconds = float(given)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 1e6:
        raise ValueError(f"{RUN_SECONDS} must be a number of seconds, got {given!r}")
    return seconds


def on_zero_gpu() -> bool:
    """Return whether the device is lent only for the time of a call."""
    return os.environ.get("SPACES_ZERO_GPU") == "true"


def on_space() -> bool:
    """Return whether strangers may send requests, which must then start no large download."""
    return bool(os.environ.get("SPACE_ID"))
