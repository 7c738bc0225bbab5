"""Draw the pictures of every point as token ids.

Each is saved immediately, so that hours of drawing can be interrupted.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

import lantern_demo
from examples.quality.points import Point
from lantern_demo.bench.report import digest_of, spread
from lantern_demo.decoding.loop import Decoded, decode
from lantern_demo.disk_cache import put
from lantern_demo.runs.pipeline import Pipeline, load
from lantern_demo.settings.settings import method_of

DRAWN = ("text", "target", "drafter", "tokenizer")  # the networks that tokens depend on
PACKAGE = Path(lantern_demo.__file__).parent
AGAIN = 1_000_000  # between the seeds of the floor and those of the points

Counts = dict[str, int]  # how many pictures, by point; 0 for absent points
# of a picture: its point, its number there, its tokens and how many steps they took
Record = dict[str, Any]
Model = tuple[str, str, str]  # id, device and format of the model that a process loads


class Job(NamedTuple):
    """Picture number `picture` of a point.

    Its seed depends only on this number and on whether the point is the floor.
    """

    point: Point
    picture: int
    prompt: str

    @property
    def seed(self) -> int:
        return self.picture + (AGAIN if self.point.group == "again" else 0)


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
        "versions": {
            "torch": torch.__version__,
            "decoding": digest_of(PACKAGE / "decoding", "*.py"),
        },
    }


def file_of(folder: Path, identity: Record) -> Path:
    """Return the file for the pictures of an identity.

    Another code, model or command has another file.
    """
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return folder / f"drawn-{digest[:16]}.jsonl"


def draw(
    pipe: Pipeline, model: Model, jobs: list[Job], file: Path | None = None, processes: int = 1
) -> list[Record]:
    """Draw the jobs that `file` lacks and return all its records.

    One process draws with `pipe`, several load `model` themselves. Each picture is saved
    immediately, so that an interrupted command can continue. If `file` is None, nothing is saved.
    """
    records: list[Record] = []
    if file is not None and file.exists():
        whole = file.read_text(encoding="utf-8").split("\n")[:-1]  # without a truncated last line
        records = [json.loads(line) for line in whole]
    done = {(record["point"], record["picture"]) for record in records}
    left = [job for job in jobs if (job.point.name, job.picture) not in done]
    call = partial(picture_of, pipe) if processes == 1 else partial(_drawn_by, model)
    if file is not None:
        put(file, "".join(json.dumps(record) + "\n" for record in records))
    for record in tqdm(spread(call, left, processes), desc="pictures", total=len(left)):
        records.append(record)
        if file is not None:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(record) + "\n")
    return records


@lru_cache(maxsize=1)
def _loaded(model: Model) -> Pipeline:
    return load(*model, threads=1)


def _drawn_by(model: Model, job: Job) -> Record:
    return picture_of(_loaded(model), job)


@torch.inference_mode()
def picture_of(pipe: Pipeline, job: Job) -> Record:
    """Draw a picture without warm-up or previews, which do not change its tokens."""
    knobs, method = pipe.settings(**job.point.settings, seed=job.seed), method_of(job.point.method)
    encoded = pipe.networks.text.encode(pipe.check_prompt(job.prompt))
    config, condition = pipe.prepared(method, knobs, encoded)
    *_, last = decode(pipe.target, pipe.drafter, condition, config)
    assert isinstance(last, Decoded)
    return {
        "point": job.point.name,
        "picture": job.picture,
        "tokens": last.tokens,
        "steps": last.steps,
    }


def by_point(records: list[Record], jobs: list[Job]) -> dict[str, list[Record]]:
    """Return the pictures of these jobs by point, in their order."""
    found = {(record["point"], record["picture"]): record for record in records}
    drawn: dict[str, list[Record]] = {}
    for job in jobs:
        drawn.setdefault(job.point.name, []).append(found[job.point.name, job.picture])
    return drawn
