"""The methods to choose from: those of the usual comparison, and behind them the others, exact and lossy, with a sentence
each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import gradio as gr

from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.ui import texts
from lantern_demo.ui.components import component
from lantern_demo.ui.run_view import COLOURS


def method_chooser() -> gr.HTML:
    methods = list(METHODS.values())
    chosen = [method.id for method in methods if method.default]
    return component("methods", ["methods"], methods_view(methods, chosen), elem_id="methods")


def methods_view(usable: Iterable[Method], chosen: Sequence[str]) -> dict[str, Any]:
    """The chooser's value: the groups of methods, and the ids of those that are on."""
    groups: dict[str, list[dict[str, Any]]] = {"usual": [], "exact": [], "lossy": []}
    for method in usable:
        group = "usual" if method.default else "exact" if method.lossless else "lossy"
        groups[group].append(
            {"id": method.id, "label": method.label, "sentence": texts.method_sentence(method), "colour": COLOURS[method.id]}
        )
    shown = [{"title": texts.METHOD_GROUPS[name], "methods": methods} for name, methods in groups.items() if methods]
    return {"groups": shown, "chosen": list(chosen), "legend": texts.METHODS_LABEL, "note": texts.METHODS_INFO}


def chosen_of(value: Any) -> Any:
    """The ids that are on, of what the page sends. Raises ValueError when there are none; what is no chooser's value is returned
    as it is."""
    if not isinstance(value, str):
        return value
    try:
        chosen = json.loads(value)["chosen"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(texts.NO_METHODS) from None
    if not chosen:
        raise ValueError(texts.NO_METHODS)
    return chosen
