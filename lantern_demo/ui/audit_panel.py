"""Is it lossless? What the audit of losslessness found, folded on the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gradio as gr

from lantern_demo.ui import texts
from lantern_demo.ui.components import prose
from lantern_demo.ui.recorded import FOLDER

FILE = FOLDER / "audit.json"


def read_audit(file: Path) -> dict[str, Any]:
    """The report that `python -m lantern_demo.bench audit --out FILE` wrote. Raises ValueError naming the file when it is
    none."""
    try:
        report = json.loads(file.read_text())
        found(report)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not a report of the audit with its verdicts: {error!r}") from error
    return report


def audit_panel(file: Path = FILE) -> None:
    """The panel; nothing where there is no report. Raises ValueError naming the file when it is damaged."""
    if not file.exists():
        return
    with gr.Accordion(texts.AUDIT_TITLE, open=False, elem_id="audit"):
        gr.HTML(prose(f"{texts.AUDIT_NOTE}\n\n{found(read_audit(file))}\n\n{texts.AUDIT_HOW}"), elem_classes="prose")


def found(report: dict[str, Any]) -> str:
    """The verdict of a report, and what ran for it. Raises KeyError or TypeError for what is none."""
    return f"**{report['verdict']}** {texts.audit_ran(report)}"
