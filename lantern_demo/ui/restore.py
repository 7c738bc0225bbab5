"""Bring a run to the page without drawing it: an example, a record from a file, or a link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import gradio as gr
from PIL import Image

from lantern_demo.runs.record import drawn_with, image_hash
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import link, texts
from lantern_demo.ui.compare import not_drawn
from lantern_demo.ui.components import LOOK, Updates, Widgets, pack, results_of, script, status_html
from lantern_demo.ui.model_choice import Form, choose, chosen_methods
from lantern_demo.ui.recorded import Recorded, read_record, recorded_runs
from lantern_demo.ui.run_state import Shown
from lantern_demo.ui.run_view import picture_address, picture_of, results_view
from lantern_demo.ui.service import Service

FIRST_QUALITY = 66  # of WebP: every visit downloads these pictures


def show_run(
    service: Service, w: Widgets, form: Form, shown: Shown, visited: list[str], index: Any
) -> Updates:
    """Show a run of the gallery, the visitor's first and then the recorded ones, and fill in the
    form from it.
    """
    if shown.running:
        return {w.status: status_html(texts.STILL_RUNNING, "busy")}
    kept = [(name, run) for name in visited if (run := w.finished.get(name)) is not None]
    if isinstance(index, int) and 0 <= index < len(kept):
        name, run = kept[index]
        shows = _presented(service, w, run, "kept", name)
        return {**shows, **_filled(service, form, run.record)}
    return show_example(service, w, form, index - len(kept) if isinstance(index, int) else None)


def show_example(service: Service, w: Widgets, form: Form, index: int | None) -> Updates:
    """Show a recorded run, and fill in the form from it."""
    runs = recorded_runs()
    if index is None or not 0 <= index < len(runs):
        return {w.status: status_html(texts.NO_SUCH_EXAMPLE, "error")}
    shows = _presented(service, w, runs[index], "recorded")
    words = {w.status: status_html(texts.READY_EXAMPLE)}
    return {**shows, **_filled(service, form, runs[index].record), **words}


def first_view() -> tuple[dict[str, Any], str]:
    """Return the stage's first value, of the first recorded run, and the scripts of a look.

    Every visit downloads its pictures, so they are compressed more.
    """
    run = recorded_runs()[0]
    pictures = {
        name: picture_address(picture_of(address), FIRST_QUALITY)
        for name, address in run.pictures.items()
    }
    view = results_view(run.record, pictures, "recorded")
    apart = [
        {name: lane.pop(name) for name in ("trees", "trials", "evidence", "said")}
        for lane in view["lanes"]
    ]
    words = f"const FIRST = {pack(apart)};\nObject.assign(WORDS, {pack(texts.LOOK)});"
    return view, "\n".join([words, *map(script, LOOK)])


def show_first(service: Service, w: Widgets) -> Updates:
    """Return the numbers and files of the first recorded run, which is on the stage already.

    The form stays: the visitor may be typing.
    """
    shown = _presented(service, w, recorded_runs()[0], "recorded")
    return {part: update for part, update in shown.items() if part is not w.stage}


def load_record(
    service: Service, w: Widgets, form: Form, told: gr.HTML, shown: Shown, data: Any
) -> Updates:
    """Show a record that a visitor uploads.

    If its model is loaded, its pictures are drawn from its tokens. `told` shows a refusal at the
    button.
    """
    if shown.running:
        return {told: status_html(texts.STILL_RUNNING, "error")}
    try:
        if not isinstance(data, bytes):
            raise ValueError("there was no file")
        record = read_record(data)
    except ValueError as error:
        return {told: status_html(texts.REFUSED_RECORD.format(why=error), "error")}
    notes, pictures = [], {}
    try:
        images = service.pictures(
            record["model"]["id"], [entry["token_ids"] for entry in record["methods"].values()]
        )
        pictures = {
            name: picture_address(image)
            for name, image in zip(record["methods"], images, strict=True)
        }
        notes += _redrawn(service, record, images)
    except ValueError as error:
        notes.append(texts.NO_PICTURES.format(why=error))
    shows = _presented(service, w, Recorded(record, pictures), "loaded")
    status = status_html(texts.READY_LOADED, notes=notes)
    return {**shows, **_filled(service, form, record), told: "", w.status: status}


def _redrawn(service: Service, record: dict[str, Any], images: list[Image.Image]) -> list[str]:
    """Return notes on pictures drawn from a record's tokens; [] if they are the recorded ones."""
    hashes = [entry["image_sha256"] for entry in record["methods"].values()]
    if [image_hash(image) for image in images] == hashes:
        return []
    same = service.drawn_by(record["model"]["id"], record["model"]["trained"])
    return [texts.REDRAWN if same else texts.OTHER_DECODER]


def from_link(
    service: Service, w: Widgets, form: Form, parameters: Mapping[str, str]
) -> Updates | None:
    """Show the run that a link names or requests; None when it requests nothing.

    Without either, fill in the form from the link and show that nothing is drawn yet.
    """
    offered = service.offered()
    run, named = w.finished.get(parameters.get(link.RUN, "")), link.RUN in parameters
    if run is not None:
        shows = _presented(service, w, run, "kept", parameters[link.RUN])
        return {
            **shows,
            **_filled(service, form, run.record),
            w.status: status_html(texts.READY_RUN),
        }
    read = link.read(parameters, service.default, offered)
    if read is None and not named:
        return None
    asked = read or link.Asked(service.default, Settings(**offered[service.default].preset))
    if not named and not asked.refused and (example := _example_of(asked)) is not None:
        return show_example(service, w, form, example)
    refused = {name: texts.to_visitor(why) for name, why in asked.refused.items()}
    told = [texts.READY_GONE] * named + [
        texts.REFUSED_LINK.format(why=why) for why in refused.values()
    ]
    fields = {**form.knobs, "seed": form.seed}
    info = offered[asked.model]
    return {
        **choose(service, form, info.id, asked.prompt, asked.methods, asked.settings),
        **{
            # Gradio reads Markdown here, so that a visitor's value must not stand in it
            fields[name]: gr.update(info=f"{texts.NOT_AS_LINKED} {fields[name].info}")
            for name in refused
            if name in fields
        },
        **({form.seed: asked.settings.seed} if asked.seeded else {}),
        w.status: status_html(
            " ".join([*told, texts.READY_LINK if read else texts.READY]),
            "error" if refused else "info",
        ),
        w.stage: not_drawn(chosen_methods(service, info, asked.methods), info.tokens),
        w.link: "?" + urlencode(dict(parameters)),
        form.model: info.id,
    }


def _example_of(asked: link.Asked) -> int | None:
    """Return the index of the recorded run that a link requests, with or without its trees."""
    wanted, settings = (asked.model, asked.prompt, asked.methods), asked.settings.as_dict()
    for index, record in enumerate(run.record for run in recorded_runs()):
        same = wanted == (record["model"]["id"], record["prompt"], record["order"])
        if same and settings in (drawn_with(record), record["settings"]):
            return index
    return None


def _presented(
    service: Service, w: Widgets, run: Recorded, source: str, kept_as: str | None = None
) -> Updates:
    """Show a run that was not drawn just now.

    A run that begins meanwhile takes the stage: it writes `w.shown`.
    """
    now = Shown({}, run.record, run.pictures)
    return results_of(w, service, now, source, kept_as)


def _filled(service: Service, form: Form, record: dict[str, Any]) -> Updates:
    """Return the form's updates for a recorded run; none if its model is not on offer."""
    model, settings = record["model"]["id"], Settings(**record["settings"])
    if model not in service.offered():
        return {}
    filled = choose(service, form, model, record["prompt"], record["order"], settings)
    return {form.model: model, form.seed: settings.seed, **filled}
