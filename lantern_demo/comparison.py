"""A comparison: every method is warmed up, then they race.

A race gives its methods equal slices of device time in rotation, so that whatever disturbs the machine disturbs all of them alike
and none pays for its place in the order. Each run has a cache, a clock and random numbers of its own, so its tokens are those of a
run alone. Where memory does not hold all runs at once they run one after the other, and their statistics say why.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from time import perf_counter
from typing import Protocol

import torch

from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.methods import Method
from lantern_demo.distortion import KEPT_BYTES
from lantern_demo.faults import in_words, out_of_memory
from lantern_demo.models.needs import no_room_to_race
from lantern_demo.models.registry import ModelInfo
from lantern_demo.models.text import Encoded
from lantern_demo.settings import Settings, smaller_tree
from lantern_demo.stats import Drawn, Generation, MethodFailed, Schedule
from lantern_demo.tree_fitting import Choice

SLICE_SECONDS = 0.08  # of decoding; a slice is one step at least
CROWDED = "the device ran out of memory with all methods at once"
ALONE: Schedule = "alone"
RACE: Schedule = "race"
IN_TURN: Schedule = "in turn"

Run = Generator[Step | Drawn | Generation, None, None]  # a run's steps, Drawn, and once it is resumed again its Generation
# (method id, event); None after a step of a warm-up: whoever steps through may stop in between.
RunEvents = Generator[tuple[str, Step | Drawn | Generation | MethodFailed | None], None, None]


def race(runs: dict[str, Run]) -> Generator[tuple[str, Step | Drawn | Exception], None, None]:
    """Give runs slices of `SLICE_SECONDS` in rotation until each has drawn its last token, or raised, which is an event too.

    A rotation takes every run up to the same decode seconds, so that one whose steps are longer than a slice gets no more than the
    others. Every rotation begins with another run, so that none is always the first.
    """
    left, rotation, end = list(runs), 0, 0.0
    spent = dict.fromkeys(runs, 0.0)
    while left:
        end = max(end, min(spent[name] for name in left)) + SLICE_SECONDS
        first = rotation % len(left)
        for name in left[first:] + left[:first]:
            while spent[name] < end:
                event: Step | Drawn | Exception
                try:
                    found = next(runs[name])
                    assert not isinstance(found, Generation)  # comes after Drawn
                    event = found
                except Exception as error:
                    event = error
                if not isinstance(event, Step):
                    left.remove(name)
                    yield name, event
                    break
                spent[name] = event.seconds
                yield name, event
        rotation += 1


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

    def encode(self, text: str) -> Encoded:
        """A prompt as the target's condition."""
        ...

    def warm_up(
        self, method: Method, knobs: Settings, encoded: Encoded, tree: Choice | None = None
    ) -> Generator[tuple[str, None], None, Choice]:
        """A few uncounted tokens with a method -> the tree to run it with."""
        ...

    def run(self, method: Method, knobs: Settings, text: str, tree: Choice, schedule: Schedule, schedule_reason: str) -> Run:
        """One run of a method."""
        ...


class Comparison:
    """Methods on one prompt, each with its settings. What is not drawn after `seconds` fails; None: never."""

    def __init__(self, pipe: Runner, methods: list[Method], knobs: dict[str, Settings], text: str, seconds: float | None) -> None:
        self.pipe, self.methods, self.knobs, self.text, self.seconds = pipe, methods, knobs, text, seconds

    def events(self) -> RunEvents:
        """Everything that happens, in order: see `Pipeline.compare`."""
        self.began = perf_counter()
        try:
            encoded = self.pipe.encode(self.text)
        except Exception as error:
            why = in_words(error, "the text encoder")
            for method in self.methods:
                yield method.id, MethodFailed(method.id, why)
            return
        ready: dict[str, Choice] = {}
        for method in self.methods:
            try:
                ready[method.id] = yield from self.pipe.warm_up(method, self.knobs[method.id], encoded)
            except Exception as error:  # one method's fault must not take the others' results with it
                yield method.id, MethodFailed(method.id, in_words(error, method.id))
        left, schedule, why = [method for method in self.methods if method.id in ready], ALONE, ""
        if len(left) > 1:
            pipe = self.pipe
            crowded = no_room_to_race(pipe.info, pipe.device, pipe.dtype, len(left), pipe.idle_engines, KEPT_BYTES)
            if crowded is None:
                left = yield from self._race(left, ready)
                crowded = CROWDED
            schedule, why = IN_TURN, crowded
        for method in left:
            yield from self._by_itself(method, ready[method.id], encoded, schedule, why)

    def _race(
        self, methods: list[Method], trees: dict[str, Choice]
    ) -> Generator[tuple[str, Step | Drawn | Generation | MethodFailed], None, list[Method]]:
        """Race methods -> those that have to run once more, one after the other, since memory did not hold all of them."""
        runs = {m.id: self.pipe.run(m, self.knobs[m.id], self.text, trees[m.id], RACE, "") for m in methods}
        left, drawn, late = {m.id: m for m in methods}, [], False
        try:
            with closing(race(runs)) as events:
                for name, event in events:
                    if isinstance(event, Exception):
                        if out_of_memory(event):
                            break
                        del left[name]
                        yield name, MethodFailed(name, in_words(event, name))
                        continue
                    if isinstance(event, Drawn):
                        del left[name]
                        drawn.append(name)
                    yield name, event
                    late = isinstance(event, Step) and self._late()
                    if late:
                        break
            event = None  # type: ignore[assignment]  # a fault keeps alive what its run had allocated
            for name in left:
                runs[name].close()
            for name in runs:
                if name in drawn:
                    yield from self._rest(name, runs[name])
        finally:
            for run in runs.values():
                run.close()
        if late:
            for name in left:
                yield name, self._out_of_time(name)
            return []
        if left:
            self.pipe.make_room()
        return list(left.values())

    def _rest(self, name: str, run: Run) -> Generator[tuple[str, Step | Drawn | Generation | MethodFailed], None, None]:
        """What a run has left to do once it has drawn."""
        try:
            for event in run:
                yield name, event
        except Exception as error:
            yield name, MethodFailed(name, in_words(error, name))

    def _by_itself(self, method: Method, tree: Choice, encoded: Encoded, schedule: Schedule, why: str) -> RunEvents:
        """Run a method that is warm; where memory does not suffice, once more with a smaller tree."""
        warm = True
        while not self._late():
            try:
                if not warm:
                    tree = yield from self.pipe.warm_up(method, self.knobs[method.id], encoded, tree)
                with closing(self.pipe.run(method, self.knobs[method.id], self.text, tree, schedule, why)) as run:
                    for event in run:
                        yield method.id, event
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
    """What to draft with instead where a tree was too large for the memory; None for another fault, or where nothing is smaller."""
    policy = smaller_tree(method)
    if not out_of_memory(error) or method.alone or (tree is not None and tree.policy.nodes <= policy.nodes):
        return None
    return Choice(policy, "small: the device ran out of memory with the tree that was asked for")
