"""Where the model was unsure: how many pieces were likely at each place of a finished picture."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from html import escape
from math import exp, isqrt
from statistics import mean, median

import gradio as gr
from PIL import Image

from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.entropy import entropy_of
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.record import Entry, Record
from lantern_demo.ui import texts
from lantern_demo.ui.components import Updates, Widgets, status_html
from lantern_demo.ui.run_state import PageRun
from lantern_demo.ui.run_view import picture_of, webp_address
from lantern_demo.ui.service import Service, on_zero_gpu

DARK, LIGHT = (15, 23, 42), (255, 158, 27)
SEEN = 0.5  # of the picture
COVERED = 0.85  # of it where the value is highest


def show_unsure(service: Service, w: Widgets, status: gr.HTML, page_run: PageRun) -> Updates:
    """Show the map of the first lane of a run, while nothing runs on the device."""
    record = page_run.record
    pipe = record and service.pipe_of(record["model"]["id"])
    if record is None or pipe is None or on_zero_gpu():
        words = texts.NO_MAP_HERE if on_zero_gpu() else texts.NO_MAP
        return {status: status_html(words, "refused")}
    try:
        entropy = service.at_once(first_entropy, pipe, record)
    except Exception as error:  # such as too little memory
        logging.getLogger(__name__).exception("the map failed")
        return {status: status_html(texts.internal_error(error), "error")}
    if entropy is None:
        return {status: status_html(texts.MAP_LATER, "busy")}
    picture = picture_of(page_run.pictures[record["order"][0]])
    return {status: "", w.unsure: unsure_html(record, picture, entropy)}


def first_entropy(pipe: Pipeline, record: Record) -> list[float]:
    """Return the entropy at each place of a record's first picture, in nats."""
    tokens = record["methods"][record["order"][0]]["token_ids"]
    found: list[float] = entropy_of(pipe, record["prompt"], tokens, **record["settings"]).tolist()
    return found


def unsure_html(record: Record, picture: Image.Image, entropy: Sequence[float]) -> str:
    """Return the map with its words: what it shows, and where exact methods kept guesses."""
    likely = [*map(exp, entropy)]
    first = record["order"][0]
    label = METHODS[first].label
    facts = {"least": min(likely), "most": max(likely), "median": median(likely)}
    told = [texts.UNSURE_TOLD.format(method=label, **facts)]
    drawn = record["methods"][first]["token_ids"]
    for name, entry in record["methods"].items():
        if entry["token_ids"] == drawn and not METHODS[name].alone:
            sure, unsure = (round(100 * share) for share in kept_by_half(entry, entropy))
            told.append(
                texts.UNSURE_KEPT.format(method=METHODS[name].label, sure=sure, unsure=unsure)
            )
    address = webp_address(heat(picture, entropy))
    words = "".join(f"<p>{escape(one)}</p>" for one in told)
    alt = escape(texts.UNSURE_MAP.format(method=label))
    return f'<figure class="unsure"><img src="{address}" alt="{alt}"><div>{words}</div></figure>'


def kept_by_half(entry: Entry, entropy: Sequence[float]) -> tuple[float, float]:
    """Return the shares of the pieces that were kept guesses: in the half of the places where
    the entropy was lowest, and in the other half.
    """
    kinds = entry["events"]["kinds"]
    drawn = (at for at, kind in enumerate(kinds) if kind != "k")
    places = sorted(drawn, key=entropy.__getitem__)
    half = len(places) // 2
    sure, unsure = (
        mean(kinds[at] == "e" for at in some) for some in (places[:half], places[half:])
    )
    return sure, unsure


def heat(picture: Image.Image, values: Sequence[float]) -> Image.Image:
    """Return a picture, grey and darkened, with each cell the brighter, the higher its value is."""
    grid, most = isqrt(len(values)), max(values)
    cells = Image.new("L", (grid, grid))
    cells.putdata([round(255 * COVERED * value / most) for value in values])
    size = picture.size
    dark = Image.blend(picture.convert("L").convert("RGB"), Image.new("RGB", size, DARK), 1 - SEEN)
    mask = cells.resize(size, Image.Resampling.NEAREST)
    return Image.composite(Image.new("RGB", size, LIGHT), dark, mask)
