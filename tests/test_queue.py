"""When as many wait as may: the page says so and goes on, in a real browser."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from gradio_client import Client
from test_browser import browser, draw, expect, only, open_page, page, pytestmark, show_example, tab

from lantern_demo.runs.pipeline import Pipeline

__all__ = ["browser", "page", "pytestmark", "tab"]  # the fixtures and marks of the browser's tests; `page` opens the server below
if TYPE_CHECKING:
    from playwright.sync_api import Page

PLACE = "#told .block.place"  # in the queue


@dataclass
class Device:
    """A stand-in for a busy device: what is drawn waits at a gate."""

    entered: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    device, race = Device(), Pipeline.race

    def held(self: Pipeline, *args: Any, **kwargs: Any) -> Iterator[Any]:
        device.entered.set()
        assert device.gate.wait(120)
        yield from race(self, *args, **kwargs)

    monkeypatch.setattr(Pipeline, "race", held)
    yield device
    device.gate.set()


@pytest.fixture
def server(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A page where one may wait while another has the device."""
    from lantern_demo.ui.page import build, launch, wait_for_model

    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setattr("lantern_demo.ui.admission.WAITING", 1)
    demo = build(tiny_model, "cpu")
    wait_for_model(demo)
    _, url, _ = launch(demo, server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
    yield url
    demo.close(verbose=False)


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
    drawing = client.submit("a lantern", method="vanilla", api_name="/generate")
    assert device.entered.wait(60)
    next_one = client.submit("a lantern", method="vanilla", api_name="/generate")
    until(1, server, page)

    draw(page)
    expect(page.get_by_role("alert")).to_contain_text("Queue is full: 1 requests are waiting, and no more may.")
    expect(page.get_by_role("button", name="Draw", exact=True)).to_be_enabled()
    expect(page.locator("#stop")).to_be_hidden()
    refused = httpx.post(f"{server}gradio_api/call/v2/generate", json={"prompt": "a lantern"})
    assert refused.status_code == 503
    assert "Queue is full" in refused.json()["detail"]

    device.gate.set()
    drawing.result(timeout=60)
    next_one.result(timeout=60)
    only(page, "vanilla")
    draw(page)
    expect(page.locator("#status")).to_contain_text("Done, with seed")


def test_who_comes_while_the_queue_is_full_sees_the_page(page: Page, server: str, device: Device) -> None:
    client = Client(server, verbose=False)
    jobs = [client.submit("a lantern", method="vanilla", api_name="/generate")]
    assert device.entered.wait(60)
    jobs.append(client.submit("a lantern", method="vanilla", api_name="/generate"))
    until(1, server, page)
    show_example(page)  # nobody needs the device for it
    page.goto(f"{server}?prompt=two+blue+lanterns&seed=42")
    expect(page.locator("#status")).to_contain_text("Filled in from the link")
    expect(page.locator("#seed input")).to_have_value("42")
    device.gate.set()
    for job in jobs:
        job.result(timeout=60)


def test_who_waits_sees_it_and_can_leave(page: Page, server: str, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lantern_demo.ui.admission.WAITING", 2)
    drawing = Client(server, verbose=False).submit("a lantern", method="vanilla", api_name="/generate")
    assert device.entered.wait(60)
    draw(page)
    expect(page.locator(PLACE)).to_have_text("1 before you.")  # no run has ended yet that would tell how long it takes
    until(1, server, page)
    assert page.context.browser
    another = page.context.browser.new_page()
    open_page(another, server)
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


def test_who_waits_is_told_for_how_long(page: Page, server: str, device: Device) -> None:
    device.gate.set()
    client = Client(server, verbose=False)
    client.predict("a lantern", method="vanilla", api_name="/generate")
    device.gate.clear()
    device.entered.clear()
    drawing = client.submit("a lantern", method="vanilla", api_name="/generate")
    assert device.entered.wait(60)
    draw(page)
    expect(page.locator(PLACE)).to_contain_text(re.compile(r"1 before you, about \d+ s\."))
    device.gate.set()
    drawing.result(timeout=60)
    expect(page.locator("#status")).to_contain_text("Done, with seed")
