"""The page's own components, those that a run changes, and updates that actions share."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial, wraps
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import gradio as gr

from lantern_demo.faults import NotAllowed
from lantern_demo.runs.race import Request
from lantern_demo.runs.result import MethodFailed, Result
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.files import saved, write_record, write_sheet
from lantern_demo.ui.film import address, write_film
from lantern_demo.ui.frames import Frame
from lantern_demo.ui.gradio_patches import keep_file
from lantern_demo.ui.link import query
from lantern_demo.ui.run_state import Shown
from lantern_demo.ui.run_view import (
    lane_view,
    picture_of,
    preset_of,
    results_view,
    table,
    table_html,
)
from lantern_demo.ui.service import Refused, Service

Updates = dict[Any, Any]  # component -> its new value, or gr.update(...)
SCRIPTS = Path(__file__).with_name("web")
SHARED = ("dom", "grid")
STAGE = ("mosaic", "clock", "lanes", "stage")
PANEL = ("steps", "pieces", "tree", "panel")  # loaded when the panel is first seen
FIRST_STYLES = Path(__file__).with_name("first.css")
STYLES = [Path(__file__).with_name("style.css"), *sorted(SCRIPTS.glob("*.css"))]

NO_TABLE = f'<p class="note">{escape(texts.NO_NUMBERS)}</p>'

# Buttons in a gr.HTML: a click selects one.
CHOSEN = """element.addEventListener("click", ({ target }) => {
  const button = target.closest("button");
  if (button) trigger("select", { index: Number(button.dataset.index), value: button.title });
});"""


def script(name: str) -> str:
    return sent(SCRIPTS / f"{name}.js")


def sent(path: Path) -> str:
    """Return a script or styles as every visit downloads them: no comments, no indentation."""
    left_out = r"^\s*(?://[^\n]*|/\*.*?\*/)|^\s+|(?<=[;,{}]) // [^\n]*"
    return re.sub(left_out, "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def shared_scripts() -> str:
    """Return the words and the scripts that run before those of the stage and of a look."""
    words = pack(texts.WEB).replace("<", "\\u003c")
    return "\n".join([f"const WORDS = {words};", *(script(name) for name in SHARED)])


def add_stage(value: object) -> gr.HTML:
    """Add the stage, which its scripts fill from its value.

    The template holds no value: templates would read a visitor's text as markup, while the scripts
    only ever make text of it.
    """
    return gr.HTML(
        pack(value),
        html_template='<div class="stage"></div>',
        js_on_load="\n".join(map(script, STAGE)),
        apply_default_css=False,
        elem_id="stage",
    )


def add_panel(look: Callable[[object], dict[str, object]]) -> None:
    """Add the panel that explains a step. Its scripts call `look` for a step."""
    gr.HTML(
        html_template='<div class="stage how"></div>',
        js_on_load=script("how"),
        apply_default_css=False,
        elem_id="how-panel",
        server_functions=[look],
    )


def pack(value: object) -> str:
    """Return a component's value as the scripts read it.

    It is a string, since Gradio searches objects for differences.
    """
    return json.dumps(value, separators=(",", ":"))


def answer(elem_id: str, words: str = "") -> gr.HTML:
    """Return the element that shows the state of a request."""
    return gr.HTML(words, elem_id=elem_id, elem_classes="answer")


@dataclass(frozen=True)
class Widgets:
    """The components that a run changes."""

    status: gr.HTML
    seed: gr.Number
    draw: gr.Button
    stop: gr.Button
    surprise: gr.Button
    repeat: gr.Button
    twin: gr.Button
    stage: gr.HTML  # the lanes
    table: gr.HTML
    record: gr.Button
    sheet: gr.Button
    film: gr.Button
    file: gr.DownloadButton  # hidden; it hands out what one of these three has written
    runs: gr.HTML  # recorded ones and the visitor's
    go: gr.Textbox  # has words where a link is to be drawn
    # of Shown: the run in the lanes, for Stop and the other handlers; only runs write it
    shown: gr.State = field(default_factory=lambda: gr.State(Shown()))
    # of Shown: the run of the results, which Run again repeats and Draw does not
    result: gr.State = field(default_factory=lambda: gr.State(Shown()))
    # whether a run that was requested waits in the queue
    waits: gr.State = field(default_factory=lambda: gr.State(False))
    # of Recorded: the visitor's runs, the latest first
    visited: gr.State = field(default_factory=lambda: gr.State([]))

    def all(self) -> list[Any]:
        return list(vars(self).values())

    def of_a_frame(self) -> list[Any]:
        """Return the components that change during a run.

        They are few: Gradio rebuilds all outputs of an event for every answer, even unchanged ones.
        """
        return [self.status, self.stage, self.shown]

    def buttons(self) -> list[Any]:
        return [self.draw, self.stop, self.surprise, self.repeat, self.twin]

    def busy(self, running: bool) -> Updates:
        """Return updates that enable Stop alone while something runs, and all others otherwise."""
        return {
            button: gr.update(interactive=(button is self.stop) == running)
            for button in self.buttons()
        }


def status_html(
    text: str,
    kind: Literal["info", "busy", "error", "refused"] = "info",
    struck: Iterable[str] = (),
) -> str:
    """Return the line under the buttons; a screen reader reads its changes.

    `struck` are words that were left out of the prompt. While the kind is "refused", the stage
    names its pictures as those of the run before.
    """
    role = "alert" if kind in ("error", "refused") else "status"
    out = " ".join(f"<s>{escape(word)}</s>" for word in struck)
    left = f"{escape(texts.LEFT_OUT)} {out}. " if out else ""
    return f'<div class="status {kind}" role="{role}"><p>{left}{escape(text)}</p></div>'


def results_of(w: Widgets, service: Service, shown: Shown, source: str, own: bool) -> Updates:
    """Show a finished run: the stage, with lanes that did not finish, the table, files and link.

    `source` is one of `texts.SOURCES`. `own`: the page's address becomes the link.
    """
    record = shown.record
    assert record is not None
    model, info = record["model"]["id"], service.info
    preset = Settings(**info.preset) if model == info.id else preset_of(model)
    view = results_view(record, shown.pictures, source, shown.run, preset)
    view["rest"] = [lane_view(lane) for lane in shown.lanes.values() if lane.phase != "done"]
    view["files"] = shown.files
    view |= {"link": query(record, preset), "own": own}
    table_now = table_html(table(record))
    return {w.stage: pack(view), w.table: table_now, **with_results(w, shown)}


def with_results(w: Widgets, shown: Shown) -> Updates:
    """Let the other handlers have a run, and its files be asked for; without results none can."""
    there = gr.update(interactive=shown.record is not None)
    return {w.result: shown, w.record: there, w.sheet: there, w.film: there}


def record_file(folder: Path, shown: Shown) -> str:
    assert shown.record is not None
    return write_record(folder, shown.record)


def sheet_file(folder: Path, shown: Shown) -> str:
    assert shown.record is not None
    images = {method: picture_of(address) for method, address in shown.pictures.items()}
    return write_sheet(folder, shown.record, images)


def film_file(host: str, folder: Path, shown: Shown) -> str:
    record = shown.record
    assert record is not None
    images = {method: picture_of(picture) for method, picture in shown.pictures.items()}
    link = address(host, query(record, preset_of(record["model"]["id"])))
    return write_film(folder, record, images, link)


def hand_out_film(service: Service, w: Widgets, shown: Shown, host: str) -> Updates:
    """Write the film while nothing runs on the device: it takes a second of the processor."""
    make = partial(hand_out, w, partial(film_file, host), shown)
    if service.state != "ready":
        return make()
    busy = {w.file: None, w.status: status_html(texts.FILM_LATER, "busy")}
    return service.at_once(make) or busy


def hand_out(w: Widgets, write: Callable[[Path, Shown], str], shown: Shown) -> Updates:
    """Write a file of the results, and give it to the hidden button, which the page then presses.

    Nothing is written before somebody asks: it would take time from the timed runs of others.
    """
    if shown.record is None:
        return {w.file: None}
    with scratch() as folder:
        # Gradio's copy is made here, since the folder is gone before Gradio would make it itself.
        file = saved(lambda: keep_file(w.file, write(Path(folder), shown)))
    return {w.file: file, **({} if file else {w.status: status_html(texts.NO_ROOM, "error")})}


def scratch() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="lantern-demo-")


def shielded(run: Callable[..., Iterator[Updates]]) -> Callable[..., Iterator[Updates]]:
    """Make a handler that reports a refusal of `run`, or any fault, as a sentence in `told`."""

    @wraps(run)
    def handler(service: Service, w: Widgets, told: gr.HTML, *given: Any) -> Iterator[Updates]:
        yield {w.waits: False}
        try:
            if service.state == "loading":
                yield {told: status_html(texts.LOADING, "busy")}
            yield from run(service, w, told, *given)
        except (NotAllowed, Refused) as error:
            yield {told: status_html(texts.to_visitor(error), "refused")}
        except gr.Error:  # the Space's own refusals, such as a spent quota
            raise
        except Exception as error:
            logging.getLogger(__name__).exception("a run of the page failed")
            yield {told: status_html(texts.internal_error(error), "error")}

    return handler


def outcomes(
    service: Service, told: gr.HTML, request: Request
) -> Generator[Updates, None, dict[str, Result | MethodFailed]]:
    """Run a request without showing its progress. Return the outcome of each method."""
    found = {}
    with closing(service.frames(request)) as events:
        for event in events:
            if not isinstance(event, Frame):
                found[event.method] = event
            yield {told: gr.skip()}  # a run can be stopped only between two answers
    return found
