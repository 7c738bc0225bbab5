"""Speed against quality: `python -m lantern_demo.bench quality --out runs/quality`.

Every method at the model's preset settings, and the relaxed ones with one knob moved at a time, draw the same prompts with the
same seeds. What they gain is measured in rounds as the benchmark of speed does; what their pictures lose is measured against
pictures that vanilla draws with other seeds. The folder --out then holds front.json and front.md.

The same command goes on where it was interrupted. With --processes N the drawing is shared by N processes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lantern_demo.bench.quality import drawing
from lantern_demo.bench.quality.front import gains, scene_front
from lantern_demo.bench.quality.points import Point, points_of
from lantern_demo.bench.quality.report import Report, markdown
from lantern_demo.bench.quality.scenes import load_classifier_of, truth
from lantern_demo.bench.quality.statistics import RESAMPLES
from lantern_demo.bench.report import add_model, at_least, machine_of, now, parser_of, write
from lantern_demo.bench.resume import Journal
from lantern_demo.bench.speed import Contestant, Run, jobs_of, measure, play
from lantern_demo.bench.tvd import picture_tvd
from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.pipeline import Pipeline, load
from lantern_demo.settings.knobs import FIT

PICTURES, SEEDS = 1000, 2
CLOSER = 500  # pictures of a point that is looked at more closely
FEWEST = 8  # pictures, half of which still have three nearest ones


def parser() -> argparse.ArgumentParser:
    p = parser_of("quality", __doc__)
    add_model(p)
    p.add_argument("--out", type=Path, required=True, help="a folder for everything that is drawn and measured")
    names = list(METHODS)
    p.add_argument("--methods", nargs="+", choices=names, default=names, help="only these of the model's, and vanilla")
    many = f"of every method at the preset settings (default: {PICTURES})"
    p.add_argument("--pictures", type=at_least(FEWEST), default=PICTURES, help=many)
    p.add_argument("--sweep-pictures", type=at_least(0), default=200, help="of every point with a knob moved (default: 200)")
    closer = f'points with a knob moved, such as "lantern++ lambda 2", of which {CLOSER} pictures are drawn'
    p.add_argument("--candidates", nargs="+", default=[], metavar="POINT", help=closer)
    p.add_argument("--seeds", type=at_least(1), default=SEEDS, help=f"pictures of each caption (default: {SEEDS})")
    p.add_argument("--rounds", type=at_least(1), default=8, help="of the measuring of speed (default: 8)")
    p.add_argument("--resamples", type=at_least(2), default=RESAMPLES, help=f"behind every interval (default: {RESAMPLES})")
    p.add_argument("--processes", type=at_least(1), default=1, help="that share the drawing, and the processors or GPUs")
    p.add_argument("--tree", default=FIT, help="draft tree of all points (default: fit, the machine's own)")
    p.add_argument("--fresh", action="store_true", help="throw away what an earlier command left in --out")
    return p


def check(args: argparse.Namespace) -> None:
    """Raises ValueError for options that do not go together."""
    if 0 < args.sweep_pictures < FEWEST:
        raise ValueError(f"--sweep-pictures must be 0 or at least {FEWEST}, got {args.sweep_pictures}")
    for name in ("pictures", "sweep_pictures"):
        if getattr(args, name) % args.seeds:
            raise ValueError(f"--{name.replace('_', '-')} must be a multiple of --seeds, {args.seeds}, got {getattr(args, name)}")


def counts_of(points: list[Point], args: argparse.Namespace) -> drawing.Counts:
    """How many pictures of each point are drawn."""
    of_group = {"main": args.pictures, "again": args.pictures, "sweep": args.sweep_pictures, "tree": 0}
    closer = max(args.sweep_pictures, min(args.pictures, CLOSER))
    return {p.name: closer if p.group == "sweep" and p.name in args.candidates else of_group[p.group] for p in points}


def measured(pipe: Pipeline, point: Point, prompt: str, seed: int) -> Run:
    """As `play`, with the picture's `tvd`, None at temperature 0: see `lantern_demo.bench.tvd`."""
    method, knobs, encoded = METHODS[point.method], pipe.settings(seed=seed, **point.settings), pipe.read(prompt).encoded
    done = play(pipe, point, prompt, seed)
    config, condition = pipe.asked_for(method, knobs, encoded, pipe.info.tokens, pipe.tree_of(method, knobs).policy)
    tvd = None if config.sampling.greedy else picture_tvd(pipe.target, pipe.drafter, condition, config)
    return {**done, "tvd": tvd}


def run(args: argparse.Namespace) -> Report:
    """Draw, measure and report -> the report. Raises ValueError for what cannot be run or resumed, RuntimeError when a method
    fails."""
    pipe = load(args.model, args.device, args.dtype)
    number = max(args.pictures, args.sweep_pictures) // args.seeds
    scenes = truth(number, args.seeds)
    classifier, captions = load_classifier_of(pipe.info.folder, pipe.device), scenes.captions
    points = points_of(pipe, args.methods, args.tree, args.candidates)
    counts = counts_of(points, args)
    identity = drawing.identity_of(pipe, points, {"seeds": args.seeds, "captions": None})
    journal = Journal(args.out / "drawn.jsonl", identity, args.fresh)
    jobs = drawing.jobs_of(points, counts, scenes.prompts, drawing.batches(pipe))
    drawing.draw(pipe, (args.model, args.device, args.dtype), jobs, journal, args.processes)
    drawn = drawing.finished(journal.of("picture"), points, counts)
    pipe.threads.use()  # as its runs do
    identity |= {"machine": machine_of(pipe.device), "products": pipe.products}
    contestants: dict[str, Contestant] = {p.name: partial(measured, pipe, p) for p in points if p.group != "again"}
    speeds = Journal(args.out / "speed.jsonl", identity, args.fresh)
    rounds = measure(contestants, jobs_of(captions[: args.rounds], 1), speeds)
    rows = gains(pipe, points, drawn, rounds)
    front = scene_front(pipe, classifier, scenes, args.resamples, drawn, rows)
    asked = {"pictures": args.pictures, "sweep_pictures": args.sweep_pictures, "seeds": args.seeds, "rounds": len(rounds)}
    return {"created": now(), **identity, **asked, **front}


def main(argv: Sequence[str]) -> None:
    """The command. Raises ValueError for what cannot be run."""
    args = parser().parse_args(argv)
    check(args)
    report = run(args)
    text = markdown(report)
    files = write(args.out / "front.json", report, text)
    print(text)
    print(f"wrote {', '.join(map(str, files))}")
