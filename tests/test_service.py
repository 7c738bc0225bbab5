"""The service behind page and API: one thread computes, whoever asks."""

from __future__ import annotations

import copy
import inspect
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import lantern_demo
from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.pipeline import Generation, Pipeline
from lantern_demo.settings.knobs import ON_THE_FORM, by_readers
from lantern_demo.ui import service as services
from lantern_demo.ui import texts
from lantern_demo.ui.restore import _redrawn
from lantern_demo.ui.service import Service

PACKAGE = Path(lantern_demo.__file__).parent


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads in which decoding went on."""
    seen: list[str] = []
    run = Pipeline.run

    def recorded(self: Pipeline, *args: Any) -> Iterator[Any]:
        for event in run(self, *args):
            seen.append(threading.current_thread().name)
            yield event

    monkeypatch.setattr(Pipeline, "run", recorded)
    return seen


def test_one_thread_computes_whichever_asks(tiny_model: Path, threads: list[str]) -> None:
    service = Service(tiny_model, "cpu")
    request = service.request("a lantern", None, ["vanilla", "eagle1"], {"seed": 3})
    frames = service.frames(request, True)
    found = []
    for _ in range(100):  # as Gradio does: every item is asked for from another thread
        with ThreadPoolExecutor(1) as asking:
            item = asking.submit(next, frames, None).result()
        if item is None:
            break
        found.append(item)
    assert [item.method for item in found if isinstance(item, Generation)] == ["vanilla", "eagle1"]
    assert len(set(threads)) == 1 and threads[0].startswith("device")


def test_at_most_six_generators_stand_around_a_step(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever follows a step from the page's service to the model goes through each of them."""
    service, most = Service(tiny_model, "cpu"), 0
    target = service.pipeline(service.default).target
    forward = target.forward

    def counted(*args: Any) -> Any:
        nonlocal most
        around = 0
        for frame in sys._current_frames().values():  # of who asks, and of who computes
            at: FrameType | None = frame
            while at is not None:
                ours = Path(at.f_code.co_filename).is_relative_to(PACKAGE)
                around += ours and bool(at.f_code.co_flags & inspect.CO_GENERATOR)
                at = at.f_back
        most = max(most, around)
        return forward(*args)

    monkeypatch.setattr(target, "forward", counted)
    frames = service.frames(service.request("a lantern", None, ["vanilla", "eagle1"], {"seed": 3}), True)
    assert sum(isinstance(item, Generation) for item in frames) == 2
    assert 0 < most <= 6


def test_pictures_of_a_record_say_by_what_they_differ(tiny_model: Path) -> None:
    service = Service(tiny_model, "cpu")
    record = service.pipeline(service.default).generate("a lantern", seed=3).record
    entry = record["methods"]["vanilla"]
    images = service.pictures(record["model"]["id"], [entry["token_ids"]])
    assert images[0].size == (256, 256)
    assert _redrawn(service, record, images) == []
    spoilt = copy.deepcopy(record)
    spoilt["methods"]["vanilla"]["image_sha256"] = "0" * 64
    assert _redrawn(service, spoilt, images) == [texts.REDRAWN]
    spoilt["model"]["trained"] = {**record["model"]["trained"], "picture": {"step": 5}}
    assert _redrawn(service, spoilt, images) == [texts.OTHER_DECODER]


def test_a_caller_that_leaves_lets_the_next_one_in(tiny_model: Path) -> None:
    service = Service(tiny_model, "cpu")
    request = service.request("a lantern", None, ["vanilla"], {})
    first = service.frames(request, True)
    next(first)
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(lambda: [x for x in service.frames(request, False) if isinstance(x, Generation)])
        assert not waiting.done()
        first.close()
        assert len(waiting.result(timeout=60)) == 1


def test_how_long_others_wait_is_known_from_runs_that_ended(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three before: the one that has the device, and two that wait."""
    service, now = Service(tiny_model, "cpu"), [100.0]
    request = service.request("a lantern", None, ["vanilla"], {})
    monkeypatch.setattr(services, "perf_counter", lambda: now[0])
    assert service.wait_behind(1) is None

    stopped = service.frames(request, False)
    next(stopped)
    now[0] += 50
    stopped.close()
    assert service.wait_behind(1) is None, "nobody knows how long it would have taken"
    for seconds in (4, 6, 90):
        for event in service.frames(request, False):
            if isinstance(event, Generation):
                now[0] += seconds
    assert service.wait_behind(3) == 18

    running = service.frames(request, False)
    next(running)
    now[0] += 2
    assert service.wait_behind(1) == 4 and service.wait_behind(3) == 16
    now[0] += 20
    assert service.wait_behind(1) == 0 and service.wait_behind(3) == 12
    running.close()
    assert service.wait_behind(3) == 18


@pytest.mark.parametrize(
    ("before", "seconds", "told"),
    [
        (1, None, "1 before you."),
        (1, 6.3, "1 before you, about 6 s."),
        (2, 0.0, "2 before you, about 1 s."),
        (9, 89.0, "9 before you, about 89 s."),
        (20, 130.0, "20 before you, about 2 min."),
    ],
)
def test_the_queue_in_words(before: int, seconds: float | None, told: str) -> None:
    assert texts.in_line(before, seconds) == told


def test_knobs_are_grouped_by_who_reads_them() -> None:
    groups = by_readers()
    assert sorted(name for names in groups.values() for name in names) == sorted(ON_THE_FORM)
    assert next(iter(groups.items())) == (tuple(METHODS), ["temperature", "top_k", "top_p", "cfg_scale", "dice"])
    assert groups["lantern++",] == ["lanternpp_k", "lanternpp_lambda"]
    assert [len(readers) for readers in groups] == sorted((len(readers) for readers in groups), reverse=True)
    titles = [texts.knobs_of([METHODS[reader] for reader in readers]) for readers in groups]
    assert titles[0] == "All methods" and {"LANTERN", "EAGLE-2 and LANTERN", "SJD"} <= set(titles)
