"""Runners of steps that a GPU captures, that they are kept between runs, and graphs of their steps,
which are faked on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
from runs import OF_EACH_KIND, decode
from small_models import FULL, PADDED, TEXT, condition_of, networks, settings, summary

from lantern_demo.decoding import graphs, loop
from lantern_demo.decoding.graphs import Runners
from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.step import Shape, Steps
from lantern_demo.decoding.timing import DECODE_PARTS, Clock
from lantern_demo.models.registry import LlamaGenConfig

Captured = list[Shape]


class Model:
    """One random model, and runs on it."""

    def __init__(self, config: LlamaGenConfig = TEXT) -> None:
        target, drafter = networks(config)
        with torch.inference_mode():
            self.conditions = {
                "padded": condition_of(target, PADDED),
                "full": condition_of(target, FULL),
            }
        self.models = target, drafter
        self.rules = {name: settings(name) for name in METHODS}  # with the same tables in every run

    def run(
        self,
        method: str = "lantern++",
        prompt: str = "padded",
        num_tokens: int = 16,
        plain: bool = False,
        **changes: Any,
    ) -> Iterator[Any]:
        """The events of a run of the sizes that a GPU captures; plain: as a CPU takes its steps."""
        knobs = {"sampling": Sampling(cfg_scale=2.0), "room": 16, **self.rules[method], **changes}
        events = decode(
            *self.models, self.conditions[prompt], num_tokens=num_tokens, padded=not plain, **knobs
        )
        return plainly(events) if plain else events


def plainly(events: Iterator[Any]) -> Iterator[Any]:
    with patch.object(loop, "captures", lambda _: False):
        yield from list(events)


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runners are kept as on a GPU, and run without graphs."""
    monkeypatch.setattr(loop, "captures", lambda _: True)
    monkeypatch.setattr(loop, "GraphRunner", lambda steps, free: graphs.Runner(steps))


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


def test_a_step_before_a_capture_leaves_the_run_where_it_was(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Steps] = []
    real = Steps.__init__

    def made(self: Steps, *args: Any, **named: Any) -> None:
        seen.append(self)
        real(self, *args, **named)

    monkeypatch.setattr(Steps, "__init__", made)
    wanted = summary(list(model.run("lantern")))
    events = model.run("lantern")
    first = [next(events), next(events)]
    with torch.inference_mode():
        copies = [part.clone() for part in seen[-1].state()]
        for _ in range(2):
            seen[-1].step(Shape(seen[-1].slots, seen[-1].depth + 1, True))
        graphs.restore(seen[-1], copies)
    assert summary([*first, *events]) == wanted


# -- graphs


class FakeGraph:
    """A graph on a CPU: what was captured is run again."""

    again: Callable[[], Any]

    def replay(self) -> None:
        self.again()

    def pool(self) -> str:
        return "pool"


class FakeEvent:
    """A timing event, at a time in milliseconds: every record is one after the one before."""

    now = 0.0

    def __init__(self, at: float = 0.0, **_: Any) -> None:
        self.at = at

    def record(self, *_: Any) -> None:
        FakeEvent.now += 1
        self.at = FakeEvent.now

    def synchronize(self) -> None:
        assert self.at, "nothing was recorded"

    def elapsed_time(self, behind: FakeEvent) -> float:
        return behind.at - self.at


class FakeStream:
    def __init__(self, name: Any = None) -> None:
        self.name = name

    def wait_stream(self, other: Any) -> None: ...


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> Captured:
    """CUDA's streams, events and graphs faked on a CPU; returns the buckets and kinds that are
    captured.
    """
    captured: Captured = []
    for name, fake in (
        ("Stream", FakeStream),
        ("Event", FakeEvent),
        ("CUDAGraph", FakeGraph),
        ("current_stream", FakeStream),
        ("stream", lambda _: nullcontext()),
        ("graph", lambda *_, **__: nullcontext()),
        ("set_stream", lambda _: None),
    ):
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(graphs, "_STREAMS", {})
    monkeypatch.setattr(loop, "GraphRunner", graphs.GraphRunner)
    real = graphs.GraphRunner._capture

    def capture(self: graphs.GraphRunner, shape: Shape) -> Any:
        captured.append(shape)
        found = real(self, shape)
        found.graph.again = lambda: self.steps.step(shape)
        return found

    monkeypatch.setattr(graphs.GraphRunner, "_capture", capture)
    return captured


@pytest.mark.parametrize("method", OF_EACH_KIND)
def test_replayed_graphs(method: str, faked: Captured, model: Model) -> None:
    """The host's side of graphs: captured once per shape, launched ahead, read in order, timed by
    events.
    """
    plain, replayed = (list(model.run(method, plain=plain)) for plain in (True, False))
    assert summary(replayed) == summary(plain) and replayed[-1].runner == "graphs"
    assert len(set(faked)) == len(faked) <= 2
    seconds = replayed[-1].seconds
    assert seconds["capture"] > 0 and replayed[-1].decode_seconds == pytest.approx(
        sum(seconds[part] for part in DECODE_PARTS)
    )
    stepping = seconds["verify"] + seconds["commit"]
    assert stepping > 0 and seconds["commit"] > 0, "the parts are told apart at the end"


def test_shares_of_a_step() -> None:
    assert graphs.shares([FakeEvent(at) for at in (1, 2, 5, 6)]) == [0.2, 0.6, 0.2]
    broken = [
        Mock(elapsed_time=Mock(side_effect=error))
        for error in (RuntimeError("no such event"), ValueError("not recorded"))
    ]
    for event in (*broken, FakeEvent(3)):
        assert graphs.shares([event] * 4) == [0.0, 1.0, 0.0]


# -- kept runners


@pytest.mark.parametrize("method", OF_EACH_KIND)
def test_runs_on_a_kept_runner_are_those_on_a_new_one(method: str, model: Model) -> None:
    """Whatever the run before was: another prompt, padded or not, another seed, cut short, or
    shorter.
    """
    runners, knobs = Runners(), {"noise": "shared"}
    for changes in (
        {"seed": 1},
        {"seed": 2, "prompt": "full"},
        {"seed": 3, "num_tokens": 5},
        {"seed": 1},
    ):
        new, pool = (
            list(model.run(method, **knobs, **changes)),
            list(model.run(method, runners=runners, **knobs, **changes)),
        )
        assert summary(pool) == summary(new)
        cut = model.run(method, runners=runners, seed=9, **knobs)
        for _ in range(2):
            next(cut)
        cut.close()
        assert len(runners) == 1


@pytest.mark.parametrize("noise", ["independent", "shared"])
def test_kept_runners_are_those_of_a_runs_own_settings(noise: str, model: Model) -> None:
    """Each change draws another picture, on kept runners the one that a new runner draws."""
    table = model.rules["lantern"]["neighbours"]
    changes: list[dict[str, Any]] = [
        {},
        {"sampling": Sampling(0.3, cfg_scale=2.0)},
        {"neighbours": table.flip(0)},
        {"neighbours": table.flip(1).contiguous()},
        {"prompt": "full"},
    ]

    def drawn(**more: Any) -> list[Any]:
        knobs = {"noise": noise, "rule": Lantern(5, 0.6), **more}
        return [summary(list(model.run("lantern", **{**knobs, **change}))) for change in changes]

    wanted, runners = drawn(), Runners()
    assert len({str(events) for events in wanted}) == len(changes)
    assert [drawn(runners=runners) for _ in range(2)] == [wanted, wanted]


@pytest.mark.parametrize("method", ["eagle1", "lantern"])
def test_what_a_closed_run_left_does_not_reach_the_next(
    method: str,
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps in flight are never read, and may have left numbers that are not finite. A masked slot
    weighs 0, and 0 times such a number is not finite."""
    monkeypatch.setattr(graphs.Runner, "ahead", 3)
    runners, target = Runners(), model.models[0]
    wanted, real = summary(list(model.run(method))), target.forward
    cut = model.run(method, runners=runners)
    next(cut)
    calls: list[None] = []

    def spoilt(*given: Any) -> Any:
        calls.append(None)
        return real(*given) * (torch.nan if len(calls) > 1 else 1.0)

    monkeypatch.setattr(target, "forward", spoilt)
    next(cut)
    cut.close()
    assert len(calls) == 3 and len(runners) == 1
    monkeypatch.setattr(target, "forward", real)
    assert summary(list(model.run(method, runners=runners))) == wanted


def test_a_short_run_gets_all_buckets_of_a_long_one_ready(faked: Captured) -> None:
    runners, large = Runners(), Model(replace(TEXT, layers=1, grid=16))
    for method in ("vanilla", "eagle1"):
        knobs = {"runners": runners, "room": 200}
        list(large.run(method, num_tokens=3, **knobs))
        captured = set(faked)
        assert len({shape.slots for shape in captured}) >= 3
        long = list(large.run(method, num_tokens=200, **knobs))
        assert (
            long[-1].seconds["capture"] == 0
            and set(faked) == captured
            and len(graphs._STREAMS) == 1
        )
        assert summary(long) == summary(
            list(large.run(method, num_tokens=200, plain=True, room=200))
        )
        faked.clear()


@pytest.mark.parametrize("fake", [False, True], ids=["eager", "graphs"])
def test_closing_early_waits_for_work_in_flight(
    fake: bool, model: Model, request: pytest.FixtureRequest
) -> None:
    captured = request.getfixturevalue("faked") if fake else [()]
    events = model.run()
    for _ in range(3):
        next(events)
        assert not torch.is_inference_mode_enabled()
    events.close()
    assert list(events) == [] and captured


@pytest.mark.parametrize("fake", [False, True], ids=["eager", "graphs"])
def test_live_runs_of_one_shape_do_not_disturb_each_other(
    fake: bool, model: Model, request: pytest.FixtureRequest
) -> None:
    if fake:
        request.getfixturevalue("faked")
    runners = Runners()
    alone = [summary(list(model.run(seed=seed))) for seed in range(3)]
    for _ in range(2):  # the second time on kept runners
        live = [model.run(seed=seed, runners=runners) for seed in range(3)]
        found: list[list[Any]] = [[], [], []]
        while any(not events or isinstance(events[-1], Step) for events in found):
            for events, run in zip(found, live, strict=True):
                events.extend([event] if (event := next(run, None)) is not None else [])
        assert [summary(events) for events in found] == alone
        assert len(runners) == 3


def test_a_faulty_run_keeps_its_runner_to_itself(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    runners = Runners()
    broken = model.run("vanilla", runners=runners)
    next(broken)
    monkeypatch.setattr(model.models[0], "forward", None)
    with pytest.raises(TypeError):
        list(broken)
    assert len(runners) == 0


def test_few_are_kept_and_the_longest_unused_goes(model: Model) -> None:
    runners = Runners(most=2)
    made: list[Any] = []

    def caches() -> list[int]:
        return [id(runner.steps.caches[0]) for _, runner in runners._idle]

    for name in ("vanilla", "eagle1", "vanilla", "eagle2"):
        list(model.run(name, runners=runners))
        made.append(caches()[-1])
    assert made[2] == made[0] and len(runners) == 2 and caches() == [made[0], made[3]], (
        "eagle1 went"
    )
    assert runners.clear() and not runners.clear() and len(runners) == 0


def test_other_settings_get_another_runner(model: Model) -> None:
    runners, looser = Runners(), LanternPlusPlus(5, 3.0)
    for changes in ({}, {"sampling": Sampling(0.9, cfg_scale=2.0)}, {"room": 20}, {"rule": looser}):
        list(model.run(runners=runners, **changes))
    assert len(runners) == 4
    with pytest.raises(ValueError, match="room is 3; it must be at least num_tokens, which is 16"):
        model.run(room=3)


def test_what_is_not_finite_does_not_reach_the_next_run(model: Model) -> None:
    """A masked slot weighs 0, and 0 times what is not a number is none."""
    runners = Runners()
    wanted = summary(list(model.run("eagle1")))
    list(model.run("eagle1", runners=runners))
    ((_, runner),) = runners._idle
    assert len(runner.steps.caches) == 2
    with torch.inference_mode():
        for cache in runner.steps.caches:
            cache.both.fill_(torch.nan)
    assert summary(list(model.run("eagle1", runners=runners))) == wanted


def test_memory_is_made_by_letting_idle_runners_go(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    runners, target = Runners(), model.models[0]
    list(model.run("vanilla", runners=runners))
    real = target.new_cache

    def scarce(*args: Any) -> Any:
        if len(runners):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*args)

    monkeypatch.setattr(target, "new_cache", scarce)
    assert list(model.run("eagle1", runners=runners))[-1].steps > 0
    monkeypatch.setattr(
        target, "new_cache", Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory"))
    )
    with pytest.raises(torch.OutOfMemoryError):
        list(model.run("lantern", runners=Runners()))


# -- captures that fail


class Stuck:
    """`torch.cuda.graph` as it is: where a capture cannot be ended, it does not go back to the
    stream from before.
    """

    streams: list[Any]

    def __init__(self, error: Callable[[], BaseException] | None, masked: bool) -> None:
        self.error, self.masked = error, masked

    @contextmanager
    def __call__(self, *_: Any, stream: Any, **__: Any) -> Iterator[None]:
        self.streams.append(stream)
        try:
            if self.error is not None:
                raise self.error()
            yield
        except BaseException as error:
            if self.masked:
                raise RuntimeError(
                    "operation failed due to a previous error during capture"
                ) from error
            raise
        self.streams.pop()


@pytest.fixture
def stuck(faked: Captured, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Makes captures fail with an error; returns the streams that the thread works on, the current
    one last.
    """

    def make(error: Callable[[], BaseException] | None, masked: bool = True) -> list[Any]:
        fake = Stuck(error, masked)
        fake.streams = streams = ["the thread's own"]
        monkeypatch.setattr(torch.cuda, "graph", fake)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: FakeStream(streams[-1]))
        monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: streams.append(stream.name))
        return streams

    return make


@pytest.mark.parametrize("masked", [False, True])
def test_a_refused_capture_goes_on_without_graphs_on_the_threads_own_stream(
    masked: bool, stuck: Callable[..., list[Any]], model: Model
) -> None:
    runners = Runners()
    wanted = summary(list(model.run("eagle1")))
    streams = stuck(
        lambda: RuntimeError("operation not permitted\nwhen stream is capturing"), masked
    )
    found = list(model.run("eagle1", runners=runners))
    why = (
        "operation failed due to a previous error during capture"
        if masked
        else "operation not permitted"
    )
    assert (found[-1].runner, found[-1].runner_reason) == ("plain", f"without graphs: {why}")
    assert summary(found) == wanted and streams[-1] == "the thread's own"
    assert len(runners) == 0 and not graphs._STREAMS, (
        "neither the runner nor the stream is used again"
    )


@pytest.mark.parametrize("masked", [False, True])
def test_a_capture_without_memory_is_told_as_that(
    masked: bool, stuck: Callable[..., list[Any]], model: Model
) -> None:
    streams = stuck(lambda: torch.OutOfMemoryError("CUDA out of memory"), masked)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        list(model.run("eagle2", runners=Runners()))
    assert streams[-1] == "the thread's own"


def test_a_capture_without_memory_is_tried_again_once_idle_runners_are_gone(
    stuck: Callable[..., list[Any]], model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    runners = Runners()

    stuck(None)
    assert list(model.run("vanilla", runners=runners))[-1].runner == "graphs" and len(runners) == 1
    fails = [torch.OutOfMemoryError("CUDA out of memory")]
    real = torch.cuda.graph

    def once(*args: Any, **kwargs: Any) -> Any:
        if fails:
            raise fails.pop()
        return real(*args, **kwargs)

    monkeypatch.setattr(torch.cuda, "graph", once)
    assert list(model.run("lantern", runners=runners))[-1].runner == "graphs"
    assert len(runners) == 1 and not fails


def test_a_device_at_fault_ends_the_run(
    stuck: Callable[..., list[Any]], model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an error comes again with whatever is asked of the device next."""
    error = RuntimeError("CUDA error: an illegal memory access")

    def illegal() -> RuntimeError:
        monkeypatch.setattr(Clock, "synchronize", Mock(side_effect=error))
        return error

    stuck(illegal)
    with pytest.raises(RuntimeError, match="an illegal memory access"):
        list(model.run("vanilla", runners=Runners()))


def test_work_is_done_on_the_runs_device_with_one_kind_of_attention(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    @contextmanager
    def current(device: torch.device) -> Iterator[None]:
        seen.append(device)
        yield
        seen.append("back")

    def modes() -> tuple[bool, ...]:
        back = torch.backends.cuda
        kinds = (
            back.mem_efficient_sdp_enabled(),
            back.math_sdp_enabled(),
            back.flash_sdp_enabled(),
            back.cudnn_sdp_enabled(),
        )
        return (torch.is_inference_mode_enabled(), *kinds)

    monkeypatch.setattr(torch.cuda, "device", current)
    before = modes()
    with loop._device_work(torch.device("cuda:1")):
        assert modes() == (True, True, True, False, False)
    assert seen == [torch.device("cuda:1"), "back"] and modes() == before
    with loop._device_work(torch.device("cpu")):
        assert modes() == (True, *before[1:]) and len(seen) == 2
    assert not torch.is_inference_mode_enabled() and modes() == before
