"""The page in a real browser: Debian's chromium, preferably its shell without windows, which is quicker, or the one that
$CHROMIUM names."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlparse

import pytest
from PIL import Image

from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.settings.knobs import ON_THE_FORM
from lantern_demo.ui import page as served
from lantern_demo.ui import restore, texts

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

expect = playwright.expect
PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium found; install one or set CHROMIUM to its path"),
]

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
]
# axe-core checks accessibility; it is no part of the project: npm install --no-save axe-core, here or where $AXE names its
# axe.min.js.
AXE = Path(os.environ.get("AXE") or Path(__file__).parent.parent / "node_modules" / "axe-core" / "axe.min.js")
PATIENCE = 180_000  # ms; a busy machine can be slow, and nothing here waits longer than it must
DEFAULT = [method.id for method in METHODS.values() if method.default]
LANES = [name.replace("+", "p") for name in DEFAULT]
LEADS = ["vanilla", "eagle1", "lanternpp"]  # the lanes that are shown large


# Whether a replay ever played: it is over in a second or two, which a busy machine can be too slow to see.
NOTE_PLAYING = """new MutationObserver(() => {
  window.played ||= [...document.querySelectorAll(".play")].some((button) => button.textContent.includes("Pause"));
}).observe(document, { subtree: true, childList: true, characterData: true })"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, headless=True, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def tab(browser: Browser) -> Iterator[Page]:
    """A tab with nothing in it, for tests that open an address of their own."""
    with new_tab(browser) as page:
        yield page


@pytest.fixture
def page(tab: Page, server: str) -> Page:
    """The loaded page."""
    open_page(tab, server)
    return tab


@contextmanager
def new_tab(browser: Browser) -> Iterator[Page]:
    """A tab with nothing in it. A request to another host, or an error in the page's scripts, fails the test."""
    faults: list[str] = []

    def guard(route: Route) -> None:
        address = urlparse(route.request.url)
        if address.scheme in ("data", "blob") or address.hostname == "127.0.0.1":
            route.continue_()
        else:
            faults.append(f"request to {address.hostname}")
            route.abort()

    # Drawn by a processor, replays that start by themselves take most of its time: only tests about them ask for motion.
    page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    page.route("**/*", guard)
    page.on("pageerror", lambda error: faults.append(str(error)))
    yield page
    page.close()
    assert faults == []


def open_page(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.locator("#status")).to_contain_text(re.compile("press Draw", re.IGNORECASE))
    # the last that a fresh page does: until then it may put what was typed early back to what it came with
    expect(page.locator("#link :is(input, textarea)")).not_to_have_value("")


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
        page.locator("#methods").get_by_label(method.label, exact=True).set_checked(method.id in methods)


def draw(page: Page) -> None:
    """Press Draw: that of the settings where these are open."""
    opened = page.locator("#settings").is_visible()
    page.get_by_role("button", name=texts.DRAW_THESE if opened else texts.DRAW, exact=True).click()


COLOURS = """lane => {
  const canvas = document.querySelector(`#lane-${lane} canvas`);
  return new Set(new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size;
}"""


def drawn(page: Page, lane: str) -> None:
    """Wait for a picture in a lane: the tiny model's have thousands of colours, and a cover has one."""
    page.wait_for_function(f"lane => ({COLOURS})(lane) > 500", arg=lane)


def status(page: Page) -> str:
    return page.locator("#status").inner_text()


def fits(page: Page) -> bool:
    """Whether nothing sticks out to the right."""
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def lit(page: Page, lane: str, cell: int) -> bool:
    """Whether a cell of a lane's picture has the light edge of the chosen one."""
    return page.locator(f"#lane-{lane} canvas").evaluate(
        """(canvas, cell) => {
          const size = canvas.width / 16, [x, y] = [(cell % 16) * size, Math.floor(cell / 16) * size];
          const { data } = canvas.getContext("2d").getImageData(x + size / 2, Math.max(0, y - 3), 1, 6);
          return [0, 4, 8, 12, 16, 20].some((at) => Math.min(data[at], data[at + 1], data[at + 2]) > 190);
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
              if (!entry.hadRecentInput) found.push([entry.value, entry.sources.map(name).map(String)]);
            }
          }).observe({ type: "layout-shift", buffered: true });
          setTimeout(() => done(found), 500);
        })"""
    )


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_whole_race_is_on_the_first_screen(tab: Page, server: str, width: int, height: int) -> None:
    """Title, prompt and its parts, examples and the race of all five, without scrolling; and nothing moves while it comes."""
    tab.set_viewport_size({"width": width, "height": height})
    open_page(tab, server)
    expect(tab.locator("#stage .lane")).to_have_count(len(DEFAULT))
    expect(tab.locator("#stage .lane[data-done]")).to_have_count(len(DEFAULT))
    seen = [f"#lane-{lane} {part}" for lane in LEADS for part in ("canvas", "h3", ".bar", ".big-number", ".gain", ".side")]
    parts = ["#intro h1", "#prompt", "#draw", "#builder", "#examples", "#stage .headline", "#stage .play", *seen]
    for part in parts:
        box = tab.locator(part).bounding_box()
        assert box is not None and box["y"] >= 0 and box["y"] + box["height"] <= min(height, 844), (part, box)
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, (part, box)
    for lane in set(LANES) - set(LEADS):
        assert tab.locator(f"#lane-{lane}").is_visible() == (width == 1280), "on a phone one press away"
    if width == 1280:
        assert tab.locator("#status").is_visible()  # on a phone it comes with the first thing that it has to say
        assert tab.locator("#lane-lanternpp canvas").evaluate("canvas => canvas.clientWidth") >= 210
    else:
        tab.get_by_role("button", name="Also: EAGLE-2, LANTERN").click()
        expect(tab.locator("#lane-lantern")).to_be_visible()
    moved = shifts(tab)
    assert sum(value for value, _ in moved) < 0.05, moved


def test_the_recorded_race_plays_once_and_is_the_forms(tab: Page, server: str) -> None:
    """The seed and the prompt of the form are those of the race on the stage."""
    tab.emulate_media(reduced_motion="no-preference")
    tab.add_init_script(NOTE_PLAYING)
    open_page(tab, server)
    tab.wait_for_function("window.played")
    expect(tab.get_by_role("button", name="Replay")).to_be_visible()
    expect(tab.locator("#stage .source")).to_contain_text("A recording of")
    settings(tab)
    assert tab.locator("#seed input").input_value() == str(texts.EXAMPLES[0][1])
    assert tab.get_by_label("Prompt").input_value() == texts.EXAMPLES[0][0]
    expect(tab.locator("#examples .card").first).to_have_attribute("aria-pressed", "true")


def test_all_methods_side_by_side(page: Page) -> None:
    page.get_by_label("Prompt").fill("two red zebra lanterns over a lake")
    settings(page)
    page.locator("#seed input").fill("7")
    draw(page)
    expect(page.locator("#status")).to_contain_text("Done, with seed 7")
    expect(page.locator("#status")).to_contain_text('Drawn without "zebra": this small model knows only lanterns.')
    for lane in LANES:
        drawn(page, lane)
        passes = r"^255 passes$" if lane == "vanilla" else r"^\d+ passes instead of 255$"
        expect(page.locator(f"#lane-{lane} .side")).to_have_text(re.compile(passes))
        expect(page.locator(f"#lane-{lane} .big-number")).to_have_text(re.compile(r"^\d+\.\d\d s"))
        expect(page.locator(f"#lane-{lane} .gain")).to_have_text(re.compile(r"^\d+\.\d\d\u00d7$"))
        with page.expect_download() as download:
            page.locator(f"#lane-{lane} .keep a").click()
        assert download.value.suggested_filename == f"{lane}.png"
        with Image.open(download.value.path()) as image:
            assert image.info["seed"] == "7" and image.width == 256  # type: ignore[attr-defined]
    expect(page.locator("#lane-eagle2 .short")).to_contain_text("Exact: the very picture that vanilla draws")
    expect(page.locator("#lane-lantern .short")).to_contain_text("in 100 pieces are not the model's pick")
    expect(page.locator("#stage .lane")).to_have_count(len(DEFAULT))
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now on")
    expect(page.locator("#numbers figure")).to_have_count(1)
    page.get_by_role("button", name=texts.TABLE_TITLE).click()
    expect(page.locator("#table").get_by_role("rowheader", name="LANTERN++")).to_be_visible()
    expect(page.locator("#table figure")).to_have_count(2)
    with page.expect_download() as download:
        page.locator("#record").click()
    record = json.loads(Path(download.value.path()).read_text())
    assert list(record["methods"]) == DEFAULT
    assert record["settings"]["seed"] == 7
    for width in (390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)
        assert fits(page), f"the page is wider than {width} px"


def test_a_reload_keeps_a_finished_run(page: Page, server: str) -> None:
    """The page's address becomes the run's, and for another visitor it shows the run as well."""
    only(page, "vanilla", "eagle1")
    draw(page)
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now on")
    page.wait_for_url(re.compile(r"[?&]run="))
    address = page.url
    assert page.context.browser
    stranger = page.context.browser.new_context(reduced_motion="reduce")
    try:
        visit = stranger.new_page()
        visit.goto(address)
        expect(visit.locator("#status")).to_contain_text(texts.READY_RUN)
    finally:
        stranger.close()
    page.reload()
    expect(page.locator("#status")).to_contain_text(texts.READY_RUN)
    expect(page.locator("#stage .lane")).to_have_count(2)
    expect(page.locator("#stage .source")).to_contain_text("Drawn by tiny on")
    settings(page)
    expect(page.locator("#methods").get_by_label("EAGLE-2", exact=True)).not_to_be_checked()
    expect(page.locator("#methods").get_by_label("EAGLE-1", exact=True)).to_be_checked()
    open_page(page, server)
    expect(page.locator("#stage .lane")).to_have_count(len(DEFAULT))
    page.go_back()
    expect(page.locator("#status")).to_contain_text(texts.READY_RUN)
    open_page(page, re.sub(r"run=[^&]+", "run=gone", address))
    expect(page.locator("#status")).to_contain_text("Filled in from the link")
    expect(page.locator("#stage .source")).to_contain_text("A recording of")


def test_an_example_lets_go_when_the_prompt_is_edited(page: Page) -> None:
    page.get_by_label("Prompt").fill("a lantern of my own")
    expect(page.locator('#examples [aria-pressed="true"]')).to_have_count(0)
    page.locator("#examples .card").nth(1).click()
    expect(page.get_by_label("Prompt")).to_have_value(texts.EXAMPLES[1][0])
    expect(page.locator("#examples .card").nth(1)).to_have_attribute("aria-pressed", "true")
    page.get_by_label("Prompt").press_sequentially(", by me")
    expect(page.locator('#examples [aria-pressed="true"]')).to_have_count(0)


def test_the_keyboard_alone_draws_scrubs_looks_and_stops(page: Page) -> None:
    prompt = page.get_by_label("Prompt")
    prompt.focus()
    page.keyboard.press("Tab")
    focused = "document.activeElement.id || document.activeElement.className"
    assert page.evaluate(focused) == "draw"
    page.keyboard.press("Enter")
    page.locator('#lane-vanilla[data-phase="drawing"]').wait_for()
    page.wait_for_function("document.activeElement.id === 'stop'")
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_contain_text("Stopped.")
    page.wait_for_function("document.activeElement.id === 'draw'")
    show_example(page)
    page.locator("#examples .card").first.focus()
    for _ in range(40):
        page.keyboard.press("Tab")
        if "play" in page.evaluate(focused):
            break
    expect(page.get_by_role("button", name="Replay")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Home")
    assert page.locator("#stage .now").inner_text().startswith("0 / 255")
    page.keyboard.press("Tab")  # where pictures differ
    page.keyboard.press("Tab")  # what is viewed
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#stage .look")).to_be_visible()
    expect(page.locator("#stage canvas.big")).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#stage .look .spoken")).to_contain_text("row 2, column 1")
    assert len(page.locator("#stage .look .spoken").inner_text()) < 120, "what is read aloud for each arrow key"
    page.keyboard.press("Escape")
    expect(page.locator("#stage .look")).to_be_hidden()
    assert page.evaluate(focused) == "picture"


def test_stop_and_draw_again(page: Page) -> None:
    draw(page)
    page.locator('#lane-eagle1[data-phase="drawing"]').wait_for()
    expect(page.get_by_role("button", name="Draw", exact=True)).to_have_count(0)
    page.get_by_role("button", name="Stop", exact=True).click()
    # Two seconds on a quiet machine; a test machine may be busy.
    expect(page.locator("#status")).to_contain_text("Stopped.", timeout=5_000)
    expect(page.locator('#stage [data-phase="stopped"]').first).to_be_visible()
    only(page, "vanilla")
    draw(page)
    expect(page.locator("#status")).to_contain_text("Done, with seed")
    expect(page.locator("#lane-vanilla .gain")).to_have_text("1.00\u00d7")
    expect(page.locator("#lane-lantern")).to_have_count(0)
    only(page)
    draw(page)
    expect(page.get_by_role("alert")).to_contain_text(texts.NO_METHODS)


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
        page.locator('#stage [data-phase="drawing"]').first.wait_for()
        drawing.set()
        expect(page.locator("#status")).to_contain_text("recorded run")
    finally:
        drawing.set()
        arrived.set()
    expect(page.locator("#status")).to_contain_text("Done, with seed")
    expect(page.locator('#stage [data-phase="done"]')).to_have_count(len(DEFAULT))
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now on")


def test_bad_input_is_explained(page: Page) -> None:
    page.get_by_label("Prompt").fill("")
    draw(page)
    expect(page.get_by_role("alert")).to_contain_text("The prompt is empty; say what to draw, for example")
    page.get_by_label("Prompt").fill("x" * 201)
    draw(page)
    expect(page.get_by_role("alert")).to_contain_text("The prompt has 201 characters, at most 200 are allowed")
    settings(page)
    page.locator("#seed input").fill("-1")
    draw(page)
    expect(page.get_by_test_id("toast-text")).to_contain_text("Value -1 is less than minimum value 0")
    expect(page.get_by_role("button", name="Draw", exact=True)).to_be_enabled()


def test_prompts_are_shown_as_text(page: Page) -> None:
    only(page, "vanilla")
    page.get_by_label("Prompt").fill("red lanterns <imgsrcxonerror${alert(1)}> <img src=x onerror=document.title='broken'>")
    draw(page)
    expect(page.locator("#status")).to_contain_text("Drawn without")
    assert "imgsrcxonerror" in status(page)
    page.get_by_label("Prompt").fill("<img src=x onerror=document.title='broken'> " * 4)
    draw(page)
    expect(page.get_by_role("alert")).to_contain_text("<img src=x onerror=document.title='broken'>")
    assert page.locator("#status img").count() == 0
    assert "broken" not in page.title()


def test_the_audit_is_folded_and_fits(page: Page) -> None:
    verdict = page.locator("#audit .prose b").first
    expect(verdict).to_be_hidden()
    page.get_by_role("button", name=texts.AUDIT_TITLE).click()
    expect(verdict).to_be_visible()
    for width in (390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)
        assert fits(page), f"the page is wider than {width} px"


def test_errors_and_the_stage_are_in_view_on_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_label("Prompt").fill("")
    draw(page)
    expect(page.get_by_role("alert")).to_be_in_viewport()
    show_example(page)
    for lane in LEADS:
        expect(page.locator(f"#lane-{lane} canvas")).to_be_in_viewport()


def test_dark_mode(tab: Page, server: str) -> None:
    open_page(tab, f"{server}?__theme=dark")
    expect(tab.locator("body")).to_have_class(re.compile(r"\bdark\b"))
    show_example(tab)
    brightness = "e => getComputedStyle(e).{}.match(/[0-9.]+/g).slice(0, 3).reduce((sum, x) => sum + Number(x), 0) / 3"
    assert tab.locator("#stage .lane").first.evaluate(brightness.format("backgroundColor")) < 80
    assert tab.locator("#stage .lane h3").first.evaluate(brightness.format("color")) > 180


# What axe-core calls serious or critical on the page as it is now, in a light and a dark theme, by theme. Of the dark one only
# rules about colours are asked once more. Changes of colour must be over, not on their way, when it looks.
FAULTS = """async () => {
  const found = {};
  const still = document.head.appendChild(document.createElement("style"));
  still.textContent = "* { transition: none !important; }";
  for (const [theme, only] of [["light", undefined], ["dark", ["color-contrast", "link-in-text-block"]]]) {
    document.body.classList.toggle("dark", theme === "dark");
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 50)));
    const { violations } = await axe.run(document, { resultTypes: ["violations"], ...(only && { runOnly: only }) });
    const serious = violations.filter(({ impact }) => ["serious", "critical"].includes(impact));
    const told = serious.flatMap(({ id, nodes }) => nodes.map(({ target, html }) => `${id}: ${target} ${html.slice(0, 120)}`));
    if (told.length) found[theme] = told;
  }
  document.body.classList.remove("dark");
  still.remove();
  return found;
}"""


def check_for_axe(page: Page, what: str) -> None:
    """Nothing serious in either theme, and nothing that sticks out, on a screen and on a phone."""
    page.evaluate("text => window.axe ?? (0, eval)(text)", AXE.read_text())
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        page.wait_for_timeout(200)  # for what follows a change of size
        assert page.evaluate(FAULTS) == {}, f"{what}, {width} px wide"
        assert fits(page), f"{what} is wider than {width} px"


needs_axe = pytest.mark.skipif(
    not AXE.exists(), reason="axe-core is not installed: npm install --no-save axe-core, or set AXE to its axe.min.js"
)


@needs_axe
def test_nothing_serious_for_axe(tab: Page, server: str) -> None:
    open_page(tab, f"{server}?__theme=light")
    expect(tab.locator("#stage .lane[data-done]")).to_have_count(len(DEFAULT))
    check_for_axe(tab, "at first")
    settings(tab)
    folds = tab.locator("#settings .knob-group > button")
    for i in range(folds.count()):
        if "open" not in (folds.nth(i).get_attribute("class") or "").split():
            folds.nth(i).click()
    expect(tab.locator("#settings [id^=knob-]")).to_have_count(len(ON_THE_FORM))
    check_for_axe(tab, "with all settings")
    tab.keyboard.press("Escape")
    tab.locator("#lane-lanternpp .picture").press("Enter")
    tab.locator("#stage .record summary").click()
    for title in (texts.TABLE_TITLE, texts.AUDIT_TITLE, texts.TIMING_TITLE):
        tab.get_by_role("button", name=title).press("Enter")
    check_for_axe(tab, "with all open")
    tab.locator("#stage canvas.big").press("Escape")
    tab.locator("#stage .view summary").press("Enter")
    check_for_axe(tab, "with the menu of the stage")
    # The negative control: what could hardly be read in one theme alone is found.
    tab.add_style_tag(content="body.dark #intro h1 { color: #333; background: #222 }")
    with pytest.raises(AssertionError, match=r"a grey title, 1280 px wide\nassert \{'dark'"):
        check_for_axe(tab, "with a grey title")


def test_headings_and_targets(page: Page) -> None:
    """Headings go down one level at a time, and what is pressed is large enough for a finger."""
    expect(page.locator("#stage .lane")).to_have_count(len(DEFAULT))
    levels = page.locator("main :is(h1, h2, h3, h4)").evaluate_all("all => all.map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels)), levels
    settings(page)
    sizes = page.locator("main :is(button, select, summary, #stage a, label.method, label.toggle):visible").evaluate_all(
        "all => all.map((one) => [one.outerHTML.slice(0, 90), one.getBoundingClientRect().width, "
        "one.getBoundingClientRect().height])"
    )
    assert len(sizes) > 20
    assert [size for size in sizes if min(size[1:]) < 24] == []
    small = page.locator("#stage *, #examples *").evaluate_all(
        "all => all.filter((one) => one.childNodes[0]?.nodeType === 3 && parseFloat(getComputedStyle(one).fontSize) < "
        "12).map((one) => one.outerHTML.slice(0, 90))"
    )
    assert small == []
    assert page.locator("#stage [title], #numbers [title], #examples [title]").count() == 0, "a tooltip that no touch opens"


def test_nothing_is_cut_or_covered_on_the_stage(page: Page) -> None:
    expect(page.locator("#stage .lane[data-done]")).to_have_count(len(DEFAULT))
    for width in (360, 390, 768, 1000, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)
        faults = page.locator("#stage .lane").evaluate_all(
            """lanes => lanes.flatMap((lane) => {
              const parts = ["h3", ".big-number", ".gain", ".side", ".short"].map((name) => lane.querySelector(name));
              const boxes = parts.map((part) => part.getBoundingClientRect()), room = lane.getBoundingClientRect();
              const beside = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1;
              const apart = (a, b) => beside(a, b) || a.bottom <= b.top + 1 || b.bottom <= a.top + 1;
              const wide = (part) => part.scrollWidth > part.clientWidth + 1 && part.clientWidth;
              const cut = parts.filter((part, i) => wide(part) || boxes[i].right > room.right || boxes[i].bottom > room.bottom);
              const pair = (i, j) => apart(boxes[i], boxes[j]) ? "" : `${parts[i].className} ${parts[j].className}`;
              const covered = boxes.flatMap((_, i) => boxes.slice(i + 1).map((_, j) => pair(i, i + 1 + j))).filter((one) => one);
              const told = covered.map((one) => `${lane.id}: ${one} overlap`);
              return [...cut.map((part) => `${lane.id}: ${part.outerHTML} is cut`), ...told];
            })"""
        )
        assert faults == [], width
        for control in (".play", ".now", ".view summary"):
            box = page.locator(f"#stage {control}").bounding_box()
            assert box is not None and box["x"] + box["width"] <= width, (width, control)


def test_the_documentation_opens_by_its_address(tab: Page, server: str) -> None:
    tab.goto(f"{server}?view=api")
    expect(tab.locator(".api-docs")).to_be_visible()


def test_what_a_first_visit_costs(browser: Browser, server: str) -> None:
    """All that is sent until the page rests, compressed, with the recorded race in it. Gradio's own scripts come beside it: they
    are not ours to shrink, and a browser keeps them."""
    fresh = browser.new_context(reduced_motion="reduce")
    try:
        sent, visit = first_visit(fresh.new_page(), server)
        own = {path: size for path, size in sent.items() if not path.startswith(("/assets/", "/static/"))}
        assert own["/"] > 20_000, "the page was measured"
        assert sum(own.values()) < 72_000, own
        assert sum(sent.values()) < 330_000, "of which some 258,000 are Gradio's own"
        assert not any("recorded" in path for path in own)
        again, _ = first_visit(visit, server)
        assert sum(size for path, size in again.items() if path.startswith(("/assets/", "/static/"))) == 0, "kept by the browser"
        body = visit.request.get(server).text()
        assert "goldfish" not in body.replace("goldfish (1)", ""), "no list of classes that nobody sees"
        assert texts.TITLE in visit.title()
        assert visit.locator('meta[name="description"]').get_attribute("content") == texts.DESCRIPTION
    finally:
        fresh.close()


def first_visit(page: Page, address: str) -> tuple[dict[str, int], Page]:
    """Open the page -> the bytes that came over the wire, by path. Asking a foreign host fails the test."""
    hosts: set[str | None] = set()
    page.on(
        "request", lambda request: hosts.add(urlparse(request.url).hostname if request.url.startswith("http") else "127.0.0.1")
    )
    paths: dict[str, str] = {}
    sent: Counter[str] = Counter()
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    network.on("Network.responseReceived", lambda e: paths.__setitem__(e["requestId"], e["response"]["url"]))
    network.on("Network.loadingFinished", lambda e: sent.update({e["requestId"]: int(e["encodedDataLength"])}))
    page.set_default_timeout(PATIENCE)
    open_page(page, address)
    expect(page.locator("#stage .lane[data-done]")).to_have_count(len(DEFAULT))
    page.wait_for_timeout(1000)
    network.detach()
    assert hosts == {"127.0.0.1"}
    found: Counter[str] = Counter()
    for request, size in sent.items():
        if paths[request].startswith("http"):
            found[urlparse(paths[request]).path] += size
    return found, page


def test_a_page_at_rest_asks_for_no_frames(browser: Browser, server: str) -> None:
    """What it does for nothing a race on the same processor pays for."""
    page = browser.new_page(reduced_motion="reduce")
    page.add_init_script("""
      const frame = window.requestAnimationFrame;
      let asked = 0;
      window.requestAnimationFrame = (call) => { asked += 1; return frame.call(window, call); };
      setInterval(() => { window.atRest = asked < 10; asked = 0; }, 1000);
    """)
    open_page(page, server)
    page.wait_for_function("window.atRest", polling=300, timeout=60_000)  # which by itself would look with every frame
    page.close()


def test_recorded_sweeps_come_when_somebody_nears_them(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlparse(request.url).path))
    slider = page.locator("#numbers .turned input").first
    expect(page.locator("#numbers figure")).to_have_count(1)
    assert slider.count() == 0
    page.locator("#numbers .turns").scroll_into_view_if_needed()
    expect(slider).to_be_visible()
    assert [path for path in asked if "sweeps" in path] == ["/recorded/01/sweeps"]
    told = page.locator("#numbers .turned [aria-live]").first
    before = told.inner_text()
    slider.press("End")
    slider.press("ArrowLeft")
    assert told.inner_text() != before and "\u00d7" in told.inner_text()
    for bad in ("99", "..%2f..%2fpage", "01.json.gz"):
        assert page.request.get(urljoin(page.url, f"/recorded/{bad}/sweeps")).status == 404


# Types in the very moment in which the field is there, before Gradio has given it its first value a second time.
TYPE_AT_ONCE = """new MutationObserver((_, watching) => {
  const field = document.querySelector("#prompt textarea");
  if (!field) return;
  watching.disconnect();
  field.focus();
  Object.getOwnPropertyDescriptor(HTMLTextAreaElement.prototype, "value").set.call(field, "two red zebra lanterns");
  field.dispatchEvent(new InputEvent("input", { bubbles: true }));
}).observe(document, { subtree: true, childList: true })"""


def test_what_is_typed_early_stays(tab: Page, server: str) -> None:
    tab.add_init_script(TYPE_AT_ONCE)
    open_page(tab, server)
    tab.wait_for_timeout(500)
    assert tab.get_by_label("Prompt").input_value() == "two red zebra lanterns"
    expect(tab.locator('#examples [aria-pressed="true"]')).to_have_count(0)
    only(tab, "vanilla")
    draw(tab)
    expect(tab.locator("#status")).to_contain_text('Drawn without "zebra": this small model knows only lanterns.')
    tab.locator("#examples .card").first.click()
    expect(tab.get_by_label("Prompt")).to_have_value(texts.EXAMPLES[0][0])


def test_a_late_first_answer_leaves_what_was_typed(tab: Page, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's first answer fills in a prompt, and comes after the visitor has typed another."""
    asked, typed = threading.Event(), threading.Event()
    from_link = served.from_link

    def late(*arguments: Any) -> Any:
        asked.set()
        typed.wait(60)
        return from_link(*arguments)

    monkeypatch.setattr(served, "from_link", late)
    try:
        tab.goto(f"{server}?prompt=a+lantern+of+the+link&seed=5")
        for _ in range(1200):  # the requests pass through this thread
            if asked.is_set():
                break
            tab.wait_for_timeout(50)
        assert asked.is_set()
        tab.get_by_label("Prompt").fill("two zebra lanterns")
        locked = tab.locator("#lock-seed input").evaluate("field => { field.click(); return field.checked; }")
    finally:
        typed.set()
    expect(tab.locator("#status")).to_contain_text(texts.READY_LINK)
    tab.wait_for_timeout(500)
    assert tab.get_by_label("Prompt").input_value() == "two zebra lanterns"
    settings(tab)
    expect(tab.get_by_label("Lock the seed")).to_be_checked(checked=locked)
    assert tab.locator("#seed input").input_value() == "5"
    tab.get_by_label("Prompt").fill("")
    tab.wait_for_timeout(200)
    assert tab.get_by_label("Prompt").input_value() == "", "later changes are the visitor's own"


def test_draw_takes_the_methods_as_they_are_shown(page: Page) -> None:
    """Choices in quick succession, and Draw in the same moment, before the chooser has handed them over."""
    settings(page)
    page.evaluate(
        """() => {
          const timer = setTimeout;
          window.setTimeout = (call, wait, ...more) => {
            const choosers = String(call).includes("chosen:");
            window.delayed ||= choosers;
            return timer(call, choosers ? 1500 : wait, ...more);
          };
        }"""
    )
    page.evaluate(
        """() => {
          for (const box of document.querySelectorAll("#methods input")) if (box.checked && box.value !== "vanilla") box.click();
          document.querySelector("#draw").click();
        }"""
    )
    assert page.evaluate("window.delayed"), "the chooser's own timer"
    expect(page.locator("#status")).to_contain_text("Done, with seed")
    expect(page.locator("#stage .lane")).to_have_count(1)
    page.wait_for_timeout(1500)
    page.locator("#examples .card").first.click()
    expect(page.locator("#methods input:checked")).to_have_count(len(DEFAULT))


def test_leaving_the_model_as_it_is_leaves_the_form(page: Page) -> None:
    """The box of the model takes the focus and loses it again."""
    page.get_by_label("Prompt").fill("two zebra lanterns")
    settings(page)
    page.locator("#methods").get_by_label("EAGLE-2", exact=True).uncheck()
    with page.expect_response(lambda answer: "gradio_api" in answer.url):
        page.locator("#model input").focus()
        page.locator("#lock-seed input").focus()
    page.wait_for_timeout(500)
    assert page.get_by_label("Prompt").input_value() == "two zebra lanterns"
    expect(page.locator("#methods").get_by_label("EAGLE-2", exact=True)).not_to_be_checked()
    expect(page.locator("#methods").get_by_label("LANTERN++", exact=True)).to_be_checked()
