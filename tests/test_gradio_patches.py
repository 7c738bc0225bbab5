"""The uses of undocumented parts of Gradio still do what they are for; see `ui.gradio_patches`."""

import asyncio
import functools
import inspect
import io
import re
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import gradio as gr
import httpx
import pytest
from gradio import networking, route_utils, utils
from gradio_client import Client
from PIL import Image
from tiny import wait_for, waiting

from lantern_demo.ui import gradio_patches as patches
from lantern_demo.ui import texts
from lantern_demo.ui.routes import PREVIEW


@pytest.fixture(scope="module")
def served() -> Iterator[SimpleNamespace]:
    """A page with the queue's patches. `gate` holds /hold; /read answers with /write's state."""
    found = SimpleNamespace(ran=[], gate=threading.Event())

    def hold(first: str) -> str:
        found.gate.wait(60)
        found.ran.append(first)
        return first

    def write() -> Iterator[list[int]]:
        handed = [1]
        yield handed
        handed.append(2)

    with gr.Blocks() as page:
        gr.api(hold, api_name="hold", concurrency_limit=1)
        state, button = gr.State(None), gr.Button()
        written = button.click(write, None, [state], api_name="write")
        written.then(lambda kept: kept, [state], [gr.JSON()], api_name="read")
    found.page = page.queue(api_open=False)
    patches.calm_queue(page)
    patches.drop_lost_messages(page)
    _, found.url, _ = page.launch(prevent_thread_lock=True, quiet=True)
    yield found
    found.gate.set()
    page.close(verbose=False)


def call(served: SimpleNamespace, value: str, **more: Any) -> httpx.Response:
    return httpx.post(f"{served.url}gradio_api/call/hold", json={"data": [value], **more})


def test_another_version_of_gradio_is_looked_through_first() -> None:
    assert gr.__version__ == patches.CHECKED, "check each function with the new version"


class Noted(functools.partial):  # type: ignore[type-arg]
    """A handler whose generators are kept in `runs`."""

    runs: ClassVar[list[Any]] = []

    def __call__(self, *arguments: Any) -> Any:
        self.runs.append(super().__call__(*arguments))
        return self.runs[-1]


def test_a_handler_that_is_left_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while something still names it. What Gradio does around every answer is still done."""
    monkeypatch.setattr(utils, "function_wrapper", patches.WRAPPER)
    patches.close_what_is_left()
    done: list[str] = []

    def handler(first: int) -> Iterator[int]:
        yield first
        yield first + 1

    context = done.append, ["before"], done.append, ["after"]
    wrapped = utils.function_wrapper(Noted(handler), *context)
    call = wrapped(3)
    assert next(call) == 3 and done == ["before", "after"]
    call.close()
    assert inspect.getgeneratorstate(Noted.runs[0]) == inspect.GEN_CLOSED
    assert list(wrapped(5)) == [5, 6]
    assert utils.function_wrapper(lambda: 7, *context)() == 7


def test_the_first_page_may_take_longer_than_gradio_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(_: str, timeout: float, **__: Any) -> httpx.Response:
        if timeout < 10:
            raise httpx.ReadTimeout("the model is being loaded")
        return httpx.Response(200)

    monkeypatch.setattr(httpx, "head", slow)
    monkeypatch.setattr(networking, "url_ok", patches.URL_OK)
    assert not networking.url_ok("http://127.0.0.1/"), "as without the patch"
    patches.wait_for_first_page()
    assert networking.url_ok("http://127.0.0.1/")
    assert networking.url_ok is patches.URL_OK


def test_old_files_are_deleted_beside_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Growing(set[str]):
        def __iter__(self) -> Iterator[str]:
            for name in super().__iter__():
                self.add("new")
                yield name

    page: Any = SimpleNamespace(blocks={}, temp_file_sets=[Growing(["gone", "too"])])
    monkeypatch.setattr(route_utils, "delete_files_created_by_app", patches.DELETE)
    with pytest.raises(RuntimeError, match="changed size"):
        route_utils.delete_files_created_by_app(page, 1)
    patches.keep_deleting()
    page.temp_file_sets = [Growing(["gone", "too"])]
    route_utils.delete_files_created_by_app(page, 1)


def test_a_link_has_the_previews_of_this_page(server: str) -> None:
    proxy = {"x-forwarded-host": "demo.example", "x-forwarded-proto": "https"}
    tag = re.compile(r'<meta\s+(?:name|property)="((?:og|twitter):[^"]*)"\s+content="([^"]*)"')
    for headers, address in (({}, server), (proxy, "https://demo.example/")):
        tags = tag.findall(httpx.get(server, headers=headers).text)
        told = dict(tags)
        assert len(told) == len(tags) and "Gradio" not in str(tags)
        assert (told["og:title"], told["og:description"]) == (texts.TITLE, texts.PREVIEW)
        assert (told["og:url"], told["og:image"]) == (address, f"{address}{PREVIEW}")
    answer = httpx.get(f"{server}{PREVIEW}")
    with Image.open(io.BytesIO(answer.content)) as picture:
        assert picture.size == (1200, 630) and answer.headers["content-type"] == "image/png"


def test_a_calm_queue_lives_on(served: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio keeps no messages of a session "". Unpatched, a second has hundreds of pauses."""
    pauses, sleep = [], asyncio.sleep

    async def counted(seconds: float, *more: Any) -> Any:
        if 0 < seconds < 0.02:
            pauses.append(seconds)
        return await sleep(seconds, *more)

    assert call(served, "runs").status_code == 200
    wait_for(lambda: not waiting(served.url))
    assert call(served, "nameless", session_hash="").status_code == 200
    assert call(served, "last").status_code == 200
    wait_for(lambda: waiting(served.url) == 2)
    monkeypatch.setattr(asyncio, "sleep", counted)
    time.sleep(1)
    found = len(pauses)
    served.gate.set()
    wait_for(lambda: served.ran == ["runs", "nameless", "last"])
    assert found < 10


def test_a_state_keeps_the_object_itself(served: SimpleNamespace) -> None:
    """A run hands its state over once and changes it; what follows reads what it noted since. Also
    once the page has lost its connection for long.
    """
    patches.keep_states()
    client = Client(served.url, verbose=False)
    client.predict(api_name="/write")
    session = served.page.state_holder.session_data[client.session_hash]
    session.is_closed, session.STATE_TTL_WHEN_CLOSED = True, 0
    served.page.state_holder.delete_all_expired_state()
    assert client.predict(api_name="/read") == [1, 2]
