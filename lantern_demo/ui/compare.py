"""Event handlers of Draw and Repeat."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from math import isqrt
from pathlib import Path
from typing import Any

import gradio as gr

from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.registry import ModelInfo
from lantern_demo.prompt_words import NotDrawn
from lantern_demo.runs.race import Request
from lantern_demo.runs.record import Record, kept_of
from lantern_demo.runs.result import MethodFailed, Result, record_of
from lantern_demo.settings.knobs import MAX_SEED, is_id
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.actions import idle, outcomes, results_of, shielded, with_results
from lantern_demo.ui.ask import left_out
from lantern_demo.ui.components import NO_TABLE, OVER, Updates, Widgets, pack, status_html
from lantern_demo.ui.files import saved, scratch, write_picture
from lantern_demo.ui.form import Form
from lantern_demo.ui.frames import Frame
from lantern_demo.ui.gradio_patches import keep_file
from lantern_demo.ui.link import query_of
from lantern_demo.ui.numbers import numbers_html
from lantern_demo.ui.recorded import Recorded, recorded_runs, strip_of
from lantern_demo.ui.run_state import Lane, PageRun
from lantern_demo.ui.run_view import live_view, picture_address
from lantern_demo.ui.service import PROMPT, Item, Refused, Service

# latest answers whose tokens an answer repeats: a busy browser shows only the last of several
FRAMES_TOLD = 4
REPEATS = 5
VISITED = 8  # runs of a visitor that the gallery shows
NEW_SEEDS = 10_000  # a new seed lies below: people read it out


@shielded
def draw(
    service: Service, w: Widgets, status: gr.HTML, form: Form, given: dict[Any, Any]
) -> Iterator[Updates]:
    """Run a comparison and show its progress. given: values by component."""
    prompt, methods, seed = given[form.prompt], given[form.methods], given[form.seed]
    if not methods:
        raise Refused(texts.NO_METHODS)
    values = dict(given[form.others])
    for name, knob in form.knobs.items():  # an empty field is refused; in the API it is the default
        values[name] = "" if given[knob] is None else given[knob]
    values["seed"] = secrets.randbelow(NEW_SEEDS) if seed is None else seed
    kept = given[w.keep]
    try:
        request = service.request(prompt, methods, values, **kept)
    except NotDrawn as error:
        request = service.request(error.nearest, methods, values, **kept)
    request, anew = seeded(request, given[w.result])
    total, count = service.info.tokens, len(request.keep)
    lanes = {method: Lane(method, "waiting", total, count) for method in request.methods}
    page_run = PageRun(lanes, request=request, preset=Settings(**service.info.preset))
    words = texts.starting(request.seed, anew) + texts.rows_kept(count, total)
    struck, taken = left_out(service.info, prompt, [])

    def told(sentence: str) -> str:
        """Return the status of the race, with what the prompt became."""
        return status_html(f"{taken} {sentence}".strip(), "busy", struck)

    yield {
        status: told(words),
        w.stage: pack(live_view(page_run, link=query_of(request, page_run.preset))),
        w.page_run: page_run,
        w.seed: request.seed,
    }
    try:
        with scratch() as folder, closing(service.frames(request)) as events:
            live = LiveRun(w, page_run, folder, told)
            for event in events:  # a run can be stopped only between two answers
                yield live.noted(event)
        yield {status: _closing_words(page_run, service.info, prompt)}
    except gr.Error:
        raise
    except Exception:
        page_run.stop()  # or `settle` would report that it was stopped
        raise


def upper_of(result: PageRun, method: object, rows: object) -> dict[str, Any]:
    """Return what a request needs to keep rows of a method's shown picture, as `Service.request`
    takes it; method and rows as the page sent them.
    """
    methods = {} if result.record is None else result.record["methods"]
    if result.record is None or not isinstance(method, str) or method not in methods:
        return {}
    entry = methods[method]
    grid = isqrt(entry["tokens"])
    if not is_id(rows, grid):
        return {}
    return {"keep": entry["token_ids"][: rows * grid], "model": result.record["model"]["id"]}


def seeded(request: Request, result: PageRun) -> tuple[Request, bool]:
    """Return a request with the seed to draw it with, and whether that one is new.

    A run that would repeat the shown `result`, or the rest of a picture, gets a new one. A
    recording is drawn with its own seed.
    """
    if request != result.request and not request.keep:
        return request, False
    return request.with_seed(secrets.randbelow(NEW_SEEDS)), True


def settle(
    service: Service, w: Widgets, asked: str, page_run: PageRun, visited: list[Recorded]
) -> Updates:
    """Settle a run, however it ended: mark unfinished lanes, show the results, and allow the next.

    Gradio ignores Draw until it has ended the run, so only here may the button look ready. Earlier
    results would move while a visitor reads them.
    """
    if page_run.running:
        page_run.stop()
    updates = {**idle(w, w.status, asked, page_run, visited), w.keep: {}}
    # Two events of Gradio follow Stop, and both leave these words.
    if asked != OVER and any(lane.phase == "stopped" for lane in page_run.lanes.values()):
        updates[w.status] = status_html(texts.STOPPED_RUN)
    # the request was refused, and the page stays unchanged
    if page_run.settled or not page_run.lanes:
        return updates
    page_run.settled = True
    if page_run.record is None:  # the results are not left to look like this run's
        updates |= {w.stage: pack(live_view(page_run)), w.table: NO_TABLE, **w.no_words()}
        updates |= with_results(w, PageRun())
    else:
        updates |= results_of(w, page_run, "live", True)
        # in place: after a reload the page has this list again
        visited.insert(0, Recorded.of(page_run))
        del visited[VISITED:]
        updates |= {w.visited: visited, w.runs: strip_of([*visited, *recorded_runs()])}
    return updates


class LiveRun:
    """The answers of a run: a line of numbers for each lane, however much has been drawn."""

    def __init__(
        self, w: Widgets, page_run: PageRun, folder: Path, told: Callable[[str], str]
    ) -> None:
        self.w, self.page_run, self.folder = w, page_run, folder
        self.told = told  # the status of a sentence
        self.results = list[Result]()
        # before each of the latest answers, the tokens of each method
        self.starts: deque[dict[str, int]] = deque(maxlen=FRAMES_TOLD)

    def noted(self, event: Item) -> Updates:
        """Note an event in `page_run`, and return the answer."""
        w, page_run, lanes = self.w, self.page_run, self.page_run.lanes
        if isinstance(event, Frame) and not event.steps:
            ready = texts.READING
            if event.ready != PROMPT:
                ready = texts.WARMING_UP.format(label=METHODS[event.ready].label)
            return {w.status: self.told(ready)}
        self.starts.append({method: len(tokens) for method, tokens in page_run.tokens.items()})
        quiet = bool(page_run.tokens)
        if isinstance(event, Frame):
            for method, step in event.steps.items():
                lanes[method].at(step)
                page_run.tokens.setdefault(method, []).extend(event.tokens[method])
        elif isinstance(event, MethodFailed):
            lanes[event.method].failed(event.message)
            # if so, the status line names the method that is made ready
            quiet = not page_run.tokens
        else:
            self.results.append(event)
            page_run.record = record_of(self.results)
            lanes[event.method] = Lane.done(page_run.record["methods"][event.method])
            quiet = False
            page_run.pictures[event.method] = picture_address(event.image)
            file = saved(lambda one: keep_file(w.file, write_picture(self.folder, one)), event)
            if file is not None:
                page_run.files[event.method] = f"gradio_api/file={file}"
        first = self.starts[0]
        fresh = {
            method: tokens[first.get(method, 0) :] for method, tokens in page_run.tokens.items()
        }
        updates: Updates = {w.stage: pack(live_view(page_run, fresh))}
        if not quiet:
            done = sum(not lane.running for lane in lanes.values())
            updates[w.status] = self.told(texts.through(done, len(lanes)))
        return updates


def _closing_words(page_run: PageRun, info: ModelInfo, prompt: str) -> str:
    """Return the sentences about a run that is over. prompt: as it was typed."""
    record = page_run.record
    if record is None:
        return status_html(texts.NO_METHOD_FINISHED, "error")
    finished = record["methods"]
    unfinished = len(page_run.lanes) - len(finished)
    struck, taken = left_out(info, prompt, record["unknown_words"])
    text: list[str | None] = [taken, *([texts.SOME_FAILED] if unfinished else [])]
    text += [record["warning"], texts.of_run(texts.SOURCES["live"], record)]
    text += [texts.NO_ROOM] if len(page_run.files) < len(finished) else []
    in_turn = [entry for entry in finished.values() if entry["schedule"] == "in turn"]
    some = in_turn if len(in_turn) < len(finished) else []
    labels = [METHODS[entry["method"]].label for entry in some]
    text += [texts.in_turn(labels, in_turn[0]["schedule_reason"])] if in_turn else []
    return status_html(" ".join(filter(None, text)), struck=struck)


@shielded
def repeat(
    service: Service, w: Widgets, status: gr.HTML, result: PageRun, others: bool = False
) -> Iterator[Updates]:
    """Run the shown record again, REPEATS times; or with `others` once with its own seed, and once
    with each of the REPEATS next ones.

    Show the medians of its numbers and the range of its speedups, and compare the tokens of its
    seed.
    """
    record = result.record
    if record is None:
        raise Refused(texts.NO_RUN)
    ran, first = record["methods"], record["settings"]["seed"]
    trees = {method: entry["tree_settings"] for method, entry in ran.items()}
    model = record["model"]["id"]
    about = record["prompt"], record["order"], record["settings"], trees, model
    request = service.request(*about, kept_of(ran[record["order"][0]]))
    seeds = [(first + number * others) % (MAX_SEED + 1) for number in range(REPEATS + others)]
    races: list[Record] = []
    # by method, why a race lacks it, or from which piece on one drew others
    faults: dict[str, str] = {}
    for number, seed in enumerate(seeds):
        latest = (races or [record])[-1]["methods"].values()
        left = (len(seeds) - number) * sum(entry["decode_seconds"] for entry in latest)
        yield {status: status_html(texts.repeating(number + 1, len(seeds), left), "busy")}
        found = yield from outcomes(service, status, request.with_seed(seed))
        done = [one for one in found.values() if isinstance(one, Result)]
        races += [record_of(done)] if done else []
        for method, one in found.items():
            label, before = METHODS[method].label, ran[method]["token_ids"]
            if isinstance(one, MethodFailed):
                faults[method] = f"{label}: {one.message}"
            elif seed == first and one.tokens != before:
                faults[method] = texts.other_tokens(label, one.tokens, before)
        yield {w.table: numbers_html(record, races)}
        if not done:  # nor would it at the next time
            break
    whole = len(races) == len(seeds) and all(race["order"] == record["order"] for race in races)
    end = texts.of_seeds(seeds) if others else texts.REPEATED.format(of=REPEATS)
    told = [end if whole else texts.NOT_ALL_REPEATED if races else "", *faults.values()]
    told += [] if others or faults else [texts.REPRODUCED]
    yield {status: status_html(" ".join(filter(None, told)), "info" if whole else "error")}
