"""What brings a run to the page without drawing it: an example, a record from a file, or a link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gradio as gr

from lantern_demo.record import image_hash
from lantern_demo.settings import Settings
from lantern_demo.ui import link, words
from lantern_demo.ui.engine import Engine
from lantern_demo.ui.models import ModelWidgets, choose
from lantern_demo.ui.reading import read_record
from lantern_demo.ui.recorded import recorded_runs
from lantern_demo.ui.view import Shown, Source, picture_address, picture_of
from lantern_demo.ui.widgets import Updates, Widgets, numbers_of, replay_of, status_html


@dataclass(frozen=True)
class Form:
    """What a visitor fills in."""

    model: gr.Dropdown
    by_model: ModelWidgets
    seed: gr.Number
    randomise: gr.Checkbox

    def all(self) -> list[Any]:
        return [self.model, self.seed, self.randomise, *self.by_model.all()]


def show_example(engine: Engine, w: Widgets, form: Form, shown: Shown, index: Any) -> Updates:
    """Show a recorded run, play it, and fill in what gives it again."""
    runs = recorded_runs()
    if not isinstance(index, int) or not 0 <= index < len(runs):
        return {w.status: status_html(words.NO_SUCH_EXAMPLE, "error")}
    if shown.running:
        return {w.status: status_html(words.STILL_RUNNING, "busy")}
    run = runs[index]
    filled = _filled(engine, form, run.record) if run.record["model"]["id"] in engine.offered() else {}
    more = {w.status: status_html(words.READY_EXAMPLE), **filled}
    return _presented(engine, w, run.record, run.pictures, run.source, True, more)


def show_first(engine: Engine, w: Widgets) -> Updates:
    """Show the first recorded run. Nothing is filled in: the visitor may be typing already."""
    run = recorded_runs()[0]
    return _presented(engine, w, run.record, run.pictures, run.source, False, {})


def load_record(engine: Engine, w: Widgets, form: Form, shown: Shown, data: Any) -> Updates:
    """Show a record that a visitor hands in. Its pictures are drawn anew from its tokens, where its model is loaded."""
    if shown.running:
        return {w.status: status_html(words.STILL_RUNNING, "busy")}
    try:
        if not isinstance(data, bytes):
            raise ValueError("there was no file")
        record = read_record(data)
    except ValueError as error:
        return {w.status: status_html(words.refused_record(str(error)), "error")}
    notes, pictures = [], {}
    try:
        images = engine.pictures(record["model"]["id"], [entry["token_ids"] for entry in record["methods"].values()])
        pictures = {name: picture_address(image) for name, image in zip(record["methods"], images, strict=True)}
        hashes = [entry["image_sha256"] for entry in record["methods"].values()]
        if [image_hash(image) for image in images] != hashes:
            notes.append(words.REDRAWN)
    except ValueError as error:
        notes.append(words.no_pictures(str(error)))
    source = Source("loaded", words.LOADED.format(device=record["device"], date=record["created"][:10]))
    filled = _filled(engine, form, record) if record["model"]["id"] in engine.offered() else {}
    status = status_html(words.READY_LOADED, notes=notes)
    return _presented(engine, w, record, pictures, source, True, {w.status: status, **filled})


def from_link(engine: Engine, w: Widgets, form: Form, parameters: Mapping[str, str]) -> Updates | None:
    """Fill in what a link asks for; None when it asks for nothing."""
    offered = engine.offered()
    presets = {name: Settings(**info.preset) for name, info in offered.items()}
    try:
        asked = link.read(parameters, engine.default, presets)
        if asked is None:
            return None
        limit = offered[asked["model"]].max_prompt
        if len(asked.get("prompt", "")) > limit:
            raise ValueError(f"prompt has {len(asked['prompt'])} characters, at most {limit} are allowed")
    except ValueError as error:
        return {w.status: status_html(words.refused_link(str(error)), "error")}
    settings = asked["settings"]
    filled = choose(engine, form.by_model, asked["model"], asked.get("prompt"), asked.get("methods"), settings)
    return {w.status: status_html(words.READY_LINK), form.model: asked["model"], **filled, **_seed(form, settings, asked["seed"])}


def _presented(
    engine: Engine, w: Widgets, record: dict[str, Any], pictures: dict[str, str], source: Source, play: bool, more: Updates
) -> Updates:  # fmt: skip
    """Show a run that was not drawn just now; the lanes are for what is. A run that begins meanwhile keeps them: it writes `w.shown`."""
    now = Shown({}, record, pictures)
    images = {name: picture_of(address) for name, address in pictures.items()}
    numbers = numbers_of(w.results, engine, record, images)
    return {w.live: "", w.result: now, **numbers, **replay_of(w.results, now, source, play), **more}


def _filled(engine: Engine, form: Form, record: dict[str, Any]) -> Updates:
    model, settings = record["model"]["id"], Settings(**record["settings"])
    filled = choose(engine, form.by_model, model, record["prompt"], record["order"], settings)
    return {form.model: model, **filled, **_seed(form, settings, True)}


def _seed(form: Form, settings: Settings, fixed: bool) -> Updates:
    return {form.seed: settings.seed, form.randomise: False} if fixed else {}
