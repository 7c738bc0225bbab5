"""Rounds: every prompt and seed is drawn by all contestants in turn, so that whatever the machine does hits all of them alike.

A contestant draws a prompt with a seed and says what that took. Ours are rows of the table, a method under settings; others come
from `peers`. Within a round all run one after the other; the next round runs them the other way round, so that a steady drift
cancels between the first and the last.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import torch
from tqdm import tqdm

from lantern_demo.bench.report import session
from lantern_demo.bench.resume import Journal
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.llamagen.labels import CLASSES
from lantern_demo.models.registry import ModelInfo
from lantern_demo.runs.pipeline import Generation, Pipeline
from lantern_demo.scenes import ATTRIBUTES, full_caption
from lantern_demo.settings.knobs import KNOBS

Run = dict[str, Any]  # what one contestant did in one round, JSON-able
Contestant = Callable[[str, int], Run]

# The settings that may have several values in one table: the tree, and the numbers of the relaxed rules.
VARIED = ("tree", "noise", *(name for name, knob in KNOBS.items() if knob.swept and knob.limit is not None))


@dataclass(frozen=True)
class Row:
    """A method under settings: one row of the table."""

    name: str  # the method's id, and the settings that tell it from its other rows
    method: str
    settings: dict[str, Any]  # what differs from the pipeline's defaults

    @property
    def label(self) -> str:
        """The name as people read it."""
        return METHODS[self.method].label + self.name[len(self.method) :]


@dataclass(frozen=True)
class Job:
    """One round's picture."""

    number: int
    prompt: str
    seed: int


def prompts_for(info: ModelInfo, count: int, seed: int = 0) -> list[str]:
    """Prompts for any model: scenes in words that name every attribute, or classes by number; the same for the same model, count
    and seed."""
    g = torch.Generator().manual_seed(seed)
    if info.kind == "class":
        return [str(n) for n in torch.randint(CLASSES, (count,), generator=g).tolist()]
    return [
        full_caption(**{name: int(torch.randint(len(classes), (1,), generator=g)) for name, classes in ATTRIBUTES.items()})
        for _ in range(count)
    ]


def rows_of(methods: list[str], values: dict[str, list[Any]]) -> list[Row]:
    """Each method under every combination of those values that it reads; a name tells only the values that vary."""
    rows = []
    for method in methods:
        read = {key: given for key, given in values.items() if KNOBS[key].reads(METHODS[method])}
        for chosen in itertools.product(*read.values()):
            settings = dict(zip(read, chosen, strict=True))
            said = [f"{key.rpartition('_')[2]} {value}" for key, value in settings.items() if len(read[key]) > 1]
            rows.append(Row(f"{method} {', '.join(said)}".strip(), method, settings))
    return rows


def jobs_of(prompts: list[str], seeds: int) -> list[Job]:
    """Every prompt with `seeds` seeds; no seed is used twice."""
    return [Job(i, prompts[i // seeds], i) for i in range(len(prompts) * seeds)]


def start_peak(device: torch.device) -> None:
    """Forget the allocator's peak so far; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def stop_peak(device: torch.device) -> int | None:
    """Most bytes allocated on the GPU since `start_peak`, weights included; None on a CPU, where no run can be told apart."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def peak_of_process() -> int | None:
    """Most bytes that were ever resident of this process; None where the system does not say."""
    if sys.platform == "win32":
        return None
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # bytes there, KiB elsewhere


def play(pipe: Pipeline, row: Row, prompt: str, seed: int) -> Run:
    """Draw a picture -> its entry of the run record, its settings, seconds by the wall's clock and peak memory.

    `decode_seconds` is the engine's clock. `wall_seconds` is the wall's over the same stretch, with whatever Python does between
    the clock's segments: what a peer, which has no such clock, is compared with. Raises RuntimeError when the method fails.
    """
    walls: list[float] = []
    start_peak(pipe.device)
    for event in pipe.stream(prompt, row.method, seed=seed, **row.settings):
        if isinstance(event, Generation):
            done = event
        else:
            walls.append(perf_counter())
    entry = done.record["methods"][row.method]
    entry.pop("speedup", None)  # a ratio is taken within the round
    wall = done.stats.prefill_seconds + walls[-1] - walls[0]
    peak = stop_peak(pipe.device)
    return {**entry, "peer": False, "settings": done.record["settings"], "wall_seconds": wall, "peak_bytes": peak}


def measure(contestants: dict[str, Contestant], jobs: list[Job], journal: Journal) -> list[dict[str, Any]]:
    """The records of all rounds. Those that the journal lacks are played, after a whole round of warm-up that is thrown away."""
    done = {record["number"] for record in journal.of("round")}
    left = [job for job in jobs if job.number not in done]
    if not left:
        return journal.of("round")
    journal.add("session", session())
    with tqdm(total=(1 + len(left)) * len(contestants), desc="warm-up", unit="run") as bar:
        _round(contestants, left[0], list(contestants), bar)
        bar.set_description("rounds")
        for job in left:
            journal.add("round", _round(contestants, job, list(contestants)[:: -1 if job.number % 2 else 1], bar))
    return journal.of("round")


def _round(contestants: dict[str, Contestant], job: Job, order: list[str], bar: tqdm[Any]) -> dict[str, Any]:
    """All contestants on one picture, in this order -> the round's record."""
    runs = {}
    for name in order:
        runs[name] = contestants[name](job.prompt, job.seed)
        bar.set_postfix_str(name, refresh=False)
        bar.update()
    return {**asdict(job), "order": order, "runs": runs, "process_peak_bytes": peak_of_process()}
