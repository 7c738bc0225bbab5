"""Where the model was unsure: how many pieces were likely at each position of a picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import exp, isqrt
from statistics import median
from typing import NamedTuple

import gradio as gr
from PIL import Image

from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.entropy import entropy_of
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.record import Entry, Record
from lantern_demo.ui import texts
from lantern_demo.ui.actions import shielded
from lantern_demo.ui.components import Updates, Widgets
from lantern_demo.ui.run_state import PageRun
from lantern_demo.ui.run_view import picture_of, webp_address
from lantern_demo.ui.service import Refused, Service, on_zero_gpu

DARK, LIGHT = (15, 23, 42), (255, 158, 27)
SEEN = 0.5  # of the picture
COVERED = 0.85  # of it where the value is highest


@shielded
def show_unsure(
    service: Service, w: Widgets, status: gr.HTML, page_run: PageRun
) -> Iterator[Updates]:
    """Show the map of the first lane of the shown run."""
    record = page_run.record
    if record is None:
        raise Refused(texts.NO_RUN)
    if (pipe := service.pipe_of(record["model"]["id"])) is None:
        raise Refused(texts.NO_MAP)
    if on_zero_gpu():
        raise Refused(texts.NO_MAP_HERE)
    entropy = service.in_turn(entropy_by_method, pipe, record)
    picture = picture_of(page_run.pictures[record["order"][0]])
    yield {status: "", w.unsure: unsure_html(record, picture, entropy)}


def entropy_by_method(pipe: Pipeline, record: Record) -> dict[str, list[float]]:
    """Return by method of a record the entropy at each position of its picture, in nats."""
    known: dict[tuple[int, ...], list[float]] = {}
    found = {}
    for name, entry in record["methods"].items():
        tokens = tuple(entry["token_ids"])
        if tokens not in known:
            entropy = entropy_of(pipe, record["prompt"], tokens, **record["settings"])
            known[tokens] = entropy.tolist()
        found[name] = known[tokens]
    return found


def unsure_html(
    record: Record, picture: Image.Image, entropy: Mapping[str, Sequence[float]]
) -> str:
    """Return the map of the first picture with its words: what it shows, and where guesses and
    look-alikes were kept.
    """
    first = record["order"][0]
    likely = [*map(exp, entropy[first])]
    facts = {"least": min(likely), "most": max(likely), "median": median(likely)}
    told = [texts.UNSURE_TOLD.format(method=METHODS[first].label, **facts)]
    if record["settings"]["temperature"] == 0:
        told.append(texts.UNSURE_GREEDY)
    others = [name for name in record["methods"] if not METHODS[name].alone]
    halves = [kept_by_half(record["methods"][name], entropy[name]) for name in others]
    if others:
        told.append(texts.UNSURE_HALVES.format(half=halves[0].positions))
    for name, one in zip(others, halves, strict=True):
        alike = texts.UNSURE_ALIKE.format(**one.alike) if record["methods"][name]["changed"] else ""
        label = METHODS[name].label
        told.append(f"{texts.UNSURE_KEPT.format(method=label, **one.kept)}{alike}.")
    if sum(one.kept["sure"] for one in halves) > sum(one.kept["unsure"] for one in halves):
        told.append(texts.UNSURE_MORE)
    address = webp_address(heat(picture, entropy[first]))
    words = "".join(f"<p>{escape(one)}</p>" for one in told)
    alt = escape(texts.UNSURE_MAP.format(method=METHODS[first].label))
    return f'<figure class="unsure"><img src="{address}" alt="{alt}"><div>{words}</div></figure>'


class Halves(NamedTuple):
    """What a method kept in the half of the drawn positions whose entropy was lowest, "sure", and
    in the other one, "unsure".
    """

    positions: int  # of a half
    kept: dict[str, int]  # guesses
    alike: dict[str, int]  # those of them that were look-alikes


def kept_by_half(entry: Entry, entropy: Sequence[float]) -> Halves:
    """Count a method's kept guesses and its look-alikes by half."""
    kinds = entry["events"]["kinds"]
    drawn = (at for at, kind in enumerate(kinds) if kind != "k")
    positions = sorted(drawn, key=entropy.__getitem__)
    half = len(positions) // 2
    halves = {"sure": positions[:half], "unsure": positions[-half:]}

    def count(letters: str) -> dict[str, int]:
        return {name: sum(kinds[at] in letters for at in some) for name, some in halves.items()}

    return Halves(half, count("er"), count("r"))


def heat(picture: Image.Image, values: Sequence[float]) -> Image.Image:
    """Return a picture, grey and darkened, with each cell the brighter, the higher its value is."""
    grid, most = isqrt(len(values)), max(values) or 1  # all 0: one piece was possible everywhere
    cells = Image.new("L", (grid, grid))
    cells.putdata([round(255 * COVERED * value / most) for value in values])
    size = picture.size
    dark = Image.blend(picture.convert("L").convert("RGB"), Image.new("RGB", size, DARK), 1 - SEEN)
    mask = cells.resize(size, Image.Resampling.NEAREST)
    return Image.composite(Image.new("RGB", size, LIGHT), dark, mask)
