"""Draw a prompt with one method, or compare several: the public Python API."""

from __future__ import annotations

import asyncio
import gc
import threading
import unicodedata
from collections.abc import Generator, Hashable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, NamedTuple, NoReturn

import torch

from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import DraftConfig, DynamicTree, StaticTree
from lantern_demo.decoding.evidence import with_evidence
from lantern_demo.decoding.graphs import Runners
from lantern_demo.decoding.loop import Decoded, Step, decode, key_of
from lantern_demo.decoding.methods import METHODS, Method, default_method, default_methods
from lantern_demo.decoding.rules import columns
from lantern_demo.decoding.timing import Clock
from lantern_demo.decoding.window import Window
from lantern_demo.faults import NotAllowed, in_words, out_of_memory
from lantern_demo.models import bundled, prepare
from lantern_demo.models.checkpoints import no_room_to_race
from lantern_demo.models.device import device_name, pick_threads
from lantern_demo.models.llama import Condition
from lantern_demo.models.registry import ModelInfo
from lantern_demo.models.text import Encoded
from lantern_demo.prompt_words import USUAL, Completed, check_length, completed, phrasebook, visible
from lantern_demo.runs.images import Images
from lantern_demo.runs.race import Event, Limit, Request, Rotation, RunEvents
from lantern_demo.runs.record import Noise, Record, Schedule, kept_of, twin_settings
from lantern_demo.runs.result import Machine, MethodFailed, Result
from lantern_demo.settings.knobs import lists_settings, repeats_of
from lantern_demo.settings.named_trees import drafts_by_device
from lantern_demo.settings.settings import (
    Planned,
    Settings,
    drafts_of,
    kept_rows,
    method_of,
    methods_of,
    planned,
    settings_of,
)
from lantern_demo.torch_defaults import own_defaults

CROWDED = "the device ran out of memory with all methods at once"
WARM_UP_TOKENS = 12
MOST_WARM = 256  # warm-ups that are remembered: anybody may ask for any tree
# the `Pipeline._run` that this context advanced last
_AT_WORK: ContextVar[object] = ContextVar("at_work", default=None)


class Read(NamedTuple):
    """A prompt as the target's condition, and the seconds that this took."""

    prompt: str
    completed: Completed  # the caption drawn for it
    unknown: list[str]  # words of the prompt that the model does not know
    encoded: Encoded
    seconds: float


class Pipeline:
    """One loaded model on one device: it checks input, draws prompts and compares methods.

    Runs take turns: a caller in another thread waits for the previous run. A caller in the same
    thread would wait for ever, and gets a RuntimeError.
    """

    def __init__(
        self,
        info: ModelInfo,
        networks: bundled.Networks,
        device: torch.device,
        dtype: str,
        threads: int | None = None,
    ) -> None:
        self.info = info
        self.networks = networks
        self.device = device
        self.dtype = dtype
        self.defaults = Settings(**info.preset)
        small = prepare.small_on_cpu(networks, device)
        self.threads = pick_threads(threads, device, small)
        self.images = Images(info, networks, device, self.threads)
        with self.threads.used():
            ready = prepare.prepared(networks, device, dtype)
        self.target = ready.target
        self.drafter = ready.drafter
        self.ops = ready.ops
        self.products = ready.products or f"{dtype} products, as PyTorch chooses"
        if device.type == "cpu":
            # So the bundled model's picture takes 90 ms instead of 112, on one core of an EPYC.
            decoders: list[Any] = [networks.tokenizer.vq.decoder, networks.picture]
            for decoder in filter(None, decoders):
                decoder.to(memory_format=torch.channels_last)
        self._default_drafts = drafts_by_device(networks.trees)[device.type]
        for drafts in (StaticTree, DynamicTree, Window):  # within the limits of a request
            Settings(**settings_of(drafts_of(drafts, Settings(), self._default_drafts)[0]))
        # what was warmed up: method, drafts, kind of sampling, noise and kept tokens; the longest
        # unused first
        self._warm: dict[tuple[str, DraftConfig, tuple[bool, ...], str, int], None] = {}
        self._runners = Runners()
        self._read: Read | None = None  # see `read`
        self._turn = threading.Lock()  # see `turn`
        self._at_work: int | None = None  # the thread that last advanced the current run
        self._run: object = None  # stands for the current run

    def __repr__(self) -> str:
        return f"<Pipeline of {self.info.id}: {self.dtype} on {self.machine.device}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Pipeline cannot be copied or pickled; load the model in each process")

    @property
    def machine(self) -> Machine:
        """Where this pipeline computes, and how."""
        threads = self.threads
        with threads.used():
            name = device_name(self.device)
        return Machine(name, self.dtype, self.products, threads.count, threads.reason)

    # -- the turn

    @property
    def busy(self) -> bool:
        """Whether somebody has the turn."""
        return self._turn.locked()

    @contextmanager
    def turn(self, wait: bool = True) -> Iterator[bool]:
        """Have the device alone: others wait for their turn, or without `wait` get False.

        Nothing else keeps two runs apart. `generate`, `stream` and `compare` take the turn
        themselves, and would wait for ever inside it. Raises RuntimeError in a thread whose own run
        is still open.
        """
        if wait and self.busy and self._would_wait_for_itself():
            raise RuntimeError(
                "a run of this pipeline is still open in this thread; "
                "go through its events to the end, or close it"
            )
        mine = self._turn.acquire(blocking=wait)
        if mine:
            self._run = object()
        try:
            yield mine
        finally:
            if mine:
                self._at_work = None
                self._turn.release()

    def _works_here(self) -> None:
        """Note that the current run was last advanced in this thread and context."""
        self._at_work = threading.get_ident()
        _AT_WORK.set(self._run)

    def _would_wait_for_itself(self) -> bool:
        """Return whether the current run can be advanced only from here.

        Servers give a thread of a pool to one client after the other, each with a context of its
        own: another thread may advance the run. In an event loop all contexts share one thread.
        """
        if self._at_work != threading.get_ident():
            return False
        with suppress(RuntimeError):
            asyncio.get_running_loop()
            return True
        return _AT_WORK.get() is self._run

    # -- inputs

    def settings(self, **changes: Any) -> Settings:
        """Return the model's preset with some values changed.

        Raises NotAllowed for an unknown name or a value not allowed.
        """
        return self.defaults.with_changes(**changes)

    def check_prompt(self, prompt: Any) -> str:
        """Return the prompt, stripped, for a model of few words without invisible characters.

        Raises NotAllowed when it is empty, too long or not text that can be written down.
        """
        if not isinstance(prompt, str):
            raise NotAllowed("prompt", f"must be text, got {type(prompt).__name__}")
        known = phrasebook(self.info) is not None  # a model of any text reads them
        text = " ".join((visible(prompt) if known else prompt).split())
        if not text:
            raise NotAllowed("prompt", f"is empty; say what to draw, for example: {USUAL}")
        check_length(self.info, text)
        # text files cannot hold control characters and half surrogate pairs
        if bad := next((c for c in text if unicodedata.category(c) in ("Cc", "Cs")), None):
            got = f"got U+{ord(bad):04X}"
            raise NotAllowed("prompt", f"must be text without control characters, {got}")
        self.networks.text.check(text)
        return text

    @property
    def available_methods(self) -> list[str]:
        """The ids of the methods that can decode with this model."""
        drafter = self.networks.drafter is not None
        return [name for name, method in METHODS.items() if drafter or not method.needs_drafter]

    @property
    def default_methods(self) -> list[str]:
        """The available methods for a comparison that names no methods."""
        return default_methods(METHODS[name] for name in self.available_methods)

    def check_methods(self, methods: list[Method]) -> list[Method]:
        """Return the methods. Raises NotAllowed when this model cannot decode with one of them."""
        for method in methods:
            if method.id not in self.available_methods:
                allowed = ", ".join(self.available_methods)
                why = f"must be one of {allowed} where the model has no drafter, got {method.id!r}"
                raise NotAllowed("method", why)
        return methods

    def request(
        self,
        prompt: Any,
        methods: Any = None,
        trees: dict[str, dict[str, Any]] | None = None,
        keep: Any = None,
        **settings: Any,
    ) -> Request:
        """Check the values of a comparison. methods None means the default ones.

        `trees` are settings of some methods' draft trees that differ from the others'. `keep` has
        the token ids of the upper rows of a picture, where only the rest is to be drawn. Raises
        NotAllowed for a value that is not allowed, and NotDrawn for a prompt that the model cannot
        draw.
        """
        asked = self.check_prompt(prompt)
        completed(self.info, asked)  # or it is refused
        chosen = methods_of(self.default_methods if methods is None else methods)
        common = self.settings(**settings)
        common.dynamic_shape(self._default_drafts.dynamic)  # or it is refused
        self.check_methods(chosen)
        own = {name: common.with_changes(**tree) for name, tree in (trees or {}).items()}
        kept = kept_rows(keep, self.info.grid, self.target.vocab_size)
        runs = {
            one.id: replace(self.planned(one, own.get(one.id, common)), keep=kept) for one in chosen
        }
        return Request(self.info.id, asked, runs)

    def planned(self, method: Method, settings: Settings) -> Planned:
        """Decide the drafts and the rule of a method here.

        Raises NotAllowed for a method whose drafts or rule cannot be made.
        """
        try:
            return planned(method, settings, self._default_drafts)
        except NotAllowed:
            raise
        except Exception as error:  # in a class from outside the package
            why = f"{method.id} cannot be set up: {in_words(error, method.id)}"
            raise NotAllowed("method", why) from error

    # -- drawing

    @lists_settings
    def generate(
        self,
        prompt: str,
        method: str | None = None,
        *,
        keep: Sequence[int] | None = None,
        **settings: Any,
    ) -> Result:
        """Draw a prompt with one method: by default LANTERN++, or SJD without a drafter.

        `keep` are the tokens of the upper rows of a picture, such as `result.upper(6)`: only the
        rest is drawn. Raises ValueError with a sentence for a value that is not allowed.
        """
        *_, last = self.stream(prompt, method, keep=keep, **settings)
        assert isinstance(last, Result)
        return last

    def __call__(
        self, prompt: str | list[str], method: str | None = None, **settings: Any
    ) -> Result | list[Result]:
        """Draw as `generate`. A list of prompts gives a list."""
        if isinstance(prompt, list):
            return [self.generate(one, method, **settings) for one in prompt]
        return self.generate(prompt, method, **settings)

    def twin(self, record: Record | Result, method: str) -> Result:
        """Draw a relaxed method's run again by the exact rule, with its tree and random numbers.

        `record`: of the run, or its result. The tokens equal the method's up to the first draft to
        which neighbours lent probability. Raises ValueError for a method without such a bound, or
        that the record does not have, and for a record of another model.
        """
        record = record.record if isinstance(record, Result) else record
        if (model := record["model"]["id"]) != self.info.id:
            raise NotAllowed(
                "record", f"must be of {self.info.id}, which draws here, got {model!r}"
            )
        settings, trees = twin_settings(record, method)
        keep = kept_of(record["methods"][method])
        return self.generate(record["prompt"], method, keep=keep, **settings, **trees[method])

    def stream(
        self,
        prompt: str,
        method: str | None = None,
        *,
        keep: Sequence[int] | None = None,
        **settings: Any,
    ) -> Iterator[Step | Result]:
        """As `generate`, but yield a Step per step and the Result last.

        Closing it stops within a step, on a GPU within the few that are in flight.
        """
        lacking = {*METHODS} - {*self.available_methods}
        chosen = default_method(lacking) if method is None else method_of(method).id
        return self._stream(self.request(prompt, [chosen], keep=keep, **settings))

    def _stream(self, request: Request) -> Iterator[Step | Result]:
        with self.turn(), closing(self.race(request)) as events:
            for _, event in events:
                if isinstance(event, MethodFailed):
                    raise RuntimeError(event.message)
                if event is not None:
                    yield event

    @lists_settings
    def compare(
        self,
        prompt: str,
        methods: list[str] | None = None,
        *,
        repeats: int = 1,
        keep: Sequence[int] | None = None,
        **settings: Any,
    ) -> Generator[tuple[str, Event], None, None]:
        """Race methods on this device, each warmed up before the first is timed.

        Yields (method id, event): a Step per step, and last its Result; or MethodFailed when it
        raised. Without methods the available default ones run. Raises ValueError at the call for
        bad input. If memory does not hold all methods at once, they start again one after the
        other, with steps counted from 0. With `repeats` the same race runs so often, and each
        yields its events. `keep` is that of `generate`, for all methods.
        """
        request = self.request(prompt, methods, keep=keep, **settings)
        return self._races(request, repeats_of(repeats))

    def _races(self, request: Request, count: int) -> Generator[tuple[str, Event], None, None]:
        for _ in range(count):
            with self.turn(), closing(self.race(request)) as events:
                for method, event in events:
                    if event is not None:
                        yield method, event

    def race(self, request: Request, seconds: float | None = None) -> RunEvents:
        """As `compare`, but also yield None for an event after every step of the warm-up.

        So a caller, who has the `turn`, may stop in between. Methods that are not done after
        `seconds` fail.
        """
        self._works_here()
        limit = Limit(seconds)
        try:
            read = self.read(request.prompt)
        except Exception as error:
            why = in_words(error, "the text encoder")
            yield from ((name, MethodFailed(name, why)) for name in request.methods)
            return
        left = list[str]()
        for name in request.methods:
            try:
                yield from self.warm_up(request.runs[name], read)
                left.append(name)
            # one method's fault must not take the others' results with it
            except Exception as error:
                yield name, MethodFailed(name, in_words(error, name))

        alone, why = len(left) == 1, self._why_in_turn(request, left)
        while left:
            schedule: Schedule = "alone" if alone else "in turn" if why else "race"
            heat = left[:1] if why else left
            drawings = {
                name: Drawing(self, request.runs[name], read, schedule, why) for name in heat
            }
            rotation = Rotation(heat)
            try:
                while rotation.spent:
                    name = rotation.next()
                    event: Event
                    try:
                        event = drawings[name].next()
                    except Exception as error:
                        if schedule == "race" and out_of_memory(error):
                            break
                        event = MethodFailed(name, in_words(error, name))
                    if isinstance(event, Step):
                        rotation.spent[name] = event.seconds
                    else:
                        del rotation.spent[name]
                        left.remove(name)
                    yield name, event
                    if isinstance(event, Step) and limit.over():
                        yield from map(limit.failure, left)
                        return
            finally:
                for drawing in drawings.values():
                    drawing.close()
            if rotation.spent:  # memory did not hold all at once
                self.make_room()
                why = CROWDED

    # -- parts of a race

    def _why_in_turn(self, request: Request, names: list[str]) -> str:
        """Return why methods cannot race; empty if they can, and for one alone."""
        if len(names) < 2:
            return ""
        keys = list[Hashable]()
        for name in names:
            with suppress(Exception):  # its drawing reports it
                config = self.config(request.runs[name])
                keys.append(key_of(self.target, self.drafter, config))
        kept = self._runners.fitting(keys)
        return no_room_to_race(self.info, self.device, self.dtype, len(names), kept) or ""

    def make_room(self) -> None:
        """Release all memory that no current run needs."""
        self._runners.clear()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    @own_defaults()
    @torch.inference_mode()
    def read(self, prompt: str) -> Read:
        """Complete a checked prompt, and encode it as the target's condition.

        A published model encodes the same prompt once for consecutive comparisons.
        """
        if self._read is not None and self._read.prompt == prompt:
            return self._read
        clock = Clock(self.device)
        done = completed(self.info, prompt)
        with self.threads.used():
            with clock.measure("text"):
                encoded = self.networks.text.encode(done.prompt)
            same = done.prompt == prompt
            unknown = (encoded if same else self.networks.text.encode(prompt)).unknown
        if (book := phrasebook(self.info)) is not None:
            unknown = book.unread(unknown)
        found = Read(prompt, done, unknown, encoded, clock.seconds["text"])
        if self.info.published is not None:
            self._read = found
        return found

    def warm_up(self, plan: Planned, read: Read) -> Iterator[tuple[str, None]]:
        """Draw a few uncounted tokens with a method, once for each tree, kind of sampling and
        number of kept tokens; yield between steps.
        """
        method, settings, kept = plan.method.id, plan.settings, len(plan.keep)
        s = settings.sampling()
        kind = (s.greedy, s.top_k > 0, s.top_p < 1, s.cfg_scale != 1)
        key = (method, plan.drafts, kind, settings.noise, kept)
        if key in self._warm:
            self._warm[key] = self._warm.pop(key)
            return
        config, condition = self.prepared(plan, read.encoded)
        few = replace(config, num_tokens=min(kept + WARM_UP_TOKENS, self.info.tokens))
        clock, models = Clock(self.device), (self.target, self.drafter)
        with closing(decode(*models, condition, few, clock, self._runners)) as steps:
            while isinstance(self.advance(steps), Step):
                yield method, None
        self.images.decode([0] * self.info.tokens)
        self._warm[key] = None
        while len(self._warm) > MOST_WARM:
            del self._warm[next(iter(self._warm))]

    def prepare(self) -> None:
        """Warm up every method before any visitor's run.

        It depends on no request: the prompt is always the same, and the settings are the preset's.
        """
        with self.turn():
            read = self.read(USUAL)
            for name in self.available_methods:
                try:
                    for _ in self.warm_up(self.planned(METHODS[name], self.defaults), read):
                        pass
                # such as too little memory: a run with the method reports it
                except Exception as error:
                    in_words(error, name)

    def advance(self, steps: Iterator[Step | Decoded]) -> Step | Decoded:
        """Take the next step in the thread that asks for it. A fault leaves no idle runner.

        Between two steps thread, number of helpers and PyTorch's defaults are the caller's.
        """
        self._works_here()
        try:
            with self.threads.used(), own_defaults():
                return next(steps)
        except Exception:
            self.make_room()
            raise

    @own_defaults()
    def prepared(self, plan: Planned, encoded: Encoded) -> tuple[Config, Condition]:
        """Return the configuration of a run and the target's condition."""
        guided = plan.settings.cfg_scale != 1
        with self.threads.used(), torch.inference_mode():
            condition = self.networks.target.condition(encoded.features, encoded.mask, guided)
        return self.config(plan), condition

    def config(self, plan: Planned) -> Config:
        """Return the configuration of a run."""
        settings = plan.settings
        return Config(
            self.info.tokens,
            settings.sampling(),
            plan.rule,
            plan.drafts,
            self.images.neighbours(settings.neighbours) if columns(plan.rule) else None,
            settings.seed,
            self.device,
            room=self.info.tokens,
            noise=settings.noise,
            ops=self.ops,
            keep=plan.keep,
        )


class Drawing:
    """A picture that a warm method draws. schedule and why: as in `Result`."""

    def __init__(
        self, pipe: Pipeline, plan: Planned, read: Read, schedule: Schedule, why: str
    ) -> None:
        self.pipe, self.plan, self.read = pipe, plan, read
        self.schedule, self.why = schedule, why
        self.clock, self.history = Clock(pipe.device), list[Step]()
        self.clock.seconds["text"] = read.seconds
        self.steps: Generator[Step | Decoded, None, None] | None = None  # made with the first one
        self.noise: Noise

    def next(self) -> Step | Result:
        """Take a step, or return the result after the last one."""
        pipe = self.pipe
        if self.steps is None:
            config, condition = pipe.prepared(self.plan, self.read.encoded)
            self.noise, models = config.noise_used, (pipe.target, pipe.drafter)
            self.steps = decode(*models, condition, config, self.clock, pipe._runners)
        outcome = pipe.advance(self.steps)
        if isinstance(outcome, Decoded):
            self.close()  # else its caches would stay until the others are done
            return self._result(outcome)
        if outcome.index == 0:  # also of a run that restarts after an error of a kernel
            self.history.clear()
        self.history.append(with_evidence(outcome))  # outside the clock
        return self.history[-1]

    def close(self) -> None:
        """End the steps, finished or not."""
        if self.steps is not None:
            self.steps.close()

    def _result(self, decoded: Decoded) -> Result:
        pipe, read, done = self.pipe, self.read, self.read.completed
        image, self.clock.seconds["image"] = pipe.images.timed(decoded.tokens)
        return Result(
            **vars(decoded) | {"seconds": dict(self.clock.seconds)},
            method=self.plan.method.id,
            image=image,
            history=self.history,
            tree=self.plan.tree,
            tree_settings=settings_of(self.plan.drafts),
            noise=self.noise,
            schedule=self.schedule,
            schedule_reason=self.why,
            machine=pipe.machine,
            task={
                "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
                "model": {
                    "id": pipe.info.id,
                    "trained": pipe.networks.trained,
                    "preset": dict(pipe.info.preset),
                    "sources": pipe.networks.sources,
                },
                "prompt": read.prompt,
                "unknown_words": read.unknown,
                "completed": done.prompt if done.prompt != read.prompt else None,
                "warning": done.why,
                "settings": self.plan.settings.as_dict(),
            },
        )
