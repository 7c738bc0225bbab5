"""Measure how often a picture has the shape of the thing that its prompt names:

    python examples/make_bundled_model/emoji.py --out runs/sprites.npz
    python examples/quality/shape.py --out runs/shape.json

Each method of --methods draws "a THING" for every thing on offer, as the page completes it, with
the seeds 1 to --pictures. The report has the share of pictures with the shape, by thing and method,
and the seeds with which all methods' pictures have it.

A picture is compared with true drawings of the thing at the same place and time, which the image
tokenizer has encoded and decoded. The difference counts inside the cover of the thing, for the
likest drawing and small shifts. A picture has the shape if it differs at most by LIMIT. No network
judges: a classifier calls lumps cats.

`--table` asks for every thing that the model has learnt, at every place and time, by vanilla
decoding. Its rows are the source of SURE in `lantern_demo/scenes.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from examples.make_bundled_model import emoji
from examples.make_bundled_model.scenes import (
    HELD_OUT,
    Renderer,
    add_sprites,
    sample,
)
from examples.quality.scenes import drawn, true_tokens
from examples.train_drafter.own import encode_prompts, sample_batch
from lantern_demo import load
from lantern_demo.bench.report import at_least, json_file, machine_of, now, parser_of, write
from lantern_demo.bench.report import table as report_table
from lantern_demo.disk_cache import put
from lantern_demo.prompt_words import completed
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.scenes import (
    COLOURS,
    NOUNS,
    PLACES,
    SHAPES,
    SHOWN,
    SURE,
    THING_PLACES,
    TIMES,
    WORDINGS,
    worded,
)

METHODS = ("vanilla", "lantern", "lantern++")  # the others' pictures are vanilla's
DRAWINGS = 16  # true ones of a thing at a place and time
SIDE = 64  # pixels; pictures are compared at this size
COVERED = 0.3  # share of a pixel from which it counts as the thing's
SHIFTS = (-1, 0, 1)  # pixels
# Of other true drawings of a thing 99 % differ at most by .024 to .051, the thing that varies least
# and most. This is some 1.4 times the latter, and where an eye stops to recognise the thing.
LIMIT = 0.065

Place = tuple[int, int]  # classes of place and time


class Shapes:
    """Measures whether pictures have a thing's shape."""

    def __init__(self, pipe: Pipeline, renderer: Renderer) -> None:
        self.pipe, self.renderer = pipe, renderer
        self._true: dict[tuple[int, Place], tuple[Tensor, Tensor]] = {}

    @torch.inference_mode()
    def drawings(self, thing: int, at: Place, seed: int) -> tuple[Tensor, Tensor]:
        """Return true drawings [D, 3, SIDE, SIDE] after the tokenizer, and their covers [D, ...].

        Every other one has a moon.
        """
        one = torch.ones(DRAWINGS, dtype=torch.long)
        classes = {"thing": thing, "count": 0, "colour": len(COLOURS), "shape": len(SHAPES)}
        classes |= {"place": at[0], "time": at[1]}
        wanted = {name: one * kind for name, kind in classes.items()}
        wanted["moon"] = torch.arange(DRAWINGS) % 2
        made = self.renderer(sample(DRAWINGS, HELD_OUT + seed, wanted)).cpu()
        networks = self.pipe.networks
        pictures = drawn(networks, true_tokens(networks, made[:, :3]))
        cover = F.max_pool2d(_small(made[:, 3:]), 3, 1, 1)  # a pixel wider than the thing
        return _small(pictures), (cover > COVERED).float()

    def differences(self, pictures: Tensor, thing: int, at: Place) -> Tensor:
        """Return the difference [B] of pictures [B, 3, H, W] in [0, 1] from the likest drawing."""
        if (thing, at) not in self._true:
            self._true[thing, at] = self.drawings(thing, at, 1)
        return _least(_small(pictures), *self._true[thing, at])


def _small(pictures: Tensor) -> Tensor:
    return F.interpolate(pictures, size=SIDE, mode="area")


def _least(pictures: Tensor, drawings: Tensor, covers: Tensor) -> Tensor:
    """Return for each picture [B, 3, S, S] the least mean difference inside a drawing's cover."""
    least = torch.full((len(pictures),), torch.inf)
    for dx in SHIFTS:
        for dy in SHIFTS:
            moved = torch.roll(pictures, (dy, dx), (2, 3))
            apart = (moved[:, None] - drawings).abs().mean(2, keepdim=True)
            inside = (apart * covers).sum((2, 3, 4)) / covers.sum((1, 2, 3))
            least = torch.minimum(least, inside.amin(1))
    return least


def name_of(thing: int) -> str:
    return NOUNS[thing][0][0]


def table(pipe: Pipeline, shapes: Shapes, count: int, seed: int) -> dict[str, Any]:
    """Return the share of `count` pictures with the shape, by thing, place and time."""
    pipe.networks.target.feature_layers = ()  # they are the drafter's
    found: dict[str, Any] = {}
    places = [(place, time) for place in range(len(PLACES)) for time in range(len(TIMES))]
    for thing in range(1, len(NOUNS)):
        prompts = [
            worded(
                {
                    "count": WORDINGS["count"][0][0],
                    "thing": name_of(thing),
                    "place": THING_PLACES[place][0],
                    "time": WORDINGS["time"][time][0],
                }
            )
            for place, time in places
            for _ in range(count)
        ]
        condition = encode_prompts(pipe.networks.text, prompts, pipe.device)
        sampling = pipe.defaults.sampling()
        tokens = sample_batch(pipe.networks.target, *condition, sampling, seed + thing)
        pictures = drawn(pipe.networks, tokens).split(count)
        shares = {
            f"{PLACES[at[0]]} {TIMES[at[1]]}": _share(shapes.differences(some, thing, at))
            for at, some in zip(places, pictures, strict=True)
        }
        found[name_of(thing)] = dict(sorted(shares.items(), key=lambda one: -one[1]))
        print(name_of(thing), found[name_of(thing)], flush=True)
    return found


def offered(pipe: Pipeline, shapes: Shapes, methods: list[str], count: int) -> dict[str, Any]:
    """Draw every thing on offer by the methods, with the seeds 1 to `count`.

    Return by thing its prompt, the share with the shape by method, and the seeds with which all
    methods' pictures have it.
    """
    rows = {}
    for thing in filter(None, SHOWN):
        name, apart = name_of(thing), dict[str, Tensor]()
        for method in methods:
            tokens = [
                pipe.generate(f"a {name}", method, seed=seed).tokens for seed in range(1, count + 1)
            ]
            pictures = torch.cat([drawn(pipe.networks, torch.tensor([one])) for one in tokens])
            apart[method] = shapes.differences(pictures, thing, SURE[name].at[0])
        have = torch.stack([d <= LIMIT for d in apart.values()]).all(0).nonzero()
        rows[name] = {
            "prompt": completed(pipe.info, f"a {name}").prompt,
            "shape": {method: _share(d) for method, d in apart.items()},
            "seeds": (1 + have[:, 0]).tolist(),
        }
        print(name, rows[name]["shape"], flush=True)
    return rows


def _share(apart: Tensor) -> float:
    return round(float((apart <= LIMIT).float().mean()), 3)


def markdown(report: dict[str, Any]) -> str:
    """Return the table of a report: shares with the shape, by thing and method."""
    methods = list(report["methods"])
    lines = [
        [f"{row['prompt']}", *(f"{100 * row['shape'][method]:.0f} %" for method in methods)]
        for row in report["things"].values()
    ]
    for which in ("mean_share", "least_share"):
        shares = [f"{100 * report['methods'][method][which]:.0f} %" for method in methods]
        lines.append([which, *shares])
    return report_table(["drawn", *methods], lines)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=json_file, required=True, help="the report, a .json file")
    parser.add_argument("--table", action="store_true", help="of all things, places and times")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--pictures", type=at_least(1), default=20, help="of each (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of a table (default: 1)")
    add_sprites(parser)
    args = parser.parse_args()
    pipe = load("lantern-scenes")
    pipe.threads.use()
    shapes = Shapes(pipe, Renderer(emoji.read(args.sprites), "cpu"))
    told = {"created": now(), "machine": machine_of(pipe.device), "pictures": args.pictures}
    if args.table:
        put(args.out, json.dumps(told | {"table": table(pipe, shapes, args.pictures, args.seed)}))
        return
    rows = offered(pipe, shapes, args.methods, args.pictures)
    shares = [[row["shape"][method] for row in rows.values()] for method in args.methods]
    found = {
        method: {"mean_share": round(sum(of) / len(of), 3), "least_share": min(of)}
        for method, of in zip(args.methods, shares, strict=True)
    }
    report = {**told, "limit": LIMIT, "methods": found, "things": rows}
    text = markdown(report)
    write(args.out, report, text)
    print(text)


if __name__ == "__main__":
    main()
