"""Many at once, and those who leave: queue, stopping, deadlines, health, the log, and Ctrl-C."""

from __future__ import annotations

import inspect
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from gradio_client import Client
from space import free_port
from tiny import program, wait_for, waiting

from lantern_demo.models.bundled import PATCHES
from lantern_demo.runs.pipeline import Drawing, Pipeline
from lantern_demo.runs.result import MethodFailed, Result
from lantern_demo.ui import api, limits, log, texts
from lantern_demo.ui.page import build, launch
from lantern_demo.ui.service import Service, run_seconds
from lantern_demo.version import __version__

CASE = {"prompt": "a red lantern", "methods": ["vanilla"], "seed": 7}
SECONDS = 60  # of patience: a test machine may be busy


def join(url: str, body: dict[str, Any], endpoint: str = "compare") -> httpx.Response:
    """Ask by plain HTTP. The tree is named, so that no answer depends on the machine."""
    body = body | {"settings": {"tree": "small"}}
    return httpx.post(f"{url}/gradio_api/call/v2/{endpoint}", json=body, timeout=SECONDS)


def answer(url: str, event_id: str) -> Any:
    """The data of a call's last event."""
    address = f"{url}/gradio_api/call/compare/{event_id}"
    events = httpx.get(address, timeout=SECONDS).text.strip().split("\n\n")
    event, data = events[-1].split("\n")
    assert event == "event: complete", data
    return json.loads(data.removeprefix("data: "))


def drawn(url: str, body: dict[str, Any]) -> dict[str, list[int]]:
    """The tokens of a comparison, by method."""
    _, record = answer(url, join(url, body).raise_for_status().json()["event_id"])
    return {method: entry["token_ids"] for method, entry in record["methods"].items()}


def idle(url: str) -> bool:
    """Whether nothing runs or waits."""
    running = httpx.get(f"{url}/healthz", timeout=SECONDS).json()["running"]
    return not running and not waiting(url)


@pytest.fixture
def url(server: str) -> str:
    return server.rstrip("/")


@contextmanager
def occupied(url: str) -> Iterator[None]:
    """While somebody else's run keeps the device: it is held up by a request that nobody listens
    to.
    """
    go_on, read = threading.Event(), Pipeline.read

    def held(*arguments: Any, **options: Any) -> Any:
        go_on.wait()
        return read(*arguments, **options)

    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(Pipeline, "read", held)
        stack.callback(go_on.set)
        wait_for(lambda: idle(url), "what ran before")
        event = join(url, CASE).json()["event_id"]
        wait_for(lambda: httpx.get(f"{url}/healthz").json()["running"], "the run to begin")
        yield
    answer(url, event)


# -- the queue


@pytest.mark.slow
def test_a_full_queue_refuses_and_empties(url: str) -> None:
    """One run goes on at a time, whichever endpoint asks: a /draw waits for a /compare."""
    with occupied(url):
        asked = [join(url, {"prompt": "a lantern", "method": "vanilla"}, "draw")]
        asked += [join(url, CASE) for _ in range(1, limits.WAITING)]
        events = [response.raise_for_status().json()["event_id"] for response in asked]
        last = join(url, CASE)
        assert last.status_code == 503 and last.json()["detail"].startswith("Queue is full")
        assert httpx.get(f"{url}/healthz").status_code == 200, "no need of the queue"
        for event in events:  # those who give up while they wait leave no trace
            left = {"session_hash": event, "fn_index": 0, "event_id": event}
            httpx.post(f"{url}/gradio_api/cancel", json=left)
        assert waiting(url) == 0
    wait_for(lambda: idle(url), "the device")


@pytest.mark.slow
def test_the_turn_alone_keeps_runs_apart(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of visitors and of Python, without Gradio's queue, and with a thread for each."""
    service, seeds, take = Service(tiny_model, "cpu"), list[int](), Drawing.next
    pipe = service.wait()
    monkeypatch.setattr(service, "_worker", ThreadPoolExecutor(3))

    def noted(self: Drawing) -> Any:
        seeds.append(self.plan.settings.seed)
        return take(self)

    def visit(seed: int) -> None:
        list(service.frames(service.request("a lantern", ["vanilla"], {"seed": seed})))

    monkeypatch.setattr(Drawing, "next", noted)
    with ThreadPoolExecutor(3) as callers:
        runs = [callers.submit(visit, seed) for seed in (1, 2)]
        runs.append(callers.submit(pipe.generate, "a lantern", "vanilla", seed=3))
        assert all(run.exception(SECONDS) is None for run in runs)
    assert sorted(seed for seed, _ in groupby(seeds)) == [1, 2, 3], "one after the other"


def test_a_run_of_python_is_seen_by_the_page(tiny_service: Service) -> None:
    """Who presses Draw is told of it, and no look delays it."""
    steps = tiny_service.wait().stream("a lantern", "vanilla", seed=1)
    next(steps)
    assert tiny_service.busy and tiny_service.at_once(lambda: "looked") is None
    steps.close()  # type: ignore[attr-defined]
    assert not tiny_service.busy and tiny_service.at_once(lambda: "looked") == "looked"


def test_a_lent_process_needs_no_turn_of_its_own(tiny_service: Service) -> None:
    """ZeroGPU's is a copy of this one, in which the caller of the run has the turn for ever."""
    request = tiny_service.request("a lantern", ["vanilla"], {"seed": 1})
    with tiny_service.wait().turn():
        *_, last = tiny_service._frames(request)
    assert isinstance(last, Result)


# -- leaving


def steps_after(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The moments at which steps were taken, as a list that grows."""
    moments: list[float] = []
    take = Drawing.next

    def noted(self: Drawing) -> Any:
        event = take(self)
        moments.append(time.monotonic())
        time.sleep(0.02)  # a run long enough to leave in the middle of
        return event

    monkeypatch.setattr(Drawing, "next", noted)
    return moments


@pytest.mark.slow
@pytest.mark.parametrize("way", ["hang up", "cancel", "never listen"])
def test_whoever_leaves_frees_the_device(
    url: str, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """256 steps of 20 ms at least; a handful of them, between two answers, is all that follows."""
    wanted = drawn(url, CASE)
    moments = steps_after(monkeypatch)
    if way == "hang up":
        address = f"{url}/gradio_api/call/compare/{join(url, CASE).json()['event_id']}"
        with httpx.stream("GET", address, timeout=SECONDS) as stream:
            list(islice(stream.iter_lines(), 9))  # three answers
    elif way == "never listen":
        monkeypatch.setattr(api, "UNHEARD_SECONDS", 0.5)
        event = join(url, CASE).json()["event_id"]
        wait_for(lambda: moments, "the run to begin")
    else:
        job = Client(url, verbose=False).submit(
            CASE["prompt"], methods=["vanilla"], settings={"tree": "small"}, api_name="/compare"
        )
        wait_for(lambda: len(job.outputs()) > 2, "some answers")
        assert job.cancel()
    left = time.monotonic()
    wait_for(lambda: idle(url), "the device")
    late = [moment for moment in moments if moment > left]
    assert len(moments) < 200 and len(late) < 60, "the run went on without its client"
    if way == "never listen":
        with pytest.raises(AssertionError, match=texts.UNHEARD):
            answer(url, event)
        assert drawn(url, CASE) == wanted, "a call that is listened to goes on"
    monkeypatch.undo()
    assert drawn(url, CASE) == wanted


@pytest.mark.parametrize("endpoint", [api._draw, api._compare])
def test_a_call_that_is_left_closes_its_run(
    endpoint: Any, tiny_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while something still names the run, as Python 3.12 does for longer than others."""
    made, runs = api.answers, []

    def noted(*arguments: Any, **named: Any) -> Any:
        runs.append(made(*arguments, **named))
        return runs[-1]

    monkeypatch.setattr(api, "answers", noted)
    call = endpoint(None, tiny_service)("a red lantern")
    next(call)
    assert tiny_service.busy
    call.close()
    assert inspect.getgeneratorstate(runs[0]) == inspect.GEN_CLOSED
    assert not tiny_service.busy


def test_the_deadline_is_set_by_a_variable_and_ends_runs(
    tiny_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("LANTERN_RUN_SECONDS", "SPACE_ID"):
        monkeypatch.delenv(variable, raising=False)
    assert run_seconds() == 3600
    for variable, value, seconds in (("SPACE_ID", "a/b", 120), ("LANTERN_RUN_SECONDS", "7.5", 7.5)):
        monkeypatch.setenv(variable, value)
        assert run_seconds() == seconds
    for wrong in ("soon", "0", "nan", "inf"):
        monkeypatch.setenv("LANTERN_RUN_SECONDS", wrong)
        with pytest.raises(ValueError, match="LANTERN_RUN_SECONDS must be"):
            run_seconds()
    monkeypatch.setattr(tiny_service, "run_seconds", 0.0)
    *_, failed = tiny_service.frames(tiny_service.request("a lantern", ["vanilla"], {"seed": 1}))
    assert isinstance(failed, MethodFailed) and "they were over" in failed.message


# -- health and log


def test_health(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours that are not there yet are no colours that never come."""
    assert httpx.get(f"{url}/palettes/tiny").status_code == 200
    assert httpx.get(f"{url}/palettes/other").status_code == 404
    wait_for(lambda: idle(url), "what ran before")
    response = httpx.get(f"{url}/healthz")
    idling = {"status": "ready", "ready": True, "model": "tiny", "running": False}
    assert response.status_code == 200 and response.json() == idling | {"version": __version__}
    for state, colours in (("loading", 503), ("failed", 404)):
        monkeypatch.setattr(Service, "state", state)
        response = httpx.get(f"{url}/healthz")
        assert response.status_code == 503 and response.json()["status"] == state
        assert httpx.get(f"{url}/palettes/tiny").status_code == colours


def test_patches_are_served_where_a_model_has_them(url: str, tiny_model: Path) -> None:
    assert httpx.get(f"{url}/patches/tiny").status_code == 204
    assert httpx.get(f"{url}/patches/..%2Ftiny").status_code in (204, 404)
    picture = tiny_model / PATCHES
    picture.write_bytes(b"RIFF")
    try:
        assert httpx.get(f"{url}/patches/tiny").content == b"RIFF"
        assert httpx.get(f"{url}/patches/other").status_code == 204
    finally:
        picture.unlink()


@pytest.mark.slow
def test_visitors_who_wait_for_the_model_hold_up_nobody(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than Gradio has threads."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    loaded = threading.Event()

    def held(*_: Any, **__: Any) -> Any:
        loaded.wait(SECONDS)
        raise ValueError("model is not for this test")

    monkeypatch.setattr("lantern_demo.ui.service.load", held)
    page = build(tiny_model, "cpu")
    here = {"server_name": "127.0.0.1", "server_port": free_port(), "prevent_thread_lock": True}
    _, url, _ = launch(page, quiet=True, **here)
    (arrive,) = (number for number, event in page.fns.items() if event.name == "arrive")
    try:
        for visitor in range(45):
            body = {"data": [], "fn_index": arrive, "session_hash": f"visitor-{visitor}"}
            httpx.post(f"{url}gradio_api/queue/join", json=body).raise_for_status()
        wait_for(lambda: waiting(url) <= 5, "the visitors to arrive")
        for path in ("", "healthz", "panel.js"):
            httpx.get(f"{url}{path}", timeout=5)
    finally:
        loaded.set()
        page.close(verbose=False)


def test_a_line_per_run(tiny_service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = {"seed": 3, "tree": "small"}
    request = tiny_service.request("a secret lantern", ["vanilla", "eagle1"], knobs)

    def line(whole: bool = True) -> str:
        """What a run leaves in the log."""
        with patch("lantern_demo.ui.service._LOG.info") as info:
            frames = tiny_service.frames(request)
            list(frames) if whole else next(frames)
            frames.close()
        (words, *facts), _ = info.call_args
        assert info.call_count == 1
        return words % tuple(facts)

    assert line().startswith("run: model tiny, seed 3, prompt 16 characters, done: vanilla ")
    assert "stopped: vanilla stopped, eagle1 stopped" in line(whole=False)
    monkeypatch.setenv("LANTERN_LOG_PROMPTS", "1")
    assert "prompt 'a secret lantern'" in line()


def test_warnings_are_logged_once() -> None:
    once = log.once()

    def passes(level: int, text: str, trace: Any = None) -> bool:
        return once(logging.LogRecord("lantern_demo.x", level, "", 0, text, None, trace))

    assert passes(logging.WARNING, "odd") and not passes(logging.WARNING, "odd")
    assert passes(logging.WARNING, "other")
    for level in (logging.INFO, logging.ERROR):  # a line per run, whatever it says
        assert passes(level, "again") and passes(level, "again")


# -- all of it together, and the end


@pytest.mark.slow
def test_ctrl_c_ends_the_program_in_the_middle_of_a_run(tiny_model: Path, tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    port = free_port()
    env = os.environ | {"HF_HUB_OFFLINE": "1", "LANTERN_CACHE": str(tmp_path / "cache")}
    env |= {"GRADIO_ANALYTICS_ENABLED": "False", "TMPDIR": str(tmp_path / "tmp")}
    for name in ("GRADIO_TEMP_DIR", "PYTHONUNBUFFERED"):
        env.pop(name, None)
    app = Path(__file__).parents[1] / "app.py"
    command = [sys.executable, app, "--model", tiny_model, "--device", "cpu", "--port", port]
    # A script's background commands ignore Ctrl-C, and so would their child processes.
    attend = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    log, call = tmp_path / "log.txt", f"http://127.0.0.1:{port}/gradio_api/call"
    with program(*command, port=port, log=log, env=env, preexec_fn=attend) as running:
        big = {"prompt": "a red lantern", "settings": {"tree": "paper"}}
        event = httpx.post(f"{call}/v2/compare", json=big, timeout=SECONDS).json()["event_id"]
        with httpx.stream("GET", f"{call}/compare/{event}", timeout=SECONDS) as stream:
            events = stream.iter_lines()
            while "progress" not in next(events):
                pass
            assert str(port) in log.read_text(encoding="utf-8"), "not only at its end"
            start = time.monotonic()
            running.send_signal(signal.SIGINT)
            assert running.wait(30) == 0
            took = time.monotonic() - start
    assert took < 10, f"a second or two on a machine of its own, {took:.1f} here"
    assert not list((tmp_path / "tmp").glob("lantern-demo-*")), "no file is left"
    told = log.read_text(encoding="utf-8")
    assert "Stopped." in told and "Traceback" not in told
