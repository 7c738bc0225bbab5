"""The page's updates for a chosen model: note, kind of prompt, methods and presets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from lantern_demo.decoding.methods import METHODS, Method, default_methods
from lantern_demo.models.checkpoints import gib, to_fetch
from lantern_demo.models.registry import ModelInfo
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.ask import Sentence, filled
from lantern_demo.ui.components import field_value, prose
from lantern_demo.ui.service import Service


@dataclass(frozen=True)
class Form:
    """The fields that a visitor fills in, and the parts of the page that depend on the model."""

    model: gr.Dropdown
    set_for: gr.State  # the id of the model that the parts below are set for
    note: gr.HTML
    sentence: Sentence
    methods: tuple[gr.CheckboxGroup, gr.CheckboxGroup]  # of the comparison, and the others
    knobs: dict[str, Any]
    seed: gr.Number
    locked: gr.Checkbox  # whether Draw keeps the seed when nothing else is changed

    def all(self) -> list[Any]:
        return [self.model, self.seed, *self.of_model()]

    def of_model(self) -> list[Any]:
        fields = [self.set_for, self.note, *self.sentence.all()]
        return [*fields, *self.methods, *self.knobs.values()]


def choose(
    service: Service,
    form: Form,
    model: str,
    prompt: str | None = None,
    methods: list[str] | None = None,
    settings: Settings | None = None,
) -> dict[Any, Any]:
    """Return the updates for a model, with its preset and default methods unless given others.

    The model is loaded at its first run.
    """
    info = service.offered()[model]
    text = texts.EXAMPLES[0][0] if prompt is None else prompt
    values = settings or Settings(**info.preset)
    usable, chosen = usable_methods(service, info), chosen_methods(service, info, methods)
    boxes = {}
    for box, usual in zip(form.methods, (True, False), strict=True):
        offered = [(method.label, method.id) for method in usable if method.default == usual]
        on = [name for _, name in offered if name in chosen]
        boxes[box] = gr.update(choices=offered, value=on)
    return {
        form.set_for: model,
        form.note: gr.update(value=prose(note(service, model))),
        **filled(form.sentence, info, text),
        **boxes,
        **{knob: field_value(name, values) for name, knob in form.knobs.items()},
    }


def usable_methods(service: Service, info: ModelInfo) -> list[Method]:
    return [method for method in METHODS.values() if method.id not in service.unavailable(info)]


def chosen_methods(service: Service, info: ModelInfo, methods: list[str] | None) -> list[str]:
    """Return which of these methods a model can be decoded with; its default ones for None."""
    usable = usable_methods(service, info)
    if methods is None:
        return default_methods(usable)
    return [method.id for method in usable if method.id in methods]


def choose_another(service: Service, form: Form, model: str, before: str) -> dict[Any, Any]:
    """Return the updates of `choose`, or none if the model is the one from before.

    Gradio also reports a choice that leaves the box unchanged, and the visitor's input for that
    model must stay.
    """
    return {form.set_for: gr.skip()} if model == before else choose(service, form, model)


def note(service: Service, model: str) -> str:
    """Describe a model: pictures, requirements, lacking methods, and why it cannot run here.

    The Markdown has only our own words.
    """
    info = service.offered()[model]
    lines = [info.description]
    if info.published is not None:
        needs, folder = info.published.needs, service.folder_of(model)
        fetched = needs.download if folder is None else to_fetch(info, folder)[1]
        lines.append(texts.needs(gib(fetched) if fetched else None, gib(needs.memory)))
    missing = service.no_drafter(info)
    if missing:
        lines.append(texts.without_drafter(missing))
    unmet = service.unmet(info)
    if unmet:
        lines.append(texts.UNMET.format(reason=unmet))
    return "  \n".join(lines)
