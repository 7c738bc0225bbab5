"""Beside others, in a real browser: as many wait as may, or the server goes away while a race goes
on, and comes back.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import httpx
import pytest
from gradio_client import Client
from pages import IN_A_BROWSER, draw, expect, new_tab, only, open_page, show_example
from tiny import served

from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.ui import texts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = IN_A_BROWSER
PLACE = "#told .block.place"  # in the queue


class Device:
    """A stand-in for a busy device: what is drawn waits at a gate, and one more may wait for it."""

    def __init__(self) -> None:
        self.entered, self.gate = threading.Event(), threading.Event()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    device, race = Device(), Pipeline.race

    def held(self: Pipeline, *args: Any, **kwargs: Any) -> Iterator[Any]:
        device.entered.set()
        assert device.gate.wait(120)
        yield from race(self, *args, **kwargs)

    monkeypatch.setattr(Pipeline, "race", held)
    monkeypatch.setattr("lantern_demo.ui.admission.WAITING", 1)
    yield device
    device.gate.set()


def waiting(server: str) -> int:
    return httpx.get(f"{server}gradio_api/queue/status").json()["queue_size"]


def until(count: int, server: str, page: Page) -> None:
    """Wait until so many wait. The page's own wait, since its requests pass through this thread."""
    end = time.monotonic() + 60
    while waiting(server) != count:
        assert time.monotonic() < end, f"{waiting(server)} are waiting"
        page.wait_for_timeout(50)


def test_a_full_queue(page: Page, server: str, device: Device) -> None:
    client = Client(server, verbose=False)
    jobs = [client.submit("a lantern", method="vanilla", api_name="/draw")]
    assert device.entered.wait(60)
    jobs.append(client.submit("a lantern", method="vanilla", api_name="/draw"))
    until(1, server, page)
    show_example(page)  # nobody needs the device for it, nor for the page
    page.goto(f"{server}?prompt=two+blue+lanterns&seed=42&methods=vanilla")
    expect(page.locator("#status")).to_contain_text("Filled in from the link")
    expect(page.locator("#seed input")).to_have_value("42")

    draw(page)
    expect(page.get_by_role("alert")).to_contain_text(
        "Queue is full: 1 requests are waiting, and no more may."
    )
    expect(page.get_by_role("button", name="Draw", exact=True)).to_be_enabled()
    expect(page.locator("#stop")).to_be_hidden()

    device.gate.set()
    for job in jobs:
        job.result(timeout=60)
    # Gradio's own notice, there for ten seconds, does not lie over it
    page.locator("#draw").click(timeout=5000)
    expect(page.locator("#status")).to_contain_text("Done, with seed")


def test_who_waits_sees_it_and_can_leave(
    page: Page, server: str, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lantern_demo.ui.admission.WAITING", 2)
    client = Client(server, verbose=False)
    device.gate.set()
    # a run that tells how long one takes
    client.predict("a lantern", method="vanilla", api_name="/draw")
    device.gate.clear()
    device.entered.clear()
    drawing = client.submit("a lantern", method="vanilla", api_name="/draw")
    assert device.entered.wait(60)
    draw(page)
    expect(page.locator(PLACE)).to_have_text("1 before you.")
    until(1, server, page)
    assert page.context.browser
    another = page.context.browser.new_page(reduced_motion="reduce")
    open_page(another, server)
    only(another, "vanilla")
    draw(another)
    expect(another.locator(PLACE)).to_have_text("2 before you.")
    page.get_by_role("button", name="Stop", exact=True).click()
    until(1, server, page)
    expect(page.get_by_role("button", name="Draw", exact=True)).to_be_enabled()
    expect(page.locator("#status")).to_contain_text("Stopped.")
    expect(another.locator(PLACE)).to_have_text("1 before you.")
    device.gate.set()
    drawing.result(timeout=60)
    expect(another.locator("#status")).to_contain_text("Done, with seed")
    another.close()


class Line:
    """An address that leads to a server until it is cut: what was open breaks off, and nobody
    answers there any more.
    """

    def __init__(self) -> None:
        self.address, self.sockets = ("127.0.0.1", 0), set[socket.socket]()

    def connect(self, server: str) -> str:
        """Lead to this server from now on -> the page's address, the same as before."""
        listener = socket.create_server(self.address)
        self.address = listener.getsockname()
        self.sockets.add(listener)
        target = urlparse(server)
        threading.Thread(
            target=self.accept, args=(listener, (target.hostname, target.port)), daemon=True
        ).start()
        return f"http://127.0.0.1:{self.address[1]}/"

    def accept(self, listener: socket.socket, target: tuple[str, int]) -> None:
        with suppress(OSError):  # it was cut
            while True:
                ends = listener.accept()[0], socket.create_connection(target)
                self.sockets.update(ends)
                for one, other in (ends, ends[::-1]):
                    threading.Thread(target=self.pass_on, args=(one, other), daemon=True).start()

    def pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        for one in self.sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self.sockets.clear()


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.cut()


@pytest.fixture
def another_server(tiny_model: Path) -> Iterator[str]:
    """The demo once more, as it is after a new start: it knows nothing of what the first has seen."""
    with served(tiny_model) as (url, _):
        yield url


@pytest.fixture
def tab_without_server(browser: Browser) -> Iterator[Page]:
    with new_tab(browser, console=False) as page:
        yield page


def test_a_server_that_goes_is_told_and_what_was_drawn_stays(
    tab_without_server: Page, line: Line, server: str, another_server: str
) -> None:
    """Between two races a press of Draw tells it, and in a race the race itself."""
    tab = tab_without_server
    open_page(tab, line.connect(server))
    shown = tab.locator("#stage .source").inner_text()
    line.cut()
    draw(tab)
    expect(tab.locator("#status")).to_have_text(texts.WEB["lost"])
    assert tab.locator("#stage .source").inner_text() == shown
    expect(tab.locator("#stop")).to_be_hidden()
    line.connect(server)
    tab.locator("#status").get_by_role("button", name=texts.WEB["reload"]).click()
    expect(tab.locator("#status")).to_contain_text(texts.READY_LINK)
    prompt = "two <b>blue</b> lanterns & a moon"
    tab.get_by_label("Prompt").fill(prompt)
    draw(tab)
    tab.wait_for_function(
        "document.querySelector('#stage .lane[data-phase=drawing] .passes')?.textContent.match(/[1-9]/)"
    )
    line.cut()
    expect(tab.locator("#status")).to_have_text(texts.WEB["lost"])
    expect(tab.locator("#stage .source")).to_have_text(texts.WEB["lostRace"])
    assert tab.get_by_label("Prompt").input_value() == prompt
    passes = tab.locator("#stage .passes").all_inner_texts()
    assert any(re.match(r"[1-9]\d* passes", told) for told in passes), "what was drawn stays"
    assert (
        tab.locator(
            "#stage .lane[data-phase=drawing], #stage .lane[data-phase=waiting], body.racing"
        ).count()
        == 0
    )
    expect(tab.locator("#draw")).to_be_disabled()
    expect(tab.locator("#stop")).to_be_hidden()
    assert "Drawing" not in tab.locator("main").inner_text()

    tab.evaluate("window.same = true")
    line.connect(another_server)
    expect(tab.locator("#status")).to_contain_text(texts.WEB["back"])
    tab.wait_for_timeout(2500)  # longer than Gradio takes to ask once more
    assert tab.evaluate("window.same"), "the page did not reload by itself"
    assert tab.locator("#stage .passes").all_inner_texts() == passes
    tab.locator("#status").get_by_role("button", name=texts.WEB["reload"]).click()
    expect(tab.locator("#status")).to_contain_text(texts.READY_LINK)
    assert tab.get_by_label("Prompt").input_value() == prompt
    draw(tab)
    expect(tab.locator("#status")).to_contain_text("Done, with seed")


def test_a_reload_in_the_middle_of_a_race_is_no_error(tab: Page, server: str) -> None:
    """The run of the page that went does not hold up the next."""
    open_page(tab, server)
    for _ in range(2):
        draw(tab)
        tab.wait_for_function(
            "document.querySelector('#stage .lane[data-phase=drawing] .passes')?.textContent.match(/[1-9]/)"
        )
        tab.reload()
        expect(tab.locator("#status")).to_contain_text(re.compile("press Draw", re.IGNORECASE))
