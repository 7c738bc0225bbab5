"""The page's own components, and those that a run changes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, Literal

import gradio as gr

from lantern_demo.ui import texts
from lantern_demo.ui.run_state import PageRun

Updates = dict[Any, Any]  # component -> its new value, or gr.update(...)
SCRIPTS = Path(__file__).with_name("web")
SHARED = ("dom", "grid", "page")
STAGE = ("mosaic", "clock", "lanes", "stage")
PANEL = ("steps", "pieces", "tree", "panel")  # loaded when the panel is first seen
FIRST_STYLES = Path(__file__).with_name("first.css")
STYLES = [Path(__file__).with_name("style.css"), *sorted(SCRIPTS.glob("*.css"))]

WAITS, RUNS, OVER = "waits", "runs", ""  # in the queue, on the device, ended by itself

NO_TABLE = f'<p class="note">{escape(texts.NO_NUMBERS)}</p>'


def script(name: str) -> str:
    return sent(SCRIPTS / f"{name}.js")


def sent(path: Path) -> str:
    """Return a script or styles as every visit downloads them: no comments, no indentation."""
    left_out = r"^\s*(?://[^\n]*|/\*.*?\*/)|^\s+|(?<=[;,{}]) // [^\n]*"
    return re.sub(left_out, "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def shared_scripts() -> str:
    """Return the words, and the scripts that run before all others."""
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
    seeds: gr.Button
    twin: gr.Button
    map: gr.Button
    stage: gr.HTML  # the lanes
    table: gr.HTML
    unsure: gr.HTML  # where the model was unsure, once that was asked for
    record: gr.Button
    sheet: gr.Button
    film: gr.Button
    file: gr.DownloadButton  # hidden; it hands out what one of these three has written
    runs: gr.HTML  # recorded ones and the visitor's
    repeat_status: gr.HTML
    twin_status: gr.HTML
    map_status: gr.HTML
    slider: gr.ImageSlider  # a method and its twin
    go: gr.Textbox  # has words where a link is to be drawn
    # of PageRun: the run in the lanes, for Stop and the other handlers; only runs write it
    page_run: gr.State = field(default_factory=lambda: gr.State(PageRun()))
    # of PageRun: the run of the results, which Repeat draws again and Draw does not
    result: gr.State = field(default_factory=lambda: gr.State(PageRun()))
    # what the next run keeps of a shown picture, as `Service.request` takes it
    keep: gr.State = field(default_factory=lambda: gr.State({}))
    # how far a run is that this page asked for: WAITS, RUNS, or OVER
    asked: gr.State = field(default_factory=lambda: gr.State(OVER))
    # of Recorded: the visitor's runs, the latest first
    visited: gr.State = field(default_factory=lambda: gr.State([]))

    def all(self) -> list[Any]:
        return list(vars(self).values())

    def of_a_frame(self) -> list[Any]:
        """Return the components that change during a run.

        They are few: Gradio rebuilds all outputs of an event for every answer, even unchanged ones.
        """
        return [self.status, self.stage, self.page_run]

    def buttons(self) -> list[Any]:
        return [self.draw, self.stop, self.surprise, self.repeat, self.seeds, self.twin, self.map]

    def busy(self, running: bool) -> Updates:
        """Return updates that disable all buttons while something runs, and otherwise only Stop."""
        return {
            button: gr.update(interactive=not running and button is not self.stop)
            for button in self.buttons()
        }

    def no_words(self) -> Updates:
        """Return updates after which nothing is told of a run that is no longer shown."""
        told = self.repeat_status, self.twin_status, self.map_status, self.unsure
        return {**dict.fromkeys(told, ""), self.slider: gr.update(visible=False)}


def status_html(
    text: str,
    state: Literal["info", "busy", "waits", "error", "refused"] = "info",
    struck: Iterable[str] = (),
) -> str:
    """Return the line under the buttons; a screen reader reads its changes.

    `struck` are words that were left out of the prompt. While the state is "waits" or "refused",
    the stage names its pictures as those of the run before.
    """
    role = "alert" if state in ("error", "refused") else "status"
    out = ", ".join(f"<s>{escape(word)}</s>" for word in struck)
    left = f"{escape(texts.LEFT_OUT)} {out}. " if out else ""
    old = " old" if state in ("waits", "refused") else ""
    return f'<div class="status {state}{old}" role="{role}"><p>{left}{escape(text)}</p></div>'
