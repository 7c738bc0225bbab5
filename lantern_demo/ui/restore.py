"""Bring a run to the page without drawing it: an example, a run of this visit, or a link."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lantern_demo.models.registry import ModelInfo
from lantern_demo.prompt_words import USUAL, NotDrawn, completed
from lantern_demo.runs.record import drawn_with
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import link, texts
from lantern_demo.ui.compare import not_drawn
from lantern_demo.ui.components import (
    NO_TABLE,
    PANEL,
    Updates,
    Widgets,
    pack,
    results_of,
    script,
    status_html,
    with_results,
)
from lantern_demo.ui.form import Form, choose, chosen_methods
from lantern_demo.ui.recorded import Recorded, recorded_runs
from lantern_demo.ui.run_state import Shown
from lantern_demo.ui.run_view import picture_address, picture_of, results_view
from lantern_demo.ui.service import Service

FIRST_QUALITY = 66  # of WebP: every visit downloads these pictures
RELOAD = "reload"  # how the browser came to the page, by its own name


def show_run(
    service: Service, w: Widgets, form: Form, shown: Shown, visited: list[Recorded], index: Any
) -> Updates:
    """Show a run of the strip, the visitor's first and then the recorded ones, and fill in the
    form from it.
    """
    if shown.running:
        return {w.status: status_html(texts.STILL_RUNNING, "busy")}
    run = [*visited, *recorded_runs()][index]
    updates = _presented(service, w, run, "kept" if index < len(visited) else "recorded", True)
    record = run.record
    if record["model"]["id"] == service.info.id:
        settings = Settings(**record["settings"])
        updates |= choose(service, form, record["prompt"], record["order"], settings)
        updates[form.seed] = settings.seed
    return updates


def first_view() -> tuple[dict[str, Any], str]:
    """Return the stage's first value, of the first recorded run, and the scripts of the panel.

    Every visit downloads its pictures, so they are compressed more.
    """
    run = recorded_runs()[0]
    pictures = {
        name: picture_address(picture_of(address), FIRST_QUALITY)
        for name, address in run.pictures.items()
    }
    view = results_view(run.record, pictures, "recorded")
    apart = [
        {name: lane.pop(name) for name in ("trees", "trials", "evidence")} for lane in view["lanes"]
    ]
    words = f"const FIRST = {pack(apart)};\nObject.assign(WORDS, {pack(texts.PANEL)});"
    return view, "\n".join([words, *map(script, PANEL)])


def show_first(w: Widgets) -> Updates:
    """Let the handlers have the first recorded run, which the page shows already."""
    run = recorded_runs()[0]
    return with_results(w, Shown({}, run.record, run.pictures))


def from_link(
    service: Service, w: Widgets, form: Form, parameters: Mapping[str, str], came_by: str
) -> Updates | None:
    """Show the recorded run that a link requests, or have another drawn; None for no request.

    After a reload nothing is drawn: the visitor hears that a run that went on was stopped. Nor is
    it for a link with a wrong value, which is named; its other values are filled in.
    """
    info = service.info
    asked, wrong = _readable(parameters, info)
    if asked is None and not wrong and "run" not in parameters:
        return None
    if asked is None:
        words = status_html(wrong, "refused") if wrong else status_html(texts.OLD_LINK)
        return {**show_first(w), w.status: words}
    if not wrong and (example := _example_of(asked)) is not None:
        return show_run(service, w, form, Shown(), [], example)
    words = status_html(texts.RELOADED if came_by == RELOAD else texts.READY_LINK)
    go = not wrong and came_by != RELOAD and asked.prompt is not None
    try:
        completed(info, asked.prompt or USUAL)
        drawn = go
    except NotDrawn:  # Draw will refuse it
        drawn = False
    lanes = not_drawn(chosen_methods(service, asked.methods), info.tokens)
    return {
        **({w.stage: lanes, w.table: NO_TABLE} if drawn else show_first(w)),
        **choose(service, form, asked.prompt, asked.methods, asked.settings),
        **({form.seed: asked.settings.seed} if asked.seeded else {}),
        w.status: status_html(wrong, "refused") if wrong else words,
        w.go: "draw" if go else "",
    }


def _readable(parameters: Mapping[str, str], info: ModelInfo) -> tuple[link.Asked | None, str]:
    """Return the run that a link requests without its wrong values, and a sentence about one."""
    try:
        return link.read(parameters, info), ""
    except ValueError as error:
        wrong = texts.REFUSED_LINK.format(why=texts.to_visitor(str(error)))
    right: dict[str, str] = {}
    for name in filter(parameters.__contains__, link.KNOWN):
        with suppress(ValueError):
            link.read({**right, name: parameters[name]}, info)
            right[name] = parameters[name]
    return link.read(right, info), wrong


def _example_of(asked: link.Asked) -> int | None:
    """Return the index of the recorded run that a link requests, with or without its trees."""
    wanted, settings = (asked.prompt, asked.methods), asked.settings.as_dict()
    for index, record in enumerate(run.record for run in recorded_runs()):
        same = wanted == (record["prompt"], record["order"])
        if same and settings in (drawn_with(record), record["settings"]):
            return index
    return None


def _presented(
    service: Service, w: Widgets, run: Recorded, source: str, own: bool = False
) -> Updates:
    """Show a run that was not drawn just now. `own`: the page's address becomes its link.

    A run that begins meanwhile takes the stage: it writes `w.shown`.
    """
    now = Shown({}, run.record, run.pictures, request=run.request)
    words = status_html(texts.of_run(texts.SOURCES[source], run.record))
    return {**results_of(w, service, now, source, own), w.status: words}
