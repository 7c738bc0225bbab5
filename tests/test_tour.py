"""The captions that show how it works, in a real browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from test_browser import browser, check_for_axe, expect, needs_axe, open_page, page, pytestmark, tab

from lantern_demo.ui import texts
from lantern_demo.ui.recorded import recorded_runs

__all__ = ["browser", "page", "pytestmark", "tab"]  # the fixtures and marks of the browser's tests
if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_four_captions_show_one_run_of_the_race(page: Page) -> None:
    """At a near miss of LANTERN++ in a step that added three pieces: the numbers are the record's."""
    entry = recorded_runs()[0].record["methods"]["lantern++"]
    committed = entry["events"]["committed"]
    page.get_by_role("button", name=texts.WEB["tour"]["open"]).press("Enter")
    box = page.locator(".tour")
    expect(box).to_be_visible()
    row, column = map(int, re.findall(r"row (\d+), column (\d+)", page.locator("#stage .look .spoken").inner_text())[0])
    at = (row - 1) * 16 + column - 1
    assert entry["events"]["kinds"][at] == "r"
    step = next(i for i, count in enumerate(committed) if count > at)
    assert committed[step] - committed[step - 1] == 3
    guesses = len(entry["events"]["trees"][step]["tokens"]) - 1
    shown = ["draft", "verify", "verify", "accept"]
    for number, (caption, phase) in enumerate(zip(texts.WEB["tour"]["captions"], shown, strict=True), 1):
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
    page.get_by_role("button", name=texts.WEB["tour"]["open"]).click()
    page.locator(".tour").wait_for()
    page.keyboard.press("Escape") if how == "Escape" else page.locator(".tour").get_by_role("button", name=how).click()
    expect(page.locator(".tour")).to_have_count(0)
    expect(page.locator("#stage .look")).to_be_hidden()


@needs_axe
def test_nothing_serious_for_axe_in_the_captions(tab: Page, server: str) -> None:
    open_page(tab, f"{server}?__theme=light")
    tab.get_by_role("button", name=texts.WEB["tour"]["open"]).click()
    tab.locator(".tour").wait_for()
    check_for_axe(tab, "the captions")
