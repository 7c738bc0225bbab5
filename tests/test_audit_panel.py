"""Is it lossless? The panel of the page and the table of the document, both of the one report that ships with the code."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr
import pytest

from lantern_demo.bench.audit import Row, cells_of, glance, judged, rows_of, variant_of
from lantern_demo.bench.toy import CASES
from lantern_demo.decoding.methods import METHODS
from lantern_demo.ui import audit_panel, texts
from lantern_demo.ui.audit_panel import FILE, audit_view, read_audit
from lantern_demo.ui.components import shared_scripts

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DOCUMENT = Path(__file__).parent.parent / "docs" / "audit.md"
SHIPPED = read_audit(FILE)
ROWS = rows_of(SHIPPED)


def shown(view: dict[str, Any]) -> dict[str, dict[str, list[list[str]]]]:
    """What is shown, by the title of the group and the name of the method."""
    return {group["title"]: {method["name"]: method["rows"] for method in group["methods"]} for group in view["groups"]}


def test_the_document_shows_the_report_that_ships() -> None:
    """What docs/audit.md must have is the beginning of the FILE.md that the command writes beside FILE.json."""
    assert glance(SHIPPED) in DOCUMENT.read_text()


def test_the_report_that_ships_is_whole() -> None:
    """Every method and variant in it was run in every case, stands in the group that the tables say, and is judged as the
    command judges."""
    cells = [row.cell for row in ROWS]
    assert {method for method in METHODS if METHODS[method].default} <= {cell.method for cell in cells}
    assert cells == [cell for cell in cells_of(list(METHODS), list(CASES)) if cell in cells]
    assert len(cells) == len(CASES) * len({cell[:2] for cell in cells})
    for row in ROWS:
        assert row.lossless == variant_of(row.cell).lossless, row.cell
    assert SHIPPED["cases"] == {case: CASES[case].label for case in CASES}
    assert judged(SHIPPED, ROWS) == SHIPPED


def test_the_panel_says_which_dice_a_report_is_of() -> None:
    """Reports made since noise can be shared name the rows that have dice of their own."""
    named = judged(SHIPPED, [*ROWS, replace(ROWS[-1], variant="own")])
    assert texts.AUDIT_OWN not in audit_view(named)["ran"]
    unnamed = judged(SHIPPED, [row for row in ROWS if row.variant != "own"])
    assert texts.AUDIT_OWN in audit_view(unnamed)["ran"]


def test_the_panel_shows_every_row_of_the_report_once() -> None:
    view = audit_view(SHIPPED)
    assert view["verdict"] == SHIPPED["verdict"] and SHIPPED["machine"]["device"] in view["ran"]
    groups = shown(view)
    assert list(groups) == [title for title, _ in texts.AUDIT_GROUPS.values()]
    rows = [(name, *row) for group in groups.values() for name, table in group.items() for row in table]
    assert len(rows) == len(ROWS)
    for row, told in zip(ROWS, SHIPPED["rows"], strict=True):
        title = texts.AUDIT_GROUPS["lossless" if row.lossless else "relaxed"][0]
        (line,) = [line for line in groups[title][texts.audited_name(told)] if line[0] == SHIPPED["cases"][row.case]]
        _, distance, noise, p, verdict = line
        assert (float(distance), float(noise)) == (pytest.approx(row.tvd, abs=6e-4), pytest.approx(row.expected, abs=6e-4))
        assert p == "< 0.0001" if row.stretch_p < 1e-4 else float(p) == pytest.approx(row.stretch_p, rel=0.06)
        assert (verdict == "at the noise") == (row.stretch_p >= 1e-4) and verdict == row.verdict
    names = [name for group in groups.values() for name in group]
    assert len(set(names)) == len(names) == len({row.cell[:2] for row in ROWS})


def test_what_the_page_says_of_a_method_is_what_its_rows_say() -> None:
    row = next(row for row in ROWS if row.at_the_noise)
    off = [replace(row, stretch_p=0.0, tvd=row.expected + by) for by in (0.0001, 0.25, 0.1)]

    def summary(*rows: Row) -> str:
        return texts.audited_summary([one.told() for one in rows])

    assert summary(row, row) == "at the noise in every case"
    assert summary(*off) == "off by up to 0.250"
    assert summary(row, *off) == "at the noise in 1 of 4 cases, else off by up to 0.250"
    assert summary(*off[:1]) == "off by less than the noise"
    wrong = judged(SHIPPED, [row, replace(off[0], lossless=True)])
    assert audit_view(wrong)["verdict"] == f"Not as it should be: {row.name} at {row.case}."


def test_the_number_of_runs_is_the_reports() -> None:
    many = judged(SHIPPED, [replace(row, runs=123_456) for row in ROWS])
    assert audit_view(many)["ran"].startswith("123,456 runs ") and "123,456 runs a row" in glance(many)


def test_a_method_that_the_program_no_longer_has_is_shown_by_its_name() -> None:
    gone = judged(SHIPPED, [replace(ROWS[0], method="gone", variant="odd")])
    assert list(shown(audit_view(gone))["Lossless methods"]) == ["gone, odd"]


def test_without_a_report_there_is_no_panel(tmp_path: Path) -> None:
    with gr.Blocks() as page:
        audit_panel.audit_panel(tmp_path / "audit.json")
    assert not page.blocks.keys() - {page._id}
    (tmp_path / "audit.json").write_text('{"rows": []}')
    with gr.Blocks(), pytest.raises(ValueError, match=r"audit\.json is not a report of the audit"):
        audit_panel.audit_panel(tmp_path / "audit.json")


HOSTILE = "<img src=x onerror=document.title='broken'> ${document.title='broken'} {{value}}"


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page with nothing but the panel, of a report whose every text is hostile."""
    report = json.loads(FILE.read_text())
    report["machine"]["device"] = HOSTILE
    report["cases"] = dict.fromkeys(report["cases"], HOSTILE)
    for row in report["rows"]:
        row["variant"] = HOSTILE
    file = tmp_path_factory.mktemp("audit") / "audit.json"
    file.write_text(json.dumps(report))
    with gr.Blocks() as page:
        audit_panel.audit_panel(file)
    head = f"<script>{shared_scripts()}</script>"  # what the panel shares with the rest of the page
    _, url, _ = page.launch(server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, head=head)
    yield url
    page.close(verbose=False)


@pytest.mark.slow
@pytest.mark.browser
def test_a_report_is_shown_as_text(hostile_page: str) -> None:
    browser_tests = pytest.importorskip("test_browser", reason="playwright is not installed")
    playwright, expect = browser_tests.playwright, browser_tests.expect
    if browser_tests.CHROMIUM is None:
        pytest.skip("no chromium found")
    with playwright.sync_playwright() as driver:
        browser: Browser = driver.chromium.launch(executable_path=browser_tests.CHROMIUM, args=browser_tests.FLAGS)
        page: Page = browser.new_page()
        page.goto(hostile_page)
        page.get_by_role("button", name=texts.AUDIT_TITLE).click()
        expect(page.locator(".audit .note").first).to_contain_text(HOSTILE)
        page.locator(".audit summary").first.click()
        expect(page.locator(".audit tbody th").first).to_have_text(HOSTILE)
        assert page.locator(".audit img").count() == 0
        assert not re.search("broken", page.title())
        browser.close()
