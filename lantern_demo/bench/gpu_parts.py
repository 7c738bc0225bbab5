"""What `python -m lantern_demo.bench gpu` looks at, part by part. A part yields rows of a table; a row whose `ok` is False is a fault.

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
from importlib import import_module
from math import isqrt
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

from lantern_demo.bench.beds import Bed, bed_of, without_graphs
from lantern_demo.bench.curve import fixed_paths
from lantern_demo.bench.memory import peak_of_process
from lantern_demo.bench.report import machine_of
from lantern_demo.decoding.drafting import Drafts, DynamicTree, StaticTree
from lantern_demo.decoding.loop import Decoded
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.wavefront import Wavefront
from lantern_demo.decoding.window import CoupledWindow, Window
from lantern_demo.knobs import TREES
from lantern_demo.models.device import pick_device

Row = dict[str, Any]

BUNDLED, XL, ANOLE = "lantern-scenes", "llamagen-t2i-256", "anole-7b"
TOP_K, DEPTH = 10, 4  # of the dynamic trees, as published
WARM = 4  # steps before those whose launches are counted
MIB = 2**20

# Tokens a step that others report of LlamaGen-XL with the published trees, temperature 1: docs/quality.md, "Reported elsewhere".
REPORTED = {
    "eagle1": (2.42, "COOL-SD"),
    "eagle2": (1.22, "VVS"),
    "lantern": (2.10, "VVS, delta 0.3"),
    "lantern++": (2.67, "COOL-SD"),
}


@dataclass(frozen=True)
class Plan:
    """How much is done."""

    device: str
    small: bool = False  # shrunk models and few runs: a look at the program itself

    @property
    def repeats(self) -> int:
        """Runs with the same seed."""
        return 3 if self.small else 20

    @property
    def runs(self) -> int:
        """Runs after which memory must be what it was."""
        return 5 if self.small else 50

    @property
    def tokens(self) -> int:
        """Of a run."""
        return 10 if self.small else 96

    @property
    def trees(self) -> tuple[int, ...]:
        """Nodes of the draft trees."""
        return (8,) if self.small else (8, 16, 32, 58)

    @property
    def passes(self) -> tuple[int, ...]:
        """Nodes of the passes whose cost is compared with that of a single one."""
        return (2, 8) if self.small else (2, 4, 8, 12, 16, 24, 32, 48, 59)

    def bed(self, model: str) -> Bed:
        return bed_of(model, pick_device(self.device), self.small)


class Skipped(Exception):
    """There is nothing to look at, and why."""


@dataclass(frozen=True)
class Part:
    """A part: what it is called, what its rows say, how many seconds it may take, and what it does."""

    title: str
    about: str
    limit: int
    run: Callable[[Plan], Iterator[Row]]


def machine(plan: Plan) -> Iterator[Row]:
    """Raises ValueError when there is no such device."""
    device = pick_device(plan.device)
    for name, value in {
        **machine_of(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "transformers": transformers.__version__,
    }.items():
        yield {"what": name, "value": value}


def tests(plan: Plan) -> Iterator[Row]:
    folder = Path(__file__).resolve().parents[2] / "tests" / "cuda"
    if not folder.is_dir():
        raise Skipped("the tests are not part of this installation")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    done = subprocess.run(command, cwd=folder.parents[1], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    for line in lines:
        if found := re.match(r"(FAILED|ERROR) (\S+)(.*)", line):
            yield {"test": found[2].rpartition("::")[2], "outcome": f"{found[1].lower()}{found[3]}", "ok": False}
    yield {"test": "all", "outcome": lines[-1] if lines else done.stderr[-300:], "ok": done.returncode == 0}


def graphs(plan: Plan) -> Iterator[Row]:
    for model in (BUNDLED, XL):
        bed = plan.bed(model)
        for method in METHODS:
            done = bed.decoded(method, tokens=plan.tokens)
            expected = "graphs" if bed.device.type == "cuda" else "fixed"
            yield {
                "model": model, "method": method, "ran as": done.engine, "tokens a second": round(done.tokens_per_second, 1),
                "capture s": round(done.seconds["capture"], 2), "ok": done.engine == expected,
            }  # fmt: skip


def repeats(plan: Plan) -> Iterator[Row]:
    for model in (BUNDLED, XL):
        bed = plan.bed(model)
        for method in ("vanilla", "eagle2", "lantern++"):
            found = {tuple(bed.decoded(method, tokens=plan.tokens, seed=1).tokens) for _ in range(plan.repeats)}
            yield {
                "model": model,
                "method": method,
                "runs": plan.repeats,
                "different pictures": len(found),
                "ok": len(found) == 1,
            }


def engines(plan: Plan) -> Iterator[Row]:
    for model in (BUNDLED, XL):
        bed = plan.bed(model)
        for method in METHODS:
            with without_graphs():
                eager = bed.decoded(method, tokens=plan.tokens, seed=2)
            replayed = bed.decoded(method, tokens=plan.tokens, seed=2)
            plain = bed.decoded(method, tokens=plan.tokens, seed=2, plain=True)
            yield {
                "model": model, "method": method, "eager": eager.engine, "replayed": replayed.engine,
                "eager to replayed": agreement(eager, replayed), "plain to replayed": agreement(plain, replayed),
                "ok": eager.tokens == replayed.tokens and (bed.device.type != "cuda" or eager.engine != replayed.engine == "graphs"),
            }  # fmt: skip


def agreement(one: Decoded, other: Decoded) -> str:
    """Where two runs' tokens part."""
    for i, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=True)):
        if a != b:
            return f"part at token {i + 1} of {len(one.tokens)}"
    return "the same"


def launches(plan: Plan) -> Iterator[Row]:
    """Kernels of a step that the profiler sees, against what was counted on tensors without a device."""
    try:
        budgets: dict[tuple[str, str, str], int | None] = import_module("lantern_demo.bench.launches").BUDGETS
        note = ""
    except ModuleNotFoundError:
        budgets, note = (
            {(BUNDLED, method, "small"): None for method in METHODS},
            "there are no budgets: bench/launches.py is missing",
        )
    beds: dict[str, Bed] = {}
    for (model, method, tree), budget in budgets.items():
        bare = method == "vanilla"
        if model not in (BUNDLED, XL, ANOLE) or not (bare or tree in TREES):
            yield {"model": model, "method": method, "tree": tree, "note": "not a model and tree that this part has"}
            continue
        if model not in beds:
            beds.clear()
            beds[model] = plan.bed(model)
        bed = beds[model]
        policy = Drafts() if bare else METHODS[method].drafts.of(bed.knobs.with_changes(tree=tree))
        with without_graphs():
            counted = kernels(bed, method, policy, steps=2 if plan.small else 6)
        yield {
            "model": model, "method": method, "tree": tree, "kernels a step": round(counted, 1), "budget": budget,
            "over it": None if budget is None else round(counted / budget, 2), "note": note,
        }  # fmt: skip


def kernels(bed: Bed, method: str, tree: Drafts, steps: int) -> float:
    """Kernels of a step, copies left out; on a processor PyTorch's operations instead."""
    cuda = bed.device.type == "cuda"
    run = bed.run(method, tree, tokens=min(bed.tokens, (1 + WARM + steps) * (tree.nodes + 1)))
    for _ in range(1 + WARM):
        next(run)
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
        did = sum(1 for _ in zip(range(steps), run, strict=False))
        if cuda:
            torch.cuda.synchronize(bed.device)
    run.close()  # type: ignore[attr-defined]
    if cuda:
        found = [e for e in seen.events() if e.device_type.name == "CUDA" and not e.name.startswith(("Memcpy", "Memset"))]
    else:
        found = [e for e in seen.events() if e.name.startswith("aten::")]
    return len(found) / max(1, did)


BACKENDS: dict[str, SDPBackend | None] = {
    "PyTorch's choice": None,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "math": SDPBackend.MATH,
}


def attention(plan: Plan) -> Iterator[Row]:
    """Attention of one layer at LlamaGen-XL's and Anole's sizes, two rows, under an additive mask."""
    device = pick_device(plan.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shapes = ((2, 8, 64),) if plan.small else ((20, 448, 64), (32, 1344, 128))  # heads, slots, width of a head
    for heads, slots, width in shapes:
        for nodes in (1, 8) if plan.small else (1, 8, 32, 59):
            q = torch.randn(2, heads, nodes, width, device=device, dtype=dtype)
            k, v = torch.randn(2, 2, heads, slots, width, device=device, dtype=dtype)
            bias = torch.zeros(2, 1, nodes, slots, device=device, dtype=dtype)
            call = partial(F.scaled_dot_product_attention, q, k, v, attn_mask=bias)
            row: Row = {"heads": heads, "slots": slots, "nodes": nodes}
            for name, backend in BACKENDS.items():
                try:
                    with nullcontext() if backend is None else sdpa_kernel(backend):
                        row[f"{name} us"] = round(microseconds(call, device), 1)
                except RuntimeError:  # the backend does not take such a mask, or is not built in
                    row[f"{name} us"] = None
            yield row


def backends(plan: Plan) -> Iterator[Row]:
    """Whole steps under each backend, PyTorch's plain attention standing in where it takes no mask."""
    bed = plan.bed(XL)
    for name, backend in BACKENDS.items():
        row: Row = {"model": XL, "attention": name}
        for method in ("vanilla", "lantern++"):
            with nullcontext() if backend is None else sdpa_kernel([backend, SDPBackend.MATH]):
                row[f"{method} ms a step"] = round(step_ms(bed.decoded(method, tokens=plan.tokens)), 3)
        yield row


def microseconds(call: Callable[[], object], device: torch.device, times: int = 50) -> float:
    """Device time of a call: on a GPU of a captured graph of many of them."""
    if device.type != "cuda":
        call()
        start = perf_counter()
        for _ in range(times):
            call()
        return 1e6 * (perf_counter() - start) / times
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph, start_event, end_event = torch.cuda.CUDAGraph(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.graph(graph):
        for _ in range(times):
            call()
    graph.replay()
    start_event.record()
    graph.replay()
    end_event.record()
    end_event.synchronize()
    return 1000 * start_event.elapsed_time(end_event) / times


def memory(plan: Plan) -> Iterator[Row]:
    bed = plan.bed(BUNDLED)
    cuda = bed.device.type == "cuda"
    settled = 0
    methods = list(METHODS)
    for run in range(1, plan.runs + 1):
        bed.decoded(methods[run % len(methods)], tokens=min(plan.tokens, 32), seed=run)
        held = torch.cuda.memory_allocated(bed.device) if cuda else peak_of_process() or 0
        if run == len(methods):  # every method has run once
            settled = held
        if run in (1, len(methods), 10, 25, plan.runs):
            row = {"runs": run, "MiB" if cuda else "peak MiB of the process": round(held / MIB, 1)}
            if cuda:
                row |= {
                    "reserved MiB": round(torch.cuda.memory_reserved(bed.device) / MIB, 1),
                    "ok": not settled or held <= settled + MIB,
                }
            yield row


def _tree(method: Method, nodes: int, row: int) -> Drafts:
    """A draft tree of so many nodes for a method, of a picture with rows of `row` tokens."""
    makers: dict[type[Drafts], Callable[[], Drafts]] = {
        DynamicTree: lambda: DynamicTree(TOP_K, DEPTH, nodes),
        StaticTree: lambda: StaticTree(fixed_paths(nodes)),
        Wavefront: lambda: Wavefront(-(-row // max(1, nodes - 1))),  # as many nodes as that at most
        Window: lambda: Window(nodes),
        CoupledWindow: lambda: CoupledWindow(nodes),
    }
    return makers[method.drafts]()


def speed(model: str) -> Callable[[Plan], Iterator[Row]]:
    """The part that times a model's steps."""

    def rows(plan: Plan) -> Iterator[Row]:
        bed = plan.bed(model)
        tokens = plan.tokens if bed.random or plan.small else bed.tokens
        vanilla = bed.decoded("vanilla", tokens=tokens)
        alone, single = step_ms(vanilla), part_ms(vanilla, "verify")
        yield _speed_row(bed, "vanilla", vanilla, alone)
        for nodes in plan.trees:
            for method in METHODS.values():
                if not method.alone:
                    tree = _tree(method, nodes, isqrt(bed.tokens))
                    yield _speed_row(bed, method.id, bed.decoded(method.id, tree, tokens), alone)
        for nodes in plan.passes:
            done = bed.decoded("eagle1", StaticTree(fixed_paths(nodes)), tokens)
            yield {
                "method": "one pass of the target",
                "nodes": nodes,
                "verify ms": round(part_ms(done, "verify"), 3),
                "c": round(part_ms(done, "verify") / single, 2),
            }
        yield _speed_row(bed, "vanilla", bed.decoded("vanilla", tokens=tokens), alone) | {"method": "vanilla again"}

    return rows


def _speed_row(bed: Bed, method: str, done: Decoded, alone: float) -> Row:
    cost = step_ms(done) / alone
    row: Row = {"method": method, "nodes": done.nodes, "ms a step": round(step_ms(done), 3)}
    row |= {f"{part} ms": round(part_ms(done, part), 3) for part in ("draft", "verify", "commit")}
    row |= {"c": round(cost, 2), "ran as": done.engine}
    if not bed.random:
        row |= {"tokens a step": round(done.mean_accepted_length, 2), "tokens a second": round(done.tokens_per_second, 1)}
        row["gain"] = round(done.mean_accepted_length / cost, 2)
    elif bed.id == XL and method in REPORTED and done.nodes == 58:
        reported, source = REPORTED[method]
        row |= {"reported tokens a step": f"{reported} ({source})", "gain at that": round(reported / cost, 2)}
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
    "The weights are random: a step costs what it would with the real ones, but what is accepted means nothing and is not shown. "
    "Where somebody reports tokens a step with the published tree, the gain at that is calculated, not measured."
)

PARTS: dict[str, Part] = {
    "machine": Part("The machine", "", 60, machine),
    "tests": Part("CUDA tests", "`tests/cuda`, which are skipped where there is no device.", 90, tests),
    "graphs": Part("Graphs", "Whether every method's steps run as captured graphs.", 60, graphs),
    "repeats": Part("The same seed", "The same seed must draw the same picture, run after run.", 80, repeats),
    "engines": Part(
        "Eager and replayed",
        "Steps run one by one must give the tokens of replayed ones. The plain engine rounds differently and may part from both.",
        80,
        engines,
    ),
    "launches": Part(
        "Launches",
        "Kernels of a step that the profiler counts; a budget counts an operation of several kernels once.",
        60,
        launches,
    ),
    "attention": Part(
        "Attention",
        "Microseconds of one layer's attention by backend; none where a backend does not take the mask.",
        40,
        attention,
    ),
    "backends": Part(f"Steps of {XL} by attention", "Whole steps, random weights.", 50, backends),
    "memory": Part("Memory", "Once every method has run, further runs must not hold more.", 50, memory),
    "bundled": Part(
        f"Steps of {BUNDLED}",
        _ABOUT_SPEED + "The weights are the real ones, and gain is measured tokens a step over c.",
        90,
        speed(BUNDLED),
    ),
    "xl": Part(f"Steps of {XL}", _ABOUT_SPEED + _RANDOM, 90, speed(XL)),
    "anole": Part(f"Steps of {ANOLE}", _ABOUT_SPEED + _RANDOM, 120, speed(ANOLE)),
}
