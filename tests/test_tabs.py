"""In a real browser what lies below the stage, links, reloads, and the line on a picture."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pages
import pytest
from pages import PROMPT, chip, draw, drawn, expect, fits, line, only, open_page, save, tab_of
from PIL import Image
from playwright.sync_api import APIResponse, Browser, Page, Route
from test_price import made_script
from tiny import waiting

from lantern_demo.settings.knobs import DEFAULT_SEED
from lantern_demo.ui import compare, film, texts

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


def test_an_answer_that_comes_late_leaves_the_race_on_the_stage(
    tab: Page, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_page(tab, server)
    only(tab, "vanilla")
    held: list[tuple[Route, APIResponse]] = []
    tab.route("**/run/predict*", lambda route: held.append((route, route.fetch())))
    tab.locator("#runs button").last.click()
    tab.wait_for_timeout(300)
    tab.unroute("**/run/predict*")
    with pages.held_races(monkeypatch):
        draw(tab)
        tab.locator('#stage [data-phase="drawing"]').wait_for()
        assert held
        for route, response in held:
            route.fulfill(response=response)
        tab.wait_for_timeout(300)
        expect(tab.locator("#stage .lane")).to_have_count(1)
    drawn(tab, 1)


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
    address = shown.url
    assert address.startswith(server) and "seed=" in address
    open_page(tab, address)
    drawn(tab, 2)
    expect(line(tab)).to_have_value(HOSTILE)
    lanes = "lanternRun.lanes.map((lane) => lane.tokens)"
    assert tab.evaluate(lanes) == shown.evaluate(lanes)


def test_a_reload_in_the_middle_of_a_race_is_told(browser: Browser, server: str) -> None:
    """The address has what was asked for from the start, and the form has it again."""
    tab = browser.new_page()  # `new_tab` takes the answers that a reload cuts off for faults
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


def test_a_finished_run_outlives_a_reload_and_a_way_back(tab: Page, server: str) -> None:
    """Its picture, its link, its place in the strip. Surprise drew it, with the form's seed."""
    open_page(tab, server)
    only(tab, "vanilla")
    tab.locator("#surprise").click()
    drawn(tab, 1)
    expect(line(tab)).to_have_value(tab.evaluate(PROMPT))
    address, tokens = tab.url, "lanternRun.lanes[0].tokens"
    assert f"seed={DEFAULT_SEED}" in address
    before, runs = tab.evaluate(tokens), tab.locator("#runs button").count()
    for leave in ("reload", "go_back"):
        if leave == "go_back":
            tab.goto(f"{server}healthz")
        with tab.expect_response(lambda answer: "/run/predict" in answer.url):
            getattr(tab, leave)()
        expect(tab.locator("#status")).to_contain_text("Drawn in this visit")
        tab.wait_for_function("window.lanternRun?.lanes.length === 1")
        assert (tab.url, tab.evaluate(tokens)) == (address, before)
        assert tab.locator("#runs button").count() == runs


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
    with Image.open(save(shown, "#film", tmp_path / "race.webp")) as race:
        assert race.n_frames > film.FRAMES // 2  # type: ignore[attr-defined]
    assert shown.locator("#stage img, #status img").count() == 0
    assert "broken" not in shown.title()


def test_repeats_and_other_seeds_give_medians_with_their_range(
    shown: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeat compares the pieces. The run's seed is the first; how long it takes is told."""
    monkeypatch.setattr(compare, "REPEATS", 2)
    tab_of(shown, texts.NUMBERS_TAB)
    once = shown.locator("#table tr").last.locator("td").all_inner_texts()
    shown.locator("#repeat").click()
    told = shown.locator("#repeat-told")
    expect(told).to_contain_text(f"{texts.REPEATED.format(of=2)} {texts.REPRODUCED}")
    again = shown.locator("#table tr").last.locator("td").all_inner_texts()
    assert again[2] == once[2] and again[4] != once[4], "the milliseconds are of these runs, too"
    assert shown.locator("#table").inner_text().count("\u00d7 (") == 1, "vanilla has no speedup"
    expect(shown.locator("#seeds")).to_be_enabled()
    monkeypatch.setattr(compare, "REPEATS", 1)
    shown.locator("#seeds").click()
    expect(told).to_contain_text(re.compile(r"Run 1 of 2; about \d+ s are left\."))
    seed = int(re.findall(r"seed=(\d+)", shown.url)[0])
    expect(told).to_have_text(texts.of_seeds([seed, seed + 1]))
    expect(told).to_contain_text("covers the median of all seeds 50 times in 100")
    tsv = shown.locator("#table .table").get_attribute("data-tsv") or ""
    assert f"\t{seed} {seed + 1}\t" in tsv


def test_a_repeat_is_the_only_run_of_its_page_and_its_words_go_with_it(
    shown: Page, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing starts beside it, no other run is shown meanwhile, and Stop is told there."""
    told, status = shown.locator("#repeat-told"), shown.locator("#status")
    runs = shown.locator("#runs button")
    tab_of(shown, texts.NUMBERS_TAB)
    count = runs.count()
    monkeypatch.setattr(compare, "REPEATS", 50)
    waits = texts.waits
    monkeypatch.setattr(texts, "waits", lambda *given: time.sleep(0.2) or waits(*given))
    shown.locator("#seeds").scroll_into_view_if_needed()
    boxes = [shown.locator(f"#{name}").bounding_box() for name in ("repeat", "seeds")]
    for box in filter(None, boxes):
        shown.mouse.click(box["x"] + 9, box["y"] + 9)
    expect(told).to_contain_text("Run 1 of 50")
    assert waiting(server) == 0
    line(shown).press("Enter")
    runs.last.click()
    expect(status).to_contain_text(texts.STILL_RUNNING)
    pages.stop(shown)
    expect(told).to_have_text(texts.STOPPED)
    expect(shown.locator("#draw")).to_be_enabled()
    expect(runs).to_have_count(count)
    runs.last.click()
    expect(status).to_contain_text("Recorded on")
    expect(told).to_be_empty()
    runs.first.click()
    expect(status).to_contain_text("Drawn in this visit")


def test_the_rest_of_a_picture_is_drawn_again(shown: Page) -> None:
    """Below a line, moved by keys or dragged, that one picture has. The last test of this run."""
    expect(shown.locator("#draw")).to_be_enabled()
    shown.evaluate("scrollTo(0, 0)")
    cut, other = (shown.locator(f"#lane-{name} .cut") for name in ("lanternpp", "vanilla"))
    for key, rows in (("PageDown", 4), ("ArrowDown", 5), ("End", 15), ("ArrowUp", 14)):
        cut.press(key)
        expect(cut).to_have_attribute("aria-valuenow", str(rows))
    cut.press("Escape")
    expect(shown.locator("#lane-lanternpp .rest")).to_be_hidden()
    box = shown.locator("#lane-lanternpp canvas").bounding_box()
    assert box is not None
    across = box["x"] + box["width"] / 2
    shown.mouse.move(across, box["y"])
    shown.mouse.down()
    shown.mouse.move(across, box["y"] + 9.2 / 16 * box["height"])
    shown.mouse.up()
    expect(cut).to_have_attribute("aria-valuetext", "9 rows kept")
    pages.faults_of(shown, "a line on a picture")
    other.press("ArrowDown")
    expect(cut).to_have_attribute("aria-valuenow", "0")
    cut.press("PageDown")
    expect(other).to_have_attribute("aria-valuenow", "0")
    upper = pages.lanes_of(shown)[1]["tokens"][:64]
    shown.evaluate("window.lanternRun = null")
    shown.locator("#lane-lanternpp .rest").click()
    drawn(shown, 2)
    for lane in pages.lanes_of(shown):
        assert lane["tokens"][:64] == upper and lane["kinds"][:65].count("k") == lane["kept"] == 64
        assert (lane["committed"][0], lane["committed"][-1], lane["total"]) == (65, 256, 192)
    expect(shown.locator("#status")).to_contain_text("Kept: the upper 4 of 16 rows.")
    expect(shown.locator("#draw")).to_be_focused()
    assert "keep" not in shown.url


# -- what look-alikes cost, by measurements that are made up

WORDS: dict[str, Any] = texts.PRICE
# of the picture: its colour, and which of some cells are outlined
SEEN = """(canvas, cells) => {
  const g = canvas.getContext("2d");
  const size = canvas.width / 16;
  const at = (x, y) => [...g.getImageData(x, y, 1, 1).data.slice(0, 3)];
  const outlined = (cell) => {
    const [x, y] = [(cell % 16) * size, Math.floor(cell / 16) * size];
    const edge = [...Array(Math.ceil(size / 3)).keys()].map((i) => at(x + size / 2, y + i));
    return edge.some(([red, green, blue]) => red > 200 && green > 130 && green < 200 && blue < 60);
  };
  const tint = at(canvas.width / 2, canvas.width - 2).map((part) => Math.round(part / 255));
  return [tint, cells.map(outlined)];
}"""


@pytest.fixture(scope="module")
def panel(
    browser: Browser, server: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Page]:
    """A page with these measurements, scrolled to the panel."""
    script = made_script(tmp_path_factory.mktemp("price"))
    asked: list[str] = []

    def answer(route: Route) -> None:
        asked.append(route.request.url)
        route.fulfill(body=script, content_type="text/javascript")

    with pages.new_tab(browser) as page:
        page.route("**/price.js", answer)
        page.set_viewport_size({"width": 390, "height": 500})  # the panel is far below
        open_page(page, server)
        assert not asked, "nobody has seen it"
        page.set_viewport_size({"width": 1280, "height": 844})
        page.locator("#price").scroll_into_view_if_needed()
        page.locator(".price output").wait_for()
        yield page


def shows(page: Page, at: str, steps: int, alike: int, tint: list[int]) -> str:
    """Wait until the panel shows a value: what is told, and the picture -> where the ring is."""
    told = WORDS["told"].format(at=at, steps=f"{steps} steps", alike=alike)
    expect(page.locator(".price output")).to_have_text(at)
    expect(page.locator(".price input")).to_have_attribute("aria-valuetext", told)
    expect(page.locator(".price .facts p").first).to_contain_text(f"{steps} steps, vanilla 255.")
    cells, wanted = [0, max(0, alike - 1), alike], [tint, [alike > 0, alike > 0, False]]
    seen = f"JSON.stringify(({SEEN})(document.querySelector('.price canvas'), cells))"
    same = f"([cells, wanted]) => {seen} === JSON.stringify(wanted)"
    page.wait_for_function(same, arg=[cells, wanted])
    return page.locator(".price .ring").get_attribute("transform") or ""


def test_one_slider_moves_the_picture_its_look_alikes_the_steps_and_the_ring(panel: Page) -> None:
    """By keys, too. It begins at the preset's value."""
    slider, verdict = panel.locator(".price input"), panel.locator(".price .verdict")
    places = [shows(panel, "lambda 3", 184, 16, [0, 1, 0])]
    panel.locator(".price .scale span").last.click()
    places.append(shows(panel, "lambda 40", 155, 45, [0, 0, 1]))
    holds = {"at": "lambda 40", "pictures": 200, "unseen": "2\u00a0%"}  # 0.01 ** (1 / 200)
    expect(verdict).to_have_text(WORDS["holds"].format(**holds))
    slider.press("ArrowLeft")
    shows(panel, "lambda 3", 184, 16, [0, 1, 0])
    slider.press("Home")
    places.append(shows(panel, "lambda 1", 200, 0, [1, 0, 0]))
    expect(panel.locator(".price")).to_contain_text("this is the exact twin")
    panel.get_by_role("button", name="LANTERN", exact=True).click()
    places.append(shows(panel, "delta 0.2", 180, 20, [0, 1, 0]))
    breaks = {"first": "delta 0.2", "at": "delta 1", "share": "10\u00a0%"}
    expect(verdict).to_have_text(WORDS["breaks"].format(**breaks))
    assert len(set(places)) == len(places)
    told = panel.locator(".price .facts")
    speed = "1.30\u00d7 as fast as vanilla, 8\u00a0% look-alikes (1.10\u00d7 without them)"
    for words in (speed, "That is -18.0 points (-21.0 to -15.0, 98\u00a0%).", "a <b>machine</b>"):
        expect(told).to_contain_text(words)
    points = panel.locator(".price svg").get_attribute("aria-label") or ""
    assert "LANTERN++ at lambda 40: 1.55\u00d7, 97\u00a0% named" in points


@pytest.mark.parametrize("width", [390, 768, 1000, 1280])
def test_the_panel_fits(panel: Page, width: int) -> None:
    panel.set_viewport_size({"width": width, "height": 844})
    panel.wait_for_timeout(200)
    assert fits(panel)
    for part in ("canvas", "input", "figure svg"):
        box = panel.locator(f".price {part}").bounding_box()
        assert box and box["width"] >= 180, part
    if width in (390, 1280):
        pages.faults_of(panel, f"the panel of look-alikes, {width} px wide")
