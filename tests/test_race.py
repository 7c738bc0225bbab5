"""The race: equal slices in rotation, a run's tokens, and what happens where it cannot be run."""

import asyncio
import inspect
import math
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from contextvars import copy_context
from functools import partial
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
import torch
from tiny import awaited, ran, spied

from lantern_demo import load
from lantern_demo.decoding import timing
from lantern_demo.decoding.graphs import Runners
from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.timing import Clock
from lantern_demo.models import checkpoints, device
from lantern_demo.models.registry import REGISTRY
from lantern_demo.runs import pipeline, race
from lantern_demo.runs.pipeline import Drawing, Pipeline
from lantern_demo.runs.race import SLICE_SECONDS, Rotation
from lantern_demo.runs.result import MethodFailed, Result
from lantern_demo.ui.service import Service

PROMPT = "two red box lanterns over a lake"
DEFAULT = [method.id for method in METHODS.values() if method.default]
KNOBS: dict[str, Any] = {"lantern_k": 10, "tree": "small", "seed": 3}


def turns(seconds: dict[str, float], count: int) -> list[str]:
    """Whose turn it is, `count` times, among runs whose steps take so many seconds each."""
    rotation, found = Rotation(seconds), []
    for _ in range(count):
        found.append(rotation.next())
        rotation.spent[found[-1]] += seconds[found[-1]]
    return found


def test_slices_are_equal_whatever_a_step_takes() -> None:
    """Also of steps that are longer than a slice."""
    for seconds in ({"slow": 0.05, "quick": 0.001, "middling": 0.013}, {"a": 1.0, "b": 0.5}):
        spent = dict.fromkeys(seconds, 0.0)
        for name in turns(seconds, 2500):
            spent[name] += seconds[name]
            apart = max(spent.values()) - min(spent.values())
            assert apart <= SLICE_SECONDS + max(seconds.values()) + 1e-9
        assert min(spent.values()) > 2


def test_every_rotation_begins_with_another_run_and_one_that_is_out_leaves_its_turns() -> None:
    assert "".join(turns(dict.fromkeys("abc", SLICE_SECONDS), 9)) == "abcbcacab"
    rotation = Rotation("abc")
    for name in "ab":
        assert rotation.next() == name
        del rotation.spent[name]
    for _ in range(5):
        assert rotation.next() == "c"
        rotation.spent["c"] += SLICE_SECONDS


# -- a comparison as a race


def test_tokens_are_those_of_a_run_alone(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, with the methods changing after every step."""
    monkeypatch.setattr(race, "SLICE_SECONDS", 1e-9)
    alone = {method: pipe.generate(PROMPT, method, **KNOBS) for method in DEFAULT}
    events = list(pipe.compare(PROMPT, **KNOBS))
    raced = {method: event for method, event in events if isinstance(event, Result)}
    changes = len(list(groupby(method for method, _ in events)))
    assert changes > 5 * len(DEFAULT), "they did take turns"
    first = next(i for i, (_, event) in enumerate(events) if isinstance(event, Result))
    assert any(isinstance(event, Step) for _, event in events[first:]), "none waits for the others"
    assert {m: e.tokens for m, e in raced.items()} == {m: e.tokens for m, e in alone.items()}
    assert {e.schedule for e in raced.values()} == {"race"}
    assert {e.schedule for e in alone.values()} == {"alone"}


def caches_of(monkeypatch: pytest.MonkeyPatch, pipe: Pipeline, most: float = math.inf) -> Any:
    """The target's caches that are alive, from now on. Memory does not hold more than `most`."""
    alive, real = WeakSet[Any](), pipe.target.new_cache

    def counted(rows: int, length: int) -> Any:
        if len(alive) >= most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        alive.add(cache := real(rows, length))
        return cache

    monkeypatch.setattr(pipe.target, "new_cache", counted)
    return alive


@pytest.mark.slow
def test_what_memory_does_not_hold_at_once_runs_one_after_the_other(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {method: pipe.generate(PROMPT, method, **KNOBS).tokens for method in DEFAULT}
    monkeypatch.setattr(race, "SLICE_SECONDS", 1e-9)
    caches_of(monkeypatch, pipe, 2)
    found = [event for _, event in pipe.compare(PROMPT, **KNOBS) if isinstance(event, Result)]
    assert {event.method: event.tokens for event in found} == wanted
    for event in found:
        assert (event.schedule, event.schedule_reason) == ("in turn", pipeline.CROWDED)
        assert event.method == "vanilla" or event.tree.endswith(" (small)"), "no tree had to shrink"


def test_no_race_is_begun_that_memory_cannot_hold(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is estimated. Idle runners of other settings have none to spare."""
    kept: list[int] = []
    monkeypatch.setattr(pipeline, "no_room_to_race", lambda *of: kept.append(of[-1]) or "no room")
    monkeypatch.setattr(pipe, "_runners", Runners())
    other: Any = SimpleNamespace(name="graphs", steps=SimpleNamespace(results=torch.zeros(1)))
    pipe._runners.give("of other settings", other)
    events = list(pipe.compare(PROMPT, ["vanilla", "eagle1"], **KNOBS))
    assert [name for name, _ in groupby(method for method, _ in events)] == ["vanilla", "eagle1"]
    reasons = {event.schedule_reason for _, event in events if isinstance(event, Result)}
    assert reasons == {"no room"} and kept == [0]


def test_there_is_room_for_what_the_runs_take(monkeypatch: pytest.MonkeyPatch) -> None:
    info = REGISTRY["llamagen-t2i-512"]
    each = checkpoints.run_bytes(info.published, "bfloat16")
    for lacking in (0, 1):
        monkeypatch.setattr(checkpoints, "free_memory", lambda _, less=lacking: 5 * each - less)
        why = checkpoints.no_room_to_race(info, torch.device("cpu"), "bfloat16", 5)
        assert (why is None) == (lacking == 0)


def test_leaving_a_race_ends_all_its_runs(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = spied(monkeypatch, Drawing, "next")
    with closing(pipe.compare(PROMPT, **KNOBS)) as events:
        while {drawing.plan.method.id for (drawing,) in taken} < {*DEFAULT}:
            next(events)
    states = {inspect.getgeneratorstate(drawing.steps) for (drawing,) in taken}
    assert states == {inspect.GEN_CLOSED}
    assert pipe.generate(PROMPT, **KNOBS).tokens, "the device is free"


def test_a_race_over_time_goes_no_further(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its methods run one after the other."""
    monkeypatch.setattr(pipeline, "no_room_to_race", lambda *_: "no room")
    events = list(pipe.race(pipe.request(PROMPT, **KNOBS), seconds=0))
    steps = [method for method, event in events if isinstance(event, Step)]
    failed = [method for method, event in events if isinstance(event, MethodFailed)]
    assert steps == DEFAULT[:1] and failed == DEFAULT


def test_a_method_that_is_done_keeps_no_caches_while_others_go_on(
    pipe: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive, left = caches_of(monkeypatch, pipe), set(DEFAULT)
    for method, event in pipe.compare(PROMPT, **KNOBS):
        if isinstance(event, Result):
            left.remove(method)
            assert len(alive) <= len(left)
    assert not left


def test_a_second_run_in_the_thread_of_an_open_one_is_refused(pipe: Pipeline) -> None:
    """It would wait for itself; another thread's waits."""

    def nested() -> str:
        with closing(pipe.compare(PROMPT, **KNOBS)) as events:
            next(events)
            with pytest.raises(RuntimeError) as refused:
                pipe.generate(PROMPT, **KNOBS)
        return str(refused.value)

    with ThreadPoolExecutor(1) as other:
        assert "is still open in this thread" in other.submit(nested).result(timeout=60)
        opened = pipe.stream(PROMPT, **KNOBS)
        next(opened)
        waiting = other.submit(pipe.generate, PROMPT, **KNOBS)
        *_, last = opened
        assert isinstance(last, Result) and waiting.result(timeout=60).tokens == last.tokens
        # of two clients of a server, each with its own context, another thread goes on with the run
        opened = pipe.stream(PROMPT, **KNOBS)
        other.submit(copy_context().run, next, opened).result()
        waiting = other.submit(copy_context().run, partial(pipe.generate, PROMPT, **KNOBS))
        assert not wait([waiting], 0.2).done, "nor refused"
        *_, last = opened
        assert waiting.result(timeout=60).tokens == last.tokens

    async def serves() -> None:
        with closing(pipe.stream(PROMPT, **KNOBS)) as events:
            next(events)
            with pytest.raises(RuntimeError, match="still open"):
                await asyncio.create_task(asks())

    async def asks() -> None:
        pipe.generate(PROMPT, **KNOBS)

    awaited(serves())


def warms_up(pipe: Pipeline, *methods: str, **settings: Any) -> bool:
    events = list(pipe.race(pipe.request(PROMPT, list(methods) or None, **settings)))
    return any(event is None for _, event in events)


def test_preparing_leaves_a_visitors_run_nothing_to_do(pipe: Pipeline) -> None:
    pipe.prepare()
    assert not warms_up(pipe, seed=1, temperature=0.7)
    assert warms_up(pipe, temperature=0) and not warms_up(pipe, temperature=0)


def test_the_latest_warm_ups_are_kept(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may ask for any tree."""
    monkeypatch.setattr(pipeline, "MOST_WARM", 3)
    monkeypatch.setattr(pipe, "_warm", {})
    trees = "0", "0 1", "0 00", "0 1 2", "0 00", "0"
    found = [warms_up(pipe, "eagle1", tree=tree) for tree in trees]
    assert found == [True, True, True, True, False, True] and len(pipe._warm) == 3


# -- threads and a busy machine

THREADS: list[tuple[dict[str, str], bool, str, int, str]] = [
    ({}, True, "cpu", 1, "a small model"),
    ({}, False, "cuda", 8, "as PyTorch chooses"),
    ({"OMP_NUM_THREADS": "3,2"}, True, "cpu", 8, "as OMP_NUM_THREADS says"),
    *(({"OMP_NUM_THREADS": odd}, True, "cpu", 1, "a small model") for odd in ("7500m", "0", "all")),
    ({"OMP_NUM_THREADS": "2", "LANTERN_THREADS": "3"}, True, "cpu", 3, "as LANTERN_THREADS says"),
    ({"OMP_WAIT_POLICY": "PASSIVE"}, False, "cpu", 4, "sleep while they wait"),
    *(({"OMP_WAIT_POLICY": odd}, False, "cpu", 1, "was not passive") for odd in ("active", "")),
]


def test_threads_and_why_so_many(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight are usual; a container's quota allows four. A large model has several if they sleep."""
    monkeypatch.setattr(device, "_USUAL_THREADS", 8)
    monkeypatch.setattr(device, "processors", lambda: 4)
    for variables, small, on, count, reason in THREADS:
        for name in ("OMP_NUM_THREADS", "LANTERN_THREADS", "OMP_WAIT_POLICY"):
            monkeypatch.setenv(name, variables.get(name, ""))
        found = device.pick_threads(None, torch.device(on), small)
        assert found.count == count and reason in found.reason, variables
    monkeypatch.setenv("LANTERN_THREADS", "1025")
    assert device.pick_threads(2, torch.device("cpu"), small=True).reason == "as threads says"
    for name, given in (("LANTERN_THREADS", {}), ("threads", {"threads": 1.5})):
        with pytest.raises(ValueError, match=f"^{name} must be a whole "):
            load(folder, device="cpu", **given)


def test_threads_are_told_to_sleep_before_pytorch_is_loaded() -> None:
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    code = "import lantern_demo, os; print(os.environ.get('OMP_WAIT_POLICY'))"
    assert ran(sys.executable, "-c", code, env=environment, check=True).stdout == "passive\n"


def test_the_clock_tells_what_it_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"wall": 0.0, "cpu": 0.0}
    monkeypatch.setattr(timing, "perf_counter", lambda: now["wall"])
    monkeypatch.setattr(timing, "thread_time", lambda: now["cpu"])
    clock = Clock("cpu")
    for part, wall, cpu in (("verify", 1.0, 0.75), ("draft", 0.5, 0.5), ("image", 3.0, 1.0)):
        with clock.measure(part):
            now["wall"], now["cpu"] = now["wall"] + wall, now["cpu"] + cpu
    assert (clock.decode_seconds, clock.waited_seconds) == (1.5, 0.25)
    assert set(clock.seconds) == set(timing.PARTS)


@pytest.mark.parametrize(("waited", "disturbed"), [(0.25, True), (0.15, False), (None, False)])
def test_a_run_that_waited_was_disturbed(waited: float | None, disturbed: bool) -> None:
    run = SimpleNamespace(waited_seconds=waited, decode_seconds=1.5)
    assert Result.disturbed.fget(run) == disturbed  # type: ignore[attr-defined]


def test_one_thread_computes(tiny_service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, take = set[str](), Drawing.next

    def noted(self: Drawing) -> Any:
        threads.add(threading.current_thread().name)
        return take(self)

    monkeypatch.setattr(Drawing, "next", noted)
    request = tiny_service.request("a lantern", ["vanilla", "eagle1"], {"seed": 3})
    frames = tiny_service.frames(request)
    found = []
    while None not in found:  # as Gradio does: every item is asked for from another thread
        with ThreadPoolExecutor(1) as asking:
            found.append(asking.submit(next, frames, None).result())
    assert [item.method for item in found if isinstance(item, Result)] == ["vanilla", "eagle1"]
    (name,) = threads
    assert name.startswith("device")
