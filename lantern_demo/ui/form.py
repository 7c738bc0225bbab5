"""Components of the page: the settings in the bar at the side, and the tabs below the stage."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

import gradio as gr

from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.registry import PAPER
from lantern_demo.settings.knobs import DEFAULT_SEED, KNOBS, MAX_LANTERN_K, ON_THE_FORM, by_readers
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.ask import Sentence
from lantern_demo.ui.components import Updates, answer, field_value, prose, status_html
from lantern_demo.ui.knob import Explorer, add_explorer
from lantern_demo.ui.limits import AT_ONCE
from lantern_demo.ui.model_choice import Form, note
from lantern_demo.ui.recorded import recorded_runs, thumbnails
from lantern_demo.ui.service import Service
from lantern_demo.ui.twin import Twins, add_twins

# Settings that a reader of the papers looks for.
FIRST = ("lantern_k", "lantern_delta", "lanternpp_k", "lanternpp_lambda", "tree", "noise")


def add_settings(service: Service, sentence: Sentence, others: gr.CheckboxGroup) -> Form:
    """Add the settings. Return them with the prompt's fields and the boxes of other methods."""
    knobs = first_knobs(service)
    model, model_note, seed, locked = choices(service)
    methods = method_boxes(True)
    knobs |= other_knobs(service)
    knobs = {name: knobs[name] for name in ON_THE_FORM}
    told = answer("settings-told")
    buttons = (texts.PAPER, "paper", published), (texts.RESET, "reset", reset)
    with gr.Row():
        for title, elem_id, fill in buttons:
            button = gr.Button(title, min_width=120, elem_id=elem_id)
            filling = partial(fill, service, told, knobs)
            button.click(filling, [model], [told, *knobs.values()], **AT_ONCE)
    by_model = model, gr.State(service.default), model_note, sentence
    return Form(*by_model, (methods, others), knobs, seed, locked)


def choices(service: Service) -> tuple[gr.Dropdown, gr.HTML, gr.Number, gr.Checkbox]:
    """Add the model and the seed."""
    model = gr.Dropdown(
        [(info.title, info.id) for info in service.offered().values()],
        value=service.default,
        label=texts.MODEL_LABEL,
        info=texts.MODEL_INFO,
        elem_id="model",
    )
    model_note = gr.HTML(
        prose(note(service, service.default)), elem_id="model-note", elem_classes="note"
    )
    with gr.Row():
        seed = gr.Number(
            DEFAULT_SEED, label=texts.SEED_LABEL, info=texts.SEED_INFO, precision=0, elem_id="seed"
        )
        locked = gr.Checkbox(
            False, label=texts.LOCK_LABEL, info=texts.LOCK_INFO, elem_id="lock-seed"
        )
    return model, model_note, seed, locked


def first_knobs(service: Service) -> dict[str, Any]:
    """Return the components of FIRST by name, two in a row."""
    defaults, knobs = Settings(**service.offered()[service.default].preset), {}
    for pair in zip(FIRST[::2], FIRST[1::2], strict=True):
        with gr.Row():
            knobs.update({name: _knob(name, field_value(name, defaults)) for name in pair})
    return knobs


def other_knobs(service: Service) -> dict[str, Any]:
    """Return the other settings' components by name, folded in groups by methods."""
    defaults, knobs = Settings(**service.offered()[service.default].preset), {}
    for readers, names in by_readers().items():
        rest = [name for name in names if name not in FIRST]
        if rest:
            with gr.Accordion(
                texts.knobs_of([METHODS[reader] for reader in readers]),
                open=False,
                elem_classes="knob-group",
            ):
                knobs.update({name: _knob(name, field_value(name, defaults)) for name in rest})
    return knobs


def reset(service: Service, told: gr.HTML, knobs: dict[str, Any], model: str) -> Updates:
    """Set the knobs to a model's preset, and report it."""
    info = service.offered()[model]
    values = Settings(**info.preset)
    filled = {knob: field_value(name, values) for name, knob in knobs.items()}
    return {told: status_html(texts.RESET_TO.format(title=info.title)), **filled}


def published(service: Service, told: gr.HTML, knobs: dict[str, Any], model: str) -> Updates:
    """Set the knobs to the papers' values, where they give one, and report it.

    No k exceeds the model's codebook.
    """
    pipe = service.loaded.get(model)
    most = MAX_LANTERN_K if pipe is None else len(pipe.networks.tokenizer.codebook) - 1
    values = PAPER | {name: min(PAPER[name], most) for name in ("lantern_k", "lanternpp_k")}
    values |= {"tree": "paper", "noise": "independent", "neighbours": "raw"}
    values |= {name: 0 for name, knob in KNOBS.items() if knob.of_tree}
    return {
        told: status_html(texts.PAPER_TOLD),
        **{knobs[name]: value for name, value in values.items()},
    }


def method_boxes(usual: bool) -> gr.CheckboxGroup:
    """Return the boxes of the comparison's methods if `usual`, else of the others."""
    methods = [method for method in METHODS.values() if method.default == usual]
    return gr.CheckboxGroup(
        [(method.label, method.id) for method in methods],
        value=[method.id for method in methods if usual],
        label=texts.METHODS_LABEL,
        info=texts.METHODS_INFO if usual else texts.OTHERS_INFO,
        elem_id="methods" if usual else "others",
    )


def _knob(name: str, value: Any) -> Any:
    knob = KNOBS[name]
    common = {"value": value, "label": knob.label, "info": knob.sentence, "elem_id": f"knob-{name}"}
    if knob.limit is None:
        return gr.Dropdown(list(knob.choices), allow_custom_value=name == "tree", **common)
    if knob.step is not None:
        return gr.Slider(knob.limit.low, knob.limit.high, step=knob.step, **common)
    # for a value out of range Gradio would show a message that fades
    return gr.Number(precision=0, **common)


@dataclass(frozen=True)
class Tabs:
    """The components below the stage."""

    table: gr.Dataframe
    repeat: gr.Button
    repeated: gr.HTML  # the answer of Repeat
    twins: Twins
    explorer: Explorer
    others: gr.CheckboxGroup
    runs: gr.Gallery  # recorded ones and the visitor's
    record: gr.DownloadButton
    sheet: gr.DownloadButton
    again: gr.Button
    load: gr.UploadButton
    loaded: gr.HTML  # the answer of Load
    link: gr.Textbox


def add_tabs() -> Tabs:
    with gr.Tabs(elem_id="results"):
        with gr.Tab(texts.NUMBERS_TAB):
            table = gr.Dataframe(
                headers=list(texts.TABLE_HEAD), interactive=False, wrap=True, elem_id="table"
            )
            gr.HTML(f'<p class="note">{escape(texts.TABLE_NOTE)}</p>')
            repeat = gr.Button(texts.REPEAT, size="md", elem_id="repeat")
            repeated = answer("repeat-told")
            with gr.Accordion(texts.TIMING_TITLE, open=False, elem_id="timing"):
                gr.HTML(prose(texts.TIMING), elem_classes="prose")
        with gr.Tab(texts.TWIN_TAB):
            twins = add_twins()
        with gr.Tab(texts.KNOB_TAB):
            explorer = add_explorer()
        with gr.Tab(texts.OTHERS_TAB):
            others = method_boxes(False)
            told = [f"- **{m.label}**: {m.summary}" for m in METHODS.values() if not m.default]
            gr.HTML(prose("\n".join(told)), elem_classes="prose")
        with gr.Tab(texts.RUNS_TAB):
            runs = gr.Gallery(
                thumbnails(recorded_runs()),
                show_label=False,
                columns=12,
                allow_preview=False,
                buttons=[],
                elem_id="runs",
            )
        with gr.Tab(texts.SHARE_TAB):
            link = gr.Textbox(
                label=texts.LINK_LABEL,
                interactive=False,
                max_lines=1,
                buttons=["copy"],
                elem_id="link",
            )
            with gr.Row():
                size: dict[str, Any] = {"size": "md", "min_width": 150}
                record = gr.DownloadButton(texts.DOWNLOAD, elem_id="record", **size)
                sheet = gr.DownloadButton(texts.SHEET, elem_id="sheet", **size)
                again = gr.Button(texts.AGAIN, elem_id="again", **size)
                load = gr.UploadButton(
                    texts.LOAD, file_types=[".json"], type="binary", elem_id="load", **size
                )
            loaded = answer("load-told")
            gr.HTML(f'<p class="note">{escape(texts.KEEP_NOTE)}</p>')
    shared = record, sheet, again, load, loaded, link
    return Tabs(table, repeat, repeated, twins, explorer, others, runs, *shared)
