"""The tabs below the stage in a real browser: numbers, look-alikes, one setting at five values, and
what is shared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pages import (
    IN_A_BROWSER,
    check_for_axe,
    draw,
    drawn,
    expect,
    new_tab,
    only,
    open_page,
    save,
    tab_of,
    type_prompt,
)
from PIL import Image

from lantern_demo.settings.knobs import KNOBS
from lantern_demo.ui import compare, texts
from lantern_demo.ui.knob import EXPLORED

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = IN_A_BROWSER

HOSTILE = (
    "red lanterns <img src onerror=document.title='broken'> ${document.title='broken'} {{value}}"
)


@pytest.fixture(scope="module")
def shown(browser: Browser, server: str) -> Iterator[Page]:
    """The page with a run of vanilla and LANTERN++, whose prompt is markup."""
    with new_tab(browser) as page:
        open_page(page, server)
        only(page, "vanilla", "lantern++")
        type_prompt(page, HOSTILE)
        draw(page)
        drawn(page, 2)
        yield page


def test_axe_finds_nothing_serious_in_the_tabs(shown: Page) -> None:
    twins, others = texts.TWIN_TAB, texts.OTHERS_TAB
    for title in (texts.NUMBERS_TAB, twins, texts.KNOB_TAB, others, texts.SHARE_TAB):
        tab_of(shown, title)
        check_for_axe(shown, title)
    shown.set_viewport_size({"width": 1280, "height": 900})


def test_a_relaxed_method_stands_beside_its_exact_twin(shown: Page) -> None:
    """Counted look-alikes, two pictures on one slider, and the look-alikes large."""
    tab_of(shown, texts.TWIN_TAB)
    lane = shown.evaluate("lanternRun.lanes.find(({ id }) => id === 'lantern++')")
    shown.locator("#twin").click()
    told = shown.locator("#twin-told")
    count = f"kept {lane['kinds'].count('r')} look-alikes of 256 pieces."
    expect(told).to_contain_text(f"LANTERN++ took {lane['steps']} steps and {count}")
    expect(told).to_contain_text(re.compile(r"Its exact twin took \d+ steps\."))
    expect(shown.locator("#twin-slider img")).to_have_count(2)
    figures = min(3, lane["kinds"].count("r"))
    assert figures > 0
    expect(shown.locator("#zooms figure")).to_have_count(figures)
    shown.locator("#twin-of").get_by_label("LANTERN", exact=True).check()
    shown.locator("#twin").click()
    expect(told.get_by_role("alert")).to_have_text(texts.NO_TWIN)


def test_turn_it_up_draws_one_setting_at_all_its_values(shown: Page) -> None:
    tab_of(shown, texts.KNOB_TAB)
    shown.locator("#explore").click()
    expect(shown.locator("#explore-told")).to_contain_text("Five values of LANTERN's delta drawn")
    values = KNOBS[EXPLORED[0]].explored
    pictures = shown.locator("#explored-pictures img")
    expect(pictures).to_have_count(1 + len(values))
    # Where nothing is relaxed the method has its own random numbers too, not vanilla's picture.
    vanilla, exact = (pictures.nth(place).get_attribute("src") for place in (0, 1))
    assert vanilla != exact
    for value in values:
        label = f"{KNOBS[EXPLORED[0]].symbol} = {value:g}"
        expect(shown.locator("#explored")).to_contain_text(label)
    cells = shown.locator("#explored").inner_text()
    assert cells.index("Vanilla") < cells.index(f"{KNOBS[EXPLORED[0]].symbol} = {values[0]:g}")
    assert texts.NOT_YET not in cells
    expect(shown.locator("#draw")).to_be_enabled()


def test_a_link_fills_in_the_form_and_shows_its_run(shown: Page, tab: Page, server: str) -> None:
    """What it asks for in vain gets a sentence, and a link to a run that is gone is still read."""
    tab_of(shown, texts.SHARE_TAB)
    address = shown.locator("#link :is(input, textarea)").input_value()
    assert address.startswith(server) and "run=" in address
    open_page(tab, address)
    expect(tab.locator("#status")).to_contain_text(texts.READY_RUN)
    expect(tab.locator("#stage .lane[data-done] h3")).to_have_text(["Vanilla", "LANTERN++"])
    open_page(tab, re.sub(r"run=[^&]+", "run=gone", address))
    expect(tab.locator("#status")).to_contain_text(f"{texts.READY_GONE} {texts.READY_LINK}")
    expect(tab.locator("#headline h1")).to_have_text(texts.NOT_DRAWN_YET)
    expect(tab.locator("#prompt :is(input, textarea)")).to_have_value(HOSTILE)
    open_page(tab, f"{server}?tree=%3Cimg%20src%3Dx%20onerror%3Ddocument.title%3D1%3E")
    refusal = "Draft tree must be one of default, small, paper"
    expect(tab.get_by_role("alert")).to_contain_text(refusal)
    assert tab.locator("#status img").count() == 0


def test_a_record_is_loaded_and_run_again(shown: Page, tmp_path: Path) -> None:
    """Its texts stay texts, also where it names another device. What is no record is refused."""
    kept = save(shown, "#record", tmp_path / "run.json")
    with Image.open(save(shown, "#sheet", tmp_path / "sheet.png")) as sheet:
        assert sheet.width > 500 and sheet.info["prompt"] == HOSTILE
    record: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    for change, told in (
        ({"device": HOSTILE}, texts.READY_LOADED),
        ({"settings": {"seed": 1}}, "This file cannot be shown: settings: must be seed"),
    ):
        path = tmp_path / "changed.json"
        path.write_text(json.dumps(record | change), encoding="utf-8")
        with shown.expect_file_chooser() as chooser:
            shown.locator("#load").click()
        chooser.value.set_files(path)
        place = shown.locator("#status" if told == texts.READY_LOADED else "#load-told")
        expect(place).to_contain_text(told)
    expect(shown.locator("#stage .source")).to_contain_text(HOSTILE)
    shown.locator("#again").click()
    expect(shown.locator("#status")).to_contain_text(texts.REPRODUCED.format(methods=2))
    assert shown.locator("#stage img, #status img").count() == 0
    assert "broken" not in shown.title()


def test_repeat_replaces_a_speedup_by_a_median_and_its_range(
    shown: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These words vanish with their run. Last of the tests of this page: it shows another run."""
    monkeypatch.setattr(compare, "REPEATS", 2)
    tab_of(shown, texts.NUMBERS_TAB)
    shown.locator("#repeat").click()
    told = shown.locator("#repeat-told")
    expect(told).to_contain_text(texts.REPEATED.format(of=2))
    cells = shown.locator("#table").inner_text()
    (median, low, high), *others = re.findall(r"([\d.]+)\u00d7 \(([\d.]+)\u2013([\d.]+)\)", cells)
    assert float(low) <= float(median) <= float(high) and others == []
    expect(shown.locator("#repeat")).to_be_enabled()
    expect(shown.locator("#draw")).to_be_enabled()
    tab_of(shown, texts.RUNS_TAB)
    shown.locator("#runs button.thumbnail-item, #runs .thumbnail-lg").last.click()
    expect(told).to_be_hidden()
