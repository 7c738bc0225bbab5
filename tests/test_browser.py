"""The page in a real browser: its first view, its form and what lies over it, on screens and
phones, and for all who use it.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlparse

import httpx
import pytest
from gradio_client import Client
from pages import (
    AXE,
    COLOURS,
    DEFAULT,
    IN_A_BROWSER,
    LANES,
    NOTE_PLAYING,
    PATIENCE,
    at_rest,
    check_for_axe,
    draw,
    drawn,
    expect,
    faults_of,
    fits,
    only,
    open_page,
    save,
    scripts,
    settings,
    shifts,
    show_example,
    unfold,
)
from PIL import Image
from tiny import served as serving

from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.settings.knobs import KNOBS, ON_THE_FORM, by_readers
from lantern_demo.ui import form, restore, texts
from lantern_demo.ui import page as served
from lantern_demo.ui.components import status_html
from lantern_demo.ui.recorded import recorded_runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

pytestmark = IN_A_BROWSER


def prompt(page: Page) -> Locator:
    return page.get_by_label("Prompt")


# -- the first view


@contextmanager
def held_races(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold every race at its first event -> what lets it go on."""
    run, go_on = Pipeline.run, threading.Event()

    def held(self: Pipeline, *arguments: Any) -> Iterator[Any]:
        for event in run(self, *arguments):
            yield event
            go_on.wait(60)

    monkeypatch.setattr(Pipeline, "run", held)
    try:
        yield go_on
    finally:
        go_on.set()


def waiting(server: str) -> int:
    return httpx.get(f"{server}gradio_api/queue/status").json()["queue_size"]


PLACES = """all => all.map((one) => {
  const { x, y, width, height } = one.getBoundingClientRect();
  return [x, y, width, height].map(Math.round);
})"""
CARD = ("h3", ".badge", "canvas", ".bar", ".passes", ".seconds", ".number", ".ran")


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)])
def test_the_whole_race_is_on_the_first_screen_and_nothing_jumps(
    tab: Page, server: str, width: int, height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Title, prompt, examples and five equal cards, on a phone as five rows.

    Until a race has ended nothing moves by itself, by the browser's own measure; nothing is serious
    for axe, and the console has no error or warning. Who asked for stillness sees no replay.
    """
    console: list[str] = []
    tab.on(
        "console",
        lambda told: console.append(told.text) if told.type in ("error", "warning") else None,
    )
    tab.add_init_script(NOTE_PLAYING)
    tab.set_viewport_size({"width": width, "height": height})
    open_page(tab, server)
    at_rest(tab)
    assert tab.locator("#stage .lane h3").all_inner_texts() == [
        METHODS[name].label for name in DEFAULT
    ]
    seen = [f"#lane-{lane} {part}" for lane in LANES for part in CARD]
    parts = [
        "#intro h1",
        "#prompt",
        "#draw",
        "#open-settings",
        "#examples",
        "#status",
        "#stage .headline",
        "#stage .play",
    ]
    for part in [*parts, *seen]:
        box = tab.locator(part).bounding_box()
        assert (
            box is not None
            and box["height"]
            and box["y"] >= 0
            and box["x"] >= 0
            and box["x"] + box["width"] <= width
        ), part
        assert box["y"] + box["height"] <= height or (width == 390 and part in seen), (part, box)
    cards = tab.locator("#stage .lane").evaluate_all(PLACES)
    columns, rows, widths, heights = map(set, zip(*cards, strict=True))
    assert len(widths) == len(heights) == 1 and (len(rows), len(columns)) == (
        (1, 5) if width == 1280 else (5, 1)
    )
    side = tab.locator("#lane-lanternpp canvas").evaluate("canvas => canvas.clientWidth")
    assert side >= 210 if width == 1280 else side == 96
    results = tab.locator("#results").bounding_box()
    faults_of(tab, "at first")
    with held_races(monkeypatch) as go_on:
        tab.locator("#draw").click()
        tab.locator('#stage [data-phase="drawing"]').first.wait_for()
        expect(tab.locator("#stage .why")).to_contain_text(texts.WEB["racingOn"])
        assert tab.locator("#stage .lane").evaluate_all(PLACES) == cards
        during = tab.locator("#results").bounding_box()
        assert results and during and during["height"] == results["height"], (
            "old results keep their room"
        )
        faults_of(tab, "in a race")
        go_on.set()
    expect(tab.locator("#status")).to_contain_text("Done, with seed")
    at_rest(tab)
    assert tab.locator("#stage .lane").evaluate_all(PLACES) == cards
    faults_of(tab, "after a race")
    moved = shifts(tab)
    assert sum(value for value, _ in moved) < 0.03, moved
    assert not tab.evaluate("window.played") and console == []


# Whether a picture was without its colours in one of the sixty frames after a race, and how many of
# these frames were looked at.
NOTE_BLANKS = f"""window.blanks = window.looked = 0;
let raced = false;
addEventListener("DOMContentLoaded", () => new MutationObserver(() => {{
  const racing = document.body.classList.contains("racing"), over = raced && !racing;
  const cards = [...document.querySelectorAll("#stage .lane")];
  const lanes = cards.map(({{ id }}) => id.slice("lane-".length));
  const look = () => {{
    window.blanks += lanes.some((lane) => ({COLOURS})(lane) < 500);
    if ((window.looked += 1) < 60) requestAnimationFrame(look);
  }};
  if (over) look();
  raced = racing;
}}).observe(document.body, {{ attributes: true, attributeFilter: ["class"] }}));"""


def test_the_recorded_race_plays_once_and_a_race_that_is_over_stays(tab: Page, server: str) -> None:
    """The seed and the prompt of the form are those of the recording.

    A live race takes another seed, and its pictures stay.
    """
    tab.emulate_media(reduced_motion="no-preference")
    tab.add_init_script(NOTE_PLAYING)
    tab.add_init_script(NOTE_BLANKS)
    open_page(tab, server)
    tab.wait_for_function("window.played")
    expect(tab.get_by_role("button", name="Replay")).to_be_visible()
    expect(tab.locator("#stage .source")).to_contain_text("A recording of")
    settings(tab)
    assert tab.locator("#seed input").input_value() == str(texts.EXAMPLES[0][1])
    assert tab.get_by_label("Prompt").input_value() == texts.EXAMPLES[0][0]
    expect(tab.locator("#examples .card").first).to_have_attribute("aria-pressed", "true")
    only(tab, "vanilla", "eagle1")
    tab.evaluate("window.played = false")
    draw(tab)
    tab.wait_for_function("window.looked === 60")
    assert tab.evaluate("[window.blanks, window.played]") == [0, False]
    expect(tab.locator("#stage .lane[data-done]")).to_have_count(2)
    expect(tab.get_by_role("button", name="Replay")).to_be_enabled()


def test_what_a_first_visit_costs(browser: Browser, server: str) -> None:
    """All that is sent until the page rests, compressed, the recorded race in it and Gradio's own
    scripts beside it, which a browser keeps.
    """
    fresh = browser.new_context(reduced_motion="reduce")
    try:
        visit = fresh.new_page()
        sent = bytes_of(visit, server)
        own = {
            path: size
            for path, size in sent.items()
            if not path.startswith(("/assets/", "/static/"))
        }
        assert own["/"] > 20_000, "the page was measured"
        assert sum(own.values()) < 73_500, own
        assert sum(sent.values()) < 327_000, "of which some 253,000 are Gradio's own"
        assert not any("recorded" in path for path in own)
        again = bytes_of(visit, server)
        assert (
            sum(size for path, size in again.items() if path.startswith(("/assets/", "/static/")))
            == 0
        ), "kept by the browser"
        body = visit.request.get(server).text()
        assert "hammerhead" not in body, "no list of classes that nobody sees"
        assert texts.TITLE in visit.title()
    finally:
        fresh.close()


def bytes_of(page: Page, address: str) -> dict[str, int]:
    """Open the page -> the bytes that came over the wire, by path."""
    paths: dict[str, str] = {}
    sent: Counter[str] = Counter()
    network = page.context.new_cdp_session(page)
    network.send("Network.enable")
    network.on(
        "Network.responseReceived",
        lambda e: paths.__setitem__(e["requestId"], e["response"]["url"]),
    )
    network.on(
        "Network.loadingFinished",
        lambda e: sent.update({e["requestId"]: int(e["encodedDataLength"])}),
    )
    page.set_default_timeout(PATIENCE)
    open_page(page, address)
    at_rest(page)
    page.wait_for_timeout(1000)
    network.detach()
    found: Counter[str] = Counter()
    for request, size in sent.items():
        if paths[request].startswith("http"):
            found[urlparse(paths[request]).path] += size
    return found


def test_names_in_a_chart_do_not_cover_each_other(browser: Browser) -> None:
    """Those of eight methods that are close together."""
    points = [
        {"x": 90 + 30 * i, "y": 90 + 4 * i, "text": method.label}
        for i, method in enumerate(METHODS.values())
    ]
    with scripts(browser, "dom") as page:
        page.evaluate(
            """points => {
              const box = { viewBox: "0 0 420 250", "font-size": 12 };
              document.body.append(svg("svg", box, ...labels(points, 40, 410)));
            }""",
            points,
        )
        covered = page.locator("text").evaluate_all(
            """all => {
              const boxes = all.map((one) => one.getBBox());
              const before = (a, b) => a.x + a.width < b.x || a.y + a.height < b.y + 4;
              const meet = (a, b) => !before(a, b) && !before(b, a);
              return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => meet(a, b))).length;
            }"""
        )
    assert covered == 0


def test_the_folds_stand_in_order_and_bring_what_is_in_them(page: Page) -> None:
    """Recorded sweeps come when the knob is unfolded.

    The charts' letters are as large as those around them.
    """
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlparse(request.url).path))
    titles = page.locator(
        "#stage summary, #results .label-wrap, #results summary, #lossless b"
    ).all_inner_texts()
    folds = [
        texts.KNOB_TITLE,
        texts.OTHERS_TITLE,
        texts.TABLE_TITLE,
        texts.KEEP_TITLE,
        texts.WEB["lossless"]["title"],
    ]
    assert [title.split("\n")[0] for title in titles] == [
        texts.WEB["lookTitle"],
        *folds,
        texts.TIMING_TITLE,
    ]
    told = "In this run, the same 256 tokens as vanilla: EAGLE-1 yes, EAGLE-2 yes."
    expect(page.locator("#lossless")).to_contain_text(told)
    page.evaluate("""() => {
      lanternRun.settings = { ...lanternRun.settings, noise: "independent" };
      lanternRun.lanes.find((lane) => lane.id === "eagle2").differs.add(0);
      document.dispatchEvent(new CustomEvent("lantern-run"));
    }""")
    expect(page.locator("#lossless")).to_contain_text(
        f"EAGLE-1 yes, EAGLE-2 no. {texts.WEB['lossless']['independent']}"
    )
    run = recorded_runs()[0].record["methods"]
    loose = " and ".join(
        str(run[name]["events"]["kinds"].count("r")) for name in ("lantern", "lantern++")
    )
    expect(page.locator("#lossless")).to_contain_text(
        f"LANTERN and LANTERN++: here it changed {loose} of 256 tokens."
    )
    assert not [path for path in asked if "sweeps" in path]
    unfold(page, texts.KNOB_TITLE)
    sliders = page.locator("#turn .turned input")
    expect(sliders.first).to_be_visible()
    assert [path for path in asked if "sweeps" in path] == ["/recorded/01/sweeps"]
    for slider, told_of, sweep in zip(
        sliders.all(),
        page.locator("#turn [aria-live]").all(),
        recorded_runs()[0].sweeps,
        strict=True,
    ):
        for key, point in (("Home", sweep["points"][0]), ("End", sweep["points"][-1])):
            slider.press(key)
            counted = f"{point['steps']} passes instead of 255, {point['changed']} of 256 changed"
            expect(told_of).to_have_text(f"{point['label']} \u2014 {counted}")
    unfold(page, texts.TABLE_TITLE)
    expect(page.locator("#table figure")).to_have_count(2)
    for width in (390, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)
        sizes = page.locator("#table figure > svg").evaluate_all(
            """all => all.map((svg) => {
              const { fontSize } = getComputedStyle(svg.querySelector("text"));
              return parseFloat(fontSize) * svg.getScreenCTM().a;
            })"""
        )
        assert len(sizes) == 2 and all(12 <= size <= 17 for size in sizes), (width, sizes)
        assert fits(page)
    for bad in ("99", "..%2f..%2fpage", "01.json.gz"):
        assert page.request.get(urljoin(page.url, f"/recorded/{bad}/sweeps")).status == 404


# -- runs


def test_all_methods_side_by_side(page: Page, tmp_path: Path) -> None:
    page.get_by_label("Prompt").fill("two red zebra lanterns over a lake")
    settings(page)
    page.locator("#seed input").fill("7")
    draw(page)
    expect(page.locator("#status")).to_contain_text("Done, with seed 7")
    expect(page.locator("#status")).to_contain_text(texts.UNKNOWN_WORDS.format(words="zebra"))
    for lane in LANES:
        drawn(page, lane)
        expect(page.locator(f"#lane-{lane} .passes")).to_have_text(
            re.compile(r"^\d+ passes\d+\.\d\d\u00d7$")
        )
        expect(page.locator(f"#lane-{lane} .seconds")).to_have_text(
            re.compile(r"^\d+\.\d\d s\d+\.\d\d\u00d7$")
        )
        with page.expect_download() as download:
            page.locator(f"#lane-{lane} .keep a").click()
        assert download.value.suggested_filename == f"{lane}.png"
        with Image.open(download.value.path()) as image:
            assert image.info["seed"] == "7" and image.width == 256  # type: ignore[attr-defined]
    expect(page.locator("#lane-lanternpp .ran")).to_have_text(re.compile(r"k\s\d+, lambda\s\d"))
    expect(page.locator("#stage .lane")).to_have_count(len(DEFAULT))
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now on")
    unfold(page, texts.TABLE_TITLE)
    expect(page.locator("#table").get_by_role("rowheader", name="LANTERN++")).to_be_visible()
    record = json.loads(save(page, "#record", tmp_path / "run.json").read_text(encoding="utf-8"))
    assert list(record["methods"]) == DEFAULT
    assert record["settings"]["seed"] == 7


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
    expect(page.locator("#status")).to_have_text(f"{texts.READY_GONE} {texts.READY_LINK}")
    expect(page.locator("#stage .headline")).to_have_text(texts.NOT_DRAWN_YET)
    expect(page.locator('#stage .lane[data-phase="asked"]')).to_have_count(2)
    expect(page.locator("#stage")).not_to_contain_text("recording")


def test_the_keyboard_alone_draws_scrubs_looks_and_stops(page: Page) -> None:
    prompt(page).focus()
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
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator("#stage .look")).to_be_visible()
    expect(page.locator("#stage canvas.big")).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#stage .look .spoken")).to_contain_text("row 2, column 1")
    assert len(page.locator("#stage .look .spoken").inner_text()) < 120, (
        "what is read aloud for each arrow key"
    )
    page.keyboard.press("Escape")
    expect(page.locator("#stage canvas.big")).to_be_hidden()
    page.wait_for_function("document.activeElement.className === 'picture'")


def test_stop_and_draw_again(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop stays in reach on a phone, too.

    To draw once more gives another picture unless the seed is locked.
    """

    def seed_of_a_run() -> int:
        draw(page)
        expect(page.locator("#status")).not_to_contain_text("Done, with seed")
        expect(page.locator("#status")).to_contain_text("Done, with seed")
        told = re.search(r"Done, with seed (\d+)", page.locator("#status").inner_text())
        expect(page.locator("#seed input")).to_have_value(told[1])
        return int(told[1])

    go_on = Pipeline._go_on
    # time to stop and look
    monkeypatch.setattr(Pipeline, "_go_on", lambda session: (time.sleep(0.004), go_on(session)))
    page.set_viewport_size({"width": 390, "height": 800})
    draw(page)
    page.locator('#lane-eagle1[data-phase="drawing"]').wait_for()
    expect(page.get_by_role("button", name="Draw", exact=True)).to_have_count(0)
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    stop = page.get_by_role("button", name="Stop", exact=True)
    expect(stop).to_be_in_viewport()
    stop.click()
    # Two seconds on a quiet machine; a test machine may be busy.
    expect(page.locator("#status")).to_contain_text("Stopped.", timeout=5_000)
    expect(page.locator('#stage [data-phase="stopped"]').first).to_be_visible()
    assert page.locator("main").inner_text().lower().count("stopped.") == 1, "it is said once"
    page.set_viewport_size({"width": 1280, "height": 900})
    only(page, "vanilla")
    first = seed_of_a_run()
    expect(page.locator("#lane-vanilla .gain")).to_have_text("1.00\u00d7")
    expect(page.locator("#lane-lantern")).to_have_count(0)
    second = seed_of_a_run()
    assert len({texts.EXAMPLES[0][1], first, second}) == 3, (
        "nor is it that of the recording that the page came with"
    )
    settings(page)
    page.get_by_label("Lock the seed").check()
    page.keyboard.press("Escape")
    assert seed_of_a_run() == second
    only(page)
    draw(page)
    expect(page.get_by_role("alert")).to_contain_text(texts.NO_METHODS)


def test_an_example_that_comes_late_leaves_a_run_its_lanes(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draw is pressed while an example is on its way: its answer comes in the middle of the run."""
    drawing, results_of = threading.Event(), restore.results_of

    def late(*arguments: Any) -> Any:
        drawing.wait(60)
        return results_of(*arguments)

    monkeypatch.setattr(restore, "results_of", late)
    with held_races(monkeypatch):
        page.locator("#examples .card").first.click()
        draw(page)
        page.locator('#stage [data-phase="drawing"]').first.wait_for()
        drawing.set()
        expect(page.locator("#status")).to_contain_text("recorded run")
    expect(page.locator("#status")).to_contain_text("Done, with seed")
    expect(page.locator('#stage [data-phase="done"]')).to_have_count(len(DEFAULT))
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now on")


def test_draw_takes_the_methods_as_they_are_shown(page: Page) -> None:
    """Choices in quick succession, and Draw in the same moment, before the chooser has handed them
    over.
    """
    settings(page)
    page.evaluate(
        """() => {
          const timer = setTimeout;
          window.setTimeout = (call, wait, ...more) => {
            const choosers = String(call).includes("chosen:");
            window.delayed ||= choosers;
            return timer(call, choosers ? 1500 : wait, ...more);
          };
          for (const box of document.querySelectorAll("#methods input")) {
            if (box.checked && box.value !== "vanilla") box.click();
          }
          document.querySelector("#draw").click();
        }"""
    )
    assert page.evaluate("window.delayed"), "the chooser's own timer"
    expect(page.locator("#status")).to_contain_text("Done, with seed")
    expect(page.locator("#stage .lane")).to_have_count(1)
    page.wait_for_timeout(1500)
    page.locator("#examples .card").first.click()
    expect(page.locator("#methods input:checked")).to_have_count(len(DEFAULT))


def test_draw_in_the_settings_and_run_again_show_the_race(page: Page) -> None:
    only(page, "vanilla", "eagle1")
    page.keyboard.press("Escape")
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.locator("#open-settings").evaluate("button => button.click()")
    expect(page.locator("#settings")).to_be_visible()
    draw(page)
    expect(page.locator("#settings")).to_be_hidden()
    page.locator("#stage .source.racing").wait_for()
    expect(page.locator("#status")).to_be_in_viewport()
    expect(page.locator("#stage .picture").first).to_be_in_viewport()
    expect(page.locator("#status")).to_contain_text("Done, with seed")
    unfold(page, texts.KEEP_TITLE)
    page.locator("#again").click()
    expect(page.locator("#status")).to_be_in_viewport()
    expect(page.locator("#status")).to_contain_text("EAGLE-1: the same 256 tokens.")
    page.locator("#others summary").click()
    page.get_by_label("SJD", exact=True).check()
    page.get_by_role("button", name=texts.DRAW_OTHERS).click()
    expect(page.locator("#stage .lane h3")).to_have_text(["Vanilla", "EAGLE-1", "SJD"])
    expect(page.locator("#stage .picture").first).to_be_in_viewport()
    expect(page.locator("#status")).to_contain_text("Done, with seed")
    expect(page.locator("#lane-sjd .passes")).to_contain_text("passes")


# -- the prompt


def test_bad_input_is_explained_as_text_and_in_view(page: Page) -> None:
    broken = "<img src=x onerror=document.title='broken'>"
    page.set_viewport_size({"width": 390, "height": 844})
    prompt(page).fill("")
    draw(page)
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("The prompt is empty; say what to draw, for example")
    expect(alert).to_be_in_viewport()
    page.set_viewport_size({"width": 1280, "height": 900})
    prompt(page).fill("x" * 201)
    draw(page)
    expect(alert).to_contain_text("The prompt has 201 characters, at most 200 are allowed")
    prompt(page).fill(f"{broken} " + "red " * 24)  # more words than there are positions
    draw(page)
    expect(alert).to_contain_text(broken)
    only(page, "vanilla")
    prompt(page).fill(f"red lanterns <imgsrcxonerror${{alert(1)}}> {broken}")
    draw(page)
    expect(page.locator("#status")).to_contain_text("drew without them")
    expect(page.locator("#status")).to_contain_text("imgsrcxonerror")
    assert page.locator("#status img").count() == 0
    assert "broken" not in page.title()
    # the end of a run writes its seed into the form
    expect(page.get_by_role("button", name="Draw", exact=True)).to_be_enabled()
    settings(page)
    page.locator("#seed input").fill("-1")
    draw(page)
    expect(alert).to_contain_text("Seed must be a whole number between 0 and 2147483647, got -1.")
    expect(page.get_by_role("button", name="Draw", exact=True)).to_be_enabled()
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator("footer .show-api")).to_be_visible()
    show_example(page)  # last: with it the form asks for another model, which a run would load
    expect(page.locator("#lane-vanilla canvas")).to_be_in_viewport()


def test_a_visitor_who_waits_is_told_and_can_leave(
    page: Page, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(page, "vanilla")
    page.keyboard.press("Escape")
    client = Client(server, verbose=False)
    with held_races(monkeypatch):
        running = client.submit("a lantern", method="vanilla", api_name="/draw")
        while not running.outputs():
            page.wait_for_timeout(50)
        draw(page)
        expect(page.locator("#status .status")).to_have_text(texts.WAITS)
        prompt(page).press("Enter")
        expect(page.locator("#status .status")).to_have_text(texts.WAITS_ALREADY)
        page.wait_for_timeout(300)
        assert waiting(server) == 1, "the second press asked for nothing"
        page.get_by_role("button", name="Stop", exact=True).click()
        expect(page.locator("#status")).to_contain_text("Stopped.")
        expect(page.locator("#draw")).to_be_enabled()
        assert waiting(server) == 0
    running.result(timeout=60)
    draw(page)
    expect(page.locator("#status")).to_contain_text("Done, with seed")


def test_a_full_queue_is_told_and_leaves_the_page_as_it_is(
    tiny_model: Path, tab: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "WAITING", 1)
    with serving(tiny_model) as (server, _):
        open_page(tab, server)
        client = Client(server, verbose=False)
        with held_races(monkeypatch):
            jobs = [client.submit("a lantern", method="vanilla", api_name="/draw")]
            while not jobs[0].outputs():
                tab.wait_for_timeout(50)
            jobs.append(client.submit("a lantern", method="vanilla", api_name="/draw"))
            while waiting(server) != 1:
                tab.wait_for_timeout(50)
            show_example(tab)  # needs neither the queue nor the device
            draw(tab)
            expect(tab.get_by_role("alert").filter(has_text=texts.NOT_STARTED)).to_be_visible()
            expect(tab.locator("#stop")).to_be_hidden()
        for job in jobs:
            job.result(timeout=60)
        # Gradio's own notice, there for ten seconds, does not lie over it
        tab.locator("#draw").click(timeout=5000)
        expect(tab.locator("#status")).to_contain_text("Done, with seed")


# -- what lies over the page

# Whether a press in the middle of an element would reach it.
FREE = """element => {
  const box = element.getBoundingClientRect();
  return element.contains(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2));
}"""


def focused(page: Page) -> str:
    return page.evaluate("document.activeElement.id")


def test_settings_open_over_the_page(page: Page) -> None:
    """Nothing moves for them, they close in four ways, a list in them before they do; the focus
    goes in and comes back.
    """
    panel, opener = page.locator("#settings"), page.locator("#open-settings")
    at_rest(page)
    for width in (390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)
        expect(opener).to_have_attribute("aria-expanded", "false")
        stage = page.locator("#stage").bounding_box()
        settings(page)
        expect(page.get_by_role("dialog", name=texts.SETTINGS)).to_be_focused()
        expect(opener).to_have_attribute("aria-expanded", "true")
        assert page.locator("#stage").bounding_box() == stage
        for depth in (0, 900, 99999):
            panel.evaluate("(panel, depth) => { panel.scrollTop = depth; }", depth)
            for part in ("#draw-these", "#paper", "#reset", "#drawer-head .close"):
                assert page.locator(part).evaluate(FREE), (part, depth)
        page.keyboard.press("Escape")
        expect(panel).to_be_hidden()
        assert focused(page) == "open-settings"
    ways = ("#drawer-head .close", "#intro h1", "#prompt textarea")
    for way in ways:
        settings(page)
        page.locator(way).click(position={"x": 5, "y": 5})
        expect(panel).to_be_hidden()
        expect(opener).to_have_attribute("aria-expanded", "false")
        assert way != ways[0] or focused(page) == "open-settings"
    settings(page)
    page.locator("#model input").click()
    expect(page.get_by_role("listbox")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("listbox")).to_have_count(0)
    expect(page.locator("#settings")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#settings")).to_be_hidden()
    expect(page.get_by_role("button", name=texts.SETTINGS, exact=True)).to_have_count(1)


def test_the_papers_knobs_come_first_and_reset_gives_the_preset_back(page: Page) -> None:
    """The first screen has k, delta, lambda, tree and noise; the others are folded in groups by
    their methods.
    """
    page.set_viewport_size({"width": 1280, "height": 800})
    settings(page)
    foot = page.locator("#drawer-foot").bounding_box()
    for name in form.FIRST:
        box = page.locator(f"#knob-{name}").bounding_box()
        assert box is not None and foot is not None and box["y"] + box["height"] <= foot["y"], (
            name,
            box,
        )
    groups = page.locator("#settings .block.knob-group")
    rest = {
        readers: [name for name in names if name not in form.FIRST]
        for readers, names in by_readers().items()
    }
    for group, readers in zip(
        groups.all(), [readers for readers, names in rest.items() if names], strict=True
    ):
        title = group.locator("> button")
        expect(title.locator("span").first).to_have_text(
            texts.knobs_of([METHODS[reader] for reader in readers])
        )
        expect(group.locator(f"#knob-{rest[readers][0]}")).to_have_count(0)
        title.click()
        for name in rest[readers]:
            expect(group.locator(f"#knob-{name}")).to_be_visible()
    box = page.get_by_label(f"number input for {KNOBS['lanternpp_lambda'].label}")
    before = box.input_value()
    box.fill("7")
    box.press("Tab")
    sjd = page.locator("#settings .knob-group > button").filter(has_text="SJD")
    window = page.locator("#knob-window input")
    window.fill("4")
    window.press("Tab")
    sjd.click()
    expect(window).to_be_hidden()
    tree, depth, k = (
        page.locator(f"#knob-{name} input") for name in ("tree", "draft_depth", "lantern_k")
    )
    depth.fill("3")
    page.locator("#paper").click()
    expect(page.locator("#drawer-told")).to_contain_text(texts.PAPER_TOLD)
    for field, value in (
        (tree, "paper"),
        (depth, "0"),
        (box, "3"),
        (k, "63"),
        (page.locator("#knob-noise input"), "independent"),
    ):
        # the codebook has 64 tokens, so that each has 63 neighbours
        expect(field).to_have_value(value)
    page.locator("#reset").click()
    expect(page.locator("#drawer-told")).to_contain_text("All of these are again as tiny")
    expect(page.locator("#drawer-told")).to_be_in_viewport()
    for field, value in ((box, before), (tree, "default"), (k, "100")):
        expect(field).to_have_value(value)
    sjd.click()
    expect(window).to_have_value("0")


def test_the_model_decides_what_the_form_has(page: Page) -> None:
    """Nothing changes when its box takes the focus and loses it again.

    The examples are the bundled model's.
    """
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
    page.locator("#model input").click()
    page.get_by_role("option", name="LlamaGen").first.click()
    expect(page.locator("#examples")).to_be_hidden()
    settings(page)
    page.locator("#model input").click()
    page.get_by_role("option", name="lantern-scenes").click()
    page.keyboard.press("Escape")
    expect(page.locator("#examples")).to_be_visible()


def hand_in(page: Page, file: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.locator("#load").click()
    chooser.value.set_files(file)


def test_answers_stand_beside_what_was_pressed(page: Page, tmp_path: Path) -> None:
    """A refusal far below the stage is told there; what the stage shows brings it into view."""
    unfold(page, texts.KNOB_TITLE)
    # before a record is read, whose model the server would load and keep
    page.locator("#explore").click()
    expect(page.locator("#explore-told")).to_contain_text("Exploring")
    expect(page.locator("#explore-told")).to_be_in_viewport()
    page.locator("#stop").evaluate("button => button.click()")
    expect(page.locator("#explore-told")).to_contain_text(texts.STOPPED_SWEEP)
    expect(page.locator("#status")).to_contain_text("Stopped.")
    expect(page.locator("#draw")).to_be_enabled()

    record, wrong = save(page, "#record", tmp_path / "run.json"), tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"name": "something else"}), encoding="utf-8")
    for width, height in ((1280, 900), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        # its answer would be below
        page.locator("#load").evaluate("button => button.scrollIntoView({ block: 'end' })")
        hand_in(page, wrong)
        expect(page.locator("#load-told").get_by_role("alert")).to_contain_text(
            "this is not a run record"
        )
        expect(page.locator("#load-told")).to_be_in_viewport()
        expect(page.locator("#status")).not_to_be_in_viewport()
        hand_in(page, record)
        expect(page.locator("#status")).to_contain_text(texts.READY_LOADED)
        expect(page.locator("#status")).to_be_in_viewport()
        expect(page.locator("#stage .picture").first).to_be_in_viewport()
        expect(page.locator("#load-told")).to_be_hidden()


# -- sizes, colours and accessibility


def test_dark_mode_opens_by_its_address(tab: Page, server: str) -> None:
    open_page(tab, f"{server}?__theme=dark")
    expect(tab.locator("body")).to_have_class(re.compile(r"\bdark\b"))
    show_example(tab)
    parts = "getComputedStyle(e).{}.match(/[0-9.]+/g).slice(0, 3)"
    brightness = f"e => {parts}.reduce((sum, x) => sum + Number(x), 0) / 3"
    assert tab.locator("#stage .lane").first.evaluate(brightness.format("backgroundColor")) < 80
    assert tab.locator("#stage .lane h3").first.evaluate(brightness.format("color")) > 180


@pytest.mark.skipif(
    not AXE.exists(),
    reason="axe-core is not installed: npm install --no-save axe-core, or set AXE to its file",
)
def test_nothing_serious_for_axe(tab: Page, server: str) -> None:
    """Beside what is seen in a race, which another test looks at."""
    open_page(tab, f"{server}?__theme=light")
    at_rest(tab)
    tab.get_by_role("button", name=texts.WEB["tour"]["open"]).press("Enter")
    tab.locator(".tour").wait_for()
    check_for_axe(tab, "the captions")
    tab.keyboard.press("Escape")
    expect(tab.locator(".tour")).to_have_count(0)
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
    for title in (texts.KNOB_TITLE, texts.TABLE_TITLE, texts.KEEP_TITLE, texts.TIMING_TITLE):
        unfold(tab, title)
    tab.locator("#others summary").click()
    expect(tab.locator("#turn .turned").first).to_be_visible()
    check_for_axe(tab, "with all open")
    # The negative control: what could hardly be read in one theme alone is found.
    tab.add_style_tag(content="body.dark #intro h1 { color: #333; background: #222 }")
    with pytest.raises(AssertionError, match=r"a grey title, 1280 px wide: \{'dark'"):
        check_for_axe(tab, "with a grey title")


def test_nothing_is_cut_covered_or_small_on_the_stage(page: Page) -> None:
    """Headings go down one level at a time, and what is pressed is large enough for a finger; notes
    take one line.
    """
    at_rest(page)
    levels = page.locator("main :is(h1, h2, h3, h4)").evaluate_all(
        "all => all.map((one) => Number(one.tagName[1]))"
    )
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b <= a + 1 for a, b in pairwise(levels)), levels
    settings(page)
    sizes = page.locator(
        "main :is(button, select, summary, #stage a, label.method, label.toggle):visible"
    ).evaluate_all(
        "all => all.map((one) => [one.outerHTML.slice(0, 90), one.getBoundingClientRect().width, "
        "one.getBoundingClientRect().height])"
    )
    assert len(sizes) > 20
    assert [size for size in sizes if min(size[1:]) < 24] == []
    small = page.locator("#stage *, #examples *").evaluate_all(
        "all => all.filter((one) => one.childNodes[0]?.nodeType === 3 && "
        "parseFloat(getComputedStyle(one).fontSize) < "
        "12).map((one) => one.outerHTML.slice(0, 90))"
    )
    assert small == []
    assert page.locator("#stage [title], #results [title], #examples [title]").count() == 0, (
        "a tooltip that no touch opens"
    )
    page.keyboard.press("Escape")
    for width in (360, 390, 768, 1000, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)
        faults = page.locator("#stage .lane").evaluate_all(
            """lanes => lanes.flatMap((lane) => {
              const names = ["h3", ".badge", ".passes b", ".fewer", ".seconds b", ".gain"];
              names.push(".number", ".ran");
              const parts = names.map((name) => lane.querySelector(name));
              const boxes = parts.map((part) => part.getBoundingClientRect());
              const room = lane.getBoundingClientRect();
              const beside = (a, b) => a.right <= b.left + 1 || b.right <= a.left + 1;
              const above = (a, b) => a.bottom <= b.top + 1;
              const apart = (a, b) => beside(a, b) || above(a, b) || above(b, a);
              const wide = (part) => part.scrollWidth > part.clientWidth + 1 && part.clientWidth;
              const out = ({ right, bottom }) => right > room.right || bottom > room.bottom;
              const cut = parts.filter((part, i) => wide(part) || out(boxes[i]));
              const name = (i) => parts[i].className;
              const pair = (i, j) => apart(boxes[i], boxes[j]) ? "" : `${name(i)} ${name(j)}`;
              const pairs = (i) => boxes.slice(i + 1).map((_, j) => pair(i, i + 1 + j));
              const covered = boxes.flatMap((_, i) => pairs(i)).filter((one) => one);
              const told = covered.map((one) => `${lane.id}: ${one} overlap`);
              return [...cut.map((part) => `${lane.id}: ${part.outerHTML} is cut`), ...told];
            })"""
        )
        assert faults == [] and fits(page), width
        lines = page.locator("#stage .number").evaluate_all(
            "all => all.map((one) => one.offsetHeight)"
        )
        assert width < 390 or (max(lines) < 26), (width, lines)
        for control in (".play", ".now", ".differ"):
            box = page.locator(f"#stage {control}").bounding_box()
            assert box is not None and box["x"] + box["width"] <= width, (width, control)
    waited = [{"waited_seconds": 1, "decode_seconds": 3}]
    line = status_html(
        "Done.",
        notes=[texts.busy_machine(waited)],
    )
    page.locator("#status .status").evaluate("(status, told) => { status.outerHTML = told; }", line)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        right = page.locator("#status .notes").evaluate(
            "notes => notes.getBoundingClientRect().right"
        )
        assert right <= width and fits(page), width
    notes = page.locator("#status .notes")
    closed = notes.bounding_box()
    notes.locator("summary").click()
    opened = notes.bounding_box()
    assert closed and opened and closed["height"] < 30 < opened["height"]
