"""Recommended settings on the page: why they are, and a button for each kind that fills them in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from lantern_demo.decoding.methods import METHODS
from lantern_demo.settings.recommended import KINDS, Kind, Recommended, read_recommended
from lantern_demo.ui import texts
from lantern_demo.ui.components import Updates, prose, status_html
from lantern_demo.ui.service import Service


@dataclass(frozen=True)
class RecommendedBox:
    """The components that say what is recommended for a model; a model without recommendations hides them."""

    column: gr.Column
    note: gr.HTML
    buttons: Mapping[Kind, gr.Button]

    def all(self) -> list[Any]:
        return [self.column, self.note, *self.buttons.values()]


def recommended_box(service: Service) -> RecommendedBox:
    found = recommended_for(service, service.default)
    with gr.Column(visible=found is not None, elem_id="recommended") as column:
        with gr.Row():
            buttons = {
                kind: gr.Button(
                    texts.RECOMMENDED_BUTTONS[kind],
                    size="sm",
                    min_width=140,
                    elem_id=f"recommended-{kind}",
                    interactive=_any(found, kind),
                )
                for kind in KINDS
            }
        note = gr.HTML(prose(texts.recommended(found)) if found else "", elem_classes="prose note")
    return RecommendedBox(column, note, buttons)


def recommended_for(service: Service, model: str) -> Recommended | None:
    """What is recommended for a model; nothing when its file is damaged, which loading the model says."""
    try:
        return read_recommended(service.offered()[model].folder)
    except ValueError:
        return None


def box_updates(service: Service, box: RecommendedBox, model: str) -> dict[Any, Any]:
    """The updates for a model of the list."""
    found = recommended_for(service, model)
    return {
        box.column: gr.update(visible=found is not None),
        box.note: prose(texts.recommended(found)) if found else "",
        **{button: gr.update(interactive=_any(found, kind)) for kind, button in box.buttons.items()},
    }


def fill_in(service: Service, knobs: Mapping[str, Any], kind: Kind, model: str) -> dict[Any, Any]:
    """Fill in the recommended settings of a kind; the others stay as they are."""
    found = recommended_for(service, model)
    chosen = found.settings(kind) if found else {}
    return {knob: chosen.get(name, gr.update()) for name, knob in knobs.items()}


def recommend(service: Service, told: gr.HTML, knobs: Mapping[str, Any], kind: Kind, model: str) -> Updates:
    """Fill in what is recommended, and say what that was and for which methods there is nothing."""
    filled, found = fill_in(service, knobs, kind, model), recommended_for(service, model)
    if found is None:
        return filled
    without = [METHODS[method].label for method, by_kind in found.methods.items() if by_kind[kind] is None]
    return filled | {told: status_html(texts.filled_in(kind, found.settings(kind), without))}


def _any(found: Recommended | None, kind: Kind) -> bool:
    return found is not None and bool(found.settings(kind))
