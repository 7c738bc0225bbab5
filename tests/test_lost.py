"""The server goes away while a race goes on, and comes back."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from test_browser import browser, draw, expect, open_page, pytestmark, tab

from lantern_demo.ui import texts
from lantern_demo.ui.page import build, launch, wait_for_model

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["browser", "pytestmark", "tab"]  # the fixtures and marks of the browser's tests


class Line:
    """An address that leads to a server until it is cut: what was open breaks off, and nobody answers there any more."""

    def __init__(self) -> None:
        self.address, self.sockets = ("127.0.0.1", 0), set[socket.socket]()

    def connect(self, server: str) -> str:
        """Lead to this server from now on -> the page's address, the same as before."""
        listener = socket.create_server(self.address)
        self.address = listener.getsockname()
        self.sockets.add(listener)
        target = urlparse(server)
        threading.Thread(target=self.accept, args=(listener, (target.hostname, target.port)), daemon=True).start()
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
    page = build(tiny_model, "cpu")
    wait_for_model(page)
    _, url, _ = launch(page, server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
    yield url
    page.close(verbose=False)


def test_a_race_whose_server_goes_is_told_and_kept(tab: Page, line: Line, server: str, another_server: str) -> None:
    open_page(tab, line.connect(server))
    prompt = "two <b>blue</b> lanterns & a moon"
    tab.get_by_label("Prompt").fill(prompt)
    draw(tab)
    tab.wait_for_function("document.querySelector('#stage .lane[data-phase=drawing] .side')?.textContent.match(/[1-9]/)")
    line.cut()
    expect(tab.locator("#status")).to_have_text(texts.WEB["lost"])
    expect(tab.locator("#stage .source")).to_have_text(texts.WEB["lostRace"])
    assert tab.get_by_label("Prompt").input_value() == prompt
    passes = tab.locator("#stage .side").all_inner_texts()
    assert any(re.match(r"[1-9]\d* passes", told) for told in passes), "what was drawn stays"
    assert tab.locator("#stage .lane[data-phase=drawing], #stage .lane[data-phase=waiting], body.racing").count() == 0
    expect(tab.locator("#draw")).to_be_disabled()
    expect(tab.locator("#stop")).to_be_hidden()
    assert "Drawing" not in tab.locator("main").inner_text()

    tab.evaluate("window.same = true")
    line.connect(another_server)
    expect(tab.locator("#status")).to_contain_text(texts.WEB["back"])
    tab.wait_for_timeout(2500)  # longer than Gradio takes to ask once more
    assert tab.evaluate("window.same"), "the page did not reload by itself"
    assert tab.locator("#stage .side").all_inner_texts() == passes
    tab.locator("#status").get_by_role("button", name=texts.WEB["reload"]).click()
    expect(tab.locator("#status")).to_contain_text(texts.READY_LINK)
    assert tab.get_by_label("Prompt").input_value() == prompt
    draw(tab)
    expect(tab.locator("#status")).to_contain_text("Done, with seed")


def test_a_press_without_a_server_is_told_as_well(tab: Page, line: Line, server: str) -> None:
    """Nothing ran when it went."""
    open_page(tab, line.connect(server))
    shown = tab.locator("#stage .source").inner_text()
    line.cut()
    draw(tab)
    expect(tab.locator("#status")).to_have_text(texts.WEB["lost"])
    assert tab.locator("#stage .source").inner_text() == shown
    expect(tab.locator("#stop")).to_be_hidden()


def test_a_reload_in_the_middle_of_a_race_is_no_error(tab: Page, server: str) -> None:
    """Nothing is logged as one, and the run of the page that went does not hold up the next."""
    errors = list[str]()
    tab.on("console", lambda told: errors.append(told.text) if told.type in ("error", "warning") else None)
    open_page(tab, server)
    for _ in range(2):
        draw(tab)
        tab.wait_for_function("document.querySelector('#stage .lane[data-phase=drawing] .side')?.textContent.match(/[1-9]/)")
        tab.reload()
        expect(tab.locator("#status")).to_contain_text(re.compile("press Draw", re.IGNORECASE))
    assert errors == []
