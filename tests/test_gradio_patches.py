"""Each undocumented part of Gradio that the page uses is still there and does what it is used for;
see `ui.gradio_patches`.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import httpx
import pytest
from fastapi import HTTPException, Request
from gradio_client import Client
from tiny import wait_for

from lantern_demo.ui import gradio_patches as patches

HELD = "held"  # a concurrency id
ANSWERED = "answered already"


@pytest.fixture(scope="module")
def served() -> Iterator[SimpleNamespace]:
    """A page with the queue's patches, and what asked to join. `gate` holds the endpoint /hold."""
    found = SimpleNamespace(joining=[], sessions=[], ran=[], gate=threading.Event())

    def hold(first: str) -> str:
        found.gate.wait(60)
        found.sessions.append(set(page.state_holder.session_data))
        found.ran.append(first)
        return first

    def check(asked: patches.Joining) -> None:
        found.joining.append(asked)
        if asked.values == ["refused"]:
            raise HTTPException(418, "not this")
        if asked.event is None:
            raise HTTPException(404, "no such event")

    with gr.Blocks() as page:
        gr.api(hold, api_name="hold", concurrency_id=HELD, concurrency_limit=1)
    page.queue(api_open=False)
    patches.calm_queue(page)
    patches.guard_queue(page, check, lambda request, session: str(session))
    patches.forget_calls(page)
    patches.drop_lost_messages(page)
    patches.answer_once(page, ANSWERED)
    _, found.url, _ = page.launch(prevent_thread_lock=True, quiet=True, **patches.LAUNCH_OPTIONS)
    found.page = page
    yield found
    found.gate.set()
    page.close(verbose=False)


def call(served: SimpleNamespace, value: str, **more: Any) -> httpx.Response:
    return httpx.post(f"{served.url}gradio_api/call/hold", json={"data": [value], **more})


def keep_busy(served: SimpleNamespace, value: str, **more: Any) -> None:
    """Shut the gate, and make a call that runs until it opens."""
    served.gate.clear()
    assert call(served, value, **more).status_code == 200
    wait_for(
        lambda: (
            len(list(patches.pending(served.page, HELD))) == 1
            and not patches.waiting(served.page, HELD)
        )
    )


def let_go(served: SimpleNamespace) -> None:
    """Open the gate, and wait until nothing runs or waits."""
    served.gate.set()
    wait_for(lambda: not list(patches.pending(served.page, HELD)))


def test_another_version_of_gradio_is_looked_through_first() -> None:
    assert gr.__version__ == patches.CHECKED, (
        "open ui/gradio_patches.py and check each function with the new version"
    )


def test_a_request_is_checked_before_it_joins(served: SimpleNamespace) -> None:
    served.gate.set()
    assert call(served, "refused").status_code == 418
    asked = served.joining[-1]
    assert asked.event == patches.Event("hold", True, ["1st"], HELD) and asked.values == ["refused"]
    assert asked.session is None and asked.request.client.host == "127.0.0.1"
    assert call(served, "fine", session_hash="tab").status_code == 200
    assert served.joining[-1].session == "tab"
    body = {"data": [], "fn_index": 99, "session_hash": "tab"}
    assert httpx.post(f"{served.url}gradio_api/queue/join", json=body).status_code == 404
    assert served.joining[-1].event is None
    wait_for(lambda: not list(patches.pending(served.page, HELD)))


def test_what_waits_and_what_runs(served: SimpleNamespace) -> None:
    keep_busy(served, "runs")
    assert (
        call(served, "waits").status_code == 200
        and call(served, "waits too", session_hash="tab").status_code == 200
    )
    assert patches.waiting(served.page, HELD) == 2 and patches.waiting(served.page, "another") == 0
    found = list(patches.pending(served.page, HELD))
    assert sorted(str(queued.session) for queued in found) == ["None", "None", "tab"]
    assert {queued.request.client.host for queued in found if queued.request.client} == {
        "127.0.0.1"
    }
    assert not list(patches.pending(served.page, "another"))
    assert call(served, "and this", session_hash="later").status_code == 200
    assert [queued.waits for queued in patches.pending(served.page, HELD)] == [
        False,
        True,
        True,
        True,
    ]
    assert (
        patches.ahead_of(served.page, HELD, "tab") == 1
        and patches.ahead_of(served.page, HELD, "later") == 2
    ), "None runs"
    assert (
        patches.ahead_of(served.page, HELD, "nobody") is None
        and patches.ahead_of(served.page, "another", "tab") is None
    )
    let_go(served)


def test_clients_take_turns(served: SimpleNamespace) -> None:
    """A client's first request comes before the second of any other, and so on, also after some
    have left the queue.
    """
    ran = len(served.ran)

    def ask(client: str, *numbers: int) -> list[str]:
        return [
            call(served, f"{client}{n}", session_hash=client).json()["event_id"] for n in numbers
        ]

    def line() -> list[str]:
        return [
            event.data.data[0]
            for event in served.page._queue.event_queue_per_concurrency_id[HELD].queue
        ]

    keep_busy(served, "a0", session_hash="a")
    mine = ask("a", 1, 2, 3, 4)
    assert line() == ["a1", "a2", "a3", "a4"]
    ask("b", 0, 1, 2)
    ask("c", 0)
    assert line() == ["b0", "c0", "a1", "b1", "a2", "b2", "a3", "a4"]
    for event in mine[:2]:
        # with the endpoint's own number the running one would end
        body = {"session_hash": "a", "fn_index": -1, "event_id": event}
        httpx.post(f"{served.url}gradio_api/cancel", json=body)
    ask("d", 0)
    assert line() == ["b0", "c0", "d0", "b1", "a3", "b2", "a4"]
    assert patches.ahead_of(served.page, HELD, "d") == 3, "one runs"
    let_go(served)
    assert served.ran[ran:] == ["a0", "b0", "c0", "d0", "b1", "a3", "b2", "a4"]


def test_those_who_wait_are_told_their_new_places(served: SimpleNamespace) -> None:
    served.gate.clear()
    client, other = Client(served.url, verbose=False), Client(served.url, verbose=False)
    jobs = [client.submit("first", api_name="/hold")]
    wait_for(
        lambda: (
            len(list(patches.pending(served.page, HELD))) == 1
            and not patches.waiting(served.page, HELD)
        )
    )
    jobs.append(client.submit("second", api_name="/hold"))
    wait_for(lambda: jobs[1].status().rank == 0)
    jobs.append(other.submit("other", api_name="/hold"))
    wait_for(lambda: [job.status().rank for job in jobs[1:]] == [1, 0])
    served.gate.set()
    assert [job.result(60) for job in jobs] == ["first", "second", "other"]


def test_the_queue_outlives_a_session_that_is_lost(served: SimpleNamespace) -> None:
    """Of those that wait one names its session "", and another's has been pushed out by newer ones."""
    ran = len(served.ran)
    keep_busy(served, "runs", session_hash="first")
    assert call(served, "nameless", session_hash="").status_code == 200
    assert call(served, "old", session_hash="old").status_code == 200
    del served.page._queue.pending_messages_per_session["old"]
    assert call(served, "last", session_hash="last").status_code == 200
    let_go(served)
    assert (
        served.ran[ran:] == ["runs", "nameless", "old", "last"] and not served.page._queue.stopped
    )


def test_a_call_is_answered_once(served: SimpleNamespace) -> None:
    """What was answered or cancelled says so when it is asked for again, and whoever asks beside
    another is not left waiting.
    """

    def answer(event: str) -> str:
        return httpx.get(f"{served.url}gradio_api/call/hold/{event}", timeout=30).text

    again = f'event: error\ndata: {{"error": "{ANSWERED}"}}\n\n'
    served.gate.set()
    event = call(served, "once").json()["event_id"]
    assert (
        answer(event).endswith('event: complete\ndata: ["once"]\n\n')
        and answer(event) == answer(event) == again
    )

    served.gate.clear()
    running, waits = (call(served, text).json()["event_id"] for text in ("runs", "waits"))
    wait_for(lambda: patches.waiting(served.page, HELD) == 1)
    with ThreadPoolExecutor(2) as threads:
        asked = [threads.submit(answer, waits) for _ in range(2)]
        httpx.post(
            f"{served.url}gradio_api/cancel",
            json={"session_hash": waits, "fn_index": 0, "event_id": waits},
        )
        assert sorted(one.result() for one in asked) == ["event: complete\ndata: null\n\n", again]
    assert patches.waiting(served.page, HELD) == 0
    served.gate.set()
    assert (
        answer(running).endswith('event: complete\ndata: ["runs"]\n\n') and answer(running) == again
    )
    wait_for(lambda: not list(patches.pending(served.page, HELD)))


def test_nothing_is_kept_of_a_call(served: SimpleNamespace) -> None:
    served.gate.set()
    event = call(served, "forgotten").json()["event_id"]
    wait_for(lambda: any(event in sessions for sessions in served.sessions))  # there was a session
    holder = served.page.state_holder
    wait_for(lambda: event not in holder.session_data and event not in holder.time_last_used)


def test_the_queue_rests_between_looks() -> None:
    with gr.Blocks() as page:
        pass
    queue, source = page._queue, inspect.getsource(type(page._queue))
    before = {
        name: getattr(queue, name)
        for name in ("ANALYTICS_MAX_EVENTS", "sleep_when_free", "progress_update_sleep_when_free")
    }
    assert all(source.count(f"self.{name}") > 1 for name in before), "Gradio still reads them"
    patches.calm_queue(page)
    assert queue.ANALYTICS_MAX_EVENTS == 1 < before["ANALYTICS_MAX_EVENTS"]
    assert queue.sleep_when_free > before["sleep_when_free"]
    assert queue.progress_update_sleep_when_free > before["progress_update_sleep_when_free"]


def test_a_file_of_the_server_is_found_however_deep() -> None:
    file = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
    assert patches.holds_file(file) and patches.holds_file([1, {"a": [file]}])
    assert patches.holds_file({"path": "x", "meta": 5}) and patches.holds_file(
        [{"path": 5, "meta": None}]
    )
    assert not patches.holds_file([{"path": "/etc/passwd"}, "text", None, 3])


def test_a_kept_file_outlives_the_runs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "kept"))
    file = tmp_path / "run.json"
    file.write_text("{}", encoding="utf-8")
    button = gr.DownloadButton()
    copy = Path(patches.keep_file(button, str(file)))
    file.unlink()
    assert copy.read_text(encoding="utf-8") == "{}" and str(copy) in button.temp_files, (
        "Gradio serves it and deletes it in time"
    )


@pytest.mark.parametrize(
    ("root", "headers", "address"),
    [
        ("", {}, "http://lanterns.example:7860"),
        ("/demo", {}, "http://lanterns.example:7860/demo"),
        ("https://elsewhere.example/demo", {}, "https://elsewhere.example/demo"),
        (
            "/demo",
            {"x-forwarded-host": "proxy.example", "x-forwarded-proto": "https"},
            "https://proxy.example/demo",
        ),
    ],
)
def test_a_page_knows_where_it_was_found(root: str, headers: dict[str, str], address: str) -> None:
    found = {"host": "lanterns.example:7860", **headers}
    scope = {
        "type": "http",
        "scheme": "http",
        "path": "/",
        "query_string": b"seed=3",
        "headers": [(name.encode(), value.encode()) for name, value in found.items()],
    }
    assert patches.own_address(SimpleNamespace(root_path=root), Request(scope)) == address


def test_gradios_page_still_asks_for_the_servers_id_once_it_is_lost() -> None:
    """`web/lost.js` counts on it."""
    assets = Path(gr.__file__).parent / "templates" / "frontend" / "assets"
    page = "".join(
        path.read_text(encoding="utf-8")
        for path in (*assets.glob("Blocks-*.js"), *assets.glob("index-*.js"))
    )
    assert "`app_id`" in page and ".reconnect()" in page and "window.location.reload()" in page


def test_a_state_keeps_the_object_itself() -> None:
    """A run hands its state over once and changes it in place; Stop and what follows it read what
    the run has noted since.
    """

    def write() -> Iterator[list[int]]:
        handed = [1]
        yield handed
        handed.append(2)

    with gr.Blocks() as page:
        state, button = gr.State(None), gr.Button()
        button.click(write, None, [state], api_name="write").then(
            lambda kept: kept, [state], [gr.JSON()], api_name="read"
        )
    _, address, _ = page.launch(prevent_thread_lock=True, quiet=True, **patches.LAUNCH_OPTIONS)
    try:
        client = Client(address, verbose=False)
        client.predict(api_name="/write")
        assert client.predict(api_name="/read") == [1, 2]
    finally:
        page.close(verbose=False)
