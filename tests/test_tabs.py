"""What lies below the stage, in a real browser: runs, numbers, the twin; links and reloads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pages
import pytest
from pages import chip, draw, drawn, expect, line, only, open_page, save, tab_of
from PIL import Image

from lantern_demo.settings.knobs import DEFAULT_SEED
from lantern_demo.ui import compare, texts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pages.IN_A_BROWSER

HOSTILE = (
    "red lanterns <img src onerror=document.title='broken'> ${document.title='broken'} {{value}}"
)


@pytest.fixture(scope="module")
def shown(browser: Browser, server: str) -> Iterator[Page]:
    """The page with a run of vanilla and LANTERN++, whose prompt is markup."""
    with pages.new_tab(browser) as page:
        open_page(page, server)
        only(page, "vanilla", "lantern++")
        line(page).fill(HOSTILE)
        draw(page)
        drawn(page, 2)
        yield page


def test_axe_finds_nothing_serious_in_the_tabs(shown: Page) -> None:
    for title in (texts.HOW_TAB, texts.NUMBERS_TAB, texts.SETTINGS):
        tab_of(shown, title)
        pages.check_for_axe(shown, title)
    shown.set_viewport_size({"width": 1280, "height": 900})


def test_the_numbers_are_drawn_and_copied(shown: Page) -> None:
    """A card for each method that guesses, with the counts that the run's lanes have."""
    tab_of(shown, texts.NUMBERS_TAB)
    card = shown.locator("#figures .card")
    expect(card).to_have_count(1)
    lane = shown.evaluate("lanternRun.lanes.find(({ id }) => id === 'lantern++')")
    (tried, *_), *_ = lane["depths"]
    chances, sizes = (card.locator(".bars").nth(i).locator("li") for i in (0, 1))
    expect(chances).to_have_count(len(lane["depths"]))
    expect(chances.first).to_contain_text(f"% of {tried}")
    expect(sizes).to_have_count(len(lane["sizes"]))
    count = lane["kinds"].count("r")
    expect(card.locator("figcaption").last).to_contain_text(f"{count} of 256 pieces")
    told = card.locator("canvas").get_attribute("aria-label")
    assert sum(map(int, re.findall(r"(\d+) (?:in|at)", told or ""))) == count
    shown.evaluate("navigator.clipboard.writeText = async (text) => { window.taken = text; }")
    for name, first in (("table", "method\tsteps\t"), ("cite", "@inproceedings{jang2025")):
        shown.locator(f"#figures .{name}").click()
        expect(shown.locator(f"#figures .{name}")).to_have_text(texts.WEB["copied"])
        taken = shown.evaluate("taken")
        assert taken.startswith(first) and HOSTILE not in taken
        expect(shown.locator(f"#figures .{name}")).to_have_text(texts.WEB["figures"][name])


def test_a_relaxed_method_stands_beside_its_exact_twin(shown: Page) -> None:
    """Counted look-alikes, and two pictures on one slider."""
    tab_of(shown, texts.NUMBERS_TAB)
    lane = shown.evaluate("lanternRun.lanes.find(({ id }) => id === 'lantern++')")
    shown.locator("#twin").click()
    told = shown.locator("#twin-told")
    slider = shown.locator("#twin-slider")
    count = f"kept {lane['kinds'].count('r')} look-alikes of 256 pieces."
    expect(told).to_contain_text(f"LANTERN++ took {lane['steps']} steps and {count}")
    expect(told).to_contain_text("Its exact twin took")
    expect(slider.locator("img")).to_have_count(2)
    expect(slider).to_be_in_viewport(ratio=0.9)
    shown.locator("#twin-of").get_by_label("LANTERN", exact=True).check()
    shown.locator("#twin").click()
    expect(told.get_by_role("alert")).to_have_text(texts.NO_TWIN)


def test_the_address_is_a_link_that_draws(shown: Page, tab: Page, server: str) -> None:
    """It fills in the form."""
    address = shown.url
    assert address.startswith(server) and "seed=" in address
    open_page(tab, address)
    drawn(tab, 2)
    expect(line(tab)).to_have_value(HOSTILE)
    lanes = "lanternRun.lanes.map((lane) => lane.tokens)"
    assert tab.evaluate(lanes) == shown.evaluate(lanes)


def test_a_reload_in_the_middle_of_a_race_is_told(browser: Browser, server: str) -> None:
    """The address has what was asked for from the start, and the form has it again. The browser
    complains of the answers that the reload cuts off, which `new_tab` would take for faults.
    """
    tab = browser.new_page()
    open_page(tab, server)
    line(tab).fill("two blue lanterns at night")
    draw(tab)
    tab.wait_for_function("document.body.matches('.racing') && location.search.includes('blue')")
    tab.reload()
    expect(tab.locator("#status")).to_contain_text(texts.RELOADED)
    expect(tab.locator("#headline h1")).to_have_text(texts.NOT_DRAWN_YET)
    expect(tab.locator("#stage .lane[data-done]")).to_have_count(0)
    expect(line(tab)).to_have_value("two blue lanterns at night")
    tab.close()


@pytest.mark.parametrize("leave", ["reload", "go_back"])
def test_a_finished_run_outlives_a_reload_and_a_way_back(
    tab: Page, server: str, leave: str
) -> None:
    """Its picture, its link, and its place in the strip."""
    open_page(tab, server)
    only(tab, "vanilla")
    line(tab).fill("two blue lanterns at night")
    draw(tab)
    drawn(tab, 1)
    address, tokens = tab.url, "lanternRun.lanes[0].tokens"
    before, runs = tab.evaluate(tokens), tab.locator("#runs button").count()
    if leave == "go_back":
        tab.goto(f"{server}healthz")
    with tab.expect_response(lambda answer: "/run/predict" in answer.url):
        getattr(tab, leave)()
    expect(tab.locator("#status")).to_contain_text("Drawn in this visit")
    tab.wait_for_function("window.lanternRun?.lanes.length === 1")
    assert (tab.url, tab.evaluate(tokens)) == (address, before)
    assert tab.locator("#runs button").count() == runs


def test_surprise_draws_and_a_thing_keeps_the_seed(tab: Page, server: str) -> None:
    open_page(tab, server)
    only(tab, "vanilla")
    tab.locator("#surprise").click()
    drawn(tab, 1)
    expect(line(tab)).to_have_value(tab.evaluate("lanternRun.prompt"))
    chip(tab, "apple").click()
    draw(tab)
    expect(tab.locator("#status")).to_contain_text(f"with seed {DEFAULT_SEED}: a")


def test_quick_chips_are_all_answered(tab: Page, server: str) -> None:
    """Each edits what the one before it wrote."""
    answers: list[int] = []
    tab.on("response", lambda one: answers.append(one.status) if "component" in one.url else None)
    open_page(tab, server)
    for wait in range(0, 160, 40):
        for name in ("cat", "lanterns", "owl", "apple", "dawn", "dawn"):
            chip(tab, name).click()
            tab.wait_for_timeout(wait)
    expect(line(tab)).to_have_value("an apple on a lake")
    assert set(answers) == {200}


def test_a_run_is_saved(shown: Page, tmp_path: Path) -> None:
    kept = save(shown, "#record", tmp_path / "run.json")
    assert json.loads(kept.read_text(encoding="utf-8"))["prompt"] == HOSTILE
    with Image.open(save(shown, "#sheet", tmp_path / "sheet.png")) as sheet:
        assert sheet.width > 500 and sheet.info["prompt"] == HOSTILE
    assert shown.locator("#stage img, #status img").count() == 0
    assert "broken" not in shown.title()


def test_repeat_gives_medians_with_their_range_and_compares_the_pieces(
    shown: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "REPEATS", 2)
    tab_of(shown, texts.NUMBERS_TAB)
    once = shown.locator("#table tr").last.locator("td").all_inner_texts()
    shown.locator("#repeat").click()
    told = shown.locator("#repeat-told")
    expect(told).to_contain_text(f"{texts.REPEATED.format(of=2)} {texts.REPRODUCED}")
    again = shown.locator("#table tr").last.locator("td").all_inner_texts()
    assert again[2] == once[2] and again[4] != once[4], "the milliseconds are of these runs, too"
    assert shown.locator("#table").inner_text().count("\u00d7 (") == 1, "vanilla has no speedup"
    expect(shown.locator("#repeat")).to_be_enabled()
    expect(shown.locator("#draw")).to_be_enabled()


def test_other_seeds_give_medians_and_an_interval(
    shown: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run's own seed is the first. How long it takes is told before."""
    monkeypatch.setattr(compare, "REPEATS", 2)
    tab_of(shown, texts.NUMBERS_TAB)
    told = shown.locator("#repeat-told")
    shown.locator("#seeds").click()
    expect(told).to_contain_text(re.compile(r"Run 1 of 3; about \d+ s are left\."))
    seed = int(re.findall(r"seed=(\d+)", shown.url)[0])
    expect(told).to_have_text(texts.of_seeds([seed, seed + 1, seed + 2]))
    expect(told).to_contain_text("covers the median of all seeds 75 times in 100")
    tsv = shown.locator("#table .table").get_attribute("data-tsv") or ""
    assert f"\t{seed} {seed + 1} {seed + 2}\t" in tsv
