"""What the Draw and Stop buttons do, and the button that runs a record again."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gradio as gr

from lantern_demo.decoding.methods import METHODS
from lantern_demo.pipeline import MethodFailed
from lantern_demo.record import merge_records
from lantern_demo.settings import LIMITS, MAX_SEED
from lantern_demo.ui import words
from lantern_demo.ui.charts import LABELS
from lantern_demo.ui.engine import Engine, Frame, Request
from lantern_demo.ui.files import saved, stem, write, write_picture
from lantern_demo.ui.lanes import Lane, numbers_html
from lantern_demo.ui.view import Shown, live, picture_address, picture_of
from lantern_demo.ui.widgets import Updates, Widgets, hidden, loading, meant, numbers_of, replay_of, scratch, status_html

WAITING = status_html(words.QUEUED, "busy")


def draw(
    engine: Engine, w: Widgets, prompt: Any, model: Any, methods: Any, seed: Any, randomise: Any, *knobs: Any
) -> Iterator[Updates]:
    """Run a comparison and show it as it goes. `knobs` are in the order of `words.KNOBS`."""
    try:
        used = secrets.randbelow(MAX_SEED + 1) if randomise else LIMITS["seed"].check("seed", seed)
        values = {name: meant(name, value) for name, value in zip(words.KNOBS, knobs, strict=True)}
        if engine.must_load(model):
            yield {w.status: loading(engine, model)}
        request = engine.request(prompt, model, methods, {"seed": used, **values})
    except ValueError as error:
        yield {w.status: status_html(str(error), "error")}
        return
    yield from _shown(engine, w, [request], None)


def again(engine: Engine, w: Widgets, shown: Shown) -> Iterator[Updates]:
    """Run what is shown once more, each method with the very tree that it had, and say whether the tokens are the same."""
    record = shown.record
    if record is None:
        yield {w.status: status_html(words.NOTHING_TO_REPEAT, "error")}
        return
    model = record["model"]["id"]
    try:
        if engine.must_load(model):
            yield {w.status: loading(engine, model)}
        requests = [
            engine.request(record["prompt"], model, [method], record["settings"] | record["methods"][method]["tree_settings"])
            for method in record["order"]
        ]
    except ValueError as error:
        yield {w.status: status_html(str(error), "error")}
        return
    yield from _shown(engine, w, requests, record)


def begin(w: Widgets) -> Updates:
    """What is shown at once, while the run may still wait for the device."""
    return {w.status: WAITING, **w.busy(True)}


def settle(engine: Engine, w: Widgets, shown: Shown) -> Updates:
    """After a run, whatever ended it: mark what is unfinished, show what has finished, and allow the next run.

    Gradio ignores Draw until it has ended the run, so only now may the button look ready. The results come now as well: earlier
    they would move while they are read, and a replay could play while methods are still timed.
    """
    updates = w.busy(False)
    stopped = {method: lane.stopped() for method, lane in shown.lanes.items()}
    if stopped != shown.lanes:
        updates |= {w.status: status_html(words.STOPPED), w.shown: Shown(stopped, shown.record, shown.pictures)}
        updates |= {w.numbers[method]: numbers_html(lane) for method, lane in stopped.items()}
    if shown.lanes and shown.record is not None:
        updates |= numbers_of(w.results, engine, shown.record, {name: picture_of(it) for name, it in shown.pictures.items()})
        updates |= replay_of(w.results, shown, live(shown.record))
    return updates


def _shown(engine: Engine, w: Widgets, requests: list[Request], expected: dict[str, Any] | None) -> Iterator[Updates]:
    """Run requests one after the other as one comparison. `expected` is a record whose tokens should come again."""
    methods = [method for request in requests for method in request.methods]
    total = engine.offered()[requests[0].model].tokens
    lanes = {method: Lane(method, "waiting", total) for method in methods}
    yield _opening(w, int(requests[0].knobs["seed"]), lanes)
    try:
        with scratch() as folder:
            yield from _events(engine, w, requests, lanes, Path(folder), expected)
    except gr.Error:  # the Space's own refusals, such as a spent quota
        raise
    except Exception as error:
        logging.getLogger(__name__).exception("a comparison failed")
        yield {w.status: status_html(words.internal_error(error), "error"), w.shown: Shown()}


def _events(
    engine: Engine, w: Widgets, requests: list[Request], lanes: dict[str, Lane], folder: Path, expected: dict[str, Any] | None
) -> Iterator[Updates]:
    """`lanes` is kept up to date in place."""
    records: list[dict[str, Any]] = []
    pictures: dict[str, str] = {}
    merged: dict[str, Any] | None = None
    busy = ""
    count, no_room = 0, False
    for request in requests:
        with closing(engine.frames(request, True)) as events:
            for event in events:
                method = event.method
                updates: Updates = {}
                count += 1
                if isinstance(event, Frame) and not event.committed:
                    yield {w.status: gr.skip()}  # still warming up; only between two answers can a run be stopped
                    continue
                if isinstance(event, Frame):
                    lanes[method] = lanes[method].at(event)
                    if event.picture is not None:
                        preview = saved(write, folder / f"{stem(method)}-{count:05d}.jpg", event.picture)
                        updates |= {} if preview is None else {w.pictures[method]: preview}
                elif isinstance(event, MethodFailed):
                    lanes[method] = lanes[method].failed(event.message)
                else:
                    records.append(event.record)
                    merged = merge_records(records) | ({} if expected is None else {"settings": expected["settings"]})
                    pictures[method] = picture_address(event.image)
                    lanes[method] = lanes[method].finished(merged["methods"][method])
                    updates[w.pictures[method]] = saved(write_picture, folder, event)
                    no_room |= updates[w.pictures[method]] is None
                if method != busy:
                    busy = method
                    position = list(lanes).index(method) + 1
                    updates[w.status] = status_html(words.running(LABELS[method], position, len(lanes)), "busy")
                yield updates | {
                    w.numbers[method]: numbers_html(lanes[method]),
                    w.shown: Shown(dict(lanes), merged, dict(pictures)),
                }
    yield {w.status: _closing_words(lanes, merged, expected, no_room)}


def _opening(w: Widgets, seed: int, lanes: dict[str, Lane]) -> Updates:
    updates: Updates = {
        w.status: status_html(words.STARTING, "busy"), w.seed: seed, w.shown: Shown(dict(lanes)), w.lanes: gr.update(visible=True),
        **hidden(w.results),
    }  # fmt: skip
    for method in METHODS:
        updates[w.columns[method]] = gr.update(visible=method in lanes)
        updates[w.pictures[method]] = None
        updates[w.numbers[method]] = numbers_html(lanes.get(method, Lane(method)))
    return updates


def _closing_words(lanes: dict[str, Lane], record: dict[str, Any] | None, expected: dict[str, Any] | None, no_room: bool) -> str:
    if record is None:
        return status_html(words.NO_METHOD_FINISHED, "error")
    finished = record["methods"]
    text = words.finished(record["settings"]["seed"], record["device"], len(lanes) - len(finished))
    notes = [words.unknown_words(record["unknown_words"])] if record["unknown_words"] else []
    notes += [words.NO_ROOM] if no_room else []
    if expected is not None:
        notes += [words.same_tokens(LABELS[m], e["token_ids"], expected["methods"][m]["token_ids"]) for m, e in finished.items()]
    return status_html(text, notes=notes)
