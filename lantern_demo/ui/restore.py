"""Bring a run to the page without drawing it: an example, a run of this visit, or a link."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from lantern_demo.models.registry import ModelInfo
from lantern_demo.runs.record import drawn_with
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import link, texts
from lantern_demo.ui.actions import results_of, with_results
from lantern_demo.ui.components import (
    NO_TABLE,
    OVER,
    PANEL,
    Updates,
    Widgets,
    pack,
    script,
    status_html,
)
from lantern_demo.ui.form import Form, choose, chosen_methods
from lantern_demo.ui.limits import SESSIONS
from lantern_demo.ui.recorded import Recorded, recorded_runs
from lantern_demo.ui.run_state import Lane, PageRun
from lantern_demo.ui.run_view import live_view, picture_address, picture_of, results_view
from lantern_demo.ui.service import Service

LONGEST_NAME = 64  # characters of a tab's name
FIRST_QUALITY = 66  # of WebP: every visit downloads these pictures
RELOAD, BACK = "reload", "back_forward"  # how the browser came to the page, by its own names


class Visits:
    """The runs of each visitor, by a name that the browser keeps for a tab over a reload.

    A list is also the state of the tab's page, whose runs add to it.
    """

    def __init__(self) -> None:
        self._runs: dict[str, list[Recorded]] = {}

    def of(self, tab: str) -> list[Recorded]:
        """Return the list of a tab; without a name a new one. Only the latest tabs are kept."""
        if not 0 < len(tab) <= LONGEST_NAME:
            return []
        self._runs[tab] = self._runs.pop(tab, [])
        while len(self._runs) > SESSIONS:
            del self._runs[next(iter(self._runs))]
        return self._runs[tab]


def show_run(
    service: Service, w: Widgets, form: Form, asked: str, visited: list[Recorded], key: object
) -> Updates:
    """Show the run of the strip with a key, and fill in the form from it. A run that was asked for
    is about the one that is shown.
    """
    if asked != OVER:
        return {w.status: status_html(texts.STILL_RUNNING, "busy")}
    run = next((one for one in [*visited, *recorded_runs()] if one.key == key), None)
    if run is None:
        return {w.status: status_html(texts.NO_LONGER_KEPT, "refused")}
    record, own = run.record, run.record["model"]["id"] == service.info.id
    updates = _presented(w, run, "kept" if run in visited else "recorded", own)
    if own:
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
    return with_results(w, PageRun({}, run.record, run.pictures))


def from_link(
    service: Service,
    w: Widgets,
    form: Form,
    parameters: Mapping[str, str],
    came_by: str,
    visited: list[Recorded],
) -> Updates | None:
    """Show the recorded run that a link requests, or have another drawn; None for no request.

    After a reload, and after Back, a run of this visit is shown again. After a reload no other is
    drawn: the visitor hears that it is not there. Nor is it for a link with a wrong value, which is
    named; its other values are filled in.
    """
    info = service.info
    linked, wrong = _readable(parameters, info)
    if linked is None and not wrong and "run" not in parameters:
        return None
    if linked is None:
        words = status_html(wrong, "refused") if wrong else status_html(texts.OLD_LINK)
        return {**show_first(w), w.status: words}
    again = came_by in (RELOAD, BACK)
    known = visited if again else []
    if not wrong and (run := _known(linked, known, again)) is not None:
        return show_run(service, w, form, OVER, known, run.key)
    chosen = chosen_methods(service, linked.methods)  # none: the model cannot run them
    whole = not wrong and linked.prompt is not None and chosen != []
    go = whole and came_by != RELOAD
    words = status_html(texts.READY_LINK if go or not whole else texts.RELOADED)
    lanes = PageRun({method: Lane(method, "asked", info.tokens) for method in chosen})
    return {
        **({w.stage: pack(live_view(lanes)), w.table: NO_TABLE} if whole else show_first(w)),
        **choose(service, form, linked.prompt, linked.methods, linked.settings),
        **({form.seed: linked.settings.seed} if linked.seeded else {}),
        w.status: status_html(wrong, "refused") if wrong else words,
        w.go: "draw" if go else "",
    }


def _readable(parameters: Mapping[str, str], info: ModelInfo) -> tuple[link.LinkedRun | None, str]:
    """Return the run that a link requests without its wrong values, and a sentence about one."""
    try:
        return link.read(parameters, info), ""
    except ValueError as error:
        wrong = texts.REFUSED_LINK.format(why=texts.to_visitor(error))
    right: dict[str, str] = {}
    for name in filter(parameters.__contains__, link.KNOWN):
        with suppress(ValueError):
            link.read({**right, name: parameters[name]}, info)
            right[name] = parameters[name]
    return link.read(right, info), wrong


def _known(linked: link.LinkedRun, visited: list[Recorded], again: bool) -> Recorded | None:
    """Return the run of this visit, or else the recorded one, that a link requests.

    It may leave out the draft trees. After a reload (`again`), a link without them is that of a run
    that had not ended. A recording would look like its answer.
    """
    wanted, settings = (linked.prompt, linked.methods), linked.settings.as_dict()
    for index, run in enumerate([*visited, *recorded_runs()]):
        record, ways = run.record, [drawn_with(run.record)]
        if index < len(visited) or not again:
            ways.append(record["settings"])
        if wanted == (record["prompt"], record["order"]) and settings in ways:
            return run
    return None


def _presented(w: Widgets, run: Recorded, source: str, own: bool) -> Updates:
    """Show a run that was not drawn just now. `own`: the model here drew it, and the page's address
    becomes its link.

    A run that begins meanwhile takes the stage: it writes `w.page_run`.
    """
    now = PageRun(run.rest, run.record, run.pictures, run.files, request=run.request)
    words = texts.SOURCES[source] if own else texts.OF_ANOTHER
    told = status_html(texts.of_run(words, run.record))
    return {**results_of(w, now, source, own), w.status: told}
