"""The page in a real browser: its first view, a race, the prompt and the settings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pages
import pytest
from gradio_client import Client
from pages import (
    DEFAULT,
    LANES,
    PROMPT,
    chip,
    draw,
    drawn,
    expect,
    fits,
    held_races,
    line,
    only,
    open_page,
    shifts,
)
from tiny import served as serving
from tiny import waiting

from lantern_demo.decoding.methods import METHODS
from lantern_demo.prompt_words import USUAL
from lantern_demo.ui import page as served
from lantern_demo.ui import texts
from lantern_demo.ui.recorded import recorded_runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pages.IN_A_BROWSER

HEADLINE = "#headline h1"
# sizes of windows, and how many lanes they show: the last is a small laptop's at 200 %
SCREENS = [(1280, 800, 5), (390, 844, 5), (768, 1024, 5), (1366, 657, 5), (640, 400, 2)]


# -- the first view


@pytest.mark.parametrize(("width", "height", "seen"), SCREENS)
def test_lanes_are_on_the_first_screen_and_nothing_moves(
    tab: Page, server: str, width: int, height: int, seen: int
) -> None:
    """With headline, prompt and Draw above them; on a phone the first two, and the winner."""
    tab.set_viewport_size({"width": width, "height": height})
    open_page(tab, server)
    names = tab.locator("#stage .lane h3").all_inner_texts()
    assert names == [METHODS[name].label for name in DEFAULT]
    lanes = [f"#lane-{lane} " for lane in LANES[:seen]]
    parts = [lane + part for lane in lanes for part in ("h3", "canvas", ".big", ".pill")]
    if width == 390:
        expect(tab.locator("#lane-lanternpp[data-first]")).to_be_visible()
        both = "#lane-lanternpp", "#lane-vanilla"
        parts = [f"{lane} {part}" for lane in both for part in ("h3", "canvas")]
    if height < 700:  # what explains a step
        parts = [part for part in parts if part.endswith(".pill")] + ["#intro p"]
    parts += [HEADLINE, "#prompt", "#draw", "#chips .things", "#chips .details", "#status"]
    for part in parts + ([".why b"] if width > 1000 else []):
        box = tab.locator(part).bounding_box()
        assert box is not None and box["height"] > 0, part
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, (part, box)
        assert box["y"] >= 0 and box["y"] + box["height"] <= height, (part, box)
    tab.wait_for_function("document.querySelectorAll('.lane[data-done]').length === 5")
    assert fits(tab)
    moved = shifts(tab)
    assert sum(value for value, _ in moved) < 0.03, moved


def test_axe_finds_nothing_serious(page: Page) -> None:
    pages.check_for_axe(page, "the page")
    if pages.AXE.exists():
        page.evaluate("document.querySelector('.stage .explain').textContent = ''")
        with pytest.raises(AssertionError, match="a button without a name"):
            pages.faults_of(page, "a button without a name")


# -- a race


@pytest.fixture(scope="module")
def raced(browser: Browser, server: str) -> Iterator[Page]:
    """A page after a race, which noted the headlines, and the phases of lanes with a picture."""
    with pages.new_tab(browser) as page, pytest.MonkeyPatch.context() as patch:
        page.set_viewport_size({"width": 1280, "height": 800})
        open_page(page, server)
        page.evaluate("""() => {
          window.headlines = [];
          const headline = document.querySelector("#headline h1");
          const note = () => window.headlines.push(headline.textContent);
          new MutationObserver(note).observe(headline, { childList: true });
          window.decoded = new Set();
          const pen = CanvasRenderingContext2D.prototype, draw = pen.drawImage;
          pen.drawImage = function (image, ...rest) {
            if (image instanceof Image) decoded.add(this.canvas.closest(".lane")?.dataset.phase);
            return draw.call(this, image, ...rest);
          };
        }""")
        with held_races(patch):
            draw(page)
            page.locator('#stage [data-phase="drawing"]').first.wait_for()
            pages.faults_of(page, "a race")
        drawn(page, len(DEFAULT))
        yield page


def test_the_headline_counts_in_a_race_and_names_its_result(raced: Page) -> None:
    """Nothing moves by itself, and no lane has its picture before it arrives."""
    counts, decoded = raced.evaluate("[window.headlines, [...window.decoded]]")
    leads = [re.search(r" leads: (\d+) of 256 ", told) for told in counts]
    pieces = [int(found[1]) for found in leads if found is not None]
    assert pieces and pieces == sorted(pieces) and 0 < pieces[-1] <= 256
    assert any(" is done in " in told for told in counts), "the race has a finish"
    fastest = min(pages.lanes_of(raced), key=lambda lane: lane["seconds"])
    first = raced.locator(".lane[data-first] h3").all_inner_texts()
    assert fastest["label"] in first
    told = " and ".join(first) + (" tie: " if len(first) > 1 else " won: ")
    spent = "|".join(f"{fastest['seconds']:.{digits}f}" for digits in (2, 3))
    expect(raced.locator(HEADLINE)).to_have_text(re.compile(f"^{re.escape(told)}({spent})"))
    assert decoded == ["done"]
    moved = shifts(raced)
    assert sum(value for value, _ in moved) < 0.05, moved


def test_a_pill_says_what_a_methods_speed_cost(raced: Page) -> None:
    vanilla, *others = pages.lanes_of(raced)
    assert any(found["changed"] for found in others)
    for found in others:
        told = f"own draw, {found['kinds'].count('r')} look-alikes"
        if METHODS[found["id"]].lossless:
            pairs = zip(vanilla["tokens"], found["tokens"], strict=True)
            differ = sum(a != b for a, b in pairs)
            told = f"{differ} of 256 pieces differ" if differ else "\u2713 the same 256 pieces"
        expect(raced.locator(f"#lane-{found['name']} .pill")).to_have_text(told)


def test_the_strip_has_the_visitors_run_before_the_recorded_ones(raced: Page) -> None:
    shots = raced.locator("#runs button")
    expect(shots).to_have_count(1 + len(recorded_runs()))
    seed = raced.evaluate("new URLSearchParams(location.search).get('seed')")
    expect(shots.first.locator("small")).to_contain_text(f"seed {seed}")
    expect(shots.last.locator("small")).to_have_text(texts.RECORDED)


def test_a_double_click_draws(page: Page) -> None:
    """Stop then stands where Draw was."""
    only(page, "vanilla")
    page.locator("#draw").dblclick(delay=60)
    drawn(page, 1)


def test_back_draws_the_run_before(raced: Page) -> None:
    """A run becomes the page's address when it begins. The tests above need this race."""
    before, tokens = raced.url, "lanternRun.lanes[0].tokens"
    drawn_before = raced.evaluate(tokens)
    entries = raced.evaluate("history.length")
    only(raced, "vanilla")
    draw(raced)
    raced.wait_for_url(lambda address: address != before)
    drawn(raced, 1)
    assert raced.locator("#stage .place").inner_text() == "", "a lane alone has no place"
    expect(raced.locator(".lane[data-first]")).to_have_count(0)
    raced.go_back()
    drawn(raced, len(DEFAULT))
    assert raced.evaluate(tokens) == drawn_before
    assert raced.evaluate("history.length") == entries + 1, "or nobody could go back further"


def test_the_link_of_the_api_opens_the_page_of_it(raced: Page) -> None:
    """In the page itself: an address alone does not open it."""
    raced.get_by_role("link", name="API", exact=True).click()
    expect(raced.locator(".api-docs")).to_contain_text("/draw")


def test_stop_on_a_phone(tab: Page, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing moves for the beginning of a run. No number, step or file of another one stays."""
    tab.set_viewport_size({"width": 390, "height": 844})
    open_page(tab, server)
    tab.locator("#stage .explain").click()
    how = tab.locator("#how-panel")
    expect(how.locator(".panel")).to_be_visible()
    with held_races(monkeypatch) as go_on:
        draw(tab)
        tab.locator('#stage [data-phase="drawing"]').first.wait_for()
        expect(tab.locator("#runs button").first).to_be_disabled()
        expect(tab.locator("#draw")).to_be_hidden()
        expect(tab.locator("#stop")).to_be_focused()
        pages.stop(tab)
        go_on.set()
    expect(tab.locator("#status")).to_contain_text(texts.STOPPED_RUN)
    expect(tab.locator('#stage [data-phase="stopped"] .pill').first).to_contain_text("stopped")
    expect(tab.locator(HEADLINE)).to_have_text(texts.STOPPED_RACE)
    expect(tab.locator("#draw")).to_be_focused()
    expect(tab.locator("#runs button").first).to_be_enabled()
    assert tab.evaluate(OVERLAPS) == []
    moved = shifts(tab)
    assert sum(value for value, _ in moved) < 0.03, moved
    expect(how.get_by_text(texts.WEB["noSteps"])).to_be_visible()
    expect(how.locator(".panel")).to_be_hidden()
    pages.tab_of(tab, texts.NUMBERS_TAB)
    expect(tab.locator("#table")).to_have_text(texts.NO_NUMBERS)
    for button in ("sheet", "record"):
        expect(tab.locator(f"#{button}")).to_be_disabled()


# -- the prompt


# the names of the lit chips that are seen
LIT = """[...document.querySelectorAll("#chips [aria-pressed=true]")]
  .filter((one) => one.offsetParent).map((one) => one.textContent)"""

# press a chip before anything has followed what is typed
TYPE_AND_CLICK = """(chip, text) => {
    const line = document.querySelector("#prompt :is(textarea, input)");
    line.value = text;
    line.dispatchEvent(new Event("input", { bubbles: true }));
    chip.click();
}"""


def test_a_chip_edits_the_line_that_is_drawn(page: Page) -> None:
    """Also if Draw is pressed before the line has its words. A button shows all things at once."""
    only(page, "vanilla")
    assert page.evaluate(LIT) == ["lanterns", "three", "red", "round", "lake", "dusk"]
    page.locator("#chips .all").click()
    expect(chip(page, "umbrella")).to_be_in_viewport(ratio=1)
    chip(page, "blue").click()
    draw(page)
    drawn(page, 1)
    prompt = USUAL.replace("red", "blue")
    assert page.evaluate(PROMPT) == prompt == line(page).input_value()
    chip(page, "owl").click()
    expect(line(page)).to_have_value("an owl on a lake at dusk")
    assert page.evaluate(LIT) == ["owl", "lake", "dusk"], "an owl has no number, colour or kind"
    chip(page, "lake").evaluate(TYPE_AND_CLICK, "a cat at night")
    expect(line(page)).to_have_value("a cat on a lake at night")


def test_what_is_typed_is_heard_and_an_empty_line_is_refused(page: Page) -> None:
    """Its chips are lit, and what is left out is struck. No old picture looks like an answer."""
    only(page, "vanilla")
    heard = page.locator("#chips .heard")
    expect(heard).to_be_hidden()
    line(page).fill("")
    line(page).press_sequentially("a dog, eine Katze at night")
    left_out = "Left out: eine, Katze (nearest: cat). Draw gives a dog at night."
    expect(heard).to_have_text(left_out)
    assert heard.locator("s").all_inner_texts() == ["eine", "Katze"]
    expect(page.locator("#status")).to_be_hidden()
    pages.check_for_axe(page, "what is heard")
    heard.get_by_role("button", name="cat").click()
    expect(line(page)).to_have_value("a cat at night")
    expect(heard).to_be_hidden()
    assert page.evaluate(LIT) == ["cat", "night"]
    before = page.get_by_text(texts.WEB["before"])
    line(page).fill("")
    draw(page)
    expect(page.get_by_role("alert")).to_contain_text("empty")
    expect(page.locator("#stage .lane[data-done]")).to_have_count(len(DEFAULT))
    expect(before).to_be_visible()
    broken = "<img src=x onerror=document.title='broken'>"
    line(page).fill(f"a Zebra {broken} at night")
    expect(heard).to_contain_text("Read as horse: Zebra. Draw gives a horse at night.")
    draw(page)
    drawn(page, 1)
    expect(before).to_be_hidden()
    expect(page.locator("#status s").first).to_have_text("img")
    assert page.locator("#status img, .heard img").count() == 0 and "broken" not in page.title()


def test_the_keys_alone_ask(page: Page) -> None:
    keys = page.keyboard
    keys.press("/")
    expect(line(page)).to_be_focused()
    keys.press("End")
    keys.type(" / noon")
    expect(line(page)).to_have_value(f"{USUAL} / noon")
    focused = [page.locator(f"#{name}") for name in ("draw", "surprise")]
    for one in [*focused, chip(page, "lanterns")]:
        keys.press("Tab")
        expect(one).to_be_focused()
    assert "solid 3px" in page.evaluate("getComputedStyle(document.activeElement).outline")
    keys.press("ArrowLeft")
    keys.press("Enter")
    expect(line(page)).to_have_value("an umbrella on a lake at dusk")
    for one in (chip(page, "umbrella"), page.locator("#chips .all"), chip(page, "lake")):
        expect(one).to_be_focused()
        keys.press("Tab")
    assert page.evaluate("document.activeElement.closest('#chips')") is None
    keys.press("/")
    keys.press("Enter")
    page.wait_for_function("document.body.matches('.racing')")
    expect(line(page)).to_be_focused()


# -- the settings


def test_changed_settings_are_marked_and_drawn_where_they_are_changed(page: Page) -> None:
    expect(page.locator("#knob-lantern_k")).not_to_be_visible()
    only(page, "vanilla")
    pages.settings(page)
    tree = page.locator("#knob-tree input")
    page.locator("#paper").click()
    expect(page.locator("#settings-told")).to_contain_text(texts.PAPER_SLOW)
    expect(tree).to_have_value("paper")
    page.locator("#reset").click()
    expect(tree).to_have_value("default")
    again, field = page.locator("#draw-with"), page.locator("#knob-temperature")
    expect(again).to_have_text(texts.DRAW)
    field.get_by_role("spinbutton").fill("0.5")
    field.get_by_role("spinbutton").press("Tab")
    page.locator("#knob-lantern_k input").fill("12")
    changed = texts.DRAW_WITH.format(settings="temperature 0.5, LANTERN k 12")
    expect(again).to_have_text(changed)
    expect(page.locator("[data-changed]")).to_have_count(2)
    expect(again).to_be_in_viewport()
    page.evaluate("document.activeElement.blur()")
    pages.check_for_axe(page, "changed settings")
    again.click()
    drawn(page, 1)
    assert "temperature=0.5" in page.url and "lantern_k=12" in page.url
    assert page.evaluate("scrollY") == 0
    page.locator("#reset").click()
    expect(again).to_have_text(texts.DRAW)
    expect(page.locator("[data-changed]")).to_have_count(0)


# -- many visitors


def test_a_visitor_who_waits_can_leave_and_a_full_queue_leaves_the_page_as_it_is(
    tiny_model: Path, tab: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served, "WAITING", 1)
    with serving(tiny_model) as (server, _):
        open_page(tab, server)
        client = Client(server, verbose=False)
        ask = partial(client.submit, "a lantern", method="vanilla", api_name="/draw")
        with held_races(monkeypatch):
            jobs = [ask()]
            while not jobs[0].outputs():
                tab.wait_for_timeout(50)
            draw(tab)
            expect(tab.locator("#status")).to_contain_text("1 run was before yours")
            pages.stop(tab)
            expect(tab.locator("#status")).to_contain_text("Stopped.")
            expect(tab.locator("#draw")).to_be_enabled()
            assert waiting(server) == 0
            jobs.append(ask())
            while waiting(server) != 1:
                tab.wait_for_timeout(50)
            draw(tab)
            expect(tab.get_by_role("alert").filter(has_text=texts.NOT_STARTED)).to_be_visible()
            expect(tab.locator("#draw")).to_be_enabled()
            expect(tab.locator("#stage .lane[data-done]")).to_have_count(len(DEFAULT))
        for job in jobs:
            job.result(timeout=60)


# The boxes of a lane's texts that overlap, at least a pixel each way.
OVERLAPS = """() => [...document.querySelectorAll("#stage .lane")].flatMap((lane) => {
  const boxes = [...lane.querySelectorAll("h3, .place, .big, .small, .pill")].map((part) => {
    const range = document.createRange();
    range.selectNodeContents(part);
    return [part.textContent, range.getBoundingClientRect()];
  });
  const apart = (a, b) =>
    Math.min(a.right, b.right) <= Math.max(a.left, b.left) + 1 ||
    Math.min(a.bottom, b.bottom) <= Math.max(a.top, b.top) + 1;
  return boxes.flatMap(([one, a], i) =>
    boxes.slice(i + 1).filter(([, b]) => !apart(a, b)).map(([other]) => `${one} over ${other}`));
})"""


def test_nothing_overlaps_on_a_narrow_phone(tab: Page, server: str) -> None:
    """320 px is what a window shows at 400 %. Live lanes with noise of their own say the most."""
    open_page(tab, f"{server}?{urlencode({'noise': 'independent', 'methods': ','.join(METHODS)})}")
    expect(tab.locator("#status")).to_contain_text(texts.READY_LINK)
    draw(tab)
    drawn(tab, len(METHODS))
    tops = "[...document.querySelectorAll('#stage .lane')].map((one) => one.offsetTop)"
    assert len(set(tab.evaluate(tops))) == 1 and fits(tab), "six stand in one row"
    for width in (390, 360, 320):
        tab.set_viewport_size({"width": width, "height": 700})
        tab.wait_for_timeout(200)
        assert tab.evaluate(OVERLAPS) == [] and fits(tab), width
        expect(tab.locator("#tabs [role=tab]")).to_have_count(3)
    open_page(tab, server)
    tab.add_style_tag(content="#stage * { letter-spacing: 0.1em !important; }")
    tab.wait_for_timeout(200)
    assert tab.evaluate(OVERLAPS) == [] and fits(tab), "of a recording"
