"""The page in a real browser: Debian's chromium, or the one that $CHROMIUM names."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pytest
from PIL import Image

from lantern_demo.decoding.methods import METHODS
from lantern_demo.pipeline import Pipeline
from lantern_demo.ui import restore, texts

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

expect = playwright.expect
CHROMIUM = (
    os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium found; install one or set CHROMIUM to its path"),
]

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
]  # fmt: skip
PATIENCE = 180_000  # ms; a busy machine can be slow, and nothing here waits longer than it must
DEFAULT = [method.id for method in METHODS.values() if method.default]
LANES = [name.replace("+", "p") for name in DEFAULT]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, server: str) -> Iterator[Page]:
    """The loaded page. A request to another host, or an error in the page's scripts, fails the test."""
    faults: list[str] = []

    def guard(route: Route) -> None:
        address = urlparse(route.request.url)
        if address.scheme in ("data", "blob") or address.hostname == "127.0.0.1":
            route.continue_()
        else:
            faults.append(f"request to {address.hostname}")
            route.abort()

    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    page.route("**/*", guard)
    page.on("pageerror", lambda error: faults.append(str(error)))
    open_page(page, server)
    yield page
    page.close()
    assert faults == []


def open_page(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.locator("#status")).to_contain_text("press Draw")


def show_example(page: Page) -> None:
    page.locator("#examples .card").first.click()
    expect(page.locator("#status")).to_contain_text("recorded run")
    expect(page.locator("#replay .racer").first).to_be_visible()


def only(page: Page, *methods: str) -> None:
    """Leave only these methods chosen."""
    for method in METHODS.values():
        page.locator("#methods").get_by_label(method.label, exact=True).set_checked(method.id in methods)


def draw(page: Page) -> None:
    page.get_by_role("button", name="Draw", exact=True).click()


def status(page: Page) -> str:
    return page.locator("#status").inner_text()


def fits(page: Page) -> bool:
    """Whether nothing sticks out to the right."""
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_all_methods_side_by_side(page: Page) -> None:
    page.get_by_label("Prompt").fill("two red zebra lanterns over a lake")
    page.get_by_label("Randomise").uncheck()
    page.get_by_label("Seed").fill("7")
    draw(page)
    expect(page.locator("#status")).to_contain_text("Done, with seed 7")
    expect(page.locator("#status")).to_contain_text("does not know these words and drew without them: zebra.")
    for lane in LANES:
        picture = page.locator(f"#lane-{lane} img")
        expect(picture).to_have_attribute("src", re.compile(rf"/{lane}\.png$"))
        assert picture.evaluate("image => image.naturalWidth") == 256
        assert picture.get_attribute("alt")
        passes = r"^255 passes256" if lane == "vanilla" else r"^\d+ passes instead of 255256"
        expect(page.locator(f"#lane-{lane} .lane-passes")).to_have_text(re.compile(passes + " tokens drawn$"))
        expect(page.locator(f"#lane-{lane} dd").nth(0)).to_have_text(re.compile(r"^\d+\.\d\d s"))
        expect(page.locator(f"#lane-{lane} dd").nth(1)).to_have_text(re.compile(r"^\d+\.\d\u00d7$"))
        with page.expect_download() as download:
            page.locator(f"#lane-{lane} a").click()
        assert download.value.suggested_filename == f"{lane}.png"
        with Image.open(download.value.path()) as image:
            assert image.info["seed"] == "7"  # type: ignore[attr-defined]
    expect(page.locator("#lane-eagle2 .lane-price")).to_contain_text("Gave up nothing: same odds as the model")
    expect(page.locator("#lane-lantern .lane-price")).to_contain_text(
        re.compile(r"^Of 100 tokens at least \d+ come out differently .* \(price 0\.\d+\)\.$")
    )
    expect(page.locator("#replay .racer")).to_have_count(len(DEFAULT))
    expect(page.locator("#replay .source")).to_contain_text("Drawn just now on")
    expect(page.locator("#replay .figures figure")).to_have_count(4)
    expect(page.locator("#table").get_by_role("gridcell", name="LANTERN++")).to_be_visible()
    with page.expect_download() as download:
        page.locator("#record").click()
    record = json.loads(Path(download.value.path()).read_text())
    assert list(record["methods"]) == DEFAULT
    assert record["settings"]["seed"] == 7
    for width in (390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)
        assert fits(page), f"the page is wider than {width} px"


def test_stop_and_draw_again(page: Page) -> None:
    draw(page)
    page.locator('#lane-eagle1 [data-phase="drawing"]').wait_for()
    page.get_by_role("button", name="Stop", exact=True).click()
    # Two seconds on a quiet machine; a test machine may be busy.
    expect(page.locator("#status")).to_contain_text("Stopped.", timeout=5_000)
    expect(page.locator('#lanes [data-phase="stopped"]').first).to_be_visible()
    expect(page.locator("#lane-vanilla img")).to_be_visible()
    only(page, "vanilla")
    draw(page)
    expect(page.locator("#status")).to_contain_text("Done, with seed")
    expect(page.locator("#lane-vanilla dd").nth(1)).to_have_text("1.0\u00d7")
    expect(page.locator("#lane-lantern")).to_have_count(0)


def test_an_example_that_comes_late_leaves_a_run_its_lanes(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw is pressed while an example is on its way: its answer comes in the middle of the run."""
    drawing, arrived = threading.Event(), threading.Event()
    numbers_of, run = restore.numbers_of, Pipeline.run

    def late(*arguments: Any) -> Any:
        drawing.wait(60)
        return numbers_of(*arguments)

    def held(self: Pipeline, *arguments: Any) -> Iterator[Any]:
        for event in run(self, *arguments):
            yield event
            arrived.wait(60)

    monkeypatch.setattr(restore, "numbers_of", late)
    monkeypatch.setattr(Pipeline, "run", held)
    try:
        page.locator("#examples .card").first.click()
        draw(page)
        page.locator('#lanes [data-phase="drawing"]').first.wait_for()
        drawing.set()
        expect(page.locator("#status")).to_contain_text("recorded run")
    finally:
        drawing.set()
        arrived.set()
    expect(page.locator("#status")).to_contain_text("Done, with seed")
    expect(page.locator('#lanes [data-phase="done"]')).to_have_count(len(DEFAULT))
    expect(page.locator("#replay .source")).to_contain_text("Drawn just now on")


def test_bad_input_is_explained(page: Page) -> None:
    page.get_by_label("Prompt").fill("")
    draw(page)
    expect(page.get_by_role("alert")).to_contain_text("prompt is empty; say what to draw")
    page.get_by_label("Prompt").fill("x" * 201)
    draw(page)
    expect(page.get_by_role("alert")).to_contain_text("prompt has 201 characters, at most 200 are allowed")
    page.get_by_label("Randomise").uncheck()
    page.get_by_label("Seed").fill("-1")
    draw(page)
    expect(page.get_by_test_id("toast-text")).to_contain_text("Value -1 is less than minimum value 0")
    expect(page.get_by_role("button", name="Draw", exact=True)).to_be_enabled()


def test_prompts_are_shown_as_text(page: Page) -> None:
    only(page, "vanilla")
    page.get_by_label("Prompt").fill("<imgsrcxonerror${alert(1)}> <img src=x onerror=document.title='broken'>")
    draw(page)
    expect(page.locator("#status")).to_contain_text("does not know these words")
    assert "imgsrcxonerror" in status(page)
    page.get_by_label("Prompt").fill("<img src=x onerror=document.title='broken'> " * 4)
    draw(page)
    expect(page.get_by_role("alert")).to_contain_text("<img src=x onerror=document.title='broken'>")
    assert page.locator("#status img").count() == 0
    assert "broken" not in page.title()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_audit_is_folded_and_fits(page: Page, server: str, theme: str) -> None:
    open_page(page, f"{server}?__theme={theme}")
    groups = page.locator("#audit .audit section")
    expect(groups.first).to_be_hidden()
    page.get_by_role("button", name=texts.AUDIT_TITLE).click()
    for title, _ in texts.AUDIT_GROUPS.values():
        expect(groups.get_by_role("heading", name=title)).to_be_visible()
    expect(page.locator("#audit table").first).to_be_hidden()
    methods = page.locator("#audit details")
    for i in range(methods.count()):
        methods.nth(i).locator("summary").click()
        expect(methods.nth(i).locator("tbody tr").first).to_be_visible()
    for width in (390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)
        assert fits(page), f"the page is wider than {width} px"
        boxes = [methods.nth(i).evaluate("e => [e.scrollWidth, e.clientWidth]") for i in range(methods.count())]
        assert all(inside <= room for inside, room in boxes), f"a table is cut off at {width} px"


def test_a_phone_is_taken_to_the_lanes(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.get_by_label("Prompt").fill("")
    expect(page.locator("#status")).not_to_be_in_viewport()
    draw(page)
    expect(page.get_by_role("alert")).to_be_in_viewport()


def test_dark_mode(page: Page, server: str) -> None:
    open_page(page, f"{server}?__theme=dark")
    expect(page.locator("body")).to_have_class(re.compile(r"\bdark\b"))
    show_example(page)
    brightness = "e => getComputedStyle(e).{}.match(/[0-9.]+/g).slice(0, 3).reduce((sum, x) => sum + Number(x), 0) / 3"
    assert page.locator("#replay .racer").first.evaluate(brightness.format("backgroundColor")) < 80
    assert page.locator("#replay .racer h4").first.evaluate(brightness.format("color")) > 180
