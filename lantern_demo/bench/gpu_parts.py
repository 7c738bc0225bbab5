"""What `python -m lantern_demo.bench gpu` looks at, part by part. A part yields rows of a table; a row whose `ok` is False is a
fault.

Nothing here imports Gradio, and each part runs in a process of its own.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

from lantern_demo.bench.memory import peak_of_process
from lantern_demo.bench.models import TimedModel, timed_model, without_graphs
from lantern_demo.bench.report import machine_of
from lantern_demo.decoding.drafting import Drafts, DynamicTree, StaticTree
from lantern_demo.decoding.loop import Decoded
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.trees import Path as TreePath
from lantern_demo.decoding.wavefront import Wavefront
from lantern_demo.decoding.window import Window
from lantern_demo.models.machine.device import pick_device
from lantern_demo.static_trees import STATIC_TREES

Row = dict[str, Any]
FIXED = [method.id for method in METHODS.values() if not method.drafts.reads_back]  # whose steps can be captured

BUNDLED, XL, ANOLE = "lantern-scenes", "llamagen-t2i-256", "anole-7b"
TOP_K, DEPTH = 10, 4  # of the dynamic trees, as published
MIB = 2**20
BACKENDS: dict[str, SDPBackend | None] = {
    "PyTorch's choice": None,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "math": SDPBackend.MATH,
}


@dataclass(frozen=True)
class Plan:
    """How much is done: all of it, or, `small`, shrunk models and few runs, which is a look at the program itself."""

    device: str
    small: bool = False

    @property
    def tokens(self) -> int:
        """Of a run."""
        return 10 if self.small else 96

    def timed(self, model: str) -> TimedModel:
        return timed_model(model, pick_device(self.device), self.small)


@dataclass(frozen=True)
class Part:
    """A part: what it is called, what its rows say, how many seconds it may take, and what it does."""

    title: str
    about: str
    limit: int
    run: Callable[[Plan], Iterator[Row]]


def machine(plan: Plan) -> Iterator[Row]:
    """Raises ValueError when there is no such device."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda}
    versions |= {"cudnn": torch.backends.cudnn.version(), "transformers": transformers.__version__}
    for name, value in (machine_of(pick_device(plan.device)) | versions).items():
        yield {"what": name, "value": value}


def tests(plan: Plan) -> Iterator[Row]:
    folder = Path(__file__).resolve().parents[2] / "tests" / "cuda"
    if not folder.is_dir():
        yield {"test": "all", "outcome": "not part of this installation"}
        return
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(command, cwd=folder.parents[1], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    for line in lines:
        if found := re.match(r"(FAILED|ERROR) (\S+)(.*)", line):
            yield {"test": found[2].rpartition("::")[2], "outcome": f"{found[1].lower()}{found[3]}", "ok": False}
    yield {"test": "all", "outcome": lines[-1] if lines else done.stderr[-300:], "ok": done.returncode == 0}


def repeats(plan: Plan) -> Iterator[Row]:
    runs = 3 if plan.small else 20
    for model in (BUNDLED, XL):
        timed = plan.timed(model)
        for method in ("vanilla", "eagle2", "lantern++"):
            found = {tuple(timed.decoded(method, tokens=plan.tokens, seed=1).tokens) for _ in range(runs)}
            yield {"model": model, "method": method, "runs": runs, "different pictures": len(found), "ok": len(found) == 1}


def engines(plan: Plan) -> Iterator[Row]:
    for model in (BUNDLED, XL):
        timed = plan.timed(model)
        for method in FIXED:
            with without_graphs():
                eager = timed.decoded(method, tokens=plan.tokens, seed=2)
            replayed = timed.decoded(method, tokens=plan.tokens, seed=2)
            plain = timed.decoded(method, tokens=plan.tokens, seed=2, plain=True)
            yield {
                "model": model,
                "method": method,
                "eager": eager.engine,
                "replayed": replayed.engine,
                "capture s": round(replayed.seconds["capture"], 2),
                "eager to replayed": agreement(eager, replayed),
                "plain to replayed": agreement(plain, replayed),
                "ok": eager.tokens == replayed.tokens
                and replayed.engine == ("graphs" if timed.device.type == "cuda" else "fixed"),
            }


def agreement(one: Decoded, other: Decoded) -> str:
    """Where two runs' tokens part."""
    for i, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=True)):
        if a != b:
            return f"part at token {i + 1} of {len(one.tokens)}"
    return "the same"


def backends(plan: Plan) -> Iterator[Row]:
    """Whole steps under each backend, PyTorch's plain attention standing in where it takes no mask."""
    timed = plan.timed(XL)
    for name, backend in BACKENDS.items():
        row: Row = {"model": XL, "attention": name}
        for method in ("vanilla", "lantern++"):
            with nullcontext() if backend is None else sdpa_kernel([backend, SDPBackend.MATH]):
                row[f"{method} ms a step"] = round(step_ms(timed.decoded(method, tokens=plan.tokens)), 3)
        yield row


def memory(plan: Plan) -> Iterator[Row]:
    timed, runs = plan.timed(BUNDLED), len(FIXED) + 2 if plan.small else 50
    cuda = timed.device.type == "cuda"
    settled, methods = 0, list(FIXED)
    for run in range(1, runs + 1):
        timed.decoded(methods[run % len(methods)], tokens=min(plan.tokens, 32), seed=run)
        held = torch.cuda.memory_allocated(timed.device) if cuda else peak_of_process() or 0
        if run == len(methods):  # every method has run once
            settled = held
        if run in (1, len(methods), 10, 25, runs):
            row = {"runs": run, "MiB" if cuda else "peak MiB of the process": round(held / MIB, 1)}
            if cuda:
                row |= {"reserved MiB": round(torch.cuda.memory_reserved(timed.device) / MIB, 1)}
                row |= {"ok": not settled or held <= settled + MIB}
            yield row


def fixed_paths(nodes: int) -> tuple[TreePath, ...]:
    """The paths of a tree of at most 59 nodes: the published one of 58 and one more, as many as asked for, likely drafts first.

    A path whose choices sum to less comes first. Its parent's sum is less than its own, so that every beginning is a tree.
    """
    paths = (*STATIC_TREES["naive_extend_57"], (5,))
    return tuple(sorted(paths, key=lambda path: (sum(choice + 1 for choice in path), path))[: nodes - 1])


def _tree(method: Method, nodes: int, row: int) -> Drafts:
    """A draft tree of so many nodes for a method, of a picture with rows of `row` tokens."""
    makers: dict[type[Drafts], Callable[[], Drafts]] = {
        DynamicTree: lambda: DynamicTree(TOP_K, DEPTH, nodes),
        StaticTree: lambda: StaticTree(fixed_paths(nodes)),
        Wavefront: lambda: Wavefront(-(-row // max(1, nodes - 1))),  # as many nodes as that at most
        Window: lambda: Window(nodes),
    }
    return makers[method.drafts]()


def speed(model: str, plan: Plan) -> Iterator[Row]:
    """The steps of a model: every method at trees of several sizes, and passes of several sizes."""
    timed = plan.timed(model)
    tokens = plan.tokens if timed.random or plan.small else timed.tokens
    vanilla = timed.decoded("vanilla", tokens=tokens)
    alone, single = step_ms(vanilla), part_ms(vanilla, "verify")
    yield _speed_row(timed, "vanilla", vanilla, alone)
    for nodes in (8,) if plan.small else (8, 16, 32, 58):
        for method in map(METHODS.__getitem__, FIXED):
            if not method.alone:
                done = timed.decoded(method.id, _tree(method, nodes, isqrt(timed.tokens)), tokens)
                yield _speed_row(timed, method.id, done, alone)
    for nodes in (2, 8) if plan.small else (2, 4, 8, 12, 16, 24, 32, 48, 59):
        taken = part_ms(timed.decoded("eagle1", StaticTree(fixed_paths(nodes)), tokens), "verify")
        yield {"method": "one pass of the target", "nodes": nodes, "verify ms": round(taken, 3), "c": round(taken / single, 2)}
    yield _speed_row(timed, "vanilla", timed.decoded("vanilla", tokens=tokens), alone) | {"method": "vanilla again"}


def _speed_row(timed: TimedModel, method: str, done: Decoded, alone: float) -> Row:
    cost = step_ms(done) / alone
    row: Row = {"method": method, "nodes": done.nodes, "ms a step": round(step_ms(done), 3)}
    row |= {f"{part} ms": round(part_ms(done, part), 3) for part in ("draft", "verify", "commit")}
    row |= {"c": round(cost, 2), "ran as": done.engine}
    if not timed.random:
        row |= {"tokens a step": round(done.mean_accepted_length, 2), "tokens a second": round(done.tokens_per_second, 1)}
        row["gain"] = round(done.mean_accepted_length / cost, 2)
    return row


def step_ms(done: Decoded) -> float:
    """Milliseconds of a step, the prefill left out."""
    return 1000 * (done.decode_seconds - done.seconds["prefill"]) / max(1, done.steps)


def part_ms(done: Decoded, part: str) -> float:
    """Milliseconds of one part of a step."""
    return 1000 * done.seconds[part] / max(1, done.steps)


_ABOUT_SPEED = (
    "c is what a step costs against vanilla's; of a pass of the target over N nodes what it costs against a pass over one. "
    "A method gains when a step lands more than c tokens. "
)
_RANDOM = (
    "The weights are random: a step costs what it would with the real ones, but what is accepted means nothing and is not shown."
)
_REAL = "The weights are the real ones, and gain is measured tokens a step over c."

PARTS: dict[str, Part] = {
    "machine": Part("The machine", "", 60, machine),
    "tests": Part("CUDA tests", "`tests/cuda`, which are skipped where there is no device.", 90, tests),
    "repeats": Part("The same seed", "The same seed must draw the same picture, run after run.", 80, repeats),
    "engines": Part(
        "Eager and replayed",
        "Every method's steps must run as captured graphs, and steps run one by one must give the tokens of replayed ones. The "
        "plain engine rounds differently and may part from both.",
        120,
        engines,
    ),
    "backends": Part(f"Steps of {XL} by attention", "Whole steps, random weights.", 50, backends),
    "memory": Part("Memory", "Once every method has run, further runs must not hold more.", 50, memory),
    "bundled": Part(f"Steps of {BUNDLED}", _ABOUT_SPEED + _REAL, 90, partial(speed, BUNDLED)),
    "xl": Part(f"Steps of {XL}", _ABOUT_SPEED + _RANDOM, 90, partial(speed, XL)),
    "anole": Part(f"Steps of {ANOLE}", _ABOUT_SPEED + _RANDOM, 120, partial(speed, ANOLE)),
}
