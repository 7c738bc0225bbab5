"""The server goes away while a race goes on, and comes back."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from test_browser import PATIENCE, browser, draw, expect, open_page, pytestmark

from lantern_demo.ui import texts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

__all__ = ["browser", "pytestmark"]  # a fixture, and the marks of all tests here
APP = Path(__file__).parent.parent / "app.py"


class Server:
    """The program as a process of its own, which can be killed and started again at the same address."""

    def __init__(self, model: Path, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.command = [sys.executable, str(APP), "--model", str(model), "--port", str(self.port)]
        self.environment = os.environ | {"GRADIO_TEMP_DIR": str(folder)}
        self.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 180
        while not self.ready():
            assert self.process.poll() is None and time.monotonic() < end, "the program did not start"
            time.sleep(0.2)

    def ready(self) -> bool:
        try:
            return httpx.get(f"{self.address}healthz").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A tab. An error in the page's scripts fails the test."""
    faults: list[str] = []
    page = browser.new_page()
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    yield page
    page.close()
    assert faults == []


@pytest.fixture(scope="module")
def started(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    program = Server(tiny_model, tmp_path_factory.mktemp("program"))
    yield program
    program.kill()


@pytest.fixture
def program(started: Server) -> Server:
    """The program, which runs."""
    if started.process.poll() is not None:
        started.start()
    return started


def test_a_race_whose_server_goes_is_told_and_kept(page: Page, program: Server) -> None:
    open_page(page, program.address)
    prompt = "two <b>blue</b> lanterns & a moon"
    page.get_by_label("Prompt").fill(prompt)
    draw(page)
    page.wait_for_function("document.querySelector('#stage .lane[data-phase=drawing] .side')?.textContent.match(/[1-9]/)")
    program.kill()
    expect(page.locator("#status")).to_have_text(texts.WEB["lost"])
    expect(page.locator("#stage .source")).to_have_text(texts.WEB["lostRace"])
    assert page.get_by_label("Prompt").input_value() == prompt
    passes = page.locator("#stage .side").all_inner_texts()
    assert any(re.match(r"[1-9]\d* passes", told) for told in passes), "what was drawn stays"
    assert page.locator("#stage .lane[data-phase=drawing], #stage .lane[data-phase=waiting], body.racing").count() == 0
    expect(page.locator("#draw")).to_be_disabled()
    expect(page.locator("#stop")).to_be_hidden()
    assert "Drawing" not in page.locator("main").inner_text()

    page.evaluate("window.same = true")
    program.start()
    expect(page.locator("#status")).to_contain_text(texts.WEB["back"])
    page.wait_for_timeout(2500)  # longer than Gradio takes to ask once more
    assert page.evaluate("window.same"), "the page did not reload by itself"
    assert page.locator("#stage .side").all_inner_texts() == passes
    page.locator("#status").get_by_role("button", name=texts.WEB["reload"]).click()
    expect(page.locator("#status")).to_contain_text(texts.READY_LINK)
    assert page.get_by_label("Prompt").input_value() == prompt
    draw(page)
    expect(page.locator("#status")).to_contain_text("Done, with seed")


def test_a_press_without_a_server_is_told_as_well(page: Page, program: Server) -> None:
    """Nothing ran when it went."""
    open_page(page, program.address)
    shown = page.locator("#stage .source").inner_text()
    program.kill()
    draw(page)
    expect(page.locator("#status")).to_have_text(texts.WEB["lost"])
    assert page.locator("#stage .source").inner_text() == shown
    expect(page.locator("#stop")).to_be_hidden()
