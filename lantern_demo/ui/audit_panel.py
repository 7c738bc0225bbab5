"""Is it lossless? What the audit of losslessness found, folded on the page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from lantern_demo.audited import GROUPS, Audit, Row, read_audit
from lantern_demo.ui import texts
from lantern_demo.ui.components import component, prose
from lantern_demo.ui.recorded import FOLDER

FILE = FOLDER / "audit.json"


def audit_panel(file: Path = FILE) -> None:
    """The panel; nothing where there is no report. Raises ValueError naming the file when it is damaged."""
    if not file.exists():
        return
    with gr.Accordion(texts.AUDIT_TITLE, open=False, elem_id="audit"):
        gr.HTML(prose(texts.AUDIT_NOTE), elem_classes="prose")
        component("audit", ["audit"], audit_view(read_audit(file)))
        gr.HTML(prose(texts.AUDIT_HOW), elem_classes="prose note")


def audit_view(found: Audit) -> dict[str, Any]:
    """What the page's script shows of a report: texts, never markup."""
    groups = []
    for group in GROUPS:
        rows = [row for row in found.rows if row.group == group]
        by_name: dict[str, list[Row]] = {}
        for row in rows:
            by_name.setdefault(texts.audited_name(row), []).append(row)
        title, note = texts.AUDIT_GROUPS[group]
        methods = [_method(name, found, of_it) for name, of_it in by_name.items()]
        if methods:
            groups.append({"title": title, "note": note, "methods": methods})
    return {"verdict": found.verdict, "ran": texts.audit_ran(found), "head": texts.AUDIT_HEAD, "groups": groups}


def _method(name: str, found: Audit, rows: Sequence[Row]) -> dict[str, Any]:
    table = [[found.laws[row.law], *texts.audited_numbers(row), row.verdict] for row in rows]
    return {"name": name, "verdict": texts.audited_summary(rows), "rows": table}
