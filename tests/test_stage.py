"""The clocks of a replay, what is said of a run, and a race that is painted token by token, in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from test_browser import LANES, LEADS, browser, draw, expect, new_tab, only, open_page, page, pytestmark, tab

from lantern_demo.ui.components import SCRIPTS
from lantern_demo.ui.published_sizes import guess_costs
from lantern_demo.ui.recorded import recorded_runs

__all__ = ["browser", "page", "pytestmark", "tab"]  # the fixtures and marks of the browser's tests
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SLIDER = "What one more guess costs, in passes of the model"


def entries() -> dict[str, Any]:
    """Of the run that is on the stage at first."""
    return recorded_runs()[0].record["methods"]


def at_the_end(page: Page) -> None:
    expect(page.locator("#stage .lane[data-done]")).to_have_count(len(LANES))


def numbers(page: Page, lane: str) -> tuple[str, str, str]:
    """A lane's largest number, its gain, and what stands beside them."""
    at = page.locator(f"#lane-{lane}")
    return at.locator(".big-number").inner_text(), at.locator(".gain").inner_text(), at.locator(".side").inner_text()


def price_a_guess(page: Page, cost: float) -> None:
    page.get_by_label(SLIDER).evaluate(
        "(bar, to) => { bar.value = to; bar.dispatchEvent(new Event('input', { bubbles: true })); }", cost
    )


@pytest.fixture(scope="module")
def rested(browser: Browser, server: str) -> Iterator[Page]:
    """The first view with its replay at the end, for tests that leave it so, on whichever clock."""
    with new_tab(browser) as page:
        open_page(page, server)
        at_the_end(page)
        yield page


def test_the_first_view_counts_passes(page: Page) -> None:
    """The headline and the largest numbers are those of the record; the other clock is one press away."""
    at_the_end(page)
    run = entries()
    steps = {name: entry["steps"] for name, entry in run.items()}
    expect(page.locator("#stage .headline")).to_have_text(
        f"LANTERN++ asked the model {steps['lantern++']} times instead of {steps['vanilla']}."
    )
    for name, lane in zip(run, LANES, strict=True):
        took, gain = run[name]["events"]["milliseconds"][-1] / 1000, run[name]["speedup"]
        assert numbers(page, lane) == (
            f"{steps[name]} passes",
            f"{steps['vanilla'] / steps[name]:.2f}\u00d7",
            f"in seconds: {took:.2f} s ({gain:.2f}\u00d7)",
        )
    page.get_by_role("button", name="Seconds", exact=True).click()
    at_the_end(page)
    for name, lane in zip(run, LANES, strict=True):
        big, gain_told, _ = numbers(page, lane)
        assert (big, gain_told) == (
            f"{run[name]['events']['milliseconds'][-1] / 1000:.2f} s",
            f"{run[name]['speedup']:.2f}\u00d7",
        )
    page.get_by_role("button", name="Play it as if guesses were free").click()
    expect(page.get_by_role("button", name="Passes", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


def test_what_a_guess_costs_moves_the_clock_of_passes_to_the_machines(rested: Page) -> None:
    """Free, only passes count; at what was measured each method takes as many passes of vanilla as its seconds say; between,
    between."""
    run = entries()
    price_a_guess(rested, 0.2)
    some = {lane: float(numbers(rested, lane)[1][:-1]) for lane in LANES}
    rested.locator("#stage .cost-marks button").last.click()
    priced = {lane: float(numbers(rested, lane)[1][:-1]) for lane in LANES}
    expect(rested.get_by_label(SLIDER)).not_to_have_value("0")
    for name, lane in zip(run, LANES, strict=True):
        ends = run[name]["events"]["milliseconds"], run["vanilla"]["events"]["milliseconds"]
        took, alone = (end[-1] - end[0] for end in ends)
        assert priced[lane] == pytest.approx(alone / took, rel=0.03), name
        assert priced[lane] <= some[lane] <= run["vanilla"]["steps"] / run[name]["steps"] + 0.005
    assert "like" in numbers(rested, "lanternpp")[0]
    price_a_guess(rested, 0)
    assert numbers(rested, "lanternpp")[0] == f"{run['lantern++']['steps']} passes"


def test_published_sizes_have_marks(rested: Page) -> None:
    """A press puts the clock to what a guess took with one, says of what machine that is, and a tick stands on the slider for
    each."""
    for size in guess_costs():
        rested.get_by_role("button", name=f"{size['name']}: {size['cost']:.2f}").click()
        expect(rested.get_by_label(SLIDER)).to_have_value(str(size["cost"]))
        expect(rested.locator("#stage .cost-told")).to_have_text(f"As {size['name']} took on {size['device']}, random weights.")
    marks, ticks = rested.locator("#stage .cost-marks button"), rested.locator("#stage .cost-ticks i")
    assert marks.count() == ticks.count() == 2 + len(guess_costs())
    assert marks.evaluate_all("all => all.every(mark => mark.offsetTop === all[0].offsetTop)"), "in one line, and none cut off"
    price_a_guess(rested, 0)


def test_a_replay_that_would_be_over_at_once_is_slower_and_says_so(rested: Page) -> None:
    rested.get_by_role("button", name="Seconds", exact=True).click()
    longest = max(entry["events"]["milliseconds"][-1] for entry in entries().values()) / 1000
    slower = int(re.findall(r"(\d+) times slower", rested.locator("#stage .now").inner_text())[0])
    assert longest < 2 and longest * slower >= 4
    rested.get_by_role("button", name="Passes", exact=True).click()
    expect(rested.locator("#stage .now")).not_to_contain_text("slower")


def test_places_are_for_differences(rested: Page) -> None:
    """A lane has a place where no other is nearer than 5 %, on either clock."""
    run = entries()
    for clock in ("Passes", "Seconds"):
        rested.get_by_role("button", name=clock, exact=True).click()
        ends = {name: e["steps"] if clock == "Passes" else e["events"]["milliseconds"][-1] for name, e in run.items()}
        order = sorted(ends, key=lambda name: ends[name])
        for name, lane in zip(run, LANES, strict=True):
            near = [other for other in ends if other != name and 1 / 1.05 < ends[other] / ends[name] < 1.05]
            place = "" if near else ["1st", "2nd", "3rd", "4th", "5th"][order.index(name)]
            expect(rested.locator(f"#lane-{lane} .flag")).to_have_text(place)


def test_the_three_that_tell_the_story_are_large(rested: Page) -> None:
    width = {lane: rested.locator(f"#lane-{lane} canvas").evaluate("canvas => canvas.clientWidth") for lane in LANES}
    assert min(width[lane] for lane in LEADS) > 1.8 * max(width[lane] for lane in set(LANES) - set(LEADS))


def test_a_key_fills_the_screen(page: Page) -> None:
    at_the_end(page)
    page.get_by_label("Prompt").press("f")
    assert page.evaluate("document.fullscreenElement") is None, "a letter of the prompt"
    page.get_by_role("button", name="Seconds", exact=True).press("f")
    page.wait_for_function("document.fullscreenElement?.className.includes('stage')")
    page.get_by_role("button", name="Full screen").click()
    page.wait_for_function("document.fullscreenElement === null")


def test_a_race_is_painted_token_by_token(page: Page) -> None:
    """Cells of a token's mean colour come before any decoded picture, and what was drawn stays when the race is stopped."""
    only(page, "vanilla", "eagle1")
    page.keyboard.press("Escape")
    # Decoded pictures never arrive: what is seen then is painted from the tokens alone.
    page.evaluate("Object.defineProperty(HTMLImageElement.prototype, 'src', { set() {}, configurable: true })")
    draw(page)
    colours = """() => {
      const canvas = document.querySelector("#lane-vanilla canvas"), g = canvas.getContext("2d");
      const cell = canvas.width / 16;
      const colour = (x, y) => g.getImageData((x + 0.2) * cell, (y + 0.2) * cell, 1, 1).data.join();
      const seen = [...Array(64).keys()].map((i) => colour(i % 16, Math.floor(i / 16)));
      return document.body.classList.contains("racing") ? new Set(seen).size : 0;
    }"""
    page.wait_for_function(f"({colours})() > 3")
    expect(page.locator("#stage .headline")).to_contain_text("race on this machine's clock")


def test_colours_of_tokens_are_served_for_models_that_are_loaded(page: Page, server: str) -> None:
    answer = page.request.get(f"{server}palettes/nothing-of-this-name")
    assert answer.status == 404
    only(page, "vanilla")
    page.keyboard.press("Escape")
    with page.expect_response(re.compile("/palettes/")) as fetched:
        draw(page)
    body = fetched.value.body()
    assert len(body) % 3 == 0 and len(body) // 3 >= 16
    expect(page.locator("#status")).to_contain_text("Done")


def test_a_live_race_is_told_on_the_machines_clock(page: Page) -> None:
    """What was just drawn shows seconds first; a clock that somebody picked stays for what comes."""
    only(page, "vanilla", "eagle1")
    page.keyboard.press("Escape")
    draw(page)
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now")
    expect(page.get_by_role("button", name="Seconds", exact=True)).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Passes", exact=True).click()
    draw(page)
    expect(page.locator("body.racing")).to_have_count(1)
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now")
    expect(page.get_by_role("button", name="Passes", exact=True)).to_have_attribute("aria-pressed", "true")
    assert json.loads(page.evaluate("JSON.stringify(lanternRun.lanes.map((lane) => lane.id))")) == ["vanilla", "eagle1"]


def test_at_the_mark_every_method_takes_what_it_took_in_passes_of_vanilla(browser: Browser) -> None:
    """By hand: vanilla 8 passes of 10 ms; two guesses a pass, 4 passes of 25 ms; rows side by side, 4 passes of two tokens in 15
    ms each."""
    nothing = {"tokens": []}
    lanes = [
        {
            "id": "vanilla",
            "steps": 8,
            "verify": 0.08,
            "committed": [1, *range(2, 10)],
            "milliseconds": [5 + 10 * i for i in range(9)],
            "trees": [nothing] + 8 * [{"tokens": [1]}],
        },
        {
            "id": "tree",
            "steps": 4,
            "verify": 0.06,
            "committed": [1, 3, 5, 7, 9],
            "milliseconds": [5 + 25 * i for i in range(5)],
            "trees": [nothing] + 4 * [{"tokens": [1, 2, 3]}],
        },
        {
            "id": "rows",
            "steps": 4,
            "verify": 0.06,
            "committed": [1, 3, 5, 7, 9],
            "milliseconds": [5 + 15 * i for i in range(5)],
            "trees": 5 * [nothing],
        },
    ]
    page = browser.new_page()
    page.add_script_tag(path=SCRIPTS / "clock.js")
    found = page.evaluate(
        """lanes => { const cost = costOfGuess(lanes);
          return [cost, ...[0, cost.whole].map((price) => lanes.map((lane) => passTimes(lane, price, cost).at(-1)))]; }""",
        lanes,
    )
    page.close()
    assert found[0]["whole"] == pytest.approx((6 + 2) / 12) and found[0]["check"] == pytest.approx((2 + 2) / 12)
    assert found[1] == [8, 4, 4], "free, only passes count"
    assert found[2] == pytest.approx([8, 10, 6]), "seconds over those of a vanilla pass"
