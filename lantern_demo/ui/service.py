"""The loaded models and the runs on the device.

On ZeroGPU a run is another process, so the arguments and items of `_frames` can be pickled.
"""

from __future__ import annotations

import gc
import logging
import math
import os
import threading
from collections import deque
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
from lantern_demo.models.checkpoints import files_folder, no_drafter, requirements_unmet
from lantern_demo.models.device import pick_device, pick_threads, unused_gpu
from lantern_demo.models.families import dtype_of
from lantern_demo.models.registry import REGISTRY, ModelInfo
from lantern_demo.runs.load import info_of, load
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.race import Request
from lantern_demo.runs.result import MethodFailed, Result
from lantern_demo.settings.knobs import shown
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


class Service:
    """Loads models once and runs comparisons on them."""

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
        self._device, self._threads, self._loading = device, threads, threading.Lock()
        self.run_seconds = run_seconds()
        self._first_info = info_of(model)
        self._folder = files_folder(self._first_info, folder)
        self.default = self._first_info.id
        pick_threads(threads, pick_device(device), small=True)  # refused before the page is there
        self.unused_gpu = unused_gpu() if device == "auto" else None
        self.loaded: dict[str, Pipeline] = {}  # by id
        self._seconds: dict[str, float] = {}  # by model, the longest that a method's run has taken
        self.last_seconds = 0.0  # that the last finished comparison kept the device
        # On a CPU every thread that computes keeps a pool of helpers. With more helpers than cores
        # OpenMP lets them sleep between operations: steps took 1.9 times as long. So one thread
        # does all timed work, and no other long-lived thread computes.
        self._worker, self._turn = ThreadPoolExecutor(1, "device"), threading.Lock()
        self._first: Future[None] = Future()
        if on_zero_gpu():
            # Until the page is launched, `spaces` emulates CUDA only in the thread that imported
            # it.
            self._load_first(model)
        else:
            # A thread that ends with the load, for the reason given above.
            threading.Thread(
                target=self._load_first, args=(model,), name="load", daemon=True
            ).start()
        # A no-op except on ZeroGPU, where one lease of the device spans all methods of a
        # comparison.
        self._leased = spaces.GPU(duration=self._lease)(self._frames)

    def _load_first(self, model: str | Path) -> None:
        try:
            self._load(model, self.default)
        except ValueError as error:  # `wait` raises it
            self._first.set_exception(error)
        else:
            self._first.set_result(None)

    def _load(self, model: str | Path, name: str) -> None:
        """Load a model, and choose trees and warm up before a visitor waits for it.

        Raise ValueError with a sentence.
        """
        try:
            pipe = load(model, self._device, folder=self.folder_of(name), threads=self._threads)
            if name == self.default:
                self._first_info = pipe.info
            if not on_zero_gpu():  # a device that is only lent for runs is not there yet
                with self._turn:
                    self._worker.submit(lambda: deque(pipe.prepare(), maxlen=0)).result()
                    self._worker.submit(pipe.images.palette).result()
            # Half a million library objects stay for good. Python would scan them all once, for
            # half a second, in the middle of one of the first races.
            gc.collect()
            gc.freeze()
            self.loaded[name] = pipe
        except ValueError:
            raise
        except BaseException as error:  # such as too little memory; the loaded models go on
            _LOG.exception("model %s could not be loaded", name)
            raise ValueError(texts.load_failed(name, error)) from error

    def wait(self) -> None:
        """Wait until the model that the program was started with is loaded and prepared.

        Raise ValueError, as `load` does, if it cannot be.
        """
        self._first.result()

    @property
    def state(self) -> Literal["loading", "ready", "failed"]:
        """Return the state of the program's first model."""
        if not self._first.done():
            return "loading"
        return "failed" if self._first.exception() else "ready"

    @property
    def warning(self) -> str | None:
        """Return the faults in sentences for page, /models and /healthz, or None.

        That is an unused GPU, or a first model whose folder has no drafter.
        """
        missing = self.no_drafter(self._first_info)
        told = [self.unused_gpu, missing and texts.without_drafter(missing)]
        return " ".join(filter(None, told)) or None

    @property
    def on_gpu(self) -> bool:
        """Return whether the program computes on a GPU."""
        return pick_device(self._device).type != "cpu"

    @property
    def busy(self) -> bool:
        """Return whether something runs on the device."""
        return self._turn.locked()

    def offered(self) -> dict[str, ModelInfo]:
        """Return the models by id, the program's first model first."""
        return {
            self.default: self._first_info,
            **{name: info for name, info in REGISTRY.items() if name != self.default},
        }

    def pipeline(self, model: Any) -> Pipeline:
        """Return the pipeline of a model, loaded at its first request.

        Raise ValueError with the value and the allowed ones.
        """
        if not isinstance(model, str) or model not in self.offered():
            raise ValueError(
                f"model must be one of {', '.join(self.offered())}, got {shown(model)}"
            )
        if model == self.default:
            self.wait()
        if model in self.loaded:
            return self.loaded[model]  # without a wait for another model that is being loaded
        reason = self.unmet(self.offered()[model])
        if reason:
            raise ValueError(f"{model} cannot run here: {reason}")
        with self._loading:
            if model not in self.loaded:
                # it ends with the load, and its helpers too: see `__init__`
                with ThreadPoolExecutor(1) as thread:
                    thread.submit(self._load, model, model).result()
            return self.loaded[model]

    def must_load(self, model: Any) -> bool:
        """Return whether a model on offer still has to be loaded."""
        return isinstance(model, str) and model in self.offered() and model not in self.loaded

    def unmet(self, info: ModelInfo) -> str | None:
        """Return why a model cannot be loaded here, or None; None also for a loaded one."""
        if info.id in self.loaded or info.id == self.default:
            return None
        # On ZeroGPU a model must be loaded before the page is launched, even one that ships with
        # the code.
        if on_zero_gpu() or (on_space() and info.published is not None):
            return (
                "this Space runs only the model that it was started with; run the code on "
                "a machine of your own for this one"
            )
        device = pick_device(self._device)
        return requirements_unmet(info, device, dtype_of(info, "auto", device))

    def no_drafter(self, info: ModelInfo) -> str | None:
        """Return why a model has no drafter here, or None."""
        return no_drafter(info, self.folder_of(info.id))

    def unavailable(self, info: ModelInfo) -> list[str]:
        """Return the ids of the methods that a model cannot be decoded with."""
        if self.no_drafter(info) is None:
            return []
        return [method.id for method in METHODS.values() if method.needs_drafter]

    def folder_of(self, name: str) -> Path | None:
        """Return the local folder with a model's files, which only the first model may have."""
        return self._folder if name == self.default else None

    def request(
        self,
        prompt: Any,
        model: Any,
        methods: Any,
        knobs: dict[str, Any],
        trees: dict[str, dict[str, Any]] | None = None,
    ) -> Request:
        """Check a comparison's values; None stands for the default.

        Raise ValueError with a sentence for a value that is not allowed.
        """
        pipe = self.pipeline(self.default if model is None else model)
        return pipe.request(
            prompt,
            methods,
            trees,
            **{name: value for name, value in knobs.items() if value is not None},
        )

    def frames(self, request: Request, previews: bool) -> Generator[Item, None, None]:
        """Race the methods, one caller after the other.

        Yield a Frame now and then, and for each method its Result with its last token, or
        MethodFailed.

        Closing it frees the device within a step. A comparison that lasts too long ends with
        MethodFailed for unfinished methods.
        """
        with self._turn:  # a caller that waited in the worker would block the one before
            frames, start = self._leased(request, previews), perf_counter()
            outcomes = dict.fromkeys(request.methods, "stopped")  # for the log
            try:
                while (item := self._compute(next, frames, None)) is not None:
                    if isinstance(item, Result):
                        self._note(request.model, item)
                        outcomes[item.method] = f"{item.decode_seconds:.2f} s"
                    elif isinstance(item, MethodFailed):
                        outcomes[item.method] = f"failed ({item.message})"
                    yield item
                self.last_seconds = perf_counter() - start
            finally:
                self._compute(frames.close)
                _log(request, outcomes, perf_counter() - start)

    def palette(self, model: str) -> bytes | None:
        """Return the colours of a model's tokens, three bytes each, or None if it is not loaded."""
        pipe = self.loaded.get(model)
        # On ZeroGPU only a run can decode: here only colours that came with the model are known.
        if pipe is None or (on_zero_gpu() and pipe.networks.palette is None):
            return None
        return pipe.images.palette().numpy().tobytes()

    def at_once(self, call: Callable[..., Answer], *args: Any) -> Answer | None:
        """Return the result of a short call in the thread that computes, or None during a run.

        Nothing may delay a timed run.
        """
        if not self._turn.acquire(blocking=False):
            return None
        try:
            return self._compute(call, *args)
        finally:
            self._turn.release()

    def _compute(self, call: Callable[..., Answer], *args: Any) -> Answer:
        """Return the result of a call in the thread that computes, in the context of the caller.

        On ZeroGPU the context identifies the client, whose GPU quota is spent, and whether it is
        still connected.
        """
        return self._worker.submit(copy_context().run, call, *args).result()

    def _frames(self, request: Request, previews: bool) -> Iterator[Item]:
        pipe = self.loaded[request.model]
        seconds = self.run_seconds
        if on_zero_gpu():
            # It takes its device back without notice; the finished pictures should be sent by then.
            seconds = min(seconds, self._lease(request, previews) - 2)
        if pipe.info.published is not None:  # its text encoder is as large as the rest
            yield Frame({}, {}, ready=PROMPT)
        frames = Frames(pipe, previews)
        with closing(pipe.race(request, seconds)) as events:
            for method, event in events:
                if isinstance(event, Step):
                    frames.add(method, event)
                elif event is not None:
                    if (last := frames.end(method)) is not None:
                        yield last
                    yield event
                    continue
                if frames.due:
                    yield frames.take(method if event is None else None)

    def _note(self, model: str, done: Result) -> None:
        """Keep a run's duration, here, since the leased process forgets."""
        took = sum(done.seconds.values())
        self._seconds[model] = max(took, self._seconds.get(model, 0.0))

    def _lease(self, request: Request, previews: bool) -> int:
        """Return the seconds of a shared GPU to request.

        They last until the model is on it, then for each method its run and the capture of its
        steps. The time of a method is an estimate at first, later twice that of the longest run,
        since each is warmed up. Unused seconds are given back, but a visitor with less than 1.5
        times as much left is refused.
        """
        took, info = self._seconds.get(request.model), self.offered()[request.model]
        small = info.published is None
        estimate = 2.0 if small else 2 + 0.006 * info.tokens
        per_method = estimate if took is None else 1 + 2 * took
        return min(
            MOST_LEASED,
            (SMALL_STARTS if small else LARGE_STARTS) + round(per_method * len(request.methods)),
        )


def _log(request: Request, outcomes: dict[str, str], seconds: float) -> None:
    kinds = {outcome.split(" ")[0] for outcome in outcomes.values()}
    _LOG.info(
        "run: model %s, seed %s, prompt %s, %s: %s; %.2f s on the device",
        request.model,
        request.seed,
        of_prompt(request.prompt),
        "stopped" if "stopped" in kinds else "failed" if "failed" in kinds else "done",
        ", ".join(f"{method} {outcome}" for method, outcome in outcomes.items()),
        seconds,
    )


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
