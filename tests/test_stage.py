"""The clocks of a replay, what is said of a run, and a race that is painted token by token, in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from test_browser import LANES, LEADS, browser, draw, expect, new_tab, only, open_page, page, pytestmark, tab

from lantern_demo.ui.recorded import recorded_runs

__all__ = ["browser", "page", "pytestmark", "tab"]  # the fixtures and marks of the browser's tests
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def entries() -> dict[str, Any]:
    """Of the run that is on the stage at first."""
    return recorded_runs()[0].record["methods"]


def at_the_end(page: Page) -> None:
    expect(page.locator("#stage .lane[data-done]")).to_have_count(len(LANES))


def numbers(page: Page, lane: str) -> tuple[str, str, str]:
    """A lane's largest number, its gain, and what stands beside them."""
    at = page.locator(f"#lane-{lane}")
    return at.locator(".big-number").inner_text(), at.locator(".gain").inner_text(), at.locator(".side").inner_text()


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
    page.get_by_role("button", name="Count passes only").click()
    expect(page.get_by_role("button", name="Passes", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()


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
