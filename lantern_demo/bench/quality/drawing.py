"""The pictures of every point, as token ids. What is drawn is on the disk at once, so that hours of it can be interrupted."""

from __future__ import annotations

import os
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from lantern_demo.bench.quality.points import Point
from lantern_demo.bench.resume import Journal, digest_of
from lantern_demo.bench.workers import spread
from lantern_demo.decoding.loop import Decoded, decode
from lantern_demo.runs.pipeline import Pipeline, load
from lantern_demo.settings.drafts import drafts_of
from lantern_demo.settings.settings import method_of
from lantern_demo.training.own import encode_prompts, sample_batch

BATCH = 50  # pictures of the floor that are drawn at once
DRAWN = ("text", "target", "drafter", "tokenizer")  # the networks that tokens depend on
PACKAGE = Path(__file__).resolve().parent.parent.parent
AGAIN = 1_000_000  # between the seeds of the floor and those of the points

Counts = dict[str, int]  # how many pictures, by point; none of those that are not in it
Record = dict[str, Any]  # of a picture: its point, its number there, its tokens and how many steps they took
Model = tuple[str, str, str]  # what a process loads: id, device and format


class Job(NamedTuple):
    """Pictures of a point from number `first` on, one of each prompt; picture i has seed i, whatever else is drawn."""

    point: Point
    first: int
    prompts: list[str]

    @property
    def seed(self) -> int:
        return self.first + (AGAIN if self.point.group == "again" else 0)


def batches(pipe: Pipeline) -> bool:
    """Whether vanilla may be drawn many pictures at a time: in float32, by a network that has its weights still."""
    return pipe.dtype == "float32" and not any(weight.is_meta for weight in pipe.networks.target.parameters())


def jobs_of(points: list[Point], counts: Counts, prompts: list[str], batched: bool) -> list[Job]:
    """All pictures to draw, so ordered that an interrupted run has nearly as many of every point. `batched` draws vanilla's with
    other seeds in batches: they are nobody's pair."""
    jobs = []
    for point in points:
        size, total = BATCH if batched and point.group == "again" else 1, counts.get(point.name, 0)
        jobs += [Job(point, first, prompts[first : min(first + size, total)]) for first in range(0, total, size)]
    return sorted(jobs, key=lambda job: job.first)


def identity_of(pipe: Pipeline, points: list[Point], command: Record) -> Record:
    """What is drawn, by which code and by the weights that its tokens depend on."""
    folder = pipe.info.folder
    return {
        "command": {**command, "points": {p.name: p.settings for p in points}},
        "model": {"id": pipe.info.id, "files": folder and digest_of(folder, *(f"{part}/*.safetensors" for part in DRAWN))},
        "settings": pipe.defaults.as_dict(),
        "dtype": pipe.dtype,
        "versions": {"torch": torch.__version__, "decoding": digest_of(PACKAGE / "decoding", "*.py")},
    }


def draw(pipe: Pipeline, model: Model, jobs: list[Job], journal: Journal, processes: int = 1) -> None:
    """Draw what the journal lacks of these jobs, by `pipe` or by processes that load `model` themselves."""
    done = {(record["point"], record["picture"]) for record in journal.of("picture")}
    left = [job for job in jobs if any((job.point.name, job.first + i) not in done for i in range(len(job.prompts)))]
    call = partial(pictures, pipe) if processes == 1 else partial(_drawn_by, model)
    with tqdm(total=len(left), desc="pictures", unit="job") as bar:
        for records in spread(call, left, processes, max(1, (os.cpu_count() or 1) // processes)):
            for record in records:
                journal.add("picture", record)
            bar.update()


@lru_cache(maxsize=1)
def _loaded(model: Model) -> Pipeline:
    threads = torch.get_num_threads()
    pipe = load(*model)
    torch.set_num_threads(threads)  # what this process was given, not what a process alone would take
    return pipe


def _drawn_by(model: Model, job: Job) -> list[Record]:
    return pictures(_loaded(model), job)


@torch.inference_mode()
def pictures(pipe: Pipeline, job: Job) -> list[Record]:
    """A job's pictures: vanilla's many at once, which is the same distribution and faster, any other by the engine, without
    warm-up or previews, neither of which changes its tokens."""
    point, networks, knobs = job.point, pipe.networks, pipe.settings(**job.point.settings)
    if len(job.prompts) > 1:
        features = encode_prompts(networks.text, job.prompts, pipe.device)
        tokens = sample_batch(networks.target, *features, knobs.sampling(), job.seed).tolist()
        steps = len(tokens[0]) - 1
    else:
        method = method_of(point.method)
        encoded = networks.text.encode(pipe.check_prompt(job.prompts[0]))
        knobs = knobs.with_changes(seed=job.seed)
        config, condition = pipe.asked_for(method, knobs, encoded, pipe.info.tokens, drafts_of(method.drafts, knobs))
        *_, last = decode(pipe.target, pipe.drafter, condition, config)
        assert isinstance(last, Decoded)
        tokens, steps = [last.tokens], last.steps
    return [{"point": point.name, "picture": job.first + i, "tokens": row, "steps": steps} for i, row in enumerate(tokens)]


def finished(records: list[Record], points: list[Point], counts: Counts) -> dict[str, list[Record]]:
    """By point, its pictures from the first on without a gap, as many as were asked for."""
    found = {(record["point"], record["picture"]): record for record in records}
    whole: dict[str, list[Record]] = {}
    for point in points:
        drawn = whole[point.name] = []
        while len(drawn) < counts.get(point.name, 0) and (point.name, len(drawn)) in found:
            drawn.append(found[point.name, len(drawn)])
    return whole
