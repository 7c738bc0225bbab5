"""Speed and tokens of captured steps on a GPU: `python -m lantern_demo.bench gpu --out DIR`.

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
    return patch.object(
        torch.cuda, "CUDAGraph", side_effect=RuntimeError("switched off for a comparison")
    )


def identity(timed: TimedModel, dtype: torch.dtype, tokens: int) -> Iterator[Row]:
    """Yield a row per method: how many tokens of eager and replayed steps agree, and of a lossless
    method with vanilla's.

    `ok` is False if float32 tokens differ or nothing was replayed."""
    vanilla = timed.decoded("vanilla", tokens=tokens, seed=2).tokens
    for method in METHODS:
        with without_graphs():
            eager = timed.decoded(method, tokens=tokens, seed=2)
        replayed = timed.decoded(method, tokens=tokens, seed=2)
        same, as_vanilla = (
            sum(a == b for a, b in zip(replayed.tokens, found, strict=True))
            for found in (eager.tokens, vanilla)
        )
        lossless = METHODS[method].lossless
        agrees = same == tokens and (not lossless or as_vanilla == tokens)
        yield {
            "model": timed.id,
            "format": str(dtype).removeprefix("torch."),
            "method": method,
            "ran as": replayed.runner,
            "same as eager": f"{same} of {tokens}",
            "same as vanilla": f"{as_vanilla} of {tokens}" if lossless else "-",
            "ok": replayed.runner == RUNS_AS[timed.device.type]
            and (dtype != torch.float32 or agrees),
        }


def trees(kind: type[DraftConfig], nodes: Sequence[int]) -> list[DraftConfig | None]:
    """Return the draft trees that a method is timed with.

    None stands for the tree of its settings.
    """
    # paths whose choices sum to less are likelier; a parent's sum is less than its own
    if kind is StaticTree:
        likely = sorted(
            (*STATIC_TREES["naive_extend_57"], (5,)), key=lambda path: (sum(path) + len(path), path)
        )
        return [StaticTree(likely[: count - 1]) for count in nodes]
    return [DynamicTree(TOP_K, DEPTH, count) for count in nodes] if kind is DynamicTree else [None]


def speed(timed: TimedModel, tokens: int, nodes: Sequence[int]) -> Iterator[Row]:
    """Time every method's steps with trees of several sizes. c is the cost of a step over that of a
    vanilla step.
    """
    alone = step_ms(timed.decoded("vanilla", tokens=tokens))
    for method in METHODS:
        for tree in trees(METHODS[method].drafts, nodes):
            done = timed.decoded(method, tree, tokens)
            cost, parts = step_ms(done) / alone, ("draft", "verify", "commit")
            row: Row = {
                "model": timed.id,
                "method": method,
                "nodes": done.nodes,
                "ms a step": round(step_ms(done), 3),
            }
            row |= {
                f"{part} ms": round(1000 * done.seconds[part] / max(1, done.steps), 3)
                for part in parts
            }
            row |= {"c": round(cost, 2), "ran as": done.runner}
            if REGISTRY[timed.id].folder is not None:  # the weights are trained
                row |= {
                    "tokens a step": round(done.mean_accepted_length, 2),
                    "tokens a second": round(done.tokens_per_second, 1),
                }
                row["gain"] = round(done.mean_accepted_length / cost, 2)
            yield row


def step_ms(done: Decoded) -> float:
    """Return the milliseconds of a step, without the prefill."""
    return 1000 * (done.decode_seconds - done.seconds["prefill"]) / max(1, done.steps)


def markdown(report: Row) -> str:
    small = (
        " Tiny models, few steps: these numbers say nothing about a GPU." if report["small"] else ""
    )
    random = "Weights are random but of lantern-scenes: what those would accept means nothing and is not shown."
    parts = [
        f"# Steps on {report['machine']['device']}",
        f"{report['started']}, PyTorch {report['torch']}.{small} {random}",
    ]
    for title, rows in (("Replayed and eager", report["identity"]), ("Speed", report["speed"])):
        head = list(dict.fromkeys(key for row in rows for key in row))
        parts += [
            f"## {title}",
            table(head, [[str(row.get(key, "-")) for key in head] for row in rows]),
        ]
    return "\n\n".join(parts) + "\n"


def main(argv: Sequence[str]) -> int:
    """Measure and return 0, or 1 if float32 tokens differ or nothing was replayed.

    Raises ValueError for a missing device.
    """
    p = parser_of("gpu", __doc__)
    p.add_argument(
        "--out", type=user_path, required=True, metavar="DIR", help="folder for gpu.json and gpu.md"
    )
    p.add_argument(
        "--device", default="cuda", help="cuda, cuda:N, or cpu for the small form (default: cuda)"
    )
    args = p.parse_args(argv)
    device, small = pick_device(args.device), args.device == "cpu"
    report: Row = {
        "started": now(),
        "machine": machine_of(device),
        "torch": torch.__version__,
        "small": small,
    }
    report |= {"identity": [], "speed": []}
    full, half = torch.float32, torch.float32 if small else torch.bfloat16
    for model, dtype, what in (
        (BUNDLED, full, "both"),
        (XL, full, "identity"),
        (XL, half, "both"),
        (ANOLE, half, "speed"),
    ):
        timed = timed_model(model, device, small, dtype)
        tokens = FEW if small else TOKENS
        whole = timed.tokens if model == BUNDLED and not small else tokens
        rows = {
            "identity": identity(timed, dtype, whole),
            "speed": speed(timed, whole, NODES[:1] if small else NODES),
        }
        for part in rows if what == "both" else (what,):
            for row in rows[part]:
                report[part].append(row)
                files = write(args.out / "gpu.json", report, markdown(report))
                print(", ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    print(f"wrote {', '.join(map(str, files))}")
    return 0 if all(row["ok"] for row in report["identity"]) else 1
