"""The replay, what it explains, and what is kept and shared, in a real browser."""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from test_browser import (
    LANES,
    NOTE_PLAYING,
    browser,
    draw,
    expect,
    fits,
    lit,
    only,
    open_page,
    page,
    pytestmark,
    settings,
    show_example,
    tab,
)

from lantern_demo.ui import texts
from lantern_demo.ui.components import SCRIPTS

__all__ = ["browser", "page", "pytestmark", "tab"]  # the fixtures and marks of the browser's tests
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

HOSTILE = "red lanterns <img src onerror=document.title='broken'> ${document.title='broken'} {{value}}"


def clocks(page: Page) -> list[str]:
    return page.locator("#stage .big-number").all_inner_texts()


def scrub(page: Page, per_mille: int) -> None:
    page.get_by_label("Time of the replay").evaluate(
        "(bar, to) => { bar.value = to; bar.dispatchEvent(new Event('input', { bubbles: true })); }", per_mille
    )


def look_at(page: Page, method: str) -> None:
    """Open the look at a lane's tokens, or turn it to that lane."""
    page.get_by_role("button", name=f"{method}: look at its tokens").press("Enter")
    expect(page.locator("#stage .look")).to_be_visible()


def load(page: Page, path: Path) -> None:
    page.locator("input[type=file][accept='.json']").set_input_files(path)


def test_an_example_plays_scrubs_and_explains(page: Page) -> None:
    page.emulate_media(reduced_motion="no-preference")
    page.evaluate(NOTE_PLAYING)
    page.locator("#examples .card").nth(1).click()
    page.wait_for_function("window.played")
    expect(page.locator("#status")).to_contain_text("recorded run")
    expect(page.locator("#stage .source")).to_contain_text("A recording of")
    expect(page.get_by_label("Prompt")).to_have_value(texts.EXAMPLES[1][0])
    settings(page)
    expect(page.locator("#seed input")).to_have_value(str(texts.EXAMPLES[1][1]))
    page.keyboard.press("Escape")
    whole = page.locator("#stage .lane[data-done]")
    scrub(page, 1000)
    expect(whole).to_have_count(len(LANES))
    ends = clocks(page)
    scrub(page, 300)
    expect(whole).to_have_count(0)
    assert len(set(clocks(page))) == 1, "one clock for all"
    page.get_by_role("button", name="Play").click()
    expect(whole).to_have_count(len(LANES))
    assert clocks(page) == ends
    page.get_by_role("button", name="Replay").click()
    expect(whole).not_to_have_count(len(LANES))

    look_at(page, "LANTERN++")
    details = page.locator("#stage .look")
    expect(details.locator(".about")).to_contain_text("a look-alike of this guess, and the guess stands for it")
    expect(details.locator("svg.tree")).to_be_visible()
    expect(details.locator(".trial").first).to_be_hidden()
    details.locator(".record summary").click()
    expect(details.locator(".trial.relaxed").first).to_contain_text("was accepted: the model itself drew")
    page.get_by_label("Method to look at").select_option(label="EAGLE-1")
    grid = page.locator("#stage canvas.big")
    grid.focus()
    grid.press("Home")
    expect(details).to_contain_text("Token 1: row 1, column 1")
    for key, place in (("ArrowRight", "row 1, column 2"), ("ArrowDown", "row 2, column 2"), ("ArrowLeft", "row 2, column 1")):
        grid.press(key)
        expect(details.locator(".spoken")).to_contain_text(place)
    assert all(lit(page, lane, 16) for lane in LANES), "the same cell in all lanes"
    assert not any(lit(page, lane, 1) for lane in LANES)
    box = grid.bounding_box()
    assert box is not None
    grid.click(position={"x": box["width"] * 0.96, "y": box["height"] * 0.96})
    expect(details).to_contain_text("Token 256: row 16, column 16")
    page.locator("#lane-vanilla canvas").click(position={"x": 60, "y": 60})
    expect(details).to_contain_text("Nothing was guessed in this step")
    for width in (390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)
        assert fits(page), f"the page is wider than {width} px"
    page.get_by_role("button", name="Close").click()
    expect(details).to_be_hidden()


def test_guesses_are_shown_as_pictures_and_steps_one_by_one(page: Page) -> None:
    only(page, "vanilla", "lantern")
    draw(page)
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now")
    expect(page.get_by_role("button", name="Replay")).to_be_visible()
    look_at(page, "LANTERN")
    patches = page.locator("#stage .alike .patch")
    expect(page.locator("#stage .alike")).to_contain_text(texts.WEB["patchModel"])
    assert patches.count() >= 5
    assert "data:image/webp" in (patches.first.locator("span").get_attribute("style") or "")
    tree = page.locator("#stage svg.tree")
    onward = page.get_by_role("button", name="Next step")
    for phase in ("draft", "verify", "accept", "draft"):
        onward.click()
        expect(tree).to_have_attribute("data-phase", phase)
        expect(onward).to_be_focused()
    page.get_by_role("button", name="Close").click()


def test_a_place_of_a_run_whose_model_is_not_loaded_says_so(page: Page) -> None:
    show_example(page)
    page.evaluate("lanternRun.model = 'llamagen-t2i-256'")  # whatever the server has loaded by now, it is not that
    look_at(page, "LANTERN")
    expect(page.locator("#stage .alike")).to_contain_text("The model of this run is not loaded here")


# A window of three guesses. Places 0 to 7; 99 lies behind the picture.
WINDOW = {
    "window": True,
    "tokens": [1, 11, 12, 13, 21, 31, 41, 51],
    "committed": [1, 2, 5, 6, 8],
    "kinds": "tteettet",
    "trees": [
        {"tokens": []},
        {"tokens": [1, 10, 20, 30]},  # places 1 to 3; 10 is refused, 11 drawn
        {"tokens": [11, 12, 13, 20]},  # places 2 to 4; 12 and 13 are accepted, 20 is refused, 21 drawn
        {"tokens": [21, 30, 41, 50]},  # places 5 to 7; 30 is refused, 31 drawn
        {"tokens": [31, 41, 52, 99]},  # places 6 to 8; 41 is accepted, 52 refused, 51 drawn
    ],
}
GUESSED = {
    0: [],
    1: [(10, 1)],
    2: [(20, 1), (12, 1)],
    3: [(30, 1), (13, 1)],
    4: [(20, 1)],
    5: [(30, 1)],
    6: [(41, 2)],
    7: [(50, 1), (52, 1)],
}


def test_how_often_a_token_was_guessed(browser: Browser) -> None:
    """What the scripts work out from the windows of a run, by hand for a short one."""
    page = browser.new_page()
    for script in ("dom", "grid", "cells"):
        page.add_script_tag(path=SCRIPTS / f"{script}.js")
    page.evaluate("given => { [window.lane, window.words] = given; ranked(lane); }", [WINDOW, texts.WEB])
    for token, guesses in GUESSED.items():
        found = page.evaluate(f"guessesOf(lane, {token})")
        assert [(guess["token"], guess["passes"]) for guess in found] == guesses, token
    told = {token: page.evaluate(f"guessHistory(lane, {token}, words)") for token in GUESSED}
    assert told[6] == "Guessed once; the guess stood for 2 passes and was accepted."
    assert told[3] == "Guessed 2 times (30 \u2192 13); the last guess stood for 1 pass and was accepted."
    assert told[7] == "Guessed 2 times (50 \u2192 52); the last guess stood for 1 pass and was refused: the model drew 51 itself."
    assert told[0] == texts.WEB["neverGuessed"]
    page.close()


def guesses_of(events: dict[str, Any], token: int) -> list[int]:
    """What the windows of a record held for a token, pass by pass."""
    found = []
    for before, after, tree in zip(events["committed"], events["committed"][1:], events["trees"][1:], strict=True):
        if before <= token and token - before + 1 < len(tree["tokens"]):
            found.append(tree["tokens"][token - before + 1])
        if token < after:
            break
    return found


def test_the_replay_of_a_window_tells_how_often_a_token_was_guessed(page: Page) -> None:
    only(page, "vanilla", "sjd")
    draw(page)
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now")
    expect(page.get_by_role("button", name="Replay")).to_be_visible()
    with page.expect_download() as download:
        page.locator("#record").click()
    entry = json.loads(Path(download.value.path()).read_text())["methods"]["sjd"]
    look_at(page, "SJD")
    page.locator("#stage .record summary").click()
    grid, details = page.locator("#stage canvas.big"), page.locator("#stage .look .guessed")
    grid.focus()
    grid.press("Home")
    expect(details).to_have_count(0)  # the prefill's token
    for token in range(1, 33):
        grid.press("ArrowRight")
        passes = guesses_of(entry["events"], token)
        chain = [guess for guess, _ in groupby(passes)]
        if not chain:
            expect(details).to_have_text(texts.WEB["neverGuessed"])
        elif len(chain) == 1:
            expect(details).to_contain_text("Guessed once;")
        else:
            arrow = " \u2192 "
            expect(details).to_contain_text(f"Guessed {len(chain)} times ({arrow.join(map(str, chain))});")
        refused = f"was refused: the model drew {entry['token_ids'][token]} itself."
        if chain:
            expect(details).to_contain_text(refused if entry["events"]["kinds"][token] == "t" else "and was accepted.")

    page.get_by_label("Method to look at").select_option(label="Vanilla")
    expect(details).to_have_count(0)


def test_without_a_window_nothing_is_said_of_guesses(page: Page) -> None:
    show_example(page)
    look_at(page, "LANTERN++")
    expect(page.locator("#stage .trial")).not_to_have_count(0)
    expect(page.locator("#stage .guessed")).to_have_count(0)


def test_a_reader_who_asked_for_stillness_gets_it(tab: Page, server: str) -> None:
    tab.add_init_script(NOTE_PLAYING)
    open_page(tab, server)
    show_example(tab)
    expect(tab.get_by_role("button", name="Replay")).to_be_visible()
    expect(tab.locator("#stage .lane[data-done]")).to_have_count(len(LANES))
    assert not tab.evaluate("window.played")


def test_a_link_restores_a_run(tab: Page, server: str) -> None:
    open_page(
        tab, f"{server}?prompt=two+blue+lanterns&seed=42&methods=vanilla,lantern%2B%2B&lantern_delta=0.3&tree=small&other=1"
    )
    expect(tab.locator("#status")).to_contain_text("Filled in from the link")
    expect(tab.get_by_label("Prompt")).to_have_value("two blue lanterns")
    settings(tab)
    expect(tab.locator("#seed input")).to_have_value("42")
    expect(tab.locator("#methods").get_by_label("LANTERN++", exact=True)).to_be_checked()
    expect(tab.locator("#methods").get_by_label("EAGLE-1", exact=True)).not_to_be_checked()
    draw(tab)
    expect(tab.locator("#status")).to_contain_text("Done, with seed 42")
    link = tab.locator("#link").locator("input, textarea")
    expect(link).to_have_value(re.compile(re.escape(server) + r"\?.*seed=42.*lantern_delta=0\.3.*tree=small"))
    open_page(tab, link.input_value())
    expect(tab.locator("#seed input")).to_have_value("42")


def test_a_bad_link_gets_its_sentence(tab: Page, server: str) -> None:
    for query, sentence in (
        ("tree=%3Cimg%20src%3Dx%20onerror%3Ddocument.title%3D1%3E", "Draft tree must be one of fit, small, paper"),
        ("prompt=" + "x" * 201, "The prompt has 201 characters, at most 200 are allowed"),
    ):
        tab.goto(f"{server}?{query}")
        expect(tab.get_by_role("alert")).to_contain_text(sentence)
    assert tab.locator("#status img").count() == 0


def test_a_record_comes_back_and_runs_again(page: Page, tmp_path: Path) -> None:
    page.get_by_label("Prompt").fill(HOSTILE)
    only(page, "vanilla", "lantern++")
    draw(page)
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now")
    with page.expect_download() as download:
        page.locator("#record").click()
    kept = tmp_path / "run.json"
    download.value.save_as(kept)
    with page.expect_download() as download:
        page.locator("#sheet").click()
    with Image.open(download.value.path()) as sheet:
        assert sheet.width > 500 and sheet.info["prompt"] == HOSTILE

    record = json.loads(kept.read_text())
    record["device"] = HOSTILE
    kept.write_text(json.dumps(record))
    page.reload()
    expect(page.locator("#status")).to_contain_text("the run that the link names")  # what comes later is shown later
    load(page, kept)
    expect(page.locator("#status")).to_contain_text("The record is shown below")
    expect(page.locator("#status")).not_to_contain_text("a colour level or two")
    record["methods"]["vanilla"]["image_sha256"] = "0" * 64
    other = tmp_path / "other.json"
    other.write_text(json.dumps(record))
    load(page, other)
    expect(page.locator("#status")).to_contain_text("number format or thread count may change a colour level or two")
    expect(page.locator("#status")).to_contain_text("The record is shown below")
    expect(page.locator("#stage .source")).to_contain_text(HOSTILE)
    expect(page.locator("#stage .lane")).to_have_count(2)
    page.locator("#again").click()
    expect(page.locator("#status")).to_contain_text("LANTERN++: the same 256 tokens.")
    expect(page.locator("#status")).to_contain_text("Vanilla: the same 256 tokens.")
    assert page.locator("#stage img, #status img").count() == 0
    assert "broken" not in page.title()

    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(record | {"settings": {"seed": 1}}))
    load(page, bad)
    expect(page.get_by_role("alert")).to_contain_text("This file cannot be shown: settings: must be seed, temperature")


def test_the_explorer_fills_in_points(page: Page) -> None:
    page.get_by_role("button", name=texts.EXPLORE, exact=True).click()
    expect(page.locator("#sweep .shot").nth(1)).to_be_visible()
    expect(page.get_by_role("button", name="Draw", exact=True)).to_have_count(0)
    expect(page.locator("#sweep .shot")).to_have_count(6)  # vanilla and five values
    expect(page.locator("#explore-told")).to_contain_text("Explored five values")
    expect(page.locator("#sweep figure svg").first).to_have_attribute("aria-label", re.compile("speedup"))
    page.get_by_role("button", name=texts.EXPLORE, exact=True).click()
    expect(page.locator("#explore-told")).to_contain_text("Exploring")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.get_by_role("button", name="Draw", exact=True)).to_be_enabled()
    expect(page.locator("#status")).to_contain_text("Stopped.")


def test_stop_is_in_reach_on_a_phone(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    draw(page)
    page.locator('#lane-vanilla[data-phase="drawing"], #lane-vanilla[data-phase="done"]').wait_for()
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    stop = page.get_by_role("button", name="Stop", exact=True)
    expect(stop).to_be_in_viewport()
    stop.click()
    expect(page.locator("#status")).to_contain_text("Stopped.")


def test_tokens_that_came_out_of_raster_order(browser: Browser) -> None:
    """A picture of two rows of three, the second of which begins one token behind the first."""
    page = browser.new_page()
    for script in ("dom", "grid", "cells"):
        page.add_script_tag(path=SCRIPTS / f"{script}.js")
    lane = {
        "committed": [1, 2, 4, 5, 6],
        "kinds": "terttt",
        "places": [0, 1, 2, 3, 4, 5],
        "trees": [],
        "tokens": [7, 8, 9, 4, 5, 6],
    }
    out_of_order = {**lane, "places": [0, 1, 3, 2, 4, 5]}
    found = page.evaluate(
        "lanes => lanes.map((lane) => { ranked(lane); return [lane.rank, lane.kinds.join('')]; })", [lane, out_of_order]
    )
    assert found == [[[0, 1, 2, 3, 4, 5], "terttt"], [[0, 1, 3, 2, 4, 5], "tetrtt"]]
    steps = page.evaluate("lane => { ranked(lane); return lane.tokens.map((_, token) => stepOf(lane, token)); }", out_of_order)
    assert steps == [0, 1, 2, 2, 3, 4]
