"""Draw the pictures of every point as token ids.

Each is saved immediately, so that hours of drawing can be interrupted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

import lantern_demo
from examples.quality.points import Point
from examples.ranks import Place, wait_for_all
from lantern_demo.bench.report import add_model, digest_of
from lantern_demo.decoding.loop import Decoded, Step, decode
from lantern_demo.decoding.methods import METHODS
from lantern_demo.disk_cache import put
from lantern_demo.paths import user_path
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.settings.settings import method_of

DRAWN = ("text", "target", "drafter", "tokenizer")  # the networks that tokens depend on
PACKAGE = Path(lantern_demo.__file__).parent
AGAIN = 1_000_000  # between the seeds of the floor and those of the points

Counts = dict[str, int]  # how many pictures, by point; 0 for absent points
# of a picture: its point, its number there, its tokens and how many steps they took
Record = dict[str, Any]
Key = tuple[str, int]  # of a picture: its point and its number there


class Job(NamedTuple):
    """Picture number `picture` of a point.

    Its seed depends only on this number and on whether the point is the floor.
    """

    point: Point
    picture: int
    prompt: str

    @property
    def key(self) -> Key:
        return self.point.name, self.picture

    @property
    def seed(self) -> int:
        return self.picture + (AGAIN if self.point.group == "again" else 0)


def add_options(p: argparse.ArgumentParser, tree: str) -> None:
    """Add the options of what draws: the model, --out, --methods, and --tree with its default."""
    add_model(p)
    everything = "a folder for everything that is drawn and measured"
    p.add_argument("--out", type=user_path, required=True, help=everything)
    names, only = list(METHODS), "only these of the model's, and vanilla"
    p.add_argument("--methods", nargs="+", choices=names, default=names, help=only)
    of_all = "draft tree of all points (default: %(default)s)"
    p.add_argument("--tree", default=tree, help=of_all)


COMPUTES = ("decoding", "kernels", "models")  # parts of the package that tokens depend on


def jobs_of(points: list[Point], counts: Counts, prompts: list[str]) -> list[Job]:
    """Return all pictures to draw, ordered so that an interrupted run has equally many of every
    point.
    """
    jobs = [Job(point, n, prompts[n]) for point in points for n in range(counts.get(point.name, 0))]
    return sorted(jobs, key=lambda job: job.picture)


def identity_of(pipe: Pipeline, points: list[Point], command: Record) -> Record:
    """Return everything that the tokens depend on: points, settings, code and weights."""
    folder = pipe.info.folder
    return {
        "command": {**command, "points": {p.name: p.settings for p in points}},
        "model": {
            "id": pipe.info.id,
            "files": folder and digest_of(folder, *(f"{part}/*.safetensors" for part in DRAWN)),
        },
        "settings": pipe.defaults.as_dict(),
        "dtype": pipe.dtype,
        "device": pipe.machine.device,
        "versions": {
            "torch": torch.__version__,
            "code": digest_of(PACKAGE, "scenes.py", *(f"{part}/*.py" for part in COMPUTES)),
        },
    }


def file_of(folder: Path, identity: Record) -> Path:
    """Return the file for the pictures of an identity.

    Another code, model or command has another file.
    """
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return folder / f"drawn-{digest[:16]}.jsonl"


def draw(
    pipe: Pipeline, jobs: list[Job], file: Path, place: Place
) -> dict[str, list[Record]] | None:
    """Draw this process's share of the jobs, and return the pictures by point, in their order.

    Each picture is saved immediately, in `file` or in this rank's part of it. A command
    that is run again draws only what all parts lack, with any number of processes. Rank 0 waits for
    the others, merges the parts into `file` and returns the pictures; the others return None.
    """
    done = pictures_in(file)
    part = file.with_stem(f"{file.stem}-{place.rank}") if place.rank else file
    put(part, "".join(f"{line}\n" for line in lines_of(part)))
    mine = [job for job in jobs if job.picture % place.world == place.rank]
    left = [job for job in mine if job.key not in done]
    for job in tqdm(left, desc="pictures", disable=place.rank > 0):
        with part.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(picture_of(pipe, job)) + "\n")
    wait_for_all(place)
    if place.rank:
        return None
    found = pictures_in(file)
    put(file, "".join(json.dumps(record) + "\n" for record in found.values()))
    for other in parts_of(file):
        if other != file:
            other.unlink()
    drawn: dict[str, list[Record]] = {}
    for job in jobs:
        drawn.setdefault(job.point.name, []).append(found[job.key])
    return drawn


def parts_of(file: Path) -> list[Path]:
    """Return a file of pictures and its parts, as far as they exist."""
    return list(file.parent.glob(f"{file.stem}*.jsonl"))


def lines_of(part: Path) -> list[str]:
    """Return the lines of a part, none if it is absent, without a truncated last one."""
    return part.read_text(encoding="utf-8").split("\n")[:-1] if part.exists() else []


def pictures_in(file: Path) -> dict[Key, Record]:
    """Return all pictures of a file and its parts, by point and number."""
    records = [json.loads(line) for part in parts_of(file) for line in lines_of(part)]
    return {(record["point"], record["picture"]): record for record in records}


@torch.inference_mode()
def picture_of(pipe: Pipeline, job: Job) -> Record:
    """Draw a picture without warm-up, which does not change its tokens."""
    knobs, method = pipe.settings(**job.point.settings, seed=job.seed), method_of(job.point.method)
    encoded = pipe.networks.text.encode(pipe.check_prompt(job.prompt))
    config, condition = pipe.prepared(pipe.planned(method, knobs), encoded)
    *steps, last = decode(pipe.target, pipe.drafter, condition, config)
    assert isinstance(last, Decoded)
    kinds = [kind for step in steps if isinstance(step, Step) for kind in step.kinds]
    return {
        "point": job.point.name,
        "picture": job.picture,
        "tokens": last.tokens,
        "steps": last.steps,
        "changed": kinds.count("relaxed") / len(kinds),
    }
