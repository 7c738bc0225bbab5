"""What the Draw and Stop buttons do."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import gradio as gr

from lantern_demo.decoding.methods import METHODS
from lantern_demo.pipeline import Generation, MethodFailed
from lantern_demo.record import merge_records
from lantern_demo.settings import LIMITS, MAX_SEED, Settings
from lantern_demo.ui import words
from lantern_demo.ui.charts import LABELS, bars, table
from lantern_demo.ui.engine import Engine, Frame, Request
from lantern_demo.ui.files import stem, write, write_picture, write_record
from lantern_demo.ui.lanes import Lane, numbers_html

# Settings that are the draft tree's unless given. A number field cannot be relied on to stay empty, so on the page 0 says that.
OF_TREE = ("draft_top_k", "draft_depth", "draft_nodes")
Updates = dict[Any, Any]  # component -> its new value, or gr.update(...)


@dataclass(frozen=True)
class Widgets:
    """The components that a run changes; those of the lanes by method id."""

    status: gr.HTML
    seed: gr.Number
    draw: gr.Button
    stop: gr.Button
    columns: dict[str, gr.Column]
    pictures: dict[str, gr.Image]
    numbers: dict[str, gr.HTML]
    results: gr.Column
    bars: gr.BarPlot
    no_bars: gr.Markdown
    table: gr.Dataframe
    record: gr.DownloadButton
    lanes: gr.State  # of dict[str, Lane]: what Stop has to work with

    def all(self) -> list[Any]:
        by_lane = (*self.columns.values(), *self.pictures.values(), *self.numbers.values())
        ends = (self.results, self.bars, self.no_bars, self.table, self.record, self.lanes)
        return [self.status, self.seed, self.draw, self.stop, *by_lane, *ends]


def shown(name: str, settings: Settings) -> Any:
    """A setting's value on the page."""
    value = getattr(settings, name)
    return 0 if name in OF_TREE and value is None else value


def _meant(name: str, value: Any) -> Any:
    """The setting that a value on the page stands for."""
    return None if name in OF_TREE and value == 0 else value


def status_html(text: str, kind: Literal["info", "busy", "error"] = "info", note: str = "") -> str:
    """The line under the buttons; screen readers are told when it changes."""
    role = "alert" if kind == "error" else "status"
    more = f'<p class="status-note">{escape(note)}</p>' if note else ""
    return f'<div class="status {kind}" role="{role}"><p>{escape(text)}</p>{more}</div>'


def draw(
    engine: Engine, w: Widgets, prompt: Any, model: Any, methods: Any, seed: Any, randomise: Any, *knobs: Any
) -> Iterator[Updates]:
    """Run a comparison and show it as it goes. `knobs` are in the order of `words.KNOBS`."""
    try:
        used = secrets.randbelow(MAX_SEED + 1) if randomise else LIMITS["seed"].check("seed", seed)
        values = {name: _meant(name, value) for name, value in zip(words.KNOBS, knobs, strict=True)}
        if engine.must_load(model):
            yield {w.status: status_html(words.loading(engine.offered()[model].title), "busy")}
        request = engine.request(prompt, model, methods, {"seed": used, **values})
    except ValueError as error:
        yield {w.status: status_html(str(error), "error")}
        return
    total = engine.offered()[request.model].tokens
    lanes = {method: Lane(method, "waiting", total) for method in request.methods}
    yield _opening(w, used, lanes)
    try:
        with TemporaryDirectory(prefix="lantern-demo-") as folder:
            yield from _events(engine, w, request, lanes, Path(folder))
    except gr.Error:  # the Space's own refusals, such as a spent quota
        raise
    except Exception as error:
        logging.getLogger(__name__).exception("a comparison failed")
        yield {w.status: status_html(words.internal_error(error), "error"), w.lanes: {}, **_stopped(w, lanes)}


def begin(w: Widgets) -> Updates:
    """What is shown at once, while the run may still wait for the device."""
    return {w.draw: gr.update(interactive=False), w.stop: gr.update(interactive=True)}


def settle(w: Widgets, lanes: dict[str, Lane]) -> Updates:
    """After a run, whatever ended it: mark what is unfinished, and allow the next one.

    Gradio ignores Draw until it has ended the run, so only now may the button look ready.
    """
    stopped = {method: lane.stopped() for method, lane in lanes.items()}
    if stopped == lanes:
        return _idle(w)
    return {w.status: status_html(words.STOPPED), w.lanes: stopped, **_idle(w), **_stopped(w, lanes)}


def _events(engine: Engine, w: Widgets, request: Request, lanes: dict[str, Lane], folder: Path) -> Iterator[Updates]:
    """`lanes` is kept up to date in place."""
    records: list[dict[str, Any]] = []
    busy = ""
    with closing(engine.frames(request, True)) as events:
        for count, event in enumerate(events):
            method, updates = event.method, {}
            if isinstance(event, Frame):
                lanes[method] = lanes[method].at(event)
                if event.picture is not None:
                    updates[w.pictures[method]] = write(folder / f"{stem(method)}-{count:05d}.jpg", event.picture)
            elif isinstance(event, MethodFailed):
                lanes[method] = lanes[method].failed(event.message)
            else:
                records.append(event.record)
                updates = _finished(w, event, merge_records(records), lanes, folder)
            if method != busy:
                busy = method
                position = request.methods.index(method) + 1
                updates[w.status] = status_html(words.running(LABELS[method], position, len(request.methods)), "busy")
            yield updates | {w.numbers[method]: numbers_html(lanes[method]), w.lanes: dict(lanes)}
    yield {w.status: _closing_words(request, records), **_bars(w, lanes)}


def _opening(w: Widgets, seed: int, lanes: dict[str, Lane]) -> Updates:
    updates: Updates = {
        w.status: status_html(words.STARTING, "busy"), w.seed: seed, w.lanes: dict(lanes),
        w.results: gr.update(visible=False), w.bars: gr.update(visible=False), w.no_bars: gr.update(visible=False),
    }  # fmt: skip
    for method in METHODS:
        updates[w.columns[method]] = gr.update(visible=method in lanes)
        updates[w.pictures[method]] = None
        updates[w.numbers[method]] = numbers_html(lanes.get(method, Lane(method)))
    return updates


def _finished(w: Widgets, event: Generation, record: dict[str, Any], lanes: dict[str, Lane], folder: Path) -> Updates:
    """Show a finished method, and the results of all that have finished."""
    lanes[event.method] = lanes[event.method].finished(record["methods"][event.method])
    return {
        w.pictures[event.method]: write_picture(folder, event),
        w.results: gr.update(visible=True),
        w.table: table(record["methods"]),
        w.record: write_record(folder, record),
    }


def _closing_words(request: Request, records: list[dict[str, Any]]) -> str:
    if not records:
        return status_html(words.NO_METHOD_FINISHED, "error")
    last = records[-1]
    text = words.finished(last["settings"]["seed"], last["device"], len(request.methods) - len(records))
    unknown = last["unknown_words"]
    return status_html(text, note=words.unknown_words(unknown) if unknown else "")


def _idle(w: Widgets) -> Updates:
    return {w.draw: gr.update(interactive=True), w.stop: gr.update(interactive=False)}


def _stopped(w: Widgets, lanes: dict[str, Lane]) -> Updates:
    return {w.numbers[method]: numbers_html(lane.stopped()) for method, lane in lanes.items()} | _bars(w, lanes)


def _bars(w: Widgets, lanes: dict[str, Lane]) -> Updates:
    """The chart of the methods that have finished. It comes once, at the end: grown bar by bar it would jump about."""
    speedups = bars({method: lane.entry for method, lane in lanes.items() if lane.entry is not None})
    return {w.bars: gr.update(value=speedups, visible=speedups is not None), w.no_bars: gr.update(visible=speedups is None)}
