"""The audit's report and the table of docs/audit.md are of one run."""

from __future__ import annotations

import json
from pathlib import Path

from lantern_demo.bench.audit import cells_of, glance, judged, rows_of
from lantern_demo.bench.toy import CASES
from lantern_demo.decoding.methods import METHODS

DOCUMENT = Path(__file__).parent.parent / "docs" / "audit.md"
SHIPPED = json.loads(DOCUMENT.with_suffix(".json").read_text(encoding="utf-8"))
ROWS = rows_of(SHIPPED)


def test_the_document_shows_the_report() -> None:
    """What docs/audit.md must have is the beginning of the FILE.md that the command writes beside
    FILE.json.
    """
    assert glance(SHIPPED) in DOCUMENT.read_text(encoding="utf-8")


def test_the_report_is_whole() -> None:
    """Every method and kind of noise in it was run in every case, and is judged as the command
    judges.
    """
    cells = [row.cell for row in ROWS]
    assert {method for method in METHODS if METHODS[method].default} <= {
        cell.method for cell in cells
    }
    assert cells == [cell for cell in cells_of(list(METHODS), list(CASES)) if cell in cells]
    assert len(cells) == len(CASES) * len({cell[:2] for cell in cells})
    for row in ROWS:
        assert row.lossless == row.cell.lossless, row.cell
    assert SHIPPED["cases"] == {case: CASES[case].label for case in CASES}
    assert judged(SHIPPED, ROWS) == SHIPPED
