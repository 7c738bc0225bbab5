"""The common part of the page's runs: how each begins, fails and ends, and its results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from time import sleep
from typing import Any

import gradio as gr

from lantern_demo.faults import NotAllowed
from lantern_demo.runs.race import Request
from lantern_demo.runs.result import MethodFailed, Result
from lantern_demo.ui import texts
from lantern_demo.ui.components import OVER, RUNS, WAITS, Updates, Widgets, pack, status_html
from lantern_demo.ui.events import AT_ONCE, ON_DEVICE, QUIET
from lantern_demo.ui.files import address, saved, scratch, write_record, write_sheet
from lantern_demo.ui.film import write_film
from lantern_demo.ui.frames import Frame
from lantern_demo.ui.gradio_patches import keep_file
from lantern_demo.ui.link import query
from lantern_demo.ui.numbers import numbers_html
from lantern_demo.ui.recorded import Recorded
from lantern_demo.ui.run_state import PageRun
from lantern_demo.ui.run_view import lane_view, picture_of, preset_of, results_view
from lantern_demo.ui.service import Refused, Service

LOADED_SECONDS = 0.25  # between two looks whether the model is loaded

# The changes at the end of a run: of `Widgets.asked`, `page_run` and `visited`. It was stopped
# unless it is OVER.
End = Callable[[str, PageRun, list[Recorded]], Updates]


@dataclass(frozen=True)
class Action:
    """A run that a visitor may ask for."""

    trigger: Any
    run: Callable[..., Iterator[Updates]]
    inputs: Any
    outputs: list[Any]  # components that it changes
    status: gr.HTML  # where its words go
    end: End

    def wire(self, service: Service, w: Widgets, queued: Callable[[], int]) -> Any:
        """Wire the run, and return its event, which Stop cancels. `queued`: as for `begin`."""
        status, end = self.status, self.end
        pressed = self.trigger(
            partial(begin, service, queued, w, status),
            None,
            [status, w.asked, *w.buttons()],
            **AT_ONCE,
        )
        running = pressed.then(
            self.run,
            self.inputs,
            {status, w.asked, *self.outputs},
            trigger_mode="once",
            # Gradio's page counts time, for every answer, on what shows an event's progress.
            show_progress_on=w.draw,
            **QUIET,
            **ON_DEVICE,
        )
        # Gradio cannot cancel a run whose id it does not know yet: Stop comes a moment later.
        lit = pressed.then(partial(offer_stop, w), w.asked, w.stop, **AT_ONCE)
        lit.then(None, js="keepFocus", **QUIET)
        changed, about = w.all(), [w.asked, w.page_run, w.visited]
        # `then` also follows Stop, but not a refusal by the full queue.
        ended = running.then(end, about, changed, **AT_ONCE)
        ended.then(None, js="keepFocus", **QUIET)
        running.failure(partial(failed, w, status, end), about, changed, **AT_ONCE)
        return running


def begin(service: Service, queued: Callable[[], int], w: Widgets, status: gr.HTML) -> Updates:
    """Show in `status` that the run waits for the device. `queued` returns how many runs wait."""
    sentence = texts.waits(queued() + service.busy, service.last_seconds)
    return {status: status_html(sentence, "waits"), w.asked: WAITS, **w.busy(True)}


def offer_stop(w: Widgets, asked: str) -> Updates:
    """Enable Stop, unless the run is over."""
    return {w.stop: gr.update(interactive=asked != OVER)}


def failed(
    w: Widgets, status: gr.HTML, end: End, asked: str, page_run: PageRun, visited: list[Recorded]
) -> Updates:
    """Settle a run that Stop or Gradio ended, or report in `status` that the full queue refused
    it.
    """
    if asked != WAITS:
        return end(asked, page_run, visited)
    refused = status_html(texts.NOT_STARTED, "refused")
    return {**end(OVER, page_run, visited), status: refused}


def idle(
    w: Widgets, status: gr.HTML, asked: str, page_run: PageRun, visited: list[Recorded]
) -> Updates:
    """Allow the next run after one that leaves the lanes as they are."""
    stopped = {} if asked == OVER else {status: status_html(texts.STOPPED)}
    return {**w.busy(False), w.asked: OVER, **stopped}


def shielded(run: Callable[..., Iterator[Updates]]) -> Callable[..., Iterator[Updates]]:
    """Make a handler that reports a refusal of `run`, or any fault, as a sentence in `status`."""

    @wraps(run)
    def handler(
        service: Service, w: Widgets, status: gr.HTML, *given: Any, **more: Any
    ) -> Iterator[Updates]:
        yield {w.asked: RUNS}
        try:
            if service.state == "loading":
                yield {status: status_html(texts.LOADING, "busy")}
            while service.state == "loading":
                sleep(LOADED_SECONDS)
                yield {status: gr.skip()}  # a run can be stopped only between two answers
            yield from run(service, w, status, *given, **more)
        except (NotAllowed, Refused) as error:
            yield {status: status_html(texts.to_visitor(error), "refused")}
        except gr.Error as error:  # the Space's own refusals, such as a spent quota
            yield {status: status_html(str(error.message), "refused"), w.asked: OVER}
            raise
        except Exception as error:
            logging.getLogger(__name__).exception("a run of the page failed")
            yield {status: status_html(texts.internal_error(error), "error")}
        yield {w.asked: OVER}

    return handler


def outcomes(
    service: Service, status: gr.HTML, request: Request
) -> Generator[Updates, None, dict[str, Result | MethodFailed]]:
    """Run a request without showing its progress. Return the outcome of each method."""
    found = {}
    with closing(service.frames(request)) as events:
        for event in events:
            if not isinstance(event, Frame):
                found[event.method] = event
            yield {status: gr.skip()}  # a run can be stopped only between two answers
    return found


# -- results


def results_of(w: Widgets, page_run: PageRun, source: str, own: bool) -> Updates:
    """Show a finished run: the stage, with lanes that did not finish, the table, files and link.

    `source` is one of `texts.SOURCES`. `own`: the page's address becomes the link.
    """
    record = page_run.record
    assert record is not None
    view = results_view(record, page_run.pictures, source, page_run.run)
    view["rest"] = [lane_view(lane) for lane in page_run.rest.values()]
    view["files"] = page_run.files
    view |= {"link": query(record, preset_of(record)), "own": own}
    shown = {w.stage: pack(view), w.table: numbers_html(record), **w.no_words()}
    return shown | with_results(w, page_run)


def with_results(w: Widgets, page_run: PageRun) -> Updates:
    """Let the other handlers have a run, and its files be asked for; without results none can."""
    there = gr.update(interactive=page_run.record is not None)
    return {w.result: page_run, w.record: there, w.sheet: there, w.film: there}


def record_file(folder: Path, page_run: PageRun) -> str:
    assert page_run.record is not None
    return write_record(folder, page_run.record)


def drawn_file(write: Callable[..., str], host: str, folder: Path, page_run: PageRun) -> str:
    """Write a run as a picture, with its address: by `write_sheet` or `write_film`."""
    record = page_run.record
    assert record is not None
    images = {method: picture_of(picture) for method, picture in page_run.pictures.items()}
    link = address(host, query(record, preset_of(record)))
    return write(folder, record, images, link)


def hand_out_film(service: Service, w: Widgets, page_run: PageRun, host: str) -> Updates:
    """Write the film while nothing runs on the device: it takes a second of the processor."""
    make = partial(hand_out, w, partial(drawn_file, write_film, host), page_run)
    if service.state != "ready":
        return make()
    busy = {w.file: None, w.status: status_html(texts.FILM_LATER, "busy")}
    return service.at_once(make) or busy


def hand_out_sheet(w: Widgets, page_run: PageRun, host: str) -> Updates:
    return hand_out(w, partial(drawn_file, write_sheet, host), page_run)


def hand_out(w: Widgets, write: Callable[[Path, PageRun], str], page_run: PageRun) -> Updates:
    """Write a file of the results, and give it to the hidden button, which the page then presses.

    Nothing is written before somebody asks: it would take time from the timed runs of others.
    """
    if page_run.record is None:
        return {w.file: None, w.status: status_html(texts.NO_RUN, "refused")}
    with scratch() as folder:
        # Gradio's copy is made here, since the folder is gone before Gradio would make it itself.
        file = saved(lambda: keep_file(w.file, write(folder, page_run)))
    return {w.file: file, **({} if file else {w.status: status_html(texts.NO_ROOM, "error")})}
