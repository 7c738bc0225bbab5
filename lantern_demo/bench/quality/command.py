"""Speed against quality: `python -m lantern_demo.bench quality --out runs/quality`.

Every method at the model's preset settings, and the relaxed ones with one knob moved at a time, draw the same prompts with the same
seeds. What they gain is measured in rounds as the benchmark of speed does; what their pictures lose is measured against pictures that
vanilla draws with other seeds. The folder --out then holds front.json, front.md, front.png, and the settings that are recommended.

The same command goes on where it was interrupted. With --processes N the drawing is shared by N processes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from lantern_demo.bench.journal import Journal, digest_of
from lantern_demo.bench.quality import drawing, published
from lantern_demo.bench.quality.front import caption_front, gains, scene_front
from lantern_demo.bench.quality.points import Point, points_of
from lantern_demo.bench.quality.recommend import ENOUGH
from lantern_demo.bench.quality.report import Report, markdown, recommendations
from lantern_demo.bench.quality.scenes import load_classifier_of, truth
from lantern_demo.bench.quality.statistics import RESAMPLES
from lantern_demo.bench.report import machine_of, now, write
from lantern_demo.bench.speed import Contestant, jobs_of, measure, play
from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.pipeline import Pipeline, load
from lantern_demo.settings.recommended import FILE

# The networks that tokens depend on, and those that what is seen of them does: with the latter exchanged nothing is drawn anew.
DRAWN = ("text", "target", "drafter", "tokenizer")
SEEN = ("target", "tokenizer", "picture", "classifier")
FEWEST = 8  # pictures, half of which still have three nearest ones
PACKAGE = Path(__file__).resolve().parent.parent.parent


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m lantern_demo.bench quality", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--model", default="lantern-scenes", help="registry id or a model folder (default: lantern-scenes)")
    p.add_argument("--out", type=Path, required=True, help="a folder for everything that is drawn, measured and plotted")
    all_methods = list(METHODS)
    p.add_argument(
        "--methods", nargs="+", choices=all_methods, default=all_methods, help="only these of the model's, and vanilla"
    )
    p.add_argument("--pictures", type=int, default=1000, help="of every method at the preset settings (default: 1000)")
    p.add_argument("--sweep-pictures", type=int, default=200, help="of every point with a knob moved (default: 200)")
    p.add_argument(
        "--candidates", nargs="+", default=[], metavar="POINT",
        help=f'points with a knob moved, such as "lantern++ lambda 2", of which {ENOUGH} pictures are drawn, so that they may be recommended',
    )  # fmt: skip
    p.add_argument("--seeds", type=int, default=2, help="pictures of each caption (default: 2)")
    p.add_argument("--rounds", type=int, default=8, help="of the measuring of speed (default: 8)")
    p.add_argument("--resamples", type=int, default=RESAMPLES, help=f"behind every interval (default: {RESAMPLES})")
    p.add_argument("--processes", type=int, default=1, help="that share the drawing, and the processors or GPUs (default: 1)")
    p.add_argument("--tree", default="fit", help="draft tree of all points (default: fit, the machine's own)")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    p.add_argument("--dtype", default="auto", help="of target and drafter (default: auto)")
    own = p.add_argument_group(
        "captions of your own",
        "for models that draw something else than lantern scenes; needs one more package, see published.py",
    )
    own.add_argument("--captions", type=Path, help="a COCO captions file (.json) or a text file, one a line")
    own.add_argument("--real", type=Path, help="a folder of real pictures, to measure distances to")
    own.add_argument("--clip", action="store_true", help="the CLIP score too")
    p.add_argument("--fresh", action="store_true", help="throw away what an earlier command left in --out")
    return p


def check(args: argparse.Namespace) -> None:
    """Raises ValueError for a command line that cannot be run."""
    for name, least in (
        ("pictures", FEWEST),
        ("sweep_pictures", 0),
        ("seeds", 1),
        ("rounds", 1),
        ("resamples", 2),
        ("processes", 1),
    ):
        if getattr(args, name) < least:
            raise ValueError(f"--{name.replace('_', '-')} must be at least {least}, got {getattr(args, name)}")
    if (args.captions is None) != (args.real is None):
        raise ValueError("--captions and --real go together: pictures are drawn from the one and held against the other")
    if 0 < args.sweep_pictures < FEWEST:
        raise ValueError(f"--sweep-pictures must be 0 or at least {FEWEST}, got {args.sweep_pictures}")
    for name in ("pictures", "sweep_pictures"):
        if getattr(args, name) % args.seeds:
            raise ValueError(f"--{name.replace('_', '-')} must be a multiple of --seeds, {args.seeds}, got {getattr(args, name)}")


def counts_of(points: list[Point], args: argparse.Namespace) -> drawing.Counts:
    """How many pictures of each point are drawn. Raises ValueError for a name in --candidates that is none of the sweep's."""
    swept = [p.name for p in points if p.group == "sweep"]
    for name in args.candidates:
        if name not in swept:
            raise ValueError(f"--candidates must name points among {', '.join(swept)}, got {name!r}")
    of_group = {"main": args.pictures, "again": args.pictures, "sweep": args.sweep_pictures, "tree": 0}
    closer = max(args.sweep_pictures, min(args.pictures, ENOUGH))
    return {p.name: closer if p.name in args.candidates else of_group[p.group] for p in points}


def identity_of(pipe: Pipeline, args: argparse.Namespace, points: list[Point]) -> dict[str, Any]:
    """What is drawn, by which code and by the weights that its tokens depend on."""
    captions = args.captions and str(args.captions)
    return {
        "command": {"seeds": args.seeds, "captions": captions, "points": {p.name: p.settings for p in points}},
        "model": {"id": pipe.info.id, "files": weights_digest(pipe, *DRAWN)},
        "settings": pipe.defaults.as_dict(),
        "dtype": pipe.dtype,
        "versions": {"torch": torch.__version__, "decoding": digest_of(PACKAGE / "decoding", "*.py")},
    }


def weights_digest(pipe: Pipeline, *parts: str) -> str | None:
    """A digest of some networks of a model folder."""
    folder = pipe.info.folder
    return None if folder is None else digest_of(folder, *(f"{part}/*.safetensors" for part in parts))


def run(args: argparse.Namespace) -> Report:
    """Draw, measure and report -> the report. Raises ValueError for what cannot be run or resumed, RuntimeError when a method fails."""
    check(args)
    pipe = load(args.model, args.device, args.dtype)
    number = max(args.pictures, args.sweep_pictures) // args.seeds
    scenes = None if args.captions else truth(number, args.seeds)
    classifier = load_classifier_of(pipe.info.folder, pipe.device) if scenes else None
    captions = scenes.captions if scenes else published.read_captions(args.captions, number)
    prompts = [caption for caption in captions for _ in range(args.seeds)]
    points = points_of(pipe, args.methods, args.tree, captions[0])
    counts, identity = counts_of(points, args), identity_of(pipe, args, points)
    journal = Journal(args.out / "drawn.jsonl", identity, args.fresh)
    jobs = drawing.jobs_of(points, counts, prompts, drawing.batches(pipe))
    drawing.draw(pipe, (args.model, args.device, args.dtype), jobs, journal, args.processes)
    drawn = drawing.finished(journal.of("picture"), points, counts)
    pipe.threads.use()  # as its runs do
    identity |= {"machine": machine_of(pipe.device), "products": pipe.products}
    rounds = _speed(pipe, args, points, captions, identity)
    rows = gains(pipe, points, drawn, rounds)
    if scenes is not None and classifier is not None:
        seen = args.out / "seen" / str(weights_digest(pipe, *SEEN))
        front = scene_front(pipe, classifier, scenes, seen, args.resamples, drawn, rows)
    else:
        front = caption_front(pipe, prompts, args.real, args.clip, drawn, rows)
    asked = {"pictures": args.pictures, "sweep_pictures": args.sweep_pictures, "seeds": args.seeds, "rounds": len(rounds)}
    return {"created": now(), **identity, **asked, **front}


def _speed(pipe: Pipeline, args: argparse.Namespace, points: list[Point], captions: list[str], identity: Report) -> list[Report]:
    """The rounds of all points in turn."""
    journal = Journal(args.out / "speed.jsonl", identity, args.fresh)
    done = {record["number"] for record in journal.of("round")}
    contestants: dict[str, Contestant] = {p.name: partial(play, pipe, p) for p in points if p.group != "again"}
    for record in measure(contestants, jobs_of(captions[: args.rounds], 1), done):
        journal.add("round", record)
    return journal.of("round")


def main(argv: Sequence[str] | None = None) -> None:
    p = parser()
    args = p.parse_args(argv)
    try:
        report = run(args)
    except (ValueError, ModuleNotFoundError) as error:
        p.exit(2, f"{p.prog}: {error}\n")
    text = published.markdown(report["rows"]) if args.captions else markdown(report)
    files = write(args.out / "front.json", report, text)
    if not args.captions:
        files.append(args.out / FILE)
        files[-1].write_text(json.dumps(recommendations(report), indent=1) + "\n")
        if find_spec("matplotlib") is None:
            print("There is no front.png, since matplotlib is not installed: pip install -r requirements-test.txt")
        else:
            files.append(args.out / "front.png")
            import_module("lantern_demo.bench.quality.plots").draw_front(report, files[-1])
    print(text)
    print(f"wrote {', '.join(map(str, files))}")
