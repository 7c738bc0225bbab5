"""Speed against quality: `python -m lantern_demo.bench quality --out runs/quality`.

Every method at the model's preset settings, and the relaxed ones with one knob moved at a time, draw the same prompts with the same
seeds. What they gain is measured in rounds as the benchmark of speed does; what their pictures lose is measured against pictures that
vanilla draws with other seeds. The folder --out then holds front.json, front.md, the plots, and the settings that are recommended.

The same command goes on where it was interrupted. Under torchrun the drawing is shared by the processes.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lantern_demo.bench.journal import Journal, digest_of, merged
from lantern_demo.bench.processes import Process, join, leave
from lantern_demo.bench.quality import captioned, drawing
from lantern_demo.bench.quality.assembly import Assembly
from lantern_demo.bench.quality.points import Point, points_of
from lantern_demo.bench.quality.published import read_captions
from lantern_demo.bench.quality.recommend import ENOUGH, FAST_LOSS
from lantern_demo.bench.quality.report import Report, markdown
from lantern_demo.bench.quality.scenes import ALL, load_classifier_of, truth
from lantern_demo.bench.quality.statistics import RESAMPLES
from lantern_demo.bench.report import can_draw, machine_of, session_of
from lantern_demo.bench.speed import Contestant, jobs_of, measure, play
from lantern_demo.decoding.methods import METHODS
from lantern_demo.pipeline import Pipeline, load
from lantern_demo.recommended import FILE

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
    p.add_argument(
        "--methods",
        nargs="+",
        choices=list(METHODS),
        default=list(METHODS),
        help="only these of the model's, and vanilla (default: all)",
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
    p.add_argument("--tree", default="fit", help="draft tree of all points (default: fit, the machine's own)")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    p.add_argument("--dtype", default="auto", help="of target and drafter (default: auto)")
    own = p.add_argument_group(
        "captions of your own",
        "for models that draw something else than lantern scenes; needs two more packages, see published.py",
    )
    own.add_argument("--captions", type=Path, help="a COCO captions file (.json) or a text file, one a line")
    own.add_argument("--real", type=Path, help="a folder of real pictures, to measure distances to")
    own.add_argument("--clip", action="store_true", help="the CLIP score too")
    p.add_argument("--fresh", action="store_true", help="throw away what an earlier command left in --out")
    return p


def check(args: argparse.Namespace) -> None:
    """Raises ValueError for a command line that cannot be run."""
    for name, least in (("pictures", FEWEST), ("sweep_pictures", 0), ("seeds", 1), ("rounds", 1), ("resamples", 2)):
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


def identity_of(pipe: Pipeline, args: argparse.Namespace, points: list[Point], machine: bool) -> dict[str, Any]:
    """What is drawn, by which code and by the weights that its tokens depend on; with `machine`, what it is timed on as well."""
    told: dict[str, Any] = {
        "command": {
            "seeds": args.seeds,
            "captions": args.captions and str(args.captions),
            "points": {p.name: p.settings for p in points},
        },
        "model": {
            "id": pipe.info.id,
            "files": weights_digest(pipe, *DRAWN),
        },
        "settings": pipe.defaults.as_dict(),
        "dtype": pipe.dtype,
        "versions": {"torch": torch.__version__, "decoding": digest_of(PACKAGE / "decoding", "*.py")},
    }
    if machine:
        pipe.threads.use()  # as its runs do
        told |= {"machine": machine_of(pipe.device), "products": pipe.products}
    return told


def weights_digest(pipe: Pipeline, *parts: str) -> str | None:
    """A digest of some networks of a model folder."""
    folder = pipe.info.folder
    return None if folder is None else digest_of(folder, *(f"{part}/*.safetensors" for part in parts))


def run(args: argparse.Namespace, process: Process) -> Report | None:
    """Draw, measure and report -> the report; None on all processes but the first.

    Raises ValueError for what cannot be run or resumed, RuntimeError when a method fails.
    """
    check(args)
    threads = torch.get_num_threads() if process.world == 1 else os.cpu_count() or 1
    torch.set_num_threads(threads)  # torchrun gives each process one; what is timed is timed alone, with all
    pipe = load(args.model, process.device(args.device), args.dtype)
    number = max(args.pictures, args.sweep_pictures) // args.seeds
    scenes = None if args.captions else truth(number, args.seeds)
    classifier = load_classifier_of(pipe.info.folder, pipe.device) if scenes else None
    captions = scenes.captions if scenes else read_captions(args.captions, number)
    prompts = [caption for caption in captions for _ in range(args.seeds)]
    points = _agreed(pipe, args, captions[0], process)
    counts = counts_of(points, args)
    if process.world > 1 and pipe.device.type == "cpu":
        torch.set_num_threads(max(1, threads // process.world))
    journal = Journal(_drawn(args.out, process.rank), identity_of(pipe, args, points, machine=False), args.fresh)
    process.wait()  # all have checked their files, and none has written to them yet
    jobs = drawing.left(drawing.jobs_of(points, counts, batched=drawing.batches(pipe)), _pictures(args.out))
    process.wait()
    if jobs:
        journal.add("session", session_of(process.rank) | {"machine": machine_of(pipe.device)})
    drawing.draw(pipe, prompts, jobs[process.rank :: process.world], journal, quiet=process.rank > 0)
    process.wait()
    if process.rank:
        return None
    torch.set_num_threads(threads)
    rounds = _speed(pipe, args, points, captions)
    drawn = drawing.finished(_pictures(args.out), points, counts)
    if scenes is not None and classifier is not None:
        seen = args.out / "seen" / str(weights_digest(pipe, *SEEN))
        report = Assembly(pipe, classifier, scenes, seen, args.resamples).report(points, drawn, rounds)
    else:
        report = {"rows": captioned.rows_of(pipe, points, drawn, rounds, prompts, args.real, args.clip)}
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **identity_of(pipe, args, points, machine=True),
        "pictures": args.pictures, "sweep_pictures": args.sweep_pictures, "seeds": args.seeds,
        **report,
    }  # fmt: skip


def _agreed(pipe: Pipeline, args: argparse.Namespace, prompt: str, process: Process) -> list[Point]:
    """The points, with the first process's trees: those of a folder that is gone on with are the ones it was begun with."""
    told: list[Any] = [None]
    if process.rank == 0:
        told = [points_of(pipe, args.methods, args.tree, prompt)]
    if process.world > 1:
        dist.broadcast_object_list(told)
    return told[0]


def _speed(pipe: Pipeline, args: argparse.Namespace, points: list[Point], captions: list[str]) -> list[dict[str, Any]]:
    """The rounds of all points in turn."""
    journal = Journal(args.out / "speed.jsonl", identity_of(pipe, args, points, machine=True), args.fresh)
    done = {record["number"] for record in journal.of("round")}
    contestants: dict[str, Contestant] = {p.name: partial(play, pipe, p.row()) for p in points if p.group != "again"}
    rounds = [(job, i % 2 == 1) for i, job in enumerate(jobs_of(captions[: args.rounds], 1))]
    for record in measure(contestants, rounds, done):
        journal.add("round", record)
    return journal.of("round")


def tables(report: Report) -> str:
    """The report in Markdown."""
    return markdown(report) if "premise" in report else captioned.markdown(report["rows"])


def recommendations(report: Report) -> dict[str, Any]:
    """What a model's folder keeps of a report; see `lantern_demo.recommended`."""
    found = [(row["method"], row["settings"], row["right"][ALL]) for row in report["rows"] if row["right"] is not None]
    return {
        "device": report["machine"]["device"], "level": report["level"], "measures": len(report["measures"]),
        "fast_loss": FAST_LOSS, "methods": report["recommended"],
        "found": [
            {"method": method, "settings": settings, "right": told["right"], "of": told["of"]} for method, settings, told in found
        ],
    }  # fmt: skip


def write(report: Report, out: Path) -> list[Path]:
    """Write the report as front.json and front.md, its plots where they can be drawn, and the recommended settings -> the files."""
    files = {name: out / name for name in ("front.json", "front.md")}
    files["front.json"].write_text(json.dumps(report, indent=1) + "\n")
    files["front.md"].write_text(tables(report))
    if "premise" not in report:
        return list(files.values())
    files[FILE] = out / FILE
    files[FILE].write_text(json.dumps(recommendations(report), indent=1) + "\n")
    if can_draw():
        from lantern_demo.bench.quality.plots import draw_front, draw_premise

        files |= {name: out / name for name in ("front.png", "premise.png")}
        draw_front(report, files["front.png"])
        draw_premise(report, files["premise.png"])
    return list(files.values())


def _pictures(out: Path) -> list[dict[str, Any]]:
    """What all processes of this command and of those before it have drawn."""
    return merged(sorted(out.glob("drawn.*.jsonl")), "picture")


def _drawn(out: Path, rank: int) -> Path:
    return out / f"drawn.{rank}.jsonl"


def main(argv: Sequence[str] | None = None) -> None:
    p = parser()
    args, process = p.parse_args(argv), join()
    try:
        report = run(args, process)
    except (ValueError, ModuleNotFoundError) as error:
        p.exit(2, f"{p.prog}: {error}\n")
    if report is not None:
        print(tables(report))
        print(f"wrote {', '.join(map(str, write(report, args.out)))}")
    leave(process)


if __name__ == "__main__":
    main()
