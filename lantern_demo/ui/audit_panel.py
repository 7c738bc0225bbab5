"""Is it lossless? What the audit of losslessness found, folded on the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from lantern_demo.ui import texts
from lantern_demo.ui.components import component, prose
from lantern_demo.ui.recorded import FOLDER

FILE = FOLDER / "audit.json"


def read_audit(file: Path) -> dict[str, Any]:
    """The report that `python -m lantern_demo.bench audit --out FILE` wrote. Raises ValueError naming the file when it is
    none."""
    try:
        report = json.loads(file.read_text())
        audit_view(report)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not a report of the audit with its verdicts: {error!r}") from error
    return report


def audit_panel(file: Path = FILE) -> None:
    """The panel; nothing where there is no report. Raises ValueError naming the file when it is damaged."""
    if not file.exists():
        return
    with gr.Accordion(texts.AUDIT_TITLE, open=False, elem_id="audit"):
        gr.HTML(prose(texts.AUDIT_NOTE), elem_classes="prose")
        component("audit", ["audit"], audit_view(read_audit(file)))
        gr.HTML(prose(texts.AUDIT_HOW), elem_classes="prose note")


def audit_view(report: dict[str, Any]) -> dict[str, Any]:
    """What the page's script shows of a report: texts, never markup. Raises KeyError or TypeError for what is none."""
    groups = []
    for group, (title, note) in texts.AUDIT_GROUPS.items():
        by_name: dict[str, list[dict[str, Any]]] = {}
        for row in report["rows"]:
            if group == ("lossless" if row["lossless"] else "relaxed"):
                by_name.setdefault(texts.audited_name(row), []).append(row)
        if by_name:
            methods = [_method(name, report["cases"], rows) for name, rows in by_name.items()]
            groups.append({"title": title, "note": note, "methods": methods})
    return {"verdict": report["verdict"], "ran": texts.audit_ran(report), "head": texts.AUDIT_HEAD, "groups": groups}


def _method(name: str, cases: dict[str, str], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    table = [[cases[row["case"]], *texts.audited_numbers(row), row["verdict"]] for row in rows]
    return {"name": name, "verdict": texts.audited_summary(rows), "rows": table}
