"""What can be sent on, and what shows how it works: the video of a race, the quiz and the captions, in a real browser."""

from __future__ import annotations

import base64
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import pytest
from test_browser import AXE, browser, check_for_axe, expect, needs_axe, open_page, page, pytestmark, tab

from lantern_demo.models.registry import REGISTRY
from lantern_demo.ui import quiz, record_quiz, texts
from lantern_demo.ui.recorded import recorded_runs

__all__ = ["browser", "page", "pytestmark", "tab"]  # the fixtures and marks of the browser's tests
if TYPE_CHECKING:
    from playwright.sync_api import Page

# Plays a film from its first picture to its last -> thumbnails of some of them, [pixels, 4], the last one at the end.
PLAYED = """async ([data, type]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const src = URL.createObjectURL(new Blob([bytes], { type }));
  const film = Object.assign(document.createElement("video"), { src, muted: true });
  document.body.append(film);
  const canvas = Object.assign(document.createElement("canvas"), { width: 64, height: 36 });
  const seen = [], look = () => {
    canvas.getContext("2d").drawImage(film, 0, 0, 64, 36);
    seen.push([...canvas.getContext("2d").getImageData(0, 0, 64, 36).data]);
  };
  await new Promise((done, failed) => {
    film.onerror = () => failed(new Error("it does not play"));
    film.onended = done;
    film.playbackRate = 4;
    const each = setInterval(() => film.readyState >= 2 && look(), 125);
    film.addEventListener("ended", () => clearInterval(each));
    film.play();
  });
  look();
  return { seen, seconds: film.currentTime, size: [film.videoWidth, film.videoHeight] };
}"""


def saved_clip(page: Page, tmp_path: Path) -> Path:
    page.get_by_role("button", name=texts.WEB["clip"]).click()
    page.locator("dialog a.first").wait_for()
    with page.expect_download() as download:
        page.locator("dialog a.first").click()
    path = tmp_path / download.value.suggested_filename
    download.value.save_as(path)
    return path


def test_the_race_is_saved_as_a_film_that_plays(page: Page, tmp_path: Path) -> None:
    path = saved_clip(page, tmp_path)
    if AXE.exists():
        check_for_axe(page, "the film")  # here, since to record one takes seconds
    assert re.fullmatch(r"lantern-race\.(mp4|webm)", path.name)
    film = page.evaluate(PLAYED, [base64.b64encode(path.read_bytes()).decode(), f"video/{path.suffix[1:]}"])
    assert film["size"] == [1280, 720] and 6 <= film["seconds"] <= 11
    first, *_, last = film["seen"]
    lights = [
        sum(picture[at] + picture[at + 1] + picture[at + 2] for at in range(0, len(picture), 4)) for picture in film["seen"]
    ]
    assert first != last and len({tuple(picture) for picture in film["seen"]}) > 4
    assert max(a - b for a, b in pairwise(lights)) < 0.05 * lights[-1], "it fills up"
    # Each of the three pictures, at its lower edge, where the last tokens come: dark before, and not after.
    for x in (11, 31, 52):
        at = 4 * (24 * 64 + x)
        assert sum(last[at : at + 3]) > sum(first[at : at + 3]) + 60


def test_where_nothing_records_the_last_picture_is_saved(tab: Page, server: str, tmp_path: Path) -> None:
    tab.add_init_script("delete window.MediaRecorder")
    open_page(tab, server)
    path = saved_clip(tab, tmp_path)
    assert path.name == "lantern-race.png" and path.read_bytes().startswith(b"\x89PNG")
    expect(tab.locator("dialog [role=status]")).to_contain_text("This browser cannot record")


def test_the_quiz_counts_what_is_right_and_keeps_nothing(page: Page) -> None:
    pairs = quiz.quiz()["pairs"]
    page.get_by_role("button", name=texts.WEB["quiz"]).press("Enter")
    for number, pair in enumerate(pairs, 1):
        shown = page.locator("dialog .pair button")
        expect(page.locator("dialog")).to_contain_text(f"Pair {number} of 10: {pair['prompt']}.")
        right = [picture["method"] for picture in pair["pictures"]].index("lantern++")
        guess = right if number <= 7 else 1 - right
        shown.nth(guess).focus()
        page.keyboard.press("Enter")
        expect(page.locator("dialog [aria-live]")).to_contain_text("Right:" if number <= 7 else "No:")
        page.keyboard.press("Enter")  # the next pair has the focus
    expect(page.locator("dialog .score")).to_have_text("You: 7 of 10. Chance: 5.")
    for fact in quiz.quiz()["measured"]:
        expect(page.locator("dialog")).to_contain_text(fact)
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie.includes('quiz')]")[2] is False


def test_the_pairs_are_those_of_the_rule() -> None:
    """The first ten prompts of the list, each with its number for a seed: nobody chose among them."""
    found = json.loads(quiz.FILE.read_text())
    listed = record_quiz.prompts(REGISTRY["lantern-scenes"], found["prompts_seed"])
    for seed, pair in enumerate(found["pairs"]):
        prompt, plain_left = next(listed)
        assert (pair["prompt"], pair["seed"]) == (prompt, seed)
        assert [picture["method"] for picture in pair["pictures"]] == (
            ["vanilla", "lantern++"] if plain_left else ["lantern++", "vanilla"]
        )
    assert len(found["pairs"]) == record_quiz.PAIRS and found["prompts_seed"] == record_quiz.SEED
    assert len({picture["picture"] for pair in found["pairs"] for picture in pair["pictures"]}) == 20


def test_what_the_quiz_ends_with_is_computed() -> None:
    pairs = [
        {"steps": {"vanilla": 255, "lantern++": 80}, "price": 0.1},
        {"steps": {"vanilla": 255, "lantern++": 90}, "price": 0.2},
    ]
    assert texts.quiz_passes(pairs) == (
        "For these pairs LANTERN++ ran the model 85 times a picture instead of 255, and at least 15 of 100 pieces are not what "
        "the model alone would draw."
    )


def test_four_captions_show_one_run_of_the_race(page: Page) -> None:
    """At a near miss of LANTERN++ in a step that added three pieces: the numbers are the record's."""
    entry = recorded_runs()[0].record["methods"]["lantern++"]
    committed = entry["events"]["committed"]
    page.get_by_role("button", name=texts.WEB["tour"]).press("Enter")
    box = page.locator(".tour")
    expect(box).to_be_visible()
    row, column = map(int, re.findall(r"row (\d+), column (\d+)", page.locator("#stage .look .spoken").inner_text())[0])
    at = (row - 1) * 16 + column - 1
    assert entry["events"]["kinds"][at] == "r"
    step = next(i for i, count in enumerate(committed) if count > at)
    assert committed[step] - committed[step - 1] == 3
    guesses = len(entry["events"]["trees"][step]["tokens"]) - 1
    shown = ["draft", "verify", "verify", "accept"]
    for number, (caption, phase) in enumerate(zip(texts.EXTRAS["tour"]["captions"], shown, strict=True), 1):
        expect(box).to_contain_text(caption.format(method="LANTERN++", guesses=guesses, added=3))
        expect(box).to_contain_text(f"{number} of 4")
        expect(page.locator("#stage .tree-box .tree")).to_have_attribute("data-phase", phase)
        assert page.evaluate("document.activeElement.className") == "told"
        page.keyboard.press("Tab")  # to Skip
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
    expect(box).to_have_count(0)
    expect(page.locator("#stage .look")).to_be_hidden()


@pytest.mark.parametrize("how", ["Escape", "Skip"])
def test_the_captions_can_be_skipped(page: Page, how: str) -> None:
    page.get_by_role("button", name=texts.WEB["tour"]).click()
    page.locator(".tour").wait_for()
    page.keyboard.press("Escape") if how == "Escape" else page.locator(".tour").get_by_role("button", name=how).click()
    expect(page.locator(".tour")).to_have_count(0)
    expect(page.locator("#stage .look")).to_be_hidden()


def test_a_first_visit_fetches_none_of_it(tab: Page, server: str) -> None:
    asked: list[str] = []
    tab.on("request", lambda request: asked.append(urlparse(request.url).path))
    open_page(tab, server)
    assert not [path for path in asked if path.startswith("/extras/")]
    tab.get_by_role("button", name=texts.WEB["quiz"]).click()
    tab.locator("dialog .pair img").first.wait_for()
    assert {path for path in asked if path.startswith("/extras/")} == {
        "/extras/style.css",
        "/extras/quiz.js",
        "/extras/quiz.json",
    }
    assert tab.request.get(f"{server}/extras/clock.js").status == 404


def test_what_cannot_be_fetched_is_said_and_asked_for_again(page: Page) -> None:
    page.route("**/extras/tour.js", lambda route: route.abort())
    page.get_by_role("button", name=texts.WEB["tour"]).click()
    expect(page.locator("#stage .hint")).to_have_text(texts.WEB["extraMissing"])
    page.unroute("**/extras/tour.js")
    page.get_by_role("button", name=texts.WEB["tour"]).click()
    expect(page.locator(".tour")).to_be_visible()


@needs_axe
def test_nothing_serious_for_axe_in_what_comes_later(tab: Page, server: str) -> None:
    open_page(tab, f"{server}?__theme=light")
    tab.get_by_role("button", name=texts.WEB["tour"]).click()
    tab.locator(".tour").wait_for()
    check_for_axe(tab, "the captions")
    tab.keyboard.press("Escape")
    tab.get_by_role("button", name=texts.WEB["quiz"]).click()
    tab.locator("dialog .pair img").first.wait_for()
    check_for_axe(tab, "the quiz")
    tab.locator("dialog .pair button").first.click()
    check_for_axe(tab, "a guess")
