"""What tests of the page share: a browser, which is Debian's chromium or $CHROMIUM, and steps."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

import pytest

from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.pipeline import Drawing
from lantern_demo.ui import texts
from lantern_demo.ui.components import SCRIPTS

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Route

expect = playwright.expect
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
IN_A_BROWSER = [pytest.mark.browser, pytest.mark.slow]
IN_A_BROWSER += [pytest.mark.skipif(CHROMIUM is None, reason="install chromium or set CHROMIUM")]

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
FLAGS += ["--disable-quic"]
# axe-core checks accessibility; it is no part of the project: npm install --no-save axe-core, here
# or where $AXE names its axe.min.js.
AXE = Path(os.environ.get("AXE") or Path(__file__).parents[2] / "node_modules/axe-core/axe.min.js")
PROMPT = "new URLSearchParams(lanternRun.link).get('prompt')"  # of the run on the stage
PATIENCE = 40_000  # ms; a busy machine can be slow, and nothing here waits longer than it must
DEFAULT = [method.id for method in METHODS.values() if method.default]
LANES = [name.replace("+", "p") for name in DEFAULT]


@contextmanager
def new_tab(browser: Browser) -> Iterator[Page]:
    """An empty tab. Requests to other hosts, and errors of the page's scripts, fail the test."""
    faults: list[str] = []

    def guard(route: Route) -> None:
        address = urlparse(route.request.url)
        if address.scheme in ("data", "blob") or address.hostname == "127.0.0.1":
            route.continue_()
        else:
            faults.append(f"request to {address.hostname}")
            route.abort()

    def heard(told: ConsoleMessage) -> None:
        if told.type == "error" and not told.text.startswith("Failed to load resource"):
            faults.append(told.text)

    # Drawn by a processor, replays that start by themselves take most of its time: only tests about
    # them ask for motion.
    page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    page.route("**/*", guard)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", heard)
    yield page
    page.close()
    assert not faults, faults


def open_page(page: Page, address: str) -> None:
    """Open the page, and wait for its form and its first answer."""
    with page.expect_response(lambda answer: "/run/predict" in answer.url):
        page.goto(address)
    page.locator("#draw").wait_for()
    page.locator("#stage .lane").first.wait_for()
    page.wait_for_timeout(100)  # until the answer is shown


def settings(page: Page) -> None:
    """Open the tab of settings."""
    page.locator("#settings-button").click()
    expect(page.locator("#knob-lantern_k")).to_be_visible()


def only(page: Page, *methods: str) -> None:
    """Leave only these methods chosen, and go back to the top of the page."""
    settings(page)
    for method in DEFAULT:
        label = METHODS[method].label
        page.locator("#methods").get_by_label(label, exact=True).set_checked(method in methods)
    page.evaluate("scrollTo(0, 0)")


@contextmanager
def held_races(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold every race at its first event -> what lets it go on."""
    take, go_on = Drawing.next, threading.Event()

    def held(self: Drawing) -> Any:
        if self.history:
            go_on.wait(60)
        return take(self)

    monkeypatch.setattr(Drawing, "next", held)
    try:
        yield go_on
    finally:
        go_on.set()


def line(page: Page) -> Locator:
    return page.locator("#prompt :is(textarea, input)")


def lanes_of(page: Page) -> list[dict[str, Any]]:
    """What the page knows of the methods of the run that it shows."""
    return page.evaluate("lanternRun.lanes.map(({ image, picture, ...told }) => told)")


def chip(page: Page, name: str) -> Locator:
    return page.locator("#chips").get_by_role("button", name=name, exact=True)


def draw(page: Page) -> None:
    press(page, "draw")


def stop(page: Page) -> None:
    press(page, "stop")


def press(page: Page, button: str) -> None:
    """Click a button of runs, as if the click before it was long ago: it is no double click."""
    page.evaluate("pressed = -Infinity")
    page.locator(f"#{button}").click()


def drawn(page: Page, lanes: int) -> None:
    """Wait for the end of a run that draws so many lanes."""
    over = f"[...document.querySelectorAll('#stage .lane[data-done]')].length === {lanes}"
    live = "window.lanternRun?.source.kind === 'live' && !document.body.matches('.racing')"
    page.wait_for_function(f"{over} && {live}")
    expect(page.locator("#draw")).to_be_visible()


def fits(page: Page) -> bool:
    """Whether nothing sticks out to the right."""
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def lit(page: Page, canvas: str, cell: int) -> bool:
    """Whether a cell of a picture has the light edge of the one that is pointed at."""
    return page.locator(canvas).evaluate(
        """(canvas, cell) => {
          const size = canvas.width / 16;
          const [x, y] = [(cell % 16) * size, Math.floor(cell / 16) * size];
          const pen = canvas.getContext("2d");
          const { data } = pen.getImageData(x + size / 2, Math.max(0, y - 3), 1, 6);
          const least = (at) => Math.min(data[at], data[at + 1], data[at + 2]);
          return [0, 4, 8, 12, 16, 20].some((at) => least(at) > 190);
        }""",
        cell,
    )


def shifts(page: Page) -> list[tuple[float, list[str]]]:
    """How much what is seen has moved by itself, and what did."""
    return page.evaluate(
        """() => new Promise((done) => {
          const found = [], name = ({ node }) => node?.id || node?.className || node?.nodeName;
          new PerformanceObserver((list) => {
            for (const entry of list.getEntries()) {
              if (entry.hadRecentInput) continue;
              found.push([entry.value, entry.sources.map(name).map(String)]);
            }
          }).observe({ type: "layout-shift", buffered: true });
          setTimeout(() => done(found), 500);
        })"""
    )


# What axe-core calls serious or critical on the page as it is now, by theme. Of the dark one only
# rules about colours are asked. Changes of colour must be over when it looks.
FAULTS = """async () => {
  const found = {};
  const still = document.head.appendChild(document.createElement("style"));
  still.textContent = "* { transition: none !important; }";
  const colours = ["color-contrast", "link-in-text-block"];
  for (const [theme, only] of [["light", undefined], ["dark", colours]]) {
    document.body.classList.toggle("dark", theme === "dark");
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)));
    const options = { resultTypes: ["violations"], ...(only && { runOnly: only }) };
    const { violations } = await axe.run(document, options);
    const serious = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
    const line = (id, { target, html }) => `${id}: ${target} ${html.slice(0, 120)}`;
    const told = serious.flatMap(({ id, nodes }) => nodes.map((node) => line(id, node)));
    if (told.length) found[theme] = told;
  }
  document.body.classList.remove("dark");
  still.remove();
  return found;
}"""


def check_for_axe(page: Page, what: str) -> None:
    """Nothing serious in either theme, and nothing that sticks out, on a screen and on a phone."""
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        page.wait_for_timeout(200)  # for what follows a change of size
        faults_of(page, f"{what}, {width} px wide")
        assert fits(page), f"{what} is wider than {width} px"


def faults_of(page: Page, what: str) -> None:
    """Nothing serious in either theme at the size that the page has."""
    if not AXE.exists():
        return
    page.evaluate("text => window.axe ?? (0, eval)(text)", AXE.read_text(encoding="utf-8"))
    faults = page.evaluate(FAULTS)
    assert faults == {}, f"{what}: {faults}"


def tab_of(page: Page, title: str) -> None:
    """Open one of the tabs below the stage, all of which a wide window shows."""
    page.set_viewport_size({"width": 1280, "height": 900})
    page.locator("#tabs").get_by_role("tab", name=title, exact=True).click()


def save(page: Page, button: str, path: Path) -> Path:
    """Press a button that hands out a file -> where the file is now."""
    tab_of(page, texts.NUMBERS_TAB)
    with page.expect_download() as download:
        page.locator(button).click()
    download.value.save_as(path)
    return path


@contextmanager
def scripts(browser: Browser, *names: str) -> Iterator[Page]:
    """A tab with nothing in it but some of the page's scripts."""
    page = browser.new_page(viewport={"width": 400, "height": 400})
    for name in names:
        page.add_script_tag(path=SCRIPTS / f"{name}.js")
    yield page
    page.close()
