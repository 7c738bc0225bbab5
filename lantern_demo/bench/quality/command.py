"""Measure speed against quality on lantern scenes: `python -m lantern_demo.bench quality --out runs/quality`.

Every method draws the same prompts with the same seeds at the model's preset settings. The relaxed ones do so again with one
knob moved at a time. The gain in speed is measured in rounds as in `bench speed`. The loss of quality is measured against
pictures that vanilla draws with other seeds. The folder --out then holds front.json, front.md and the pictures as token ids. An
interrupted command continues from these ids. With --processes N, N processes share the drawing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from lantern_demo.bench.quality import drawing
from lantern_demo.bench.quality.front import gains, scene_front
from lantern_demo.bench.quality.points import Point, points_of
from lantern_demo.bench.quality.report import Report, markdown
from lantern_demo.bench.quality.scenes import SEEDS, load_classifier_of, truth
from lantern_demo.bench.report import add_model, at_least, machine_of, now, parser_of, write
from lantern_demo.bench.speed import Contestant, measure, play
from lantern_demo.bench.summary import Run
from lantern_demo.bench.tvd import picture_tvd
from lantern_demo.decoding.methods import METHODS
from lantern_demo.paths import user_path
from lantern_demo.runs.pipeline import Pipeline, load
from lantern_demo.settings.knobs import FIT

PICTURES, SWEPT = 1000, 200  # of a point, and of one with a knob moved


def parser() -> argparse.ArgumentParser:
    p = parser_of("quality", __doc__)
    add_model(p)
    p.add_argument("--out", type=user_path, required=True, help="a folder for everything that is drawn and measured")
    names = list(METHODS)
    p.add_argument("--methods", nargs="+", choices=names, default=names, help="only these of the model's, and vanilla")
    many = f"of every method at the preset settings (default: {PICTURES})"
    p.add_argument("--pictures", type=at_least(2 * SEEDS), default=PICTURES, help=many)
    p.add_argument("--sweep-pictures", type=at_least(0), default=SWEPT, help=f"where a knob is moved (default: {SWEPT})")
    p.add_argument("--rounds", type=at_least(1), default=8, help="of the measuring of speed (default: 8)")
    p.add_argument("--processes", type=at_least(1), default=1, help="that share the drawing (default: 1)")
    p.add_argument("--tree", default=FIT, help="draft tree of all points (default: fit, the machine's own)")
    return p


def measured(pipe: Pipeline, point: Point, prompt: str, seed: int) -> Run:
    """Return the entry of `play` with the picture's `tvd` (see `lantern_demo.bench.tvd`), None at temperature 0."""
    method, knobs, encoded = METHODS[point.method], pipe.settings(seed=seed, **point.settings), pipe.read(prompt).encoded
    done = play(pipe, point, prompt, seed)
    config, condition = pipe.asked_for(method, knobs, encoded, pipe.info.tokens, pipe.tree_of(method, knobs).policy)
    tvd = None if config.sampling.greedy else picture_tvd(pipe.target, pipe.drafter, condition, config)
    return {**done, "tvd": tvd}


def run(args: argparse.Namespace) -> Report:
    """Draw, measure and return the report. Raises ValueError for invalid arguments, RuntimeError if a method fails."""
    pipe = load(args.model, args.device, args.dtype)
    scenes = truth(max(args.pictures, args.sweep_pictures))
    classifier = load_classifier_of(pipe.info.folder, pipe.device)
    points = points_of(pipe, args.methods, args.tree)
    counts = {point.name: args.sweep_pictures if point.group == "sweep" else args.pictures for point in points}
    identity = drawing.identity_of(pipe, points, {"seeds": SEEDS})
    jobs = drawing.jobs_of(points, counts, scenes.prompts)
    file = drawing.file_of(args.out, identity)
    records = drawing.draw(pipe, (args.model, args.device, args.dtype), jobs, file, args.processes)
    drawn = drawing.by_point(records, jobs)
    pipe.threads.use()  # as its runs do
    contestants: dict[str, Contestant] = {p.name: partial(measured, pipe, p) for p in points if p.group != "again"}
    rounds = measure(contestants, scenes.captions[: args.rounds])
    front = scene_front(pipe, classifier, scenes, drawn, gains(pipe, points, drawn, rounds))
    asked = {"pictures": args.pictures, "sweep_pictures": args.sweep_pictures, "seeds": SEEDS, "rounds": len(rounds)}
    told = {"created": now(), "machine": machine_of(pipe.device), "threads": pipe.threads.count, "products": pipe.products}
    return {**told, **identity, **asked, **front}


def main(argv: Sequence[str]) -> None:
    """Run the command. Raises ValueError for invalid arguments, such as pictures that are not whole captions."""
    args = parser().parse_args(argv)
    for name, count in (("pictures", args.pictures), ("sweep-pictures", args.sweep_pictures)):
        if count % SEEDS or count == SEEDS:
            raise ValueError(f"--{name} must be a multiple of {SEEDS} and not {SEEDS} itself, got {count}")
    report = run(args)
    text = markdown(report)
    files = write(args.out / "front.json", report, text)
    print(text)
    print(f"wrote {', '.join(map(str, files))}")
