"""Components below the stage: the strip of runs, and the tabs with numbers and settings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

import gradio as gr

from lantern_demo.decoding.methods import METHODS, Method, default_methods
from lantern_demo.models.registry import PAPER
from lantern_demo.settings.knobs import (
    DEFAULT_SEED,
    KNOBS,
    MAX_LANTERN_K,
    ON_THE_FORM,
    bound_of,
    own_name,
)
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.components import Updates, answer, pack, script, status_html
from lantern_demo.ui.events import AT_ONCE, QUIET
from lantern_demo.ui.numbers import numbers_html
from lantern_demo.ui.recorded import recorded_runs, strip_of
from lantern_demo.ui.run_view import told_settings
from lantern_demo.ui.service import Service

# The settings that have fields: one beside the seed, then two in a row. Links and the API set the
# others, too.
FIELDS = (
    "temperature",
    "lantern_k",
    "lantern_delta",
    "lanternpp_k",
    "lanternpp_lambda",
    "tree",
    "noise",
)
STEPS = {"temperature": 0.05, "lantern_delta": 0.01, "lanternpp_lambda": 0.1}  # of sliders
OTHERS = tuple(name for name in ON_THE_FORM if name not in FIELDS)


@dataclass(frozen=True)
class Form:
    """The fields that a visitor fills in. `others` has the values of settings without a field."""

    prompt: gr.Textbox
    methods: gr.CheckboxGroup
    knobs: dict[str, Any]
    others: gr.State
    note: gr.HTML  # names those of `others` that are not the preset's
    seed: gr.Number

    def all(self) -> list[Any]:
        fields = [self.seed, self.others, self.note, self.prompt, self.methods]
        return [*fields, *self.knobs.values()]


def choose(
    service: Service,
    form: Form,
    prompt: str | None = None,
    methods: list[str] | None = None,
    settings: Settings | None = None,
) -> Updates:
    """Fill in the form, with the model's preset and default methods unless given others."""
    info = service.info
    boxes = [(method.label, method.id) for method in usable_methods(service)]
    return {
        form.prompt: texts.EXAMPLES[0] if prompt is None else prompt,
        form.methods: gr.update(choices=boxes, value=chosen_methods(service, methods)),
        **_values(service, form, settings or Settings(**info.preset)),
    }


def _values(service: Service, form: Form, settings: Settings) -> Updates:
    values = settings.as_dict()
    shown = {knob: values[name] for name, knob in form.knobs.items()}
    note = _note(settings, Settings(**service.info.preset))
    return {**shown, form.others: {name: values[name] for name in OTHERS}, form.note: note}


def usable_methods(service: Service) -> list[Method]:
    return [method for method in METHODS.values() if method.id not in service.unavailable]


def chosen_methods(service: Service, methods: list[str] | None) -> list[str]:
    """Return which of these methods the model can be decoded with; its default ones for None."""
    usable = usable_methods(service)
    if methods is None:
        return default_methods(usable)
    return [method.id for method in usable if method.id in methods]


def add_settings(service: Service, prompt: gr.Textbox) -> Form:
    """Add the settings. Return them with the prompt's field."""
    info = service.info
    defaults = Settings(**info.preset)
    usable = usable_methods(service)
    methods = gr.CheckboxGroup(
        [(method.label, method.id) for method in usable],
        value=default_methods(usable),
        label=texts.METHODS_LABEL,
        info=texts.METHODS_INFO,
        elem_id="methods",
    )
    knobs: dict[str, Any] = {}
    about: dict[str, Any] = {"label": texts.SEED_LABEL, "info": texts.SEED_INFO, "elem_id": "seed"}
    for first in range(-1, len(FIELDS), 2):
        with gr.Row():
            if first < 0:
                seed = gr.Number(DEFAULT_SEED, **about)
            row = FIELDS[max(0, first) : first + 2]
            knobs |= {name: _knob(name, getattr(defaults, name)) for name in row}
    others = gr.State({name: getattr(defaults, name) for name in OTHERS})
    note = gr.HTML(_note(defaults, defaults), elem_id="others", render=False)
    form = Form(prompt, methods, knobs, others, note, seed)
    status = answer("settings-told")
    with gr.Row():
        for title, paper in ((texts.PAPER, True), (texts.RESET, False)):
            button = gr.Button(title, min_width=120, elem_id="paper" if paper else "reset")
            filling = partial(preset, service, form, status, paper)
            button.click(filling, None, [status, others, note, *knobs.values()], **AT_ONCE)
    note.render()
    usual = pack([[name, own_name(name), getattr(defaults, name)] for name in FIELDS])
    every = list(knobs.values())
    draw = gr.Button(texts.DRAW, variant="primary", elem_id="draw-with")
    for field in every:
        field.change(None, every, [draw], js=f"(...values) => drawWith({usual}, values)", **QUIET)
    draw.click(None, js="drawAbove", **QUIET)
    return form


def _note(settings: Settings, usual: Settings) -> str:
    """Return the note on settings without a field; it names those that are not the preset's."""
    values = told_settings(settings.as_dict(), usual.as_dict(), OTHERS)
    told = f" {texts.OTHERS_NOW.format(values=', '.join(values))}" if values else ""
    return f'<p class="note">{escape(texts.OTHER_SETTINGS + told)}</p>'


def preset(service: Service, form: Form, status: gr.HTML, paper: bool) -> Updates:
    """Set the settings to the model's preset, or to the papers' values where they give one.

    No k exceeds the model's codebook.
    """
    info = service.info
    settings, words = Settings(**info.preset), texts.RESET_TO.format(title=info.title)
    if paper:
        pipe = service.loaded
        most = MAX_LANTERN_K if pipe is None else len(pipe.networks.tokenizer.codebook) - 1
        values = PAPER | {name: min(PAPER[name], most) for name in ("lantern_k", "lanternpp_k")}
        values |= {"tree": "paper", "noise": "independent", "neighbours": "raw"}
        settings = settings.with_changes(**values)
        words = texts.PAPER_TOLD + ("" if service.on_gpu else f" {texts.PAPER_SLOW}")
    return {status: status_html(words), **_values(service, form, settings)}


def _knob(name: str, value: Any) -> Any:
    knob = KNOBS[name]
    common = {"value": value, "label": knob.label, "info": knob.sentence, "elem_id": f"knob-{name}"}
    if knob.limit is None:
        return gr.Dropdown(list(knob.choices), allow_custom_value=name == "tree", **common)
    if name in STEPS:
        return gr.Slider(knob.limit.low, knob.limit.high, step=STEPS[name], **common)
    # for a value out of range Gradio would show a message that fades, and a precision would round
    return gr.Number(**common)


@dataclass(frozen=True)
class Numbers:
    """The components of the tab with numbers."""

    table: gr.HTML
    map: gr.Button
    map_status: gr.HTML
    unsure: gr.HTML
    repeat: gr.Button
    seeds: gr.Button
    repeat_status: gr.HTML
    record: gr.Button
    twin_of: gr.Radio
    twin: gr.Button
    twin_status: gr.HTML
    slider: gr.ImageSlider


def add_strip() -> tuple[gr.HTML, gr.Button, gr.Button, gr.DownloadButton]:
    """Add the strip of runs, the buttons of the picture of all lanes and of the film, and one that
    hands them out.
    """
    with gr.Row(elem_id="strip"):
        # Gradio's gallery would bring a player of films, of 150 KB, to every visit.
        runs = gr.HTML(
            strip_of(recorded_runs()), js_on_load="selectable(element, trigger)", elem_id="runs"
        )
        about: dict[str, Any] = {"interactive": False, "size": "md", "min_width": 180, "scale": 0}
        film = gr.Button(texts.FILM, elem_id="film", **about)
        sheet = gr.Button(texts.SHEET, elem_id="sheet", **about)
    return runs, sheet, film, gr.DownloadButton(elem_id="file", visible="hidden")


def add_numbers() -> Numbers:
    """Add the table with its drawings, what draws the run again, and the twin."""
    first = numbers_html(recorded_runs()[0].record)
    numbers = gr.HTML(first, elem_id="table")
    gr.HTML(f'<p class="note">{escape(texts.TABLE_NOTE)}</p>')
    gr.HTML(
        html_template='<div class="stage figures" hidden></div>',
        js_on_load=script("numbers"),
        apply_default_css=False,
        elem_id="figures",
    )
    size: dict[str, Any] = {"size": "md", "min_width": 150}
    unsure_button = gr.Button(texts.UNSURE, elem_id="unsure", **size)
    unsure_status = answer("unsure-told")
    unsure = gr.HTML(elem_id="unsure-map")
    with gr.Row():
        repeat = gr.Button(texts.REPEAT, elem_id="repeat", **size)
        seeds = gr.Button(texts.OTHER_SEEDS, elem_id="seeds", **size)
        record = gr.Button(texts.DOWNLOAD, elem_id="record", interactive=False, **size)
    repeat_status = answer("repeat-told")
    with gr.Row():
        with gr.Column(min_width=300):
            gr.HTML(f'<p class="note">{escape(texts.TWIN_NOTE)}</p>')
            twins = [(method.label, method.id) for method in METHODS.values() if bound_of(method)]
            twin_of = gr.Radio(twins, value=twins[-1][1], label=texts.TWIN_LABEL, elem_id="twin-of")
            twin = gr.Button(texts.TWIN, min_width=140, elem_id="twin")
            twin_status = answer("twin-told")
        # while it is empty, Gradio's slider has an ARIA attribute that is not allowed there
        slider = gr.ImageSlider(
            label=texts.TWIN_SLIDER,
            interactive=False,
            max_height=420,
            min_width=300,
            visible=False,
            elem_id="twin-slider",
        )
    slider.change(None, js="showTwin", **QUIET)
    return Numbers(
        table=numbers,
        map=unsure_button,
        map_status=unsure_status,
        unsure=unsure,
        repeat=repeat,
        seeds=seeds,
        repeat_status=repeat_status,
        record=record,
        twin_of=twin_of,
        twin=twin,
        twin_status=twin_status,
        slider=slider,
    )
