"""The panel *Turn the look-alikes up*: what a rule costs and gains while it is relaxed."""

from __future__ import annotations

import json

import gradio as gr

from lantern_demo.decoding.methods import METHODS
from lantern_demo.ui import recorded, texts
from lantern_demo.ui.components import pack, script
from lantern_demo.ui.run_view import colour


def add_price() -> dict[str, str]:
    """Add the panel, if it was measured -> its script by name, which comes when it is seen."""
    if not recorded.PRICE.exists():
        return {}
    gr.HTML(
        html_template='<div class="stage"></div>',
        js_on_load="showPrice(element.querySelector('.stage'))",
        apply_default_css=False,
        elem_id="price",
    )
    told = json.loads(recorded.PRICE.read_text(encoding="utf-8"))
    for one in told["methods"]:
        one |= {"label": METHODS[one["id"]].label, "colour": colour(one["id"])}
    words = f"const PRICE = {pack(told)};\nWORDS.price = {pack(texts.PRICE)};"
    return {"price.js": f"{words}\n{script('price')}"}
