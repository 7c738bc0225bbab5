"""Time models of published sizes on a CPU. Run it from the repository's root:

    python examples/sizes.py --out sizes.json

It times the bundled model, and published sizes with random weights. It times forward passes of the
target by nodes and kinds of matmul. It times whole steps of vanilla, EAGLE-1 and LANTERN++, the
latter two with the default tree. The cost of a step with a given tree depends neither on the
weights nor on the accepted tokens. Tokens per step are those of the bundled model, so seconds of a
picture are estimates. `--small` shrinks the published ones, to try the command.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import islice, pairwise
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lantern_demo.bench.models import TimedModel, timed_model
from lantern_demo.bench.report import at_least, json_file, machine_of, now, parser_of, table, write
from lantern_demo.decoding.drafting import DraftConfig, StaticTree
from lantern_demo.decoding.interfaces import Pass
from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.sampling import guide
from lantern_demo.models.checkpoints import gib
from lantern_demo.models.cpu import KINDS, OF_FORMAT, supported
from lantern_demo.models.device import free_memory, pick_threads
from lantern_demo.models.families import blank_network, dtype_of, family_of
from lantern_demo.models.registry import model_info
from lantern_demo.runs.pipeline import load
from lantern_demo.settings.trees import DEFAULTS

CPU = torch.device("cpu")
MODULES = "modules"  # PyTorch's own matmuls, in place of a kind
BORROWED = "lantern-scenes"  # its runs supply the tokens per step
MODELS = (BORROWED, "llamagen-c2i-b-256", "llamagen-t2i-256", "janus-pro-1b")
NODES = (1, 2, 4, 8, 16)
PASSES = 5  # timed passes of each size
STEPS = 12  # timed steps of each tree in a round
ROUNDS = 3
PROMPTS = (
    "three red round lanterns over a lake at dusk",
    "a blue sky lantern over hills at night",
    "two green box lanterns",
)

Report = dict[str, Any]


@torch.inference_mode()
def sized(model: str, kind: str, small: bool) -> TimedModel:
    """Load a model with a kind of matmul, or MODULES.

    Raises ValueError if it does not fit into memory."""
    published, free = model_info(model).published, free_memory(CPU)
    if published is not None and free is not None and not small:
        numbers = sum(w.numel() for w in blank_network(published.target).parameters())
        needed = numbers * (4 if kind in (MODULES, "plain", "packed") else 2)
        if needed > 0.9 * free:
            raise ValueError(
                f"{model} with {kind} takes about {gib(needed)} of memory, and {gib(free)} are free"
            )
    dtype = torch.float32 if kind == MODULES else torch.float16
    timed = timed_model(model, CPU, small, dtype, join=False)
    if kind == MODULES:
        return timed
    network: Any = timed.target
    family = family_of(network.config)
    assert family.lean_target is not None
    target = family.lean_target(network, kind, published is not None)
    return replace(timed, target=target, drafter=family.lean_drafter(timed.drafter, kind))


def default_kind(model: str) -> str:
    """Return the kind of matmul that the program chooses for a published model, or float16 weights
    for the bundled one.
    """
    info = model_info(model)
    return "half" if info.folder else OF_FORMAT.get(dtype_of(info, "auto", CPU), "packed")


@torch.inference_mode()
def passes(timed: TimedModel, nodes: Sequence[int]) -> dict[str, float]:
    """Return median milliseconds by nodes: a pass over a chain, with head and guidance, in the
    middle of a picture.
    """
    target, found = timed.target, {}
    cache = target.new_cache(len(timed.condition.features), timed.tokens + max(nodes))
    target.prefill(timed.condition, cache)
    # the contents of the earlier slots do not affect times
    first = cache.length + timed.tokens // 2
    for count in nodes:
        slots, times = first + torch.arange(count), list[float]()
        visible = torch.arange(first + count) <= slots[:, None] if count > 1 else None
        # fewer of long ones; the first is discarded
        while len(times) <= (PASSES if sum(times) < 1 else 2):
            began = perf_counter()
            tokens = torch.arange(count) % target.vocab_size
            hidden = target.forward(Pass(tokens, slots, slots, visible), cache)
            guide(target.head(hidden), timed.knobs.cfg_scale)
            times.append(perf_counter() - began)
        found[str(count)] = 1000 * median(times[1:])
    return found


def steps(timed: TimedModel, method: str, policy: DraftConfig) -> list[float]:
    """Return seconds of a method's steps with a tree at the start of a picture, without the first,
    which starts the drafter.
    """
    tokens = min(timed.tokens, (STEPS + 2) * policy.nodes)
    events = timed.run(method, policy, tokens, seed=1)
    clock = (event.seconds for event in events if isinstance(event, Step))
    return [ended - began for began, ended in islice(pairwise(clock), 1, 1 + STEPS)]


@cache
def tokens_per_step(method: str) -> float:
    """Return the tokens per step of the bundled model with its default tree."""
    pipe = load(BORROWED, "cpu")
    return median(pipe.generate(prompt, method).stats.mean_accepted_length for prompt in PROMPTS)


def methods(timed: TimedModel) -> Report:
    """Estimate the cost of a picture by method, with the default tree of a processor.

    Time the methods in turn.
    """
    tree = StaticTree(DEFAULTS["cpu"].static)
    chosen: dict[str, DraftConfig] = {"vanilla": DraftConfig(), "eagle1": tree, "lantern++": tree}
    times: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(ROUNDS):
        for name, policy in chosen.items():
            times[name] += steps(timed, name, policy)
    found = {}
    for name, policy in chosen.items():
        given = tokens_per_step(name)
        each = median(times[name]) / given
        found[name] = {
            "ms_per_token": 1000 * each,
            "tokens_per_step": given,
            "speedup": median(times["vanilla"]) / each,
            "picture_seconds": each * timed.tokens,
            "nodes": policy.nodes,
        }
    return found


def measured(model: str, kinds: Sequence[str], nodes: Sequence[int], small: bool) -> Report:
    default = default_kind(model)
    timed = sized(model, default, small)
    report: Report = {
        "random_weights": model != BORROWED,
        "tokens": timed.tokens,
        "weights": timed.weights,
        "threads": torch.get_num_threads(),
        "default_kind": default,
        "kinds": {default: passes(timed, nodes)},
        "methods": methods(timed),
    }
    del timed
    for kind in dict.fromkeys(kind for kind in kinds if kind != default):
        gc.collect()  # two at once might not fit
        report["kinds"][kind] = passes(sized(model, kind, small), nodes)
    return report


def markdown(models: dict[str, Report]) -> str:
    """Return two tables: passes by kind and nodes, and methods."""
    kinds, found = [], []
    for model, report in models.items():
        kinds += [
            [model, kind, *(f"{ms:.2f}" for ms in times.values())]
            for kind, times in report["kinds"].items()
        ]
        for method, row in report["methods"].items():
            numbers = [f"{row[key]:.2f}" for key in ("tokens_per_step", "ms_per_token", "speedup")]
            found.append(
                [model, method, str(row["nodes"]), *numbers, f"{row['picture_seconds']:.1f}"]
            )
    nodes = next(iter(next(iter(models.values()))["kinds"].values()))
    head = ["model", "method", "nodes", "tokens a step", "ms a token", "speedup", "picture, s"]
    title = "Milliseconds of a pass, by nodes"
    times = table(["model", "products", *nodes], kinds)
    estimate = f"Methods, an estimate: a step as measured, its tokens as those of {BORROWED}"
    return "\n\n".join((title, times, estimate, table(head, found)))


def run(args: argparse.Namespace) -> Report:
    """Measure the models, write the report after each, and return it.

    Raises ValueError for an unknown model, a bad number of threads, or too little memory."""
    report: Report = {"created": now(), "machine": machine_of(CPU), "torch": torch.__version__}
    report |= {"small": args.small, "models": {}}
    for model in dict.fromkeys(args.models):
        pick_threads(args.threads, CPU, model_info(model).folder is not None).use()
        report["models"][model] = measured(model, args.kinds, sorted({1, *args.nodes}), args.small)
        if args.out:
            write(args.out, report, markdown(report["models"]))
    return report


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command, or exit with 2 and a sentence for invalid options."""
    p = parser_of(__doc__)
    p.add_argument(
        "--models",
        nargs="+",
        default=list(MODELS),
        metavar="ID",
        help=f"default: {' '.join(MODELS)}",
    )
    kinds = [MODULES, *filter(supported, KINDS)]
    told = f"beside the program's choice: {', '.join(kinds)} (default: modules, PyTorch's own)"
    p.add_argument(
        "--kinds", nargs="*", choices=kinds, default=[MODULES], metavar="KIND", help=told
    )
    p.add_argument(
        "--nodes",
        type=at_least(1),
        nargs="+",
        default=list(NODES),
        help="of the passes; 1 is always among them",
    )
    p.add_argument(
        "--threads", type=int, help="how many threads compute (default: as the program chooses)"
    )
    p.add_argument("--small", action="store_true", help="published models of few weights")
    p.add_argument("--out", type=json_file, help="FILE.json: write FILE.json and FILE.md")
    args = p.parse_args(argv)
    try:
        print(markdown(run(args)["models"]))
    except ValueError as error:
        p.error(str(error))


if __name__ == "__main__":
    main()
