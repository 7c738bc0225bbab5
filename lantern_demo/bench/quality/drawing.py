"""The pictures of every point, as token ids. What is drawn is on the disk at once, so that hours of it can be interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from lantern_demo.bench.journal import Journal
from lantern_demo.bench.quality.points import Point
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.loop import Decoded, decode
from lantern_demo.pipeline import Pipeline
from lantern_demo.settings import method_of
from lantern_demo.training.sample import encode_prompts, sample_batch

BATCH = 50  # pictures of the floor that are drawn at once
AGAIN = 1_000_000  # between the seeds of the floor and those of the points

Counts = dict[str, int]  # how many pictures, by point; none of those that are not in it


class Job(NamedTuple):
    """Pictures of a point, `number` of them from `first` on."""

    point: Point
    first: int
    number: int


def batches(pipe: Pipeline) -> bool:
    """Whether vanilla may be drawn many pictures at a time: in float32, by a network that has its weights still."""
    return pipe.dtype == "float32" and not any(weight.is_meta for weight in pipe.networks.target.parameters())


def jobs_of(points: list[Point], counts: Counts, batched: bool) -> list[Job]:
    """All pictures to draw, so ordered that an interrupted run has nearly as many of every point. `batched` draws vanilla's with other
    seeds in batches: they are nobody's pair."""
    jobs = []
    for point in points:
        size = BATCH if batched and point.group == "again" else 1
        total = counts.get(point.name, 0)
        jobs += [Job(point, first, min(size, total - first)) for first in range(0, total, size)]
    return sorted(jobs, key=lambda job: job.first)


def left(jobs: list[Job], records: list[dict[str, Any]]) -> list[Job]:
    """The jobs of which a picture is not among the records."""
    done = {(record["point"], record["picture"]) for record in records}
    return [job for job in jobs if any((job.point.name, job.first + i) not in done for i in range(job.number))]


def draw(pipe: Pipeline, prompts: list[str], jobs: list[Job], journal: Journal, quiet: bool = False) -> None:
    """Draw the pictures of jobs. Picture i is of `prompts[i]` with seed i, whatever else is drawn."""
    for job in tqdm(jobs, desc="pictures", unit="job", disable=quiet):
        wanted = prompts[job.first : job.first + job.number]
        for i, drawn in enumerate(_batch(pipe, job, wanted) if job.number > 1 else [_one(pipe, job, wanted[0])]):
            journal.add("picture", {"point": job.point.name, "picture": job.first + i, **drawn})


def _one(pipe: Pipeline, job: Job, prompt: str) -> dict[str, Any]:
    """A picture by the engine, without warm-up, previews or the measuring of distortion: none of them changes its tokens."""
    method, knobs = method_of(job.point.method), pipe.settings(**job.point.settings)
    with torch.inference_mode():
        encoded = pipe.networks.text.encode(pipe.check_prompt(prompt))
        condition = pipe.networks.target.condition(encoded.features, encoded.mask, knobs.cfg_scale != 1)
    config = Config(
        method, pipe.info.tokens, knobs.sampling(), knobs.rule(method), method.drafts.of(knobs), pipe.neighbours(knobs.neighbours),
        _seed(job), pipe.device, row=pipe.info.grid, dice=knobs.dice,
    )  # fmt: skip
    *_, last = decode(pipe.target, pipe.drafter, condition, config)
    assert isinstance(last, Decoded)
    return {"tokens": last.tokens, "steps": last.steps}


def _batch(pipe: Pipeline, job: Job, prompts: list[str]) -> Iterator[dict[str, Any]]:
    """Vanilla pictures, many at once: the same law, and faster."""
    networks, sampling = pipe.networks, pipe.settings(**job.point.settings).sampling()
    tokens = sample_batch(networks.target, *encode_prompts(networks.text, prompts, pipe.device), sampling, _seed(job))
    for row in tokens.tolist():
        yield {"tokens": row, "steps": len(row) - 1}


def _seed(job: Job) -> int:
    return job.first + (AGAIN if job.point.group == "again" else 0)


def finished(records: list[dict[str, Any]], points: list[Point], counts: Counts) -> dict[str, list[dict[str, Any]]]:
    """By point, its pictures from the first on without a gap, as many as were asked for."""
    found: dict[str, dict[int, dict[str, Any]]] = {point.name: {} for point in points}
    for record in records:
        if record["point"] in found:
            found[record["point"]][record["picture"]] = record
    whole = {}
    for point in points:
        drawn = found[point.name]
        until = next(i for i in range(len(drawn) + 1) if i not in drawn)
        whole[point.name] = [drawn[i] for i in range(min(until, counts.get(point.name, 0)))]
    return whole
