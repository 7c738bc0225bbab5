"""A comparison: every method is warmed up, then they race.

A race gives its methods equal slices of device time in rotation, so that whatever disturbs the machine disturbs all of them alike
and none pays for its place in the order. Each run has a cache, a clock and random numbers of its own, so its tokens are those of
a run alone. Where memory does not hold all runs at once they run one after the other, and their statistics say why.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, replace
from time import perf_counter
from typing import NamedTuple, Protocol

import torch

from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.faults import in_words, out_of_memory
from lantern_demo.models.files.needs import no_room_to_race
from lantern_demo.models.registry import ModelInfo
from lantern_demo.models.text import Encoded
from lantern_demo.runs.fitting import Choice
from lantern_demo.runs.stats import Generation, MethodFailed, Schedule
from lantern_demo.settings.drafts import smaller_drafts
from lantern_demo.settings.settings import Settings

SLICE_SECONDS = 0.08  # of decoding; a slice is one step at least
CROWDED = "the device ran out of memory with all methods at once"
ALONE: Schedule = "alone"
RACE: Schedule = "race"
IN_TURN: Schedule = "in turn"

Run = Generator[Step | Generation, None, None]  # a run's steps, then its Generation
# (method id, event); None after a step of a warm-up: whoever steps through may stop in between.
RunEvents = Generator[tuple[str, Step | Generation | MethodFailed | None], None, None]


@dataclass(frozen=True)
class Request:
    """A checked comparison of methods, each with its settings, on one prompt and model."""

    model: str
    prompt: str
    settings: dict[str, Settings]  # by method, in the order they run

    @property
    def methods(self) -> list[str]:
        return list(self.settings)

    @property
    def seed(self) -> int:
        return next(iter(self.settings.values())).seed

    def with_seed(self, seed: int) -> Request:
        return replace(self, settings={method: own.with_changes(seed=seed) for method, own in self.settings.items()})


class Read(NamedTuple):
    """A prompt as the target's condition, and the seconds that this took."""

    prompt: str
    encoded: Encoded
    seconds: float


class Rotation:
    """Whose turn it is: runs have slices of `SLICE_SECONDS` in rotation until each is out.

    A rotation takes every run up to the same decode seconds, so that one whose steps are longer than a slice gets no more than
    the others. Every rotation begins with another run, so that none is always the first.
    """

    def __init__(self, runs: Iterable[str]) -> None:
        self.spent = dict.fromkeys(runs, 0.0)  # decode seconds of those that are not out
        self._waiting: list[str] = []  # in this rotation, the one whose slice it is first
        self._rotations, self._end = 0, 0.0

    def next(self) -> str:
        """The run whose slice it is. At least one must be left."""
        while True:
            while self._waiting:
                if self.spent.get(self._waiting[0], self._end) < self._end:
                    return self._waiting[0]
                del self._waiting[0]
            left, first = list(self.spent), self._rotations % len(self.spent)
            self._end = max(self._end, min(self.spent.values())) + SLICE_SECONDS
            self._waiting, self._rotations = left[first:] + left[:first], self._rotations + 1


class Runner(Protocol):
    """What a comparison needs of a pipeline."""

    info: ModelInfo
    device: torch.device
    dtype: str

    @property
    def idle_engines(self) -> int:
        """For how many runs there is memory set aside."""
        ...

    def make_room(self) -> None:
        """Give back all memory that no run needs just now."""
        ...

    def turn(self) -> AbstractContextManager[None]:
        """No other run of the pipeline is open meanwhile."""
        ...

    def go_on(self) -> None:
        """Make the thread that goes on behind a yield compute as the pipeline was told."""
        ...

    def read(self, prompt: str) -> Read:
        """A prompt as the target's condition."""
        ...

    def warm_up(
        self, method: Method, settings: Settings, read: Read, tree: Choice | None = None
    ) -> Generator[tuple[str, None], None, Choice]:
        """A few uncounted tokens with a method -> the tree to run it with."""
        ...

    def run(self, method: Method, settings: Settings, read: Read, tree: Choice, schedule: Schedule, schedule_reason: str) -> Run:
        """One run of a method."""
        ...


class Race:
    """A comparison on a pipeline. What is not drawn after `seconds` fails; None: never."""

    def __init__(self, pipe: Runner, request: Request, seconds: float | None) -> None:
        self.pipe, self.request, self.seconds = pipe, request, seconds

    def events(self) -> RunEvents:
        """Everything that happens, in order: see `Pipeline.compare`."""
        with self.pipe.turn():
            self.began = perf_counter()
            methods = [METHODS[name] for name in self.request.methods]
            try:
                self.read = self.pipe.read(self.request.prompt)
            except Exception as error:
                why = in_words(error, "the text encoder")
                for method in methods:
                    yield method.id, MethodFailed(method.id, why)
                return
            ready: dict[str, Choice] = {}
            for method in methods:
                try:
                    ready[method.id] = yield from self.pipe.warm_up(method, self.request.settings[method.id], self.read)
                except Exception as error:  # one method's fault must not take the others' results with it
                    yield method.id, MethodFailed(method.id, in_words(error, method.id))
            left, schedule, why = [method for method in methods if method.id in ready], ALONE, ""
            if len(left) > 1:
                pipe = self.pipe
                crowded = no_room_to_race(pipe.info, pipe.device, pipe.dtype, len(left), pipe.idle_engines)
                if crowded is None:
                    left = yield from self._race(left, ready)
                    crowded = CROWDED
                schedule, why = IN_TURN, crowded
            for method in left:
                yield from self._by_itself(method, ready[method.id], schedule, why)

    def _run(self, method: Method, tree: Choice, schedule: Schedule, why: str) -> Run:
        return self.pipe.run(method, self.request.settings[method.id], self.read, tree, schedule, why)

    def _race(
        self, methods: list[Method], trees: dict[str, Choice]
    ) -> Generator[tuple[str, Step | Generation | MethodFailed], None, list[Method]]:
        """Race methods -> those that have to run once more, one after the other, since memory did not hold all of them."""
        runs = {m.id: self._run(m, trees[m.id], RACE, "") for m in methods}
        rotation, late = Rotation(runs), False
        try:
            while rotation.spent and not late:
                self.pipe.go_on()
                name = rotation.next()
                event: Step | Generation | MethodFailed
                try:
                    event = next(runs[name])
                except Exception as error:
                    if out_of_memory(error):
                        break
                    event = MethodFailed(name, in_words(error, name))
                if isinstance(event, Step):
                    rotation.spent[name] = event.seconds
                else:
                    del rotation.spent[name]
                yield name, event
                late = isinstance(event, Step) and self._late()
        finally:
            for run in runs.values():
                run.close()
        if late:
            for name in rotation.spent:
                yield name, self._out_of_time(name)
            return []
        if rotation.spent:
            self.pipe.make_room()
        return [method for method in methods if method.id in rotation.spent]

    def _by_itself(self, method: Method, tree: Choice, schedule: Schedule, why: str) -> RunEvents:
        """Run a method that is warm; where memory does not suffice, once more with a smaller tree."""
        warm = True
        while not self._late():
            try:
                self.pipe.go_on()
                if not warm:
                    tree = yield from self.pipe.warm_up(method, self.request.settings[method.id], self.read, tree)
                with closing(self._run(method, tree, schedule, why)) as run:
                    for event in run:
                        yield method.id, event
                        self.pipe.go_on()
                        if isinstance(event, Step) and self._late():
                            break
                    else:
                        return
                    break
            except Exception as error:
                smaller = smaller_choice(method, tree, error)
                failed = in_words(error, method.id)
            if smaller is None:
                yield method.id, MethodFailed(method.id, failed)
                return
            self.pipe.make_room()  # out of the handler, which kept what the run had allocated
            tree, warm = smaller, False
        yield method.id, self._out_of_time(method.id)

    def _late(self) -> bool:
        return self.seconds is not None and perf_counter() - self.began > self.seconds

    def _out_of_time(self, method: str) -> MethodFailed:
        return MethodFailed(
            method,
            f"A run may take {self.seconds:g} seconds here, and they were over. Ask for fewer methods or a smaller draft tree.",
        )


def smaller_choice(method: Method, tree: Choice | None, error: Exception) -> Choice | None:
    """What to draft with instead where a tree was too large for the memory; None for another fault, or where nothing is
    smaller."""
    policy = smaller_drafts(method)
    if not out_of_memory(error) or method.alone or (tree is not None and tree.policy.nodes <= policy.nodes):
        return None
    return Choice(policy, "small: the device ran out of memory with the tree that was asked for")
