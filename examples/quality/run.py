"""Measure speed against quality on scenes of the bundled model. Run it from the repository's root:

    python examples/make_bundled_model/emoji.py --out runs/sprites.npz
    python examples/quality/run.py --out runs/quality

Every method draws the same prompts with the same seeds at the model's preset settings. The relaxed
ones do so again with one knob moved at a time. The gain in speed is measured in rounds, as in
`python -m lantern_demo.bench speed`. The loss of quality is measured against pictures that vanilla
draws with other seeds. The folder --out then holds front.json, front.md and the pictures as token
ids. An interrupted command continues from these ids. `torchrun --nproc-per-node N` in the place of
`python` shares the drawing among N processes, each on its own GPU or on the processor.

The other files here:

    points      The methods and settings to compare.
    drawing     Draws their pictures as token ids, and keeps each at once.
    scenes      Captions with their true pictures.
    classifier  Reads the attributes of a picture.
    tokens      How likely the target finds a picture's tokens.
    tvd         How far a run's distributions are from the model's.
    intervals   Intervals of shares and of differences.
    front       Computes the rows of the report.
    report      Prints its tables.

`examples/quality/plot_front.py` plots front.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
if __name__ == "__main__":
    from lantern_demo.shutdown import stop_at_once

    stop_at_once()  # the imports below take seconds

import argparse
from collections.abc import Sequence
from functools import partial

from examples.make_bundled_model import emoji
from examples.make_bundled_model.scenes import Renderer, add_sprites
from examples.quality import drawing
from examples.quality.classifier import load_classifier
from examples.quality.front import gains, scene_front
from examples.quality.points import Point, points_of
from examples.quality.report import Report, markdown
from examples.quality.scenes import SEEDS, truth
from examples.quality.tvd import picture_tvd
from examples.ranks import place_of
from lantern_demo.bench.report import at_least, machine_of, now, parser_of, write
from lantern_demo.bench.speed import Contestant, measure, play
from lantern_demo.bench.summary import Run
from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.load import load
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.settings.named_trees import DEFAULT

PICTURES, SWEPT = 1000, 200  # of a point, and of one with a knob moved


def parser() -> argparse.ArgumentParser:
    p = parser_of(__doc__)
    drawing.add_options(p, DEFAULT)
    many = f"of every method at the preset settings (default: {PICTURES})"
    p.add_argument("--pictures", type=at_least(2 * SEEDS), default=PICTURES, help=many)
    p.add_argument(
        "--sweep-pictures",
        type=at_least(0),
        default=SWEPT,
        help=f"where a knob is moved (default: {SWEPT})",
    )
    p.add_argument(
        "--rounds", type=at_least(1), default=8, help="of the measuring of speed (default: 8)"
    )
    add_sprites(p)
    return p


def measured(pipe: Pipeline, point: Point, prompt: str, seed: int) -> Run:
    """Return the entry of `play` with the picture's `tvd` (see `examples/quality/tvd.py`), None at
    temperature 0.
    """
    knobs = pipe.settings(seed=seed, **point.settings)
    encoded = pipe.read(prompt).encoded
    done = play(pipe, point, prompt, seed)
    config, condition = pipe.prepared(pipe.planned(METHODS[point.method], knobs), encoded)
    if config.sampling.greedy:
        return {**done, "tvd": None}
    return {**done, "tvd": picture_tvd(pipe.target, pipe.drafter, condition, config)}


def run(args: argparse.Namespace) -> Report | None:
    """Draw, measure and return the report, None where another process of torchrun measures.

    Raises ValueError for invalid arguments, such as pictures that are not whole captions, and
    RuntimeError if a method fails."""
    for name, count in (("pictures", args.pictures), ("sweep-pictures", args.sweep_pictures)):
        if count % SEEDS or count == SEEDS:
            raise ValueError(
                f"--{name} must be a multiple of {SEEDS} and not {SEEDS} itself, got {count}"
            )
    place = place_of(args.device)
    pipe = load(args.model, str(place.device), args.dtype)
    scenes = truth(max(args.pictures, args.sweep_pictures))
    renderer = Renderer(emoji.read(args.sprites), pipe.device)
    classifier = load_classifier(pipe.info.folder, pipe.device)
    points = points_of(pipe, args.methods, args.tree)
    counts = {
        point.name: args.sweep_pictures if point.group == "sweep" else args.pictures
        for point in points
    }
    identity = drawing.identity_of(pipe, points, {"seeds": SEEDS})
    jobs = drawing.jobs_of(points, counts, scenes.prompts)
    file = drawing.file_of(args.out, identity)
    drawn = drawing.draw(pipe, jobs, file, place)
    if drawn is None:
        return None
    pipe.threads.use()  # as its runs do
    contestants: dict[str, Contestant] = {
        p.name: partial(measured, pipe, p) for p in points if p.group != "again"
    }
    rounds = measure(contestants, scenes.captions[: args.rounds])
    rows = gains(pipe, points, drawn, rounds)
    front = scene_front(pipe, classifier, scenes, renderer, drawn, rows)
    asked = {
        "pictures": args.pictures,
        "sweep_pictures": args.sweep_pictures,
        "seeds": SEEDS,
        "rounds": len(rounds),
    }
    told = {
        "created": now(),
        "machine": machine_of(pipe.device),
        "threads": pipe.threads.count,
        "products": pipe.products,
    }
    return {**told, **identity, **asked, **front}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command, or exit with 2 and a sentence for invalid arguments."""
    args = parser().parse_args(argv)
    try:
        report = run(args)
    except ValueError as error:
        parser().error(str(error))
    if report is None:
        return
    text = markdown(report)
    files = write(args.out / "front.json", report, text)
    print(text)
    print(f"wrote {', '.join(map(str, files))}")


if __name__ == "__main__":
    main()
