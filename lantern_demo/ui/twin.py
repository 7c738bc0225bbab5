"""A relaxed method and its exact twin: the same tree and random numbers, without relaxation."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

import gradio as gr
from PIL import Image, ImageDraw

from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.record import kept_of, twin_settings
from lantern_demo.runs.result import MethodFailed
from lantern_demo.settings.knobs import bound_of
from lantern_demo.ui import texts
from lantern_demo.ui.actions import outcomes, shielded
from lantern_demo.ui.components import Updates, Widgets, status_html
from lantern_demo.ui.run_state import PageRun
from lantern_demo.ui.run_view import picture_of
from lantern_demo.ui.service import Refused, Service

ORANGE = "#f0a500"


@shielded
def compare_twins(
    service: Service,
    w: Widgets,
    status: gr.HTML,
    method: str | None,
    page_run: PageRun,
) -> Iterator[Updates]:
    """Draw the twin of a method of the shown run, and show both pictures."""
    yield {w.slider: gr.update(visible=False)}
    record = page_run.record
    if record is None or method not in record["methods"] or bound_of(METHODS[method]) is None:
        raise Refused(texts.NO_TWIN)
    settings, trees = twin_settings(record, method)
    model, keep = record["model"]["id"], kept_of(record["methods"][method])
    request = service.request(record["prompt"], [method], settings, trees, model, keep)
    yield {status: status_html(texts.TWIN_BUSY, "busy")}
    found = yield from outcomes(service, status, request)
    twin = found[method]
    if isinstance(twin, MethodFailed):
        yield {status: status_html(twin.message, "error")}
        return
    own, grid = picture_of(page_run.pictures[method]), isqrt(len(twin.tokens))
    entry = record["methods"][method]
    alike = [cell for cell, kind in enumerate(entry["events"]["kinds"]) if kind == "r"]
    drawn = entry["tokens"] - len(keep)
    facts = {"method": METHODS[method].label, "count": len(alike), "of": drawn}
    facts |= {"steps": entry["steps"], "twin": twin.steps}
    pairs = enumerate(zip(twin.tokens, entry["token_ids"], strict=True))
    other = next((at for at, (one, own) in pairs if one != own), None)
    facts["same"] = texts.TWIN_SAME if other is None else texts.TWIN_DIFFERS.format(piece=other)
    pictures = twin.image.resize(own.size), outlined(own, alike, grid)
    yield {
        status: status_html(texts.TWIN_TOLD.format(**facts)),
        w.slider: gr.update(value=pictures, visible=True),
    }


def outlined(image: Image.Image, cells: list[int], grid: int) -> Image.Image:
    """Return a copy of a picture with some cells outlined."""
    copy, size = image.copy(), image.width // grid
    draw = ImageDraw.Draw(copy)
    for cell in cells:
        x, y = cell % grid * size, cell // grid * size
        draw.rectangle((x, y, x + size - 1, y + size - 1), outline=ORANGE, width=max(1, size // 8))
    return copy
