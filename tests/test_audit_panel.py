"""Is it lossless? The panel of the page and the table of the document, both of the one report that ships with the code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gradio as gr
import pytest

from lantern_demo.bench.audit import cells_of, glance, judged, rows_of, variant_of
from lantern_demo.bench.toy import CASES
from lantern_demo.decoding.methods import METHODS
from lantern_demo.ui import audit_panel, texts
from lantern_demo.ui.audit_panel import FILE, found, read_audit
from lantern_demo.ui.components import prose

DOCUMENT = Path(__file__).parent.parent / "docs" / "audit.md"
SHIPPED = read_audit(FILE)
ROWS = rows_of(SHIPPED)


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


def test_the_panel_says_what_was_found_and_which_dice_it_is_of() -> None:
    """Reports made since noise can be shared name the rows that have dice of their own."""
    assert found(SHIPPED).startswith(f"**{SHIPPED['verdict']}**") and SHIPPED["machine"]["device"] in found(SHIPPED)
    named = judged(SHIPPED, [*ROWS, replace(ROWS[-1], variant="independent")])
    assert texts.AUDIT_OWN not in found(named)
    unnamed = judged(SHIPPED, [row for row in ROWS if row.variant != "independent"])
    assert texts.AUDIT_OWN in found(unnamed)


def test_a_lossless_method_that_is_off_is_named() -> None:
    row = next(row for row in ROWS if row.at_the_noise)
    off = replace(row, stretch_p=0.0, tvd=row.expected + 0.25, lossless=True)
    assert found(judged(SHIPPED, [row, off])).startswith(f"**Not as it should be: {row.name} at {row.case}.**")


def test_the_number_of_runs_is_the_reports() -> None:
    many = judged(SHIPPED, [replace(row, runs=123_456) for row in ROWS])
    assert "** 123,456 runs " in found(many) and "123,456 runs a row" in glance(many)


def test_without_a_report_there_is_no_panel(tmp_path: Path) -> None:
    with gr.Blocks() as page:
        audit_panel.audit_panel(tmp_path / "audit.json")
    assert not page.blocks.keys() - {page._id}
    (tmp_path / "audit.json").write_text('{"rows": []}')
    with gr.Blocks(), pytest.raises(ValueError, match=r"audit\.json is not a report of the audit"):
        audit_panel.audit_panel(tmp_path / "audit.json")


def test_a_report_is_shown_as_text() -> None:
    hostile = "<img src=x onerror=alert(1)>"
    report = {**SHIPPED, "verdict": hostile, "machine": {**SHIPPED["machine"], "device": hostile}}
    assert "<img" not in prose(found(report)) and prose(found(report)).count("&lt;img") == 2
