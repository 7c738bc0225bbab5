"""The method choosers: those of the comparison in the settings, the others in a fold."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import gradio as gr

from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.ui import texts
from lantern_demo.ui.components import component
from lantern_demo.ui.run_view import COLOURS


def method_chooser(usual: bool) -> gr.HTML:
    """Return the chooser of the comparison's methods if `usual`, else of the others."""
    chosen = [method.id for method in METHODS.values() if method.default]
    value = methods_view(METHODS.values(), chosen, usual)
    return component("methods", ["methods"], value, elem_id="methods" if usual else "others")


def methods_view(usable: Iterable[Method], chosen: Sequence[str], usual: bool) -> dict[str, Any]:
    """Return a chooser's value: its methods, and the ids of those that are on."""
    methods = [method for method in usable if method.default == usual]
    shown = [
        {
            "id": m.id,
            "label": m.label,
            "sentence": texts.METHOD_SENTENCES.get(m.id, m.summary),
            "colour": COLOURS[m.id],
        }
        for m in methods
    ]
    told = {"legend": texts.METHODS_LABEL, "note": texts.METHODS_INFO}
    if not usual:
        told = {"legend": texts.OTHERS_TITLE, "note": texts.OTHERS_INFO, "draw": texts.DRAW_OTHERS}
    return {
        "methods": shown,
        "chosen": [method.id for method in methods if method.id in chosen],
        **told,
    }


def chosen_of(value: Any) -> Any:
    """Return the ids that are on in a chooser's value.

    A value that is no text is returned unchanged. Raise ValueError if no method is on.
    """
    if not isinstance(value, str):
        return value
    try:
        chosen = json.loads(value)["chosen"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(texts.NO_METHODS) from None
    if not chosen:
        raise ValueError(texts.NO_METHODS)
    return chosen
