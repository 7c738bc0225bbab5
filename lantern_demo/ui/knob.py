"""One setting at five values, with the gain and the cost of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import gradio as gr

from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.race import Request
from lantern_demo.runs.stats import Generation, MethodFailed
from lantern_demo.settings.knobs import KNOBS, seed_of, short_name
from lantern_demo.ui import texts
from lantern_demo.ui.ask import Sentence
from lantern_demo.ui.compare import prompt_and_settings
from lantern_demo.ui.components import Updates, Widgets, answer, asked, outcomes, status_html
from lantern_demo.ui.run_state import Shown
from lantern_demo.ui.service import Service

# The settings that can be explored, those that bound a relaxation first.
EXPLORED = [name for name, knob in KNOBS.items() if knob.explored]
EXPLORED.sort(key=lambda name: not KNOBS[name].bounds)
HEAD = ("Value", "Steps", "Seconds", "Speedup", "Look-alikes")


@dataclass(frozen=True)
class Explorer:
    """The components of the explorer."""

    knob: gr.Dropdown
    start: gr.Button
    told: gr.HTML
    table: gr.Dataframe
    pictures: gr.Gallery


def method_of_knob(name: str) -> str:
    """Return the first method that reads a setting."""
    return next(method.id for method in METHODS.values() if KNOBS[name].reads(method))


def add_explorer() -> Explorer:
    gr.HTML(f'<p class="note">{escape(texts.EXPLORE_NOTE)}</p>')
    with gr.Row():
        choices = [
            (f"{METHODS[method_of_knob(name)].label}: {short_name(name)}", name)
            for name in EXPLORED
        ]
        knob = gr.Dropdown(
            choices, value=EXPLORED[0], label=texts.EXPLORE_LABEL, elem_id="explore-knob"
        )
        start = gr.Button(texts.EXPLORE, min_width=140, elem_id="explore")
    told = answer("explore-told")
    table = gr.Dataframe(headers=list(HEAD), interactive=False, elem_id="explored")
    # while it is empty, Gradio's gallery has an ARIA attribute that is not allowed there
    pictures = gr.Gallery(
        columns=6, height=220, show_label=False, visible=False, elem_id="explored-pictures"
    )
    return Explorer(knob, start, told, table, pictures)


def explore(
    service: Service,
    w: Widgets,
    e: Explorer,
    sentence: Sentence,
    shown: Shown,
    name: Any,
    model: Any,
    seed: Any,
    *fields: Any,
) -> Iterator[Updates]:
    """Draw with vanilla once, then with the chosen setting at each of its values.

    `fields` are those of `prompt_and_settings`.
    """
    yield {w.waits: False}
    prompt, values = prompt_and_settings(sentence, fields)

    def make() -> list[Request]:
        if name not in EXPLORED:
            raise ValueError(f"the setting must be one of {', '.join(EXPLORED)}, got {name!r}")
        method, given = method_of_knob(name), values | {"seed": seed_of(seed)}
        # At a bound that relaxes nothing the method would share vanilla's noise.
        alike = {method: {"noise": "independent"}}

        def run(value: float, *methods: str) -> Request:
            return service.request(prompt, model, list(methods), given | {name: value}, alike)

        first, *others = KNOBS[name].explored
        return [run(first, "vanilla", method), *(run(value, method) for value in others)]

    requests = yield from asked(service, e.told, model, make)
    if requests is None:
        return
    yield {
        e.told: status_html(texts.exploring(0, len(requests)), "busy"),
        w.shown: replace(shown, exploring=True),
    }
    what = f"{METHODS[method_of_knob(name)].label}'s {short_name(name)}"
    told = status_html(texts.EXPLORED.format(what=what, seed=requests[0].seed))
    try:
        yield from _points(service, e, name, requests)
    except RuntimeError as error:
        told = status_html(str(error), "error")
    yield {e.told: told, w.shown: replace(shown, exploring=False)}


def _points(service: Service, e: Explorer, name: str, requests: list[Request]) -> Iterator[Updates]:
    found: list[tuple[str, Generation]] = []  # vanilla first
    for value, request in zip(KNOBS[name].explored, requests, strict=True):
        drawn = yield from outcomes(service, e.told, request)
        for one in drawn.values():
            if isinstance(one, MethodFailed):
                raise RuntimeError(one.message)
            if one.method == "vanilla":
                found.insert(0, (METHODS["vanilla"].label, one))
            else:
                found.append((f"{KNOBS[name].symbol} = {value:g}", one))
        alone = found[0][1].stats.decode_seconds
        told = status_html(texts.exploring(len(found) - 1, len(requests)), "busy")
        shots = gr.update(value=[(one.image, label) for label, one in found], visible=True)
        yield {e.told: told, e.table: [_row(*one, alone) for one in found], e.pictures: shots}


def _row(label: str, found: Generation, alone: float) -> list[Any]:
    """Return a row of the table, in the order of HEAD. `alone` are vanilla's seconds."""
    stats = found.stats
    seconds = stats.decode_seconds
    changed = round(stats.changed * stats.tokens)
    return [label, stats.steps, f"{seconds:.2f}", texts.times(alone / seconds), changed]


def rest(w: Widgets, e: Explorer, shown: Shown) -> Updates:
    """Settle an exploration, however it ended."""
    if not shown.exploring:
        return w.busy(False)
    stopped = replace(shown, exploring=False)
    return {e.told: status_html(texts.STOPPED_SWEEP), w.shown: stopped, **w.busy(False)}
