"""The page's own components: plain scripts of the folder `web`, fed with JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

FOLDER = Path(__file__).with_name("web")
STYLES = [Path(__file__).with_name("style.css"), *sorted(FOLDER.glob("*.css"))]


def component(place: str, scripts: Sequence[str], value: Any = None, **options: Any) -> gr.HTML:
    """An element of class `place` that the last of the scripts fills from the component's value, using those before it.

    The template holds no value: templates would take a visitor's text for markup, while the scripts only ever make text of it.
    """
    return gr.HTML(
        pack(value),
        html_template=f'<div class="{place}"></div>',
        js_on_load="\n".join((FOLDER / f"{name}.js").read_text() for name in scripts),
        apply_default_css=False,
        **options,
    )


def pack(value: Any) -> str:
    """A component's value as the scripts read it; nothing for None. A string, since Gradio searches objects for differences."""
    return "" if value is None else json.dumps(value, separators=(",", ":"))
