"""Time captured steps on a GPU and check their tokens: `python -m lantern_demo.bench gpu`.

It needs no network and no published weights. For the bundled model and LlamaGen-XL it compares the
tokens of replayed graphs with those of eager steps, and the tokens of lossless methods with
vanilla's. They must agree in float32; in 16 bits it counts those that do. For these and Anole-7B it
times the steps of every method with trees of several sizes. The published ones have random weights:
the cost of a step is measured, its accepted length is not. Every row rewrites DIR/gpu.json and
DIR/gpu.md. `--device cpu` runs the same with tiny models, to try the command.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch

from lantern_demo.bench.models import TimedModel, timed_model
from lantern_demo.bench.report import machine_of, now, parser_of, table, write
from lantern_demo.decoding.drafting import DraftConfig, DynamicTree, StaticTree
from lantern_demo.decoding.loop import Decoded
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.device import pick_device
from lantern_demo.models.registry import REGISTRY
from lantern_demo.paths import user_path
from lantern_demo.settings.trees import STATIC_TREES

Row = dict[str, Any]
BUNDLED, XL, ANOLE = "lantern-scenes", "llamagen-t2i-256", "anole-7b"
TOKENS, FEW = 96, 10  # of a run with random weights, and of one with tiny models
NODES = (8, 16, 32, 58)
TOP_K, DEPTH = 10, 4  # of the dynamic trees, as published
RUNS_AS = {"cuda": "graphs", "cpu": "plain"}


def without_graphs() -> AbstractContextManager[Any]:
    """Disable graph capture meanwhile, so that steps run eagerly."""
    off = RuntimeError("switched off for a comparison")
    return patch.object(torch.cuda, "CUDAGraph", side_effect=off)


def identity(timed: TimedModel, dtype: torch.dtype, tokens: int) -> Iterator[Row]:
    """Yield a row per method: how many tokens agree with eager steps', and with vanilla's.

    `ok` is False if float32 tokens differ or nothing was replayed.
    """
    vanilla = timed.decoded("vanilla", tokens=tokens, seed=2)
    for method in METHODS:
        with without_graphs():
            eager = timed.decoded(method, tokens=tokens, seed=2)
        replayed = timed.decoded(method, tokens=tokens, seed=2)
        same = alike(replayed.tokens, eager.tokens)
        as_vanilla = alike(replayed.tokens, vanilla.tokens)
        lossless = METHODS[method].lossless
        agrees = same == tokens and (not lossless or as_vanilla == tokens)
        captured = replayed.runner == RUNS_AS[timed.device.type]
        yield {
            "model": timed.id,
            "format": str(dtype).removeprefix("torch."),
            "method": method,
            "ran as": replayed.runner,
            "same as eager": f"{same} of {tokens}",
            "same as vanilla": f"{as_vanilla} of {tokens}" if lossless else "-",
            "ok": captured and (dtype != torch.float32 or agrees),
        }


def alike(one: list[int], other: list[int]) -> int:
    """Return how many tokens agree."""
    return sum(a == b for a, b in zip(one, other, strict=True))


def trees(kind: type[DraftConfig], nodes: Sequence[int]) -> list[DraftConfig | None]:
    """Return the draft trees that a method is timed with; None is the tree of its settings."""
    if kind is StaticTree:
        # paths whose choices sum to less are likelier; a parent's sum is less than its own
        paths = (*STATIC_TREES["naive_extend_57"], (5,))
        likely = sorted(paths, key=lambda path: (sum(path) + len(path), path))
        return [StaticTree(likely[: count - 1]) for count in nodes]
    return [DynamicTree(TOP_K, DEPTH, count) for count in nodes] if kind is DynamicTree else [None]


def speed(timed: TimedModel, tokens: int, nodes: Sequence[int]) -> Iterator[Row]:
    """Time every method's steps with trees of several sizes.

    c is the cost of a step over that of a vanilla step.
    """
    alone = step_ms(timed.decoded("vanilla", tokens=tokens))
    for method in METHODS:
        for tree in trees(METHODS[method].drafts, nodes):
            done = timed.decoded(method, tree, tokens)
            cost = step_ms(done) / alone
            row: Row = {"model": timed.id, "method": method, "nodes": done.nodes}
            row["ms a step"] = round(step_ms(done), 3)
            for part in ("draft", "verify", "commit"):
                row[f"{part} ms"] = round(1000 * done.seconds[part] / max(1, done.steps), 3)
            row["c"] = round(cost, 2)
            row["ran as"] = done.runner
            if REGISTRY[timed.id].folder is not None:  # the weights are trained
                row["tokens a step"] = round(done.mean_accepted_length, 2)
                row["tokens a second"] = round(done.tokens_per_second, 1)
                row["gain"] = round(done.mean_accepted_length / cost, 2)
            yield row


def step_ms(done: Decoded) -> float:
    """Return the milliseconds of a step, without the prefill."""
    return 1000 * (done.decode_seconds - done.seconds["prefill"]) / max(1, done.steps)


def markdown(report: Row) -> str:
    """Return the report's tables in Markdown."""
    about = f"{report['started']}, PyTorch {report['torch']}."
    if report["small"]:
        about += " Tiny models, few steps: these numbers say nothing about a GPU."
    about += " Weights are random but of lantern-scenes: what those would accept is not shown."
    parts = [f"# Steps on {report['machine']['device']}", about]
    for title, rows in (("Replayed and eager", report["identity"]), ("Speed", report["speed"])):
        head = list(dict.fromkeys(key for row in rows for key in row))
        lines = [[str(row.get(key, "-")) for key in head] for row in rows]
        parts += [f"## {title}", table(head, lines)]
    return "\n\n".join(parts) + "\n"


def main(argv: Sequence[str]) -> int:
    """Measure and return 0, or 1 if float32 tokens differ or nothing was replayed.

    Raises ValueError for a missing device.
    """
    p = parser_of(__doc__, "gpu")
    folder = "folder for gpu.json and gpu.md"
    p.add_argument("--out", type=user_path, required=True, metavar="DIR", help=folder)
    devices = "cuda, cuda:N, or cpu for the small form (default: cuda)"
    p.add_argument("--device", default="cuda", help=devices)
    args = p.parse_args(argv)
    device = pick_device(args.device)
    small = args.device == "cpu"
    machine = machine_of(device)
    report: Row = {"started": now(), "machine": machine, "torch": torch.__version__, "small": small}
    report |= {"identity": [], "speed": []}
    full = torch.float32
    half = torch.float32 if small else torch.bfloat16
    for model, dtype, wanted in (
        (BUNDLED, full, ("identity", "speed")),
        (XL, full, ("identity",)),
        (XL, half, ("identity", "speed")),
        (ANOLE, half, ("speed",)),
    ):
        timed = timed_model(model, device, small, dtype)
        tokens = FEW if small else timed.tokens if model == BUNDLED else TOKENS
        rows = {
            "identity": identity(timed, dtype, tokens),
            "speed": speed(timed, tokens, NODES[:1] if small else NODES),
        }
        for part in wanted:
            for row in rows[part]:
                report[part].append(row)
                files = write(args.out / "gpu.json", report, markdown(report))
                print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    print(f"wrote {', '.join(map(str, files))}")
    return 0 if all(row["ok"] for row in report["identity"]) else 1
