"""What a visitor fills in, and what is shown of a run: the parts of the page as components."""

from __future__ import annotations

from typing import Any

import gradio as gr

from lantern_demo.decoding.methods import METHODS
from lantern_demo.knobs import KNOBS, MAX_SEED, ON_THE_FORM
from lantern_demo.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.components import Results, component, field_value
from lantern_demo.ui.model_choice import note
from lantern_demo.ui.recommended_box import RecommendedBox, recommended_box
from lantern_demo.ui.service import Service


def choices(service: Service) -> tuple[gr.Dropdown, gr.Markdown, gr.CheckboxGroup, gr.Number, gr.Checkbox]:
    with gr.Row(elem_id="choices"):
        model = gr.Dropdown(
            [(info.title, info.id) for info in service.offered().values()], value=service.default, label=texts.MODEL_LABEL,
            info=texts.MODEL_INFO, min_width=250, scale=2, elem_id="model",
        )  # fmt: skip
        methods = gr.CheckboxGroup(
            [(method.label, method.id) for method in METHODS.values()], value=[method.id for method in METHODS.values() if method.default], label=texts.METHODS_LABEL,
            info=texts.METHODS_INFO, min_width=280, scale=5, elem_id="methods",
        )  # fmt: skip
        with gr.Column(min_width=220, scale=2):
            seed = gr.Number(
                0, label=texts.SEED_LABEL, info=texts.SEED_INFO, precision=0, minimum=0, maximum=MAX_SEED, elem_id="seed"
            )
            randomise = gr.Checkbox(True, label=texts.RANDOM_LABEL, elem_id="randomise")
    return model, gr.Markdown(note(service, service.default), elem_id="model-note", elem_classes="note"), methods, seed, randomise


def knob_boxes(service: Service) -> tuple[RecommendedBox, dict[str, Any]]:
    """What is recommended, and the settings' components by name, in the order of `knobs.ON_THE_FORM`."""
    defaults = Settings(**service.offered()[service.default].preset)
    with gr.Accordion(texts.KNOBS_TITLE, open=False, elem_id="knobs"):
        recommended = recommended_box(service)
        with gr.Row(elem_id="knob-grid"):
            knobs = {name: _knob(name, field_value(name, defaults)) for name in ON_THE_FORM}
    return recommended, knobs


def _knob(name: str, value: Any) -> Any:
    knob = KNOBS[name]
    common = {"value": value, "label": knob.label, "info": knob.sentence, "elem_id": f"knob-{name}", "min_width": 260}
    if knob.limit is None:
        return gr.Dropdown(list(knob.choices), allow_custom_value=name == "tree", **common)
    if knob.step is not None:
        return gr.Slider(knob.limit.low, max(knob.top or knob.limit.high, value), step=knob.step, **common)
    return gr.Number(precision=0, minimum=0 if knob.of_tree else knob.limit.low, maximum=knob.limit.high, **common)


def results_column() -> Results:
    """What is shown of a run, and what can be kept of it."""
    with gr.Column(visible=False, elem_id="results") as column:
        replay = component("results", ["dom", "grid", "cells", "replay", "charts", "results"], elem_id="replay")
        table = gr.Dataframe(
            headers=list(texts.TABLE_HEAD), interactive=False, label=texts.TABLE_TITLE, buttons=["copy"], elem_id="table", pinned_columns=1,
        )  # fmt: skip
        gr.Markdown(texts.TABLE_NOTE, elem_classes="note")
        gr.Markdown(texts.KEEP_TITLE)
        with gr.Row(elem_id="keep"):
            record = gr.DownloadButton(texts.DOWNLOAD, size="md", min_width=180, elem_id="record")
            sheet = gr.DownloadButton(texts.SHEET, size="md", min_width=180, elem_id="sheet")
            again = gr.Button(texts.AGAIN, size="md", min_width=180, elem_id="again")
        link = gr.Textbox(label=texts.LINK_LABEL, interactive=False, max_lines=1, buttons=["copy"], elem_id="link")
    return Results(column, replay, table, record, sheet, again, link)
