"""Evaluate a text-to-image model as papers do. Run it from the repository's root:

    python examples/paper_evaluation/run.py coco5k --model llamagen-t2i-256 \\
      --methods eagle1 lantern lantern++ \\
      --captions captions_val2017.json --real val2017 --out runs/coco5k

All methods draw the same captions. They use the same seeds at the preset settings. Vanilla always
runs too. The folder --out holds the pictures by method and their tokens in drawn-*.jsonl.
manifest.json describes the run. coco5k.json and coco5k.md have the scores. An interrupted command
continues when it is run again. `torchrun --nproc-per-node N` instead of `python` shares the
drawing among N processes, each on its own GPU or on the processor.

coco5k: one picture for the longest caption of each of 5,000 images of MS-COCO 2017 val, in the
order of their ids. From a text file it uses the first 5,000 lines. geneval: four pictures for each
prompt of GenEval (Ghosh et al. 2023), from evaluation_metadata.jsonl of its repository, in the
layout of its scorer. That scorer is not a package, so the report only describes how to run it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
if __name__ == "__main__":
    from lantern_demo.shutdown import stop_at_once

    stop_at_once()  # the imports below take seconds

import argparse
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tqdm import tqdm

from examples.paper_evaluation import scorers
from examples.quality import drawing
from examples.quality.points import Point, points_of
from examples.ranks import place_of
from lantern_demo.bench.report import at_least, now, number, parser_of, table, write
from lantern_demo.disk_cache import put, replacing
from lantern_demo.paths import user_path
from lantern_demo.runs.load import load
from lantern_demo.runs.pipeline import Pipeline

Report = dict[str, Any]

GENEVAL = (
    "In a checkout of github.com/djghosh13/geneval, for each method:\n\n"
    "```\npython evaluation/evaluate_images.py OUT/METHOD --outfile METHOD.jsonl --model-path "
    "DETECTOR\n"
    "python evaluation/summary_scores.py METHOD.jsonl\n```"
)


class Prompt(NamedTuple):
    """The id of an image or the number of a line, the words, and for GenEval the line itself."""

    id: str
    text: str
    metadata: str = ""


@dataclass(frozen=True)
class Protocol:
    """An evaluation: its file and reader, number of prompts (None: all), pictures of each, scorers,
    and file layout.
    """

    file: str
    read: Callable[[Path], list[Prompt]]
    prompts: int | None
    seeds: int
    scorers: tuple[Callable[..., scorers.Scorer], ...]
    # of picture `seed` of prompt `number`, in the folder of a method
    place: Callable[[int, int], Path]


def lines_of(file: Path) -> list[str]:
    """Return the lines of a file that are not blank."""
    return [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]


def read_coco(file: Path) -> list[Prompt]:
    """Read the longest caption of every image of a COCO captions file (.json), by image id, or the
    lines of a text file.

    Raises ValueError for another file.
    """
    found = dict[Any, str]()
    if file.suffix.lower() == ".json":
        try:
            for note in json.loads(file.read_text(encoding="utf-8"))["annotations"]:
                key, caption = note["image_id"], " ".join(note["caption"].split())
                found[key] = max(found.get(key, ""), caption, key=len)
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file} must be a COCO captions file, with annotations of image_id and caption: "
                f"{error!r}"
            ) from error
    else:
        found = {place: " ".join(line.split()) for place, line in enumerate(lines_of(file))}
    prompts = [Prompt(str(key), caption) for key, caption in found.items() if caption]
    return sorted(prompts, key=lambda prompt: (len(prompt.id), prompt.id))


def read_geneval(file: Path) -> list[Prompt]:
    """Read the lines of GenEval's evaluation_metadata.jsonl.

    Raises ValueError that names an invalid line.
    """
    found = []
    for place, line in enumerate(lines_of(file)):
        try:
            found.append(Prompt(str(place), json.loads(line)["prompt"].strip(), line))
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{file}, line {place + 1}, must be a JSON object with a prompt, as in GenEval's "
                "metadata"
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


def parser() -> argparse.ArgumentParser:
    p = parser_of(__doc__)
    p.add_argument("protocol", choices=list(PROTOCOLS), help="which evaluation")
    drawing.add_options(p, "paper")
    files = "; ".join(f"{name}: {one.file}" for name, one in PROTOCOLS.items())
    p.add_argument("--captions", type=user_path, required=True, help=files)
    p.add_argument(
        "--real", type=user_path, help="a folder of real pictures, to measure distances to"
    )
    closer = (
        'points with a knob moved, such as "lantern++ lambda 2", and "vanilla again", with other '
        "seeds: the noise floor"
    )
    p.add_argument("--candidates", nargs="+", default=[], metavar="POINT", help=closer)
    p.add_argument("--pictures", type=at_least(1), help="of every point (default: the protocol's)")
    p.add_argument(
        "--seeds", type=at_least(1), help="pictures of each caption (default: the protocol's)"
    )
    return p


def evaluated(args: argparse.Namespace) -> Report | None:
    """Draw, score and return the report, None where another process of torchrun scores.

    Raises ValueError for invalid arguments, OSError for a missing file.
    """
    protocol = PROTOCOLS[args.protocol]
    prompts, seeds = protocol.read(args.captions), args.seeds or protocol.seeds
    if args.pictures is not None and args.pictures < seeds:
        raise ValueError(f"--pictures {args.pictures} is too few: a caption has {seeds}")
    wanted = protocol.prompts if args.pictures is None else args.pictures // seeds
    if not prompts[:wanted] or len(prompts) < (wanted or 0):
        raise ValueError(
            f"{args.captions} holds {len(prompts)} captions, {wanted} were asked for; --pictures "
            "asks for fewer"
        )
    prompts = prompts[:wanted]
    place = place_of(args.device)
    pipe = load(args.model, str(place.device), args.dtype)
    points = points_of(pipe, args.methods, args.tree)
    others = [point.name for point in points if point.group != "main"]
    for name in args.candidates:
        if name not in others:
            raise ValueError(
                f"--candidates must name points among {', '.join(others)}, got {name!r}"
            )
    points = [point for point in points if point.group == "main" or point.name in args.candidates]
    for prompt in prompts:
        pipe.check_prompt(prompt.text)
    captions = [prompt.text for prompt in prompts for _ in range(seeds)]
    counts = {point.name: len(captions) for point in points}
    digest = hashlib.sha256(json.dumps(captions).encode()).hexdigest()[:16]
    said = {
        "protocol": args.protocol,
        "seeds": seeds,
        "captions": digest,
        "sources": pipe.networks.sources,
    }
    identity = drawing.identity_of(pipe, points, said)
    told = {**identity, "prompts": [{"id": p.id, "prompt": p.text} for p in prompts]}
    manifest, text = args.out / "manifest.json", json.dumps(told, indent=1) + "\n"
    if manifest.exists() and manifest.read_text(encoding="utf-8") != text:
        raise ValueError(f"--out {args.out} has pictures of another command; name another folder")
    put(manifest, text)
    # the input format of LANTERN's own scorers
    put(args.out / "captions.json", json.dumps(captions) + "\n")
    jobs = drawing.jobs_of(points, counts, captions)
    file = drawing.file_of(args.out, identity)
    drawn = drawing.draw(pipe, jobs, file, place)
    if drawn is None:
        return None

    found, missing = scorers.at_hand(protocol.scorers, args.real, pipe.device)
    rows = []
    for point in tqdm(points, desc="scoring", unit="method"):
        records, folder = drawn[point.name], args.out / point.name
        files = [
            folder / protocol.place(*divmod(picture, seeds)) for picture in range(len(records))
        ]
        for picture, (record, file) in enumerate(zip(records, files, strict=True)):
            save(pipe, record["tokens"], file, prompts[picture // seeds])
        scores = {key: value for score in found for key, value in score(files, captions).items()}
        rows.append(row_of(point, records) | {"scores": scores})
    return {"created": now(), **identity, "missing": missing, "rows": rows}


def save(pipe: Pipeline, tokens: list[int], file: Path, prompt: Prompt) -> None:
    """Write a picture, and for GenEval its line, unless the file exists."""
    if file.exists():
        return
    if prompt.metadata:
        put(file.parents[1] / "metadata.jsonl", prompt.metadata + "\n")
    with replacing(file) as half:
        pipe.images.decode(tokens).save(half, "PNG")


def row_of(point: Point, records: list[drawing.Record]) -> Report:
    """Return a point with its tokens per step."""
    steps = sum(record["steps"] for record in records)
    tokens = sum(len(record["tokens"]) - 1 for record in records)
    told = {"name": point.name, "label": point.label, "settings": point.settings}
    return told | {"pictures": len(records), "tokens_per_step": tokens / steps}


def markdown(report: Report) -> str:
    """Return the table of an evaluation, its missing scores, and the commands for a scorer that is
    not a package.
    """
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
    model = f"{report['model']['id']} ({report['dtype']})"
    head = f"{told['protocol']}, {model}, {told['seeds']} of each caption, {report['created'][:10]}"
    titles = ["method", "pictures", "tokens / step", *(scorers.COLUMNS[key] for key in shown)]
    parts = [head, table(titles, lines), *report["missing"]]
    if told["protocol"] == "geneval":
        parts.append(GENEVAL)
    return "\n\n".join(parts) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command, or exit with 2 and a sentence for invalid arguments."""
    args = parser().parse_args(argv)
    try:
        report = evaluated(args)
    except (OSError, ValueError) as error:
        parser().error(str(error))
    if report is None:
        return
    text = markdown(report)
    print(text)
    print(f"wrote {', '.join(map(str, write(args.out / f'{args.protocol}.json', report, text)))}")


if __name__ == "__main__":
    main()
