"""Change lambda, delta or k: one setting at five values, with what each gains and changes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import gradio as gr

from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.race import Request
from lantern_demo.runs.stats import Generation, MethodFailed
from lantern_demo.settings.knobs import KNOBS, ON_THE_FORM, seed_of, short_name
from lantern_demo.ui import texts
from lantern_demo.ui.components import (
    Updates,
    Widgets,
    answer,
    asked,
    component,
    pack,
    setting_value,
    status_html,
)
from lantern_demo.ui.run_state import Shown
from lantern_demo.ui.run_view import COLOURS, picture_address
from lantern_demo.ui.service import Frame, Service


@dataclass(frozen=True)
class Sweep:
    """A setting to explore, and its method."""

    setting: str
    method: str

    @property
    def values(self) -> tuple[float, ...]:
        return KNOBS[self.setting].explored

    @property
    def title(self) -> str:
        return texts.EXPLORE_TITLE.format(
            setting=short_name(self.setting), method=METHODS[self.method].label
        )


# By the setting's short name, those that bound a relaxation first.
SWEEPS = {
    short_name(name): Sweep(
        name, next(method.id for method in METHODS.values() if knob.reads(method))
    )
    for name, knob in sorted(KNOBS.items(), key=lambda item: not item[1].bounds)
    if knob.explored
}


@dataclass(frozen=True)
class Explorer:
    """The components of the explorer."""

    knob: gr.Dropdown
    start: gr.Button
    told: gr.HTML  # its progress, at its button
    plot: gr.HTML


def explorer() -> Explorer:
    with gr.Column(elem_id="explorer"):
        with gr.Row(elem_id="explore-row"):
            choices = [
                (f"{METHODS[sweep.method].label}'s {name}", name) for name, sweep in SWEEPS.items()
            ]
            knob = gr.Dropdown(
                choices, value="lambda", label=texts.EXPLORE_LABEL, elem_id="explore-knob", scale=4
            )
            start = gr.Button(texts.EXPLORE, min_width=140, elem_id="explore", scale=1)
        told = answer("explore-told")
        gr.HTML(f'<p class="note">{escape(texts.EXPLORE_NOTE)}</p>')
        plot = component("sweep", ["sweep"], elem_id="sweep")
    return Explorer(knob, start, told, plot)


def explore(
    service: Service,
    w: Widgets,
    e: Explorer,
    shown: Shown,
    name: Any,
    prompt: Any,
    model: Any,
    seed: Any,
    *knobs: Any,
) -> Iterator[Updates]:
    """Draw with vanilla once, then with the chosen setting at each of its values.

    `knobs` are in the order of `knobs.ON_THE_FORM`.
    """

    yield {w.waits: False}

    def make() -> tuple[Sweep, list[Request]]:
        if name not in SWEEPS:
            raise ValueError(f"the knob must be one of {', '.join(SWEEPS)}, got {name!r}")
        sweep, values = (
            SWEEPS[name],
            {
                knob: setting_value(knob, value)
                for knob, value in zip(ON_THE_FORM, knobs, strict=True)
            },
        )
        values["seed"] = seed_of(seed)
        methods = [["vanilla", sweep.method]] + [[sweep.method]] * (len(sweep.values) - 1)
        return sweep, [
            service.request(prompt, model, drawn, values | {sweep.setting: value})
            for drawn, value in zip(methods, sweep.values, strict=True)
        ]

    made = yield from asked(service, e.told, model, make)
    if made is None:
        return
    sweep, requests = made
    yield {
        e.told: status_html(texts.exploring(0, len(requests)), "busy"),
        e.plot: "",
        w.shown: replace(shown, exploring=True),
    }
    try:
        yield from _points(service, e, sweep, requests)
        told = status_html(texts.EXPLORED.format(seed=requests[0].seed))
    except gr.Error:
        raise
    except Exception as error:
        logging.getLogger(__name__).exception("a sweep failed")
        told = status_html(texts.internal_error(error), "error")
    yield {e.told: told, w.shown: replace(shown, exploring=False)}


def rest(w: Widgets, e: Explorer, shown: Shown) -> Updates:
    """Settle a sweep, however it ended."""
    if not shown.exploring:
        return w.busy(False)
    return {
        e.told: status_html(texts.STOPPED_SWEEP),
        w.shown: replace(shown, exploring=False),
        **w.busy(False),
    }


def _points(
    service: Service, e: Explorer, sweep: Sweep, requests: list[Request]
) -> Iterator[Updates]:
    value: dict[str, Any] = {
        "points": [],
        "picture": None,
        "colour": COLOURS[sweep.method],
        "title": sweep.title,
    }
    baseline = 0.0
    for number, (request, setting) in enumerate(zip(requests, sweep.values, strict=True), 1):
        done: dict[str, Generation] = {}
        with closing(service.frames(request, False)) as events:
            for event in events:
                if isinstance(event, MethodFailed):
                    raise RuntimeError(event.message)
                if isinstance(event, Frame):
                    # a run can be stopped only between two answers
                    yield {e.told: gr.skip()}
                else:
                    done[event.method] = event
        if "vanilla" in done:
            baseline, value["picture"] = (
                done["vanilla"].stats.decode_seconds,
                picture_address(done["vanilla"].image),
            )
        found = done[sweep.method]
        value["points"].append(
            _point(sweep, setting, found) | {"speedup": baseline / found.stats.decode_seconds}
        )
        yield {
            e.plot: pack(value),
            e.told: status_html(texts.exploring(number, len(requests)), "busy"),
        }


def _point(sweep: Sweep, setting: float, event: Generation) -> dict[str, Any]:
    return {
        "label": f"{KNOBS[sweep.setting].symbol} = {setting:g}",
        "picture": picture_address(event.image),
        "changed": round(event.stats.changed * event.stats.tokens),
        "of": event.stats.tokens,
    }


def recorded_sweep(pipe: Pipeline, prompt: str, seed: int, name: str) -> dict[str, Any]:
    """Draw a sweep of an example, as its file keeps it: passes, changed tokens and token ids of
    every value.
    """
    sweep, points = SWEEPS[name], []
    for value in sweep.values:
        done = pipe.generate(prompt, sweep.method, seed=seed, **{sweep.setting: value})
        points.append(
            _point(sweep, value, done)
            | {"value": value, "steps": done.stats.steps, "token_ids": done.tokens}
        )
    return {
        "knob": name,
        "setting": sweep.setting,
        "title": sweep.title,
        "colour": COLOURS[sweep.method],
        "points": points,
    }
