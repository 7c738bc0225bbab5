"""Many at once, and those who leave: turns, stopping, deadlines, health, the log, and Ctrl-C."""

import asyncio
import inspect
import json
import logging
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from space import free_port
from tiny import awaited, program, wait_for, waiting

from lantern_demo.runs.pipeline import Drawing
from lantern_demo.runs.result import MethodFailed, Result
from lantern_demo.ui import api, log, routes, texts
from lantern_demo.ui.page import build
from lantern_demo.ui.service import Service, run_seconds
from lantern_demo.version import __version__

CASE = {"prompt": "a red lantern", "methods": ["vanilla"], "seed": 7}
SECONDS = 60  # of patience: a test machine may be busy


def asked(url: str) -> str:
    """Ask for a run by plain HTTP -> the address of its answers."""
    answer = httpx.post(f"{url}/gradio_api/call/v2/compare", json=CASE, timeout=SECONDS)
    return f"{url}/gradio_api/call/compare/{answer.raise_for_status().json()['event_id']}"


def drawn(address: str) -> list[int]:
    """The tokens of a run that was asked for."""
    events = httpx.get(address, timeout=SECONDS).text.strip().split("\n\n")
    event, data = events[-1].split("\n")
    assert event == "event: complete", data
    _, record = json.loads(data.removeprefix("data: "))
    return record["methods"]["vanilla"]["token_ids"]


def idle(url: str) -> bool:
    running = httpx.get(f"{url}/healthz", timeout=SECONDS).json()["running"]
    return not running and not waiting(url)


@pytest.fixture
def url(server: str) -> str:
    return server.rstrip("/")


def test_the_turn_keeps_runs_apart(tiny_service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A visitor's run begins behind one of Python, which is told, and which no look delays."""
    seeds, take = list[int](), Drawing.next

    def noted(self: Drawing) -> Any:
        seeds.append(self.plan.settings.seed)
        return take(self)

    monkeypatch.setattr(Drawing, "next", noted)
    request = tiny_service.request("a lantern", ["vanilla"], {"seed": 2})
    steps = tiny_service.wait().stream("a lantern", "vanilla", seed=1)
    next(steps)
    with ThreadPoolExecutor(1) as visitors:
        visit = visitors.submit(list, tiny_service.frames(request))
        assert tiny_service.busy and tiny_service.at_once(lambda: "looked") is None
        list(steps)
        visit.result(SECONDS)
    assert [seed for seed, _ in groupby(seeds)] == [1, 2], "one after the other"
    assert not tiny_service.busy and tiny_service.at_once(lambda: "looked") == "looked"


def test_a_lent_process_needs_no_turn_of_its_own(tiny_service: Service) -> None:
    """ZeroGPU's is a copy of this one, in which the caller of the run has the turn for ever."""
    request = tiny_service.request("a lantern", ["vanilla"], {"seed": 1})
    with tiny_service.wait().turn():
        *_, last = tiny_service._frames(request, 60)
    assert isinstance(last, Result)


@pytest.mark.slow
def test_whoever_leaves_frees_the_device(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hanging up, or by never listening. Of 256 steps of 20 ms a handful follows."""
    wanted, moments, take = drawn(asked(url)), list[float](), Drawing.next

    def noted(self: Drawing) -> Any:
        event = take(self)
        moments.append(time.monotonic())
        time.sleep(0.02)  # a run long enough to leave in the middle of
        return event

    def ends_soon() -> None:
        left = time.monotonic()
        wait_for(lambda: idle(url), "the device")
        late = [moment for moment in moments if moment > left]
        assert len(moments) < 200 and len(late) < 60, "the run went on without its client"
        moments.clear()

    monkeypatch.setattr(Drawing, "next", noted)
    with httpx.stream("GET", asked(url), timeout=SECONDS) as stream:
        list(islice(stream.iter_lines(), 9))  # three answers
    ends_soon()
    monkeypatch.setattr(api, "UNHEARD_SECONDS", 0.5)
    address = asked(url)
    wait_for(lambda: moments, "the run to begin")
    ends_soon()
    with pytest.raises(AssertionError, match=texts.UNHEARD):
        drawn(address)
    assert drawn(asked(url)) == wanted, "a call that is listened to goes on"


@pytest.mark.parametrize("endpoint", [api._draw, api._compare])
def test_a_left_call(endpoint: Any, tiny_service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while something still names the run, as Python 3.12 does for longer than others."""
    made, runs = api.answers, []

    def noted(*arguments: Any, **named: Any) -> Any:
        runs.append(made(*arguments, **named))
        return runs[-1]

    monkeypatch.setattr(api, "answers", noted)
    call = endpoint(None, tiny_service)("a red lantern")
    next(call)
    assert not tiny_service.busy, "it is answered first, or Gradio could not end it"
    next(call)
    assert tiny_service.busy
    call.close()
    assert inspect.getgeneratorstate(runs[0]) == inspect.GEN_CLOSED
    assert not tiny_service.busy


def test_a_deadline_ends_runs(tiny_service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_patches_are_served(url: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert httpx.get(f"{url}/patches/tiny").status_code == 204
    monkeypatch.setattr(routes, "PATCHES", "words.json")  # which it has
    served = httpx.get(f"{url}/patches/tiny").content
    assert served == (tiny_model / "words.json").read_bytes()
    assert httpx.get(f"{url}/patches/other").status_code == 204
    assert httpx.get(f"{url}/patches/..%2Ftiny").status_code in (204, 404)


def test_waiting_visitors_hold_up_nobody(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait in one event loop, more of them than Gradio has threads."""
    loaded = threading.Event()

    def held(*_: Any, **__: Any) -> Any:
        loaded.wait(SECONDS)
        raise ValueError("model is not for this test")

    monkeypatch.setattr("lantern_demo.ui.service.load", held)
    page = build(tiny_model, "cpu")
    (arrive,) = (event for event in page.fns.values() if event.name == "arrive")
    assert arrive.concurrency_limit is None

    async def visit() -> list[str]:
        return [told async for told in arrive.fn()]

    async def visits() -> list[list[str]]:
        begun = [asyncio.ensure_future(visit()) for _ in range(45)]
        await asyncio.sleep(0.1)
        loaded.set()
        return await asyncio.gather(*begun)

    for busy, failed in awaited(visits()):
        assert texts.LOADING in busy and "model is not for this test" in failed


def test_a_line_per_run(tiny_service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = {"seed": 3, "tree": "small"}
    request = tiny_service.request("a secret lantern", ["vanilla", "eagle1"], knobs)
    with patch("lantern_demo.ui.service._LOG.info") as info:
        list(tiny_service.frames(request))
        monkeypatch.setenv("LANTERN_LOG_PROMPTS", "1")
        left = tiny_service.frames(request)
        next(left)
        left.close()
    whole, stopped = (line.args[0] % line.args[1:] for line in info.call_args_list)
    assert whole.startswith("run: model tiny, seed 3, prompt 16 characters, done: vanilla ")
    assert "'a secret lantern', stopped: vanilla stopped, eagle1 stopped" in stopped


def test_warnings_are_logged_once() -> None:
    once = log.once()

    def passes(level: int, text: str, trace: Any = None) -> bool:
        return once(logging.LogRecord("lantern_demo.x", level, "", 0, text, None, trace))

    assert passes(logging.WARNING, "odd") and not passes(logging.WARNING, "odd")
    assert passes(logging.WARNING, "other")
    for level in (logging.INFO, logging.ERROR):  # a line per run, whatever it says
        assert passes(level, "again") and passes(level, "again")


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
            running.send_signal(signal.SIGINT)
            assert running.wait(10) == 0  # a second or two on a machine of its own
    assert not list((tmp_path / "tmp").glob("lantern-demo-*")), "no file is left"
    told = log.read_text(encoding="utf-8")
    assert "Stopped." in told and "Traceback" not in told
