"""What tests of the page in a real browser share: Debian's chromium, preferably its shell, or the
one that $CHROMIUM names.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import pytest

from examples import soak
from lantern_demo.decoding.methods import METHODS
from lantern_demo.ui import texts
from lantern_demo.ui.components import SCRIPTS

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route

expect = playwright.expect
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
IN_A_BROWSER = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium found; install one or set CHROMIUM to its path"
    ),
]

FLAGS = [*soak.FLAGS, "--disable-quic", "--disable-component-update", "--disable-sync"]
# axe-core checks accessibility; it is no part of the project: npm install --no-save axe-core, here
# or where $AXE names its axe.min.js.
AXE = Path(
    os.environ.get("AXE")
    or Path(__file__).parent.parent / "node_modules" / "axe-core" / "axe.min.js"
)
PATIENCE = 180_000  # ms; a busy machine can be slow, and nothing here waits longer than it must
DEFAULT = [method.id for method in METHODS.values() if method.default]
LANES = [name.replace("+", "p") for name in DEFAULT]


# Whether a replay ever played: it is over in a second or two, which a busy machine can be too slow
# to see.
NOTE_PLAYING = """new MutationObserver(() => {
  const buttons = [...document.querySelectorAll(".play")];
  window.played ||= buttons.some((button) => button.textContent.includes("Pause"));
}).observe(document, { subtree: true, childList: true, characterData: true })"""


# how the browser's console begins about an answer that is an error
REFUSED = "Failed to load resource"


@contextmanager
def new_tab(browser: Browser) -> Iterator[Page]:
    """A tab with nothing in it.

    A request to another host, or an error in the page's scripts or its console, fails the test. A
    refusal by the server is no such error.
    """
    faults: list[str] = []

    def guard(route: Route) -> None:
        address = urlparse(route.request.url)
        if address.scheme in ("data", "blob") or address.hostname == "127.0.0.1":
            route.continue_()
        else:
            faults.append(f"request to {address.hostname}")
            route.abort()

    # Drawn by a processor, replays that start by themselves take most of its time: only tests about
    # them ask for motion.
    page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    page.route("**/*", guard)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on(
        "console",
        lambda told: (
            faults.append(told.text) if told.type == "error" and REFUSED not in told.text else None
        ),
    )
    yield page
    page.close()
    assert faults == []


def open_page(page: Page, address: str) -> None:
    """Open the page, and wait for its first answer, with which Gradio fills in the form."""
    page.add_init_script(
        "document.addEventListener('lantern-started', () => { window.started = true; })"
    )
    page.goto(address)
    expect(page.locator("#status")).to_contain_text(re.compile("press Draw", re.IGNORECASE))
    page.wait_for_function("window.started")


def show_example(page: Page) -> None:
    page.locator("#examples .card").first.click()
    expect(page.locator("#status")).to_contain_text("recorded run")
    expect(page.locator("#stage .lane").first).to_be_visible()


def settings(page: Page) -> None:
    """Open what is behind the settings button."""
    if not page.locator("#settings").is_visible():
        page.get_by_role("button", name="Settings", exact=True).first.click()
    expect(page.locator("#settings")).to_be_visible()


def only(page: Page, *methods: str) -> None:
    """Leave only these methods chosen."""
    settings(page)
    for method in METHODS.values():
        box = page.locator(f'.method input[value="{method.id}"]')
        if method.default:
            box.set_checked(method.id in methods)
        elif box.is_checked() != (method.id in methods):
            box.evaluate("box => box.click()")  # in a fold of the page


def draw(page: Page) -> None:
    """Press Draw: that of the settings where these are open."""
    opened = page.locator("#settings").is_visible()
    page.get_by_role("button", name=texts.DRAW_THESE if opened else texts.DRAW, exact=True).click()


COLOURS = """lane => {
  const canvas = document.querySelector(`#lane-${lane} canvas`);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return new Set(new Uint32Array(data.buffer)).size;
}"""


def drawn(page: Page, lane: str) -> None:
    """Wait for a picture in a lane: the tiny model's have thousands of colours, and a cover has
    one.
    """
    page.wait_for_function(f"lane => ({COLOURS})(lane) > 500", arg=lane)


def at_rest(page: Page) -> None:
    """Wait until every lane of the run on the stage is done."""
    expect(page.locator("#stage .lane[data-done]")).to_have_count(len(DEFAULT))


def fits(page: Page) -> bool:
    """Whether nothing sticks out to the right."""
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def lit(page: Page, lane: str, cell: int) -> bool:
    """Whether a cell of a lane's picture has the light edge of the chosen one."""
    return page.locator(f"#lane-{lane} canvas").evaluate(
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


# What axe-core calls serious or critical on the page as it is now, in a light and a dark theme, by
# theme. Of the dark one only rules about colours are asked once more. Changes of colour must be
# over, not on their way, when it looks.
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


def unfold(page: Page, title: str) -> None:
    """Open one of the folds below the cards."""
    fold = page.locator("#results .label-wrap", has=page.get_by_text(title, exact=True))
    if "open" not in (fold.get_attribute("class") or "").split():
        fold.click()


def link_of(page: Page) -> Locator:
    """The field of the link to the run."""
    unfold(page, texts.KEEP_TITLE)
    return page.locator("#link :is(input, textarea)")


def look_at(page: Page, method: str) -> None:
    """Open the look at a lane's tokens, or turn it to that lane."""
    page.get_by_role("button", name=f"{method}: look at its tokens").press("Enter")
    expect(page.locator("#stage .look-columns")).to_be_visible()


def save(page: Page, button: str, path: Path) -> Path:
    """Press a button that hands out a file -> where the file is now."""
    unfold(page, texts.KEEP_TITLE)
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
