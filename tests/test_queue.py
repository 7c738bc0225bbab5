"""When as many wait as may: the page says so and goes on, in a real browser."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
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
    """A stand-in for a busy device: what is drawn waits at a gate, and one more may wait for it."""

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
    expect(page.get_by_role("alert")).to_contain_text("Queue is full: 1 requests are waiting, and no more may.")
    expect(page.get_by_role("button", name="Draw", exact=True)).to_be_enabled()
    expect(page.locator("#stop")).to_be_hidden()
    refused = httpx.post(f"{server}gradio_api/call/v2/draw", json={"prompt": "a lantern"})
    assert refused.status_code == 503
    assert "Queue is full" in refused.json()["detail"]

    device.gate.set()
    for job in jobs:
        job.result(timeout=60)
    page.locator("#draw").click(timeout=5000)  # Gradio's own notice, there for ten seconds, does not lie over it
    expect(page.locator("#status")).to_contain_text("Done, with seed")


def test_who_waits_sees_it_and_can_leave(page: Page, server: str, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lantern_demo.ui.admission.WAITING", 2)
    client = Client(server, verbose=False)
    device.gate.set()
    client.predict("a lantern", method="vanilla", api_name="/draw")  # a run that tells how long one takes
    device.gate.clear()
    device.entered.clear()
    drawing = client.submit("a lantern", method="vanilla", api_name="/draw")
    assert device.entered.wait(60)
    draw(page)
    expect(page.locator(PLACE)).to_have_text(re.compile(r"1 before you, about \d+ s\."))
    until(1, server, page)
    assert page.context.browser
    another = page.context.browser.new_page(reduced_motion="reduce")
    open_page(another, server)
    only(another, "vanilla")
    draw(another)
    expect(another.locator(PLACE)).to_contain_text("2 before you, about")
    page.get_by_role("button", name="Stop", exact=True).click()
    until(1, server, page)
    expect(page.get_by_role("button", name="Draw", exact=True)).to_be_enabled()
    expect(page.locator("#status")).to_contain_text("Stopped.")
    expect(another.locator(PLACE)).to_contain_text("1 before you, about")
    device.gate.set()
    drawing.result(timeout=60)
    expect(another.locator("#status")).to_contain_text("Done, with seed")
    another.close()
