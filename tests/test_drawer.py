"""What lies over the page, where answers stand, and that nothing jumps, in a real browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from test_browser import DEFAULT, browser, draw, expect, only, open_page, page, pytestmark, settings, shifts, tab

from lantern_demo.decoding.methods import METHODS
from lantern_demo.settings.knobs import KNOBS, by_readers
from lantern_demo.ui import texts
from lantern_demo.ui.components import status_html

__all__ = ["browser", "page", "pytestmark", "tab"]  # the fixtures and marks of the browser's tests
if TYPE_CHECKING:
    from playwright.sync_api import Page

# Whether a press in the middle of an element would reach it.
FREE = """element => {
  const box = element.getBoundingClientRect();
  return element.contains(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2));
}"""


def focused(page: Page) -> str:
    return page.evaluate("document.activeElement.id")


def test_settings_open_over_the_page(page: Page) -> None:
    """Nothing moves for them, Draw stays in reach, and they close in four ways; the focus goes in and comes back."""
    panel, opener = page.locator("#settings"), page.locator("#open-settings")
    expect(page.locator("#stage .lane[data-done]")).to_have_count(len(DEFAULT))
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
            for part in ("#draw-these", "#reset", "#drawer-head .close"):
                assert page.locator(part).evaluate(FREE), (part, depth)

        page.keyboard.press("Escape")
        expect(panel).to_be_hidden()
        assert focused(page) == "open-settings"
        settings(page)
        page.locator("#drawer-head .close").click()
        expect(panel).to_be_hidden()
        assert focused(page) == "open-settings"
        settings(page)
        page.locator("#intro h1").click(position={"x": 5, "y": 5})
        expect(panel).to_be_hidden()
        settings(page)
        page.locator("#prompt textarea").focus()
        expect(panel).to_be_hidden()
        expect(opener).to_have_attribute("aria-expanded", "false")


def test_a_list_in_the_settings_closes_before_they_do(page: Page) -> None:
    settings(page)
    page.locator("#model input").click()
    expect(page.get_by_role("listbox")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("listbox")).to_have_count(0)
    expect(page.locator("#settings")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#settings")).to_be_hidden()


def test_knobs_stand_in_groups_by_their_methods(page: Page) -> None:
    settings(page)
    groups = page.locator("#settings .block.knob-group")
    for group, (readers, names) in zip(groups.all(), by_readers().items(), strict=True):
        methods = [METHODS[reader] for reader in readers]
        title = group.locator("> button")
        expect(title.locator("span").first).to_have_text(texts.knobs_of(methods))
        if not any(method.default for method in methods):
            expect(group.locator(f"#knob-{names[0]}")).to_have_count(0)
            title.click()
        for name in names:
            expect(group.locator(f"#knob-{name}")).to_be_visible()
    assert [len(readers) for readers in by_readers()] == sorted((len(readers) for readers in by_readers()), reverse=True)


def test_reset_gives_the_preset_back_also_in_closed_groups(page: Page) -> None:
    settings(page)
    box = page.get_by_label(f"number input for {KNOBS['lanternpp_lambda'].label}")
    before = box.input_value()
    box.fill("7")
    box.press("Tab")
    zipar = page.locator("#settings .knob-group > button").filter(has_text="ZipAR")
    zipar.click()
    window = page.locator("#knob-zipar_window input")
    window.fill("4")
    window.press("Tab")
    zipar.click()
    expect(window).to_be_hidden()
    page.locator("#reset").click()
    expect(page.locator("#drawer-told")).to_contain_text("All of these are again as tiny")
    expect(page.locator("#drawer-told")).to_be_in_viewport()
    expect(box).to_have_value(before)
    zipar.click()
    expect(window).to_have_value("0")


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
    page.locator("#again").click()
    expect(page.locator("#status")).to_be_in_viewport()
    expect(page.locator("#status")).to_contain_text("EAGLE-1: the same 256 tokens.")


def hand_in(page: Page, file: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.locator("#load").click()
    chooser.value.set_files(file)


def test_answers_stand_beside_what_was_pressed(page: Page, tmp_path: Path) -> None:
    """What is refused far below the stage is told there; what the stage shows brings it into view."""
    page.locator("#explore").click()  # before a record is read, whose model the server would load and keep
    expect(page.locator("#explore-told")).to_contain_text("Exploring")
    expect(page.locator("#explore-told")).to_be_in_viewport()
    page.locator("#stop").evaluate("button => button.click()")
    expect(page.locator("#explore-told")).to_contain_text(texts.STOPPED_SWEEP)
    expect(page.locator("#draw")).to_be_enabled()

    with page.expect_download() as download:
        page.locator("#record").click()
    record, wrong = tmp_path / "run.json", tmp_path / "wrong.json"
    download.value.save_as(record)
    wrong.write_text(json.dumps({"name": "something else"}))
    for width, height in ((1280, 900), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        hand_in(page, wrong)
        expect(page.locator("#load-told").get_by_role("alert")).to_contain_text("this is not a run record")
        expect(page.locator("#load-told")).to_be_in_viewport()
        expect(page.locator("#status")).not_to_be_in_viewport()
        hand_in(page, record)
        expect(page.locator("#status")).to_contain_text(texts.READY_LOADED)
        expect(page.locator("#status")).to_be_in_viewport()
        expect(page.locator("#stage .picture").first).to_be_in_viewport()
        expect(page.locator("#load-told")).to_be_hidden()


def test_notes_take_one_line_until_they_are_opened(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    told = status_html(
        "Done.", notes=[texts.busy_machine({name: {"waited_seconds": 1, "decode_seconds": 3} for name in METHODS})]
    )
    page.locator("#status .status").evaluate("(status, told) => { status.outerHTML = told; }", told)
    notes = page.locator("#status .notes")
    closed = notes.bounding_box()
    notes.locator("summary").click()
    opened = notes.bounding_box()
    assert closed and opened and closed["height"] < 30 < opened["height"]


def test_the_menu_of_the_stage_closes_as_menus_do(page: Page) -> None:
    view = page.locator("#stage details.view")
    summary = view.locator("summary")
    expect(page.locator("#stage .lane[data-done]")).to_have_count(len(DEFAULT))
    summary.click()
    view.locator("input").first.click()
    expect(view).to_have_attribute("open", "")
    page.keyboard.press("Escape")
    expect(view).not_to_have_attribute("open", "")
    expect(summary).to_be_focused()
    summary.click()
    page.locator("#intro h1").click()
    expect(view).not_to_have_attribute("open", "")
    summary.click()
    summary.click()
    expect(view).not_to_have_attribute("open", "")


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_jumps_from_the_first_sight_to_the_end_of_a_race(tab: Page, server: str, width: int) -> None:
    """The browser's own measure, summed up; what follows a press within half a second does not count."""
    tab.set_viewport_size({"width": width, "height": 844 if width == 390 else 900})
    open_page(tab, server)
    expect(tab.locator("#stage .lane[data-done]")).to_have_count(len(DEFAULT))
    results = tab.locator("#results").bounding_box()
    assert results
    tab.locator("#draw").click()
    tab.locator("#stage .source.racing").wait_for()
    during = tab.locator("#results").bounding_box()
    assert during and during["height"] == results["height"], "old results keep their room"
    expect(tab.locator("#status")).to_contain_text("Done, with seed")
    expect(tab.locator("#stage .lane[data-done]")).to_have_count(len(DEFAULT))
    moved = shifts(tab)
    assert sum(value for value, _ in moved) < 0.05, moved
