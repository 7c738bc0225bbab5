"""Run a comparison: warm up every method, then give the methods equal slices of device time in
rotation.

So a disturbance of the machine affects all methods equally, and no method pays for its position in
the order. Each run has a separate cache, clock and random numbers, so its tokens are those of a run
alone. If memory does not hold all runs at once, they run one after the other, and their statistics
state why. A race calls its session; a session knows of no race.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.methods import METHODS
from lantern_demo.faults import in_words, out_of_memory
from lantern_demo.models.checkpoints import no_room_to_race
from lantern_demo.runs.session import Run, Session, smaller_choice
from lantern_demo.runs.stats import Generation, MethodFailed, Schedule
from lantern_demo.settings.drafts import Choice
from lantern_demo.settings.settings import Settings

SLICE_SECONDS = 0.08  # of decoding; a slice is at least one step
CROWDED = "the device ran out of memory with all methods at once"

Event = Step | Generation | MethodFailed
# (method id, event); None after a step of a warm-up, so that a caller may stop in between.
RunEvents = Generator[tuple[str, Event | None], None, None]


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
        return replace(
            self,
            settings={method: own.with_changes(seed=seed) for method, own in self.settings.items()},
        )


class Rotation:
    """Return the run that has the next slice: runs have slices of `SLICE_SECONDS` in rotation until
    each is out.

    A rotation takes every run to the same decode seconds, so that a run with steps longer than a
    slice gets no more than the others. Every rotation begins with another run, so that no run is
    always the first.
    """

    def __init__(self, runs: Iterable[str]) -> None:
        self.spent = dict.fromkeys(runs, 0.0)  # decode seconds of the runs that are not out
        self._waiting: list[str] = []  # runs still waiting in this rotation, the current one first
        self._rotations, self._end = 0, 0.0

    def next(self) -> str:
        """Return the run that has the current slice. At least one run must be left."""
        while True:
            while self._waiting:
                if self.spent.get(self._waiting[0], self._end) < self._end:
                    return self._waiting[0]
                del self._waiting[0]
            left, first = list(self.spent), self._rotations % len(self.spent)
            self._end = max(self._end, min(self.spent.values())) + SLICE_SECONDS
            self._waiting, self._rotations = left[first:] + left[:first], self._rotations + 1


@dataclass(frozen=True)
class Limit:
    """The seconds that a comparison may take; None: no limit."""

    seconds: float | None
    # looked up at each call, so that tests can replace it
    began: float = field(default_factory=lambda: perf_counter())

    def over(self) -> bool:
        return self.seconds is not None and perf_counter() - self.began > self.seconds

    def failure(self, method: str) -> tuple[str, MethodFailed]:
        """Return the event of a method that was not done in time."""
        told = f"A run may take {self.seconds:g} seconds here, and they were over. Ask for fewer methods or a smaller draft tree."
        return method, MethodFailed(method, told)


def race(session: Session, request: Request, seconds: float | None = None) -> RunEvents:
    """Yield all events of a comparison, in order: see `Pipeline.compare`.

    Methods that are not done after `seconds` fail.
    """
    with session.turn():
        limit = Limit(seconds)
        try:
            read = session.read(request.prompt)
        except Exception as error:
            told = in_words(error, "the text encoder")
            yield from ((name, MethodFailed(name, told)) for name in request.methods)
            return

        def warm_up(
            name: str, tree: Choice | None = None
        ) -> Generator[tuple[str, None], None, Choice]:
            return session.warm_up(METHODS[name], request.settings[name], read, tree)

        def run(name: str, tree: Choice, schedule: Schedule, why: str = "") -> Run:
            return session.run(METHODS[name], request.settings[name], read, tree, schedule, why)

        trees: dict[str, Choice] = {}
        for name in request.methods:
            try:
                trees[name] = yield from warm_up(name)
            # one method's fault must not take the others' results with it
            except Exception as error:
                yield name, MethodFailed(name, in_words(error, name))
        left, why = list(trees), ""
        schedule: Schedule = "alone"
        if len(left) > 1:
            why = (
                no_room_to_race(
                    session.info, session.device, session.dtype, len(left), session.idle_runners
                )
                or ""
            )
            if not why:
                left = yield from _rotate(
                    {name: run(name, tree, "race") for name, tree in trees.items()}, limit
                )
                why = CROWDED
                if left:
                    session.make_room()
            schedule = "in turn"
        for name in left:
            yield from _run_alone(
                session, name, trees[name], warm_up, partial(run, schedule=schedule, why=why), limit
            )


def _rotate(runs: dict[str, Run], limit: Limit) -> Generator[tuple[str, Event], None, list[str]]:
    """Race runs.

    Return those that must run again, one after the other, because memory did not hold all of them.
    """
    rotation = Rotation(runs)
    try:
        while rotation.spent:
            name = rotation.next()
            event: Event
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
            if isinstance(event, Step) and limit.over():
                yield from map(limit.failure, rotation.spent)
                return []
    finally:
        for run in runs.values():
            run.close()
    return list(rotation.spent)


def _run_alone(
    session: Session,
    name: str,
    tree: Choice,
    warm_up: Callable[[str, Choice], Generator[tuple[str, None], None, Choice]],
    run: Callable[[str, Choice], Run],
    limit: Limit,
) -> RunEvents:
    """Run a warm method. If memory runs out, run it again with a smaller tree."""
    warm = True
    while not limit.over():
        try:
            if not warm:
                tree = yield from warm_up(name, tree)
            with closing(run(name, tree)) as events:
                for event in events:
                    yield name, event
                    if isinstance(event, Step) and limit.over():
                        break
                else:
                    return
            break
        except Exception as error:
            smaller = smaller_choice(METHODS[name], tree, error)
            failed = in_words(error, name)
        if smaller is None:
            yield name, MethodFailed(name, failed)
            return
        session.make_room()  # outside the handler, which kept the run's allocations alive
        tree, warm = smaller, False
    yield limit.failure(name)
