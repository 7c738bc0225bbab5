"""A paper's evaluation: `python -m lantern_demo.bench quality --protocol coco5k --captions captions_val2017.json --real val2017
--out DIR`.

Every method draws the same captions with the same seeds at the model's preset settings. DIR then holds the pictures by method,
drawn.jsonl with their tokens, manifest.json with what is drawn, and the scores as coco5k.json and coco5k.md. With `--slice i/n`,
or under torchrun, a command draws its part and ends; the same command without it takes what all parts have drawn, draws what is
left, and scores.

coco5k: of 5,000 images of MS-COCO 2017 val, in the order of their ids, the longest caption each, one picture of it; of a text
file the first 5,000 lines. geneval: the prompts of GenEval (Ghosh et al. 2023), evaluation_metadata.jsonl of its repository, four
pictures each, laid out as its scorer reads them. That scorer is no package, so it is not run: the report says how to.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from lantern_demo.bench.quality import drawing, scorers
from lantern_demo.bench.quality.points import Point, points_of
from lantern_demo.bench.report import now, number, table, write_file
from lantern_demo.bench.resume import Journal, Slice, digest, slice_of
from lantern_demo.runs.pipeline import Pipeline, load
from lantern_demo.settings.knobs import FIT

Report = dict[str, Any]

GENEVAL = (
    "```\npython evaluation/evaluate_images.py OUT/METHOD --outfile METHOD.jsonl --model-path DETECTOR\n"
    "python evaluation/summary_scores.py METHOD.jsonl\n```"
)


class Prompt(NamedTuple):
    """What is drawn: an image's id, or the number of a line; the words; and, of GenEval, the line itself."""

    id: str
    text: str
    metadata: str = ""


@dataclass(frozen=True)
class Protocol:
    """An evaluation: which file it reads, and how; how many prompts, None for all; pictures of each; what scores them, where they
    lie."""

    file: str
    read: Callable[[Path], list[Prompt]]
    prompts: int | None
    seeds: int
    scorers: tuple[Callable[..., scorers.Scorer], ...]
    place: Callable[[int, int], Path]  # of picture `seed` of prompt `number`, in the folder of a method


def read_text(file: Path) -> str:
    """The text of a file of captions. Raises ValueError for one that cannot be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"captions cannot be read from {file}: {error}") from error


def lines_of(text: str) -> list[str]:
    """The lines that hold something."""
    return [line for line in text.splitlines() if line.strip()]


def read_coco(file: Path) -> list[Prompt]:
    """The longest caption of every image of a COCO captions file (.json), by image id, the first of equally long ones; or the
    lines of a text file. Raises ValueError with what is wrong with the file."""
    text, found = read_text(file), dict[Any, str]()
    if file.suffix.lower() == ".json":
        try:
            for note in json.loads(text)["annotations"]:
                key, caption = note["image_id"], " ".join(note["caption"].split())
                found[key] = max(found.get(key, ""), caption, key=len)
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file} must be a COCO captions file, a JSON object with a list of annotations that have an image_id and a "
                f"caption: {error!r}"
            ) from error
    else:
        found = {number: " ".join(line.split()) for number, line in enumerate(lines_of(text))}
    prompts = [Prompt(str(key), caption) for key, caption in found.items() if caption]
    return sorted(prompts, key=lambda prompt: (len(prompt.id), prompt.id))


def read_geneval(file: Path) -> list[Prompt]:
    """The lines of GenEval's evaluation_metadata.jsonl. Raises ValueError naming the line that is none."""
    found = []
    for place, line in enumerate(lines_of(read_text(file))):
        try:
            found.append(Prompt(str(place), json.loads(line)["prompt"].strip(), line))
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file}, line {place + 1}, must be a JSON object with a prompt, as in GenEval's metadata"
            ) from error
    return found


PROTOCOLS = {
    "coco5k": Protocol(
        "captions_val2017.json of MS-COCO, or a text file, one caption a line",
        read_coco,
        5000,
        1,
        (scorers.of_distances, scorers.of_manifolds, scorers.of_clip, scorers.of_hps),
        lambda number, seed: Path(f"{number:05}.png" if seed == 0 else f"{number:05}-{seed}.png"),
    ),
    "geneval": Protocol(
        "prompts/evaluation_metadata.jsonl of github.com/djghosh13/geneval",
        read_geneval,
        None,
        4,
        (scorers.of_clip, scorers.of_hps),
        lambda number, seed: Path(f"{number:05}") / "samples" / f"{seed:04}.png",
    ),
}


@dataclass(frozen=True)
class Work:
    """What a command draws, and where its pictures lie."""

    protocol: Protocol
    out: Path
    part: Slice
    prompts: list[Prompt]
    seeds: int

    @property
    def captions(self) -> list[str]:
        """Of each picture."""
        return [prompt.text for prompt in self.prompts for _ in range(self.seeds)]

    def file(self, point: str, picture: int) -> Path:
        """Where a picture of a point lies."""
        return self.out / point / self.protocol.place(*divmod(picture, self.seeds))

    def save(self, pipe: Pipeline, record: drawing.Record) -> None:
        """Write a picture that was drawn; one that is there is left."""
        file, prompt = self.file(record["point"], record["picture"]), self.prompts[record["picture"] // self.seeds]
        if file.exists():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        if prompt.metadata:
            write_file(file.parents[1] / "metadata.jsonl", prompt.metadata + "\n", self.part.mark)
        half = file.with_name(f"{file.stem}{self.part.mark}.part")
        pipe.decode_image(record["tokens"]).save(half, "PNG")
        half.replace(file)


def work_of(args: argparse.Namespace) -> Work:
    """What a command line asks for. Raises ValueError for what cannot be drawn."""
    protocol = PROTOCOLS[args.protocol]
    if args.captions is None:
        raise ValueError(f"--protocol {args.protocol} needs --captions FILE: {protocol.file}")
    part = slice_of(args.slice)
    if args.tree == FIT:
        raise ValueError("--protocol draws with one tree on every machine, which --tree fit would not; the default is paper")
    if part.of > 1 and args.fresh:
        raise ValueError("--fresh would throw away what other slices have drawn; empty the folder instead")
    prompts, seeds = protocol.read(args.captions), args.seeds or protocol.seeds
    wanted = protocol.prompts if args.pictures is None else args.pictures // seeds
    if not prompts[:wanted] or len(prompts) < (wanted or 0):
        raise ValueError(f"{args.captions} holds {len(prompts)} captions, {wanted} were asked for; --pictures asks for fewer")
    return Work(protocol, args.out, part, prompts[:wanted], seeds)


def evaluated(args: argparse.Namespace) -> Report | None:
    """Draw, and score unless it is a slice -> the report. Raises ValueError for what cannot be drawn, resumed or merged."""
    work = work_of(args)
    pipe = load(args.model, device_of(args.device), args.dtype, fit_trees=False)
    points = [
        point
        for point in points_of(pipe, args.methods, args.tree or "paper", None, args.candidates)
        if point.group == "main" or point.name in args.candidates
    ]
    for prompt in work.prompts:
        pipe.check_prompt(prompt.text)
    captions = work.captions
    counts = {point.name: len(captions) for point in points}
    said = {"protocol": args.protocol, "seeds": work.seeds, "captions": digest(captions), "sources": pipe.networks.sources}
    identity = drawing.identity_of(pipe, points, said)
    journal = Journal(args.out / "drawn.jsonl", identity, args.fresh, work.part)
    write_manifest(work, identity)
    jobs = [job for job in drawing.jobs_of(points, counts, captions, batched=False) if work.part.holds(job.first)]
    if args.merge:
        left = drawing.left_of(jobs, journal)
        if left:
            first = f"number {left[0].first} of {left[0].point.name}"
            raise ValueError(
                f"{len(left)} of {len(jobs)} pictures are not drawn yet, first {first}; without --merge they are drawn now"
            )
    drawing.draw(pipe, (args.model, args.device, args.dtype), jobs, journal, args.processes, partial(work.save, pipe))
    if work.part.of > 1:
        return None
    return {
        "created": now(),
        **identity,
        **scored(work, pipe, points, drawing.finished(journal.of("picture"), points, counts), args.real),
    }


def scored(work: Work, pipe: Pipeline, points: list[Point], drawn: dict[str, list[drawing.Record]], real: Path | None) -> Report:
    """A row for every point, and a sentence for every measure that cannot be had."""
    for records in drawn.values():
        for record in records:  # a slice's folder may have come without its pictures
            work.save(pipe, record)
    found, missing = scorers.at_hand(work.protocol.scorers, real, pipe.device)
    rows = []
    for point in tqdm(points, desc="scoring", unit="method"):
        records = drawn[point.name]
        files = [work.file(point.name, picture) for picture in range(len(records))]
        steps, tokens = sum(r["steps"] for r in records), sum(len(r["tokens"]) - 1 for r in records)
        row = {
            "name": point.name,
            "label": point.label,
            "settings": point.settings,
            "pictures": len(records),
            "tokens_per_step": tokens / steps,
        }
        rows.append(row | {"scores": {key: value for score in found for key, value in score(files, work.captions).items()}})
    return {"missing": missing, "rows": rows}


def device_of(device: str) -> str:
    """The device of a process: under torchrun each has a GPU of its own."""
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if device == "auto" and local is not None and torch.cuda.is_available() else device


def write_manifest(work: Work, identity: Report) -> None:
    """What is drawn: the same from every slice. The captions are also a list by themselves, as LANTERN's own scorers read it."""
    told = {
        **identity,
        "files": str(work.protocol.place(12, 0)),
        "prompts": [{"id": p.id, "prompt": p.text} for p in work.prompts],
    }
    write_file(work.out / "manifest.json", json.dumps(told, indent=1) + "\n", work.part.mark)
    write_file(work.out / "captions.json", json.dumps(work.captions) + "\n", work.part.mark)


def markdown(report: Report) -> str:
    """The table of an evaluation, what is missing from it, and what to run where a scorer is no package."""
    rows, told = report["rows"], report["command"]
    shown = [key for key in scorers.COLUMNS if any(key in row["scores"] for row in rows)]
    lines = [
        [
            row["label"],
            str(row["pictures"]),
            f"{row['tokens_per_step']:.2f}",
            *(number(row["scores"].get(key), 4) for key in shown),
        ]
        for row in rows
    ]
    head = (
        f"{told['protocol']}, {report['model']['id']} ({report['dtype']}), {told['seeds']} of each caption, "
        f"{report['created'][:10]}"
    )
    parts = [
        head,
        table(["method", "pictures", "tokens / step", *(scorers.COLUMNS[key] for key in shown)], lines),
        *report["missing"],
    ]
    if told["protocol"] == "geneval":
        parts += ["In a checkout of github.com/djghosh13/geneval, for each method:", GENEVAL]
    return "\n\n".join(parts) + "\n"
