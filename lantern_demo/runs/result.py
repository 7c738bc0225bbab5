"""The outcome of a method's run, and the run record that is written of one or several."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from math import isqrt
from typing import Any

import torch
import transformers
from PIL import Image

from lantern_demo.decoding.loop import Decoded, Step
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.results import Judged
from lantern_demo.runs.record import Entry, Events, Noise, Record, Schedule, Task
from lantern_demo.settings.knobs import is_id
from lantern_demo.version import __version__

BUSY_SHARE = 0.1  # of the decode seconds: a run that waited longer for a processor was disturbed


@dataclass(frozen=True)
class Machine:
    """Where a pipeline computes, and how."""

    device: str
    dtype: str
    products: str  # how matmuls with the weights are computed
    threads: int | None  # of the processor; None: on a GPU
    threads_reason: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Result(Decoded):
    """A finished picture, its measurements, and the record that reproduces it.

    Seconds are of synchronised device work. `decoding.graphs` has how the parts of captured steps
    are timed.
    """

    method: str
    image: Image.Image
    history: list[Step]
    tree: str  # the draft tree, and why
    tree_settings: dict[str, Any]  # the settings that define this tree
    noise: Noise
    schedule: Schedule  # of the methods of the comparison
    schedule_reason: str  # why they did not race; empty if they did
    machine: Machine
    task: Task

    def upper(self, rows: int) -> list[int]:
        """Return the tokens of the upper rows, which another run may `keep`. Raise ValueError for
        another number than 0 to the picture's rows less one."""
        grid = isqrt(len(self.tokens))
        if not is_id(rows, grid):
            raise ValueError(f"rows must be a whole number from 0 to {grid - 1}, got {rows!r:.40}")
        return self.tokens[: rows * grid]

    @property
    def changed(self) -> float:
        """The share of the drawn tokens that only the relaxation accepted."""
        kinds = [kind for step in self.history for kind in step.kinds]
        return kinds.count("relaxed") / len(kinds)

    @property
    def disturbed(self) -> bool:
        """Whether the run waited for a processor for more than `BUSY_SHARE` of its seconds."""
        waited = self.waited_seconds
        return waited is not None and waited > BUSY_SHARE * self.decode_seconds

    @property
    def warning(self) -> str | None:
        """Why the picture does not show all of the prompt; None if it does."""
        return self.task["warning"]

    @property
    def record(self) -> Record:
        """The run record: all that is needed to draw the picture again."""
        return record_of([self])

    def __repr__(self) -> str:
        ran = f"{self.steps} steps, {self.decode_seconds:.2f} s"
        prompt, seed = self.task["prompt"], self.task["settings"]["seed"]
        return f"<Result of {self.method}: {prompt!r}, seed {seed}, {ran}>"

    def _repr_png_(self) -> bytes:
        """Return the picture, which a notebook shows."""
        with BytesIO() as file:
            self.image.save(file, "png")
            return file.getvalue()


@dataclass(frozen=True)
class MethodFailed:
    """A method of a comparison that raised an error; the others go on."""

    method: str
    message: str


def record_of(results: Iterable[Result]) -> Record:
    """Return the record of a comparison, with its methods in the order of METHODS."""
    ran = {result.method: result for result in results}
    first = next(iter(ran.values()))
    vanilla = ran.get("vanilla")
    entries = {name: entry_of(ran[name]) for name in METHODS if name in ran}
    for name, entry in entries.items():
        if vanilla is not None:
            entry["speedup"] = vanilla.decode_seconds / ran[name].decode_seconds
    versions = platform.python_version(), torch.__version__, transformers.__version__
    return {
        "lantern_demo": __version__,
        "versions": dict(zip(("python", "torch", "transformers"), versions, strict=True)),
        "device": first.machine.device,
        **first.task,
        "order": list(entries),
        "methods": entries,
    }


def entry_of(result: Result) -> Entry:
    """Return a method's part of a record."""
    seconds, machine = result.seconds, result.machine
    return {
        "method": result.method,
        "tokens": len(result.tokens),
        "steps": result.steps,
        "mean_accepted_length": result.mean_accepted_length,
        "accepted_lengths": result.accepted_lengths,
        "decode_seconds": result.decode_seconds,
        "nodes": result.nodes,
        "tree": result.tree,
        "tree_settings": result.tree_settings,
        "noise": result.noise,
        "schedule": result.schedule,
        "schedule_reason": result.schedule_reason,
        "changed": result.changed,
        "waited_seconds": result.waited_seconds,
        "disturbed": result.disturbed,
        "tokens_per_second": result.tokens_per_second,
        "text_seconds": seconds["text"],
        "capture_seconds": seconds["capture"],
        "prefill_seconds": seconds["prefill"],
        "draft_seconds": seconds["draft"],
        "verify_seconds": seconds["verify"],
        "commit_seconds": seconds["commit"],
        "image_seconds": seconds["image"],
        "device": machine.device,
        "dtype": machine.dtype,
        "products": machine.products,
        "threads": machine.threads,
        "threads_reason": machine.threads_reason,
        "engine": result.runner,
        "engine_reason": result.runner_reason,
        "token_ids": result.tokens,
        "image_sha256": image_hash(result.image),
        "events": events_of(result.history, result.kept),
    }


def events_of(steps: list[Step], kept: int = 0) -> Events:
    """Return the steps of a run, which kept so many tokens, as a record has them."""
    return {
        "committed": [step.committed for step in steps],
        "milliseconds": [round(1000 * step.seconds, 3) for step in steps],
        "kinds": "k" * kept + "".join(kind[0] for step in steps for kind in step.kinds),
        "trees": [
            {"tokens": step.tree_tokens, "parents": step.parents, "path": step.path}
            for step in steps
        ],
        "trials": [[trial_of(judged) for judged in step.judged] for step in steps],
    }


def trial_of(judged: Judged) -> list[float]:
    """Return a trial as records keep it: with five digits, or nine where the score needs them to
    differ from its threshold."""
    node, *values = judged
    for digits in (5, 9):
        p, score, limit = (float(f"{value:.{digits}g}") for value in values)
        if score != limit:
            break
    return [node, p, score, limit]


def image_hash(image: Image.Image) -> str:
    """Return the SHA-256 of the size and the RGB bytes, independent of the file format.

    Machines are not comparable by it: the same tokens may decode to a picture that differs by a
    level or two of 255.
    """
    return hashlib.sha256(f"{image.size}".encode() + image.tobytes()).hexdigest()
