"""What a visitor fills in, and what is shown of a run: the parts of the page as components."""

from __future__ import annotations

from typing import Any

import gradio as gr

from lantern_demo.decoding.methods import METHODS
from lantern_demo.settings.knobs import DEFAULT_SEED, KNOBS, ON_THE_FORM, by_readers
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.components import Results, Updates, component, field_value, prose, status_html
from lantern_demo.ui.method_panel import method_chooser
from lantern_demo.ui.model_choice import note
from lantern_demo.ui.service import Service
from lantern_demo.ui.sweep import Explorer, explorer


def choices(service: Service) -> tuple[gr.Dropdown, gr.HTML, gr.HTML, gr.Number, gr.Checkbox]:
    """Model, methods and seed."""
    with gr.Row(elem_id="choices"):
        with gr.Column(min_width=250, scale=2):
            model = gr.Dropdown(
                [(info.title, info.id) for info in service.offered().values()],
                value=service.default,
                label=texts.MODEL_LABEL,
                info=texts.MODEL_INFO,
                elem_id="model",
            )
            model_note = gr.HTML(prose(note(service, service.default)), elem_id="model-note", elem_classes="note")
            seed = gr.Number(
                DEFAULT_SEED,
                label=texts.SEED_LABEL,
                info=texts.SEED_INFO,
                precision=0,
                elem_id="seed",
            )
            locked = gr.Checkbox(False, label=texts.LOCK_LABEL, info=texts.LOCK_INFO, elem_id="lock-seed")
        with gr.Column(min_width=280, scale=5):
            methods = method_chooser()
    return model, model_note, methods, seed, locked


def knob_boxes(service: Service) -> dict[str, Any]:
    """The settings' components by name, in the order of `knobs.ON_THE_FORM`.

    They stand in groups by the methods that they are for; a group is open when one of these is in the usual comparison.
    """
    defaults = Settings(**service.offered()[service.default].preset)
    knobs = {}
    for readers, names in by_readers().items():
        methods = [METHODS[reader] for reader in readers]
        with gr.Accordion(texts.knobs_of(methods), open=any(method.default for method in methods), elem_classes="knob-group"):
            knobs.update({name: _knob(name, field_value(name, defaults)) for name in names})
    return {name: knobs[name] for name in ON_THE_FORM}


def reset(service: Service, told: gr.HTML, knobs: dict[str, Any], model: str) -> Updates:
    """The knobs as a model has them, and that it was done."""
    info = service.offered()[model]
    values = Settings(**info.preset)
    return {told: status_html(texts.reset_to(info.title)), **{knob: field_value(name, values) for name, knob in knobs.items()}}


def drawer_head() -> None:
    """What stays in view above the settings; see web/drawer.js."""
    close = f'<button type="button" class="close" aria-label="{texts.CLOSE}">\u2715</button>'
    gr.HTML(f'<div class="title"><h2 id="settings-title">{texts.SETTINGS}</h2>{close}</div>', elem_id="drawer-head")


def drawer_foot() -> tuple[gr.HTML, gr.Button]:
    """What stays in view below the settings: what was filled in, the way back to the preset, and Draw."""
    with gr.Column(elem_id="drawer-foot"):
        told = gr.HTML("", elem_id="drawer-told", elem_classes="answer")
        with gr.Row():
            reset = gr.Button(texts.RESET, min_width=120, elem_id="reset")
            gr.Button(texts.DRAW_THESE, variant="primary", min_width=120, elem_id="draw-these")  # see web/drawer.js
    return told, reset


def _knob(name: str, value: Any) -> Any:
    knob = KNOBS[name]
    common = {"value": value, "label": knob.label, "info": knob.sentence, "elem_id": f"knob-{name}"}
    if knob.limit is None:
        return gr.Dropdown(list(knob.choices), allow_custom_value=name == "tree", **common)
    if knob.step is not None:
        return gr.Slider(knob.limit.low, knob.limit.high, step=knob.step, **common)
    return gr.Number(precision=0, **common)  # Gradio would refuse what is out of range by a message of its own that fades


def results_column() -> tuple[Results, Explorer]:
    """What is shown of a run below the stage, with the knob to turn, and what can be kept of it."""
    with gr.Column(elem_id="results"):
        component("numbers", ["numbers"], elem_id="numbers")
        searching = explorer()
        gr.HTML(f"<h2>{texts.KEEP_TITLE}</h2>", elem_id="keep-title")
        with gr.Row(elem_id="keep"):
            record = gr.DownloadButton(texts.DOWNLOAD, size="md", min_width=150, elem_id="record")
            sheet = gr.DownloadButton(texts.SHEET, size="md", min_width=150, elem_id="sheet")
            again = gr.Button(texts.AGAIN, size="md", min_width=150, elem_id="again")
        link = gr.Textbox(label=texts.LINK_LABEL, interactive=False, max_lines=1, buttons=["copy"], elem_id="link")
    return Results(component("table", ["table"], elem_id="table", render=False), record, sheet, again, link), searching
