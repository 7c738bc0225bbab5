"""What a visitor fills in, and what is shown of a run: the parts of the page as components."""

from __future__ import annotations

from typing import Any

import gradio as gr

from lantern_demo.decoding.methods import METHODS
from lantern_demo.knobs import KNOBS, MAX_SEED, ON_THE_FORM
from lantern_demo.settings import Settings
from lantern_demo.ui import words
from lantern_demo.ui.advice import AdviceWidgets, advice_box
from lantern_demo.ui.engine import Engine
from lantern_demo.ui.models import note
from lantern_demo.ui.web import component
from lantern_demo.ui.widgets import Results, on_page


def choices(engine: Engine) -> tuple[gr.Dropdown, gr.Markdown, gr.CheckboxGroup, gr.Number, gr.Checkbox]:
    with gr.Row(elem_id="choices"):
        model = gr.Dropdown(
            [(info.title, info.id) for info in engine.offered().values()], value=engine.default, label=words.MODEL_LABEL,
            info=words.MODEL_INFO, min_width=250, scale=2, elem_id="model",
        )  # fmt: skip
        methods = gr.CheckboxGroup(
            [(method.label, method.id) for method in METHODS.values()], value=[method.id for method in METHODS.values() if method.default], label=words.METHODS_LABEL,
            info=words.METHODS_INFO, min_width=280, scale=5, elem_id="methods",
        )  # fmt: skip
        with gr.Column(min_width=220, scale=2):
            seed = gr.Number(
                0, label=words.SEED_LABEL, info=words.SEED_INFO, precision=0, minimum=0, maximum=MAX_SEED, elem_id="seed"
            )
            randomise = gr.Checkbox(True, label=words.RANDOM_LABEL, elem_id="randomise")
    return model, gr.Markdown(note(engine, engine.default), elem_id="model-note", elem_classes="note"), methods, seed, randomise


def knob_boxes(engine: Engine) -> tuple[AdviceWidgets, dict[str, Any]]:
    """What is recommended, and the settings' components by name, in the order of `knobs.ON_THE_FORM`."""
    defaults = Settings(**engine.offered()[engine.default].preset)
    with gr.Accordion(words.KNOBS_TITLE, open=False, elem_id="knobs"):
        advice = advice_box(engine)
        with gr.Row(elem_id="knob-grid"):
            knobs = {name: _knob(name, on_page(name, defaults)) for name in ON_THE_FORM}
    return advice, knobs


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
            headers=list(words.TABLE_HEAD), interactive=False, label=words.TABLE_TITLE, buttons=["copy"], elem_id="table", pinned_columns=1,
        )  # fmt: skip
        gr.Markdown(words.TABLE_NOTE, elem_classes="note")
        gr.Markdown(words.KEEP_TITLE)
        with gr.Row(elem_id="keep"):
            record = gr.DownloadButton(words.DOWNLOAD, size="md", min_width=180, elem_id="record")
            sheet = gr.DownloadButton(words.SHEET, size="md", min_width=180, elem_id="sheet")
            again = gr.Button(words.AGAIN, size="md", min_width=180, elem_id="again")
        link = gr.Textbox(label=words.LINK_LABEL, interactive=False, max_lines=1, buttons=["copy"], elem_id="link")
    return Results(column, replay, table, record, sheet, again, link)
