"""What models of every size take on a processor: `python -m lantern_demo.bench sizes --out sizes.json`.

Of the bundled model, and of published sizes with random weights: passes of the target by nodes and by kinds of products, as
PyTorch modules too, whole steps of every method, and the drafter's passes; for Janus-Pro also the steps of Hugging Face's
`generate`. What a step with a given tree costs depends neither on the weights nor on what is accepted. How many tokens a step
gives is borrowed from the bundled model's calibration, so that what a method would take for a picture is an estimate.

Each size is measured in this process, one after the other, with as many threads as the program would take for it. What is
measured lies in FILE.jsonl beside the report at once, and the same command goes on from there. `--small` shrinks the published
ones, to look at the command itself.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, pairwise
from math import isqrt
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from lantern_demo.bench.arguments import add_report, parser_of
from lantern_demo.bench.library import NAME, step_times
from lantern_demo.bench.models import prompt_of, random_networks, sizes_of, some_neighbours
from lantern_demo.bench.report import machine_of, table, write
from lantern_demo.bench.resume import Journal
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import Drafts
from lantern_demo.decoding.loop import Step, decode
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.rules import Rule
from lantern_demo.decoding.sampling import guide, probabilities
from lantern_demo.decoding.trees import static_tree
from lantern_demo.models import bundled
from lantern_demo.models.common import Condition
from lantern_demo.models.families import family_of
from lantern_demo.models.files.blank import held
from lantern_demo.models.files.needs import free_memory, gib
from lantern_demo.models.janus.target import JanusConfig
from lantern_demo.models.machine.device import pick_threads
from lantern_demo.models.machine.matmul import KINDS, OF_FORMAT, exact_kinds, supported
from lantern_demo.models.registry import BUNDLED, REGISTRY, model_info
from lantern_demo.runs.fitting import FIT_ROUNDS, Calibration, StepCosts, chances, choose, read_calibration
from lantern_demo.settings.settings import Settings

CPU = torch.device("cpu")
BORROWED = "lantern-scenes"  # whose calibration tells how many tokens a step gives
MODELS = (BORROWED, "llamagen-c2i-b-256", "llamagen-t2i-256", "janus-pro-1b")
NODES = (1, 2, 4, 6, 8, 16)
PASSES = 5  # of each size that count
STEPS = 12  # of each tree that count in a round
FEW_STEPS = 4  # of long ones
ENOUGH = 0.2  # seconds of steps, after which these suffice
LONG = 1.0  # seconds after which two that count suffice
MODULES = "modules"  # the networks as they are: in float32, or in bfloat16 where memory does not hold that
LIBRARY = "library"  # transformers' own model, in both formats
STEPS_OF_METHODS = "methods"  # whole steps of every method, and passes of the drafter

Report = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """A model with one kind of products, its prompt read."""

    id: str
    target: Any
    drafter: Any  # None: not asked for
    condition: Condition
    knobs: Settings
    tokens: int  # of a picture
    dtype: torch.dtype  # of the networks that it was made of


def dtype_of(model: str, kind: str, small: bool) -> torch.dtype:
    """The format of a published model's weights before they are packed: float16 as published ones are, of MODULES float32 or
    bfloat16. Raises ValueError for a kind with which memory does not hold the model."""
    free, count = free_memory(CPU), held(sizes_of(model_info(model), small))
    if kind != MODULES:
        dtype = torch.float16
    elif free is not None and 4 * count > 0.9 * free:
        dtype = torch.bfloat16
    else:
        dtype = torch.float32
    needed = count * max(dtype.itemsize, {"plain": 4, "packed": 4}.get(kind, 2))
    if free is not None and needed > 0.9 * free:
        raise ValueError(f"{model} with {kind} takes about {gib(needed)} of memory, and {gib(free)} are free")
    return dtype


@torch.inference_mode()
def size_of(model: str, kind: str, small: bool, drafts: bool = False) -> Size:
    """A model on offer with a kind of products, or MODULES: the bundled one as it ships, another with random weights. Raises
    ValueError for one that memory does not hold."""
    info = model_info(model)
    knobs, dtype = Settings(**info.preset), torch.float32
    target: Any
    drafter: Any
    if info.folder is not None:
        networks = bundled.load(info.folder, CPU)
        target, drafter = networks.target, networks.drafter
    else:
        dtype = dtype_of(model, kind, small)
        target, drafter = random_networks(info, CPU, dtype, small, drafts)
    features, mask = prompt_of(target.config, CPU)
    condition = target.condition(features.to(dtype) if features.is_floating_point() else features, mask, knobs.cfg_scale != 1)
    tokens, fused = target.config.tokens, family_of(target.config).cpu
    if kind != MODULES:
        assert fused is not None
        target = fused.target(target, kind, info.folder is None)
        drafter = fused.drafter(drafter, kind) if drafts else None
    return Size(model, target, drafter, condition, knobs, tokens, dtype)


def default_kind(model: str) -> str:
    """The kind of products that the program chooses for a published model, and a float32 one for the bundled model."""
    info = model_info(model)
    if info.folder is None:
        return OF_FORMAT.get(info.dtype("auto", CPU), "packed")
    return exact_kinds(bundled.load(info.folder, CPU).target.parameters())[-1]


def allowed() -> list[str]:
    """The models that can be measured: those with fused models for a processor."""
    return [i.id for i in REGISTRY.values() if i.folder or (i.published and family_of(i.published.target).cpu)]


def times_of(call: Callable[[], object], count: int) -> list[float]:
    """Milliseconds of so many calls, fewer of long ones, after one that is thrown away."""
    call()
    found: list[float] = []
    while len(found) < (count if sum(found) < 1000 * LONG else 2):
        began = perf_counter()
        call()
        found.append(1000 * (perf_counter() - began))
    return found


def in_the_middle(size: Size, room: int) -> Any:
    """A cache that stands in the middle of a picture; what lies in it does not matter for times."""
    cache = size.target.new_cache(len(size.condition.features), size.tokens + room)
    size.target.prefill(size.condition, cache)
    cache.advance(size.tokens // 2)
    return cache


def verification(size: Size, tokens: Tensor, cache: Any) -> Tensor:
    """Guided logits [n, V] of a chain of tokens [n]."""
    tree = static_tree([(0,) * depth for depth in range(1, len(tokens))])
    return guide(size.target.head(size.target.forward(tokens, tree.depths, tree.mask, cache)), size.knobs.cfg_scale)


@torch.inference_mode()
def passes(size: Size, nodes: Sequence[int]) -> dict[str, float]:
    """Median milliseconds of a pass with head and guidance, by nodes."""
    cache = in_the_middle(size, max(nodes))
    chains = [torch.arange(count) % size.target.vocab_size for count in nodes]
    return {str(len(tokens)): median(times_of(partial(verification, size, tokens, cache), PASSES)) for tokens in chains}


@torch.inference_mode()
def exactness(size: Size, nodes: Sequence[int]) -> tuple[bool, float]:
    """Whether the nodes of passes of several sizes have the same bits as those of passes of one, and the mean total variation
    distance between their distributions in the largest pass: what vanilla's price would show."""
    count, sampling = max(nodes), size.knobs.sampling()
    tokens = torch.arange(count) * 7 % size.target.vocab_size
    cache = in_the_middle(size, count)
    together = {n: verification(size, tokens[:n], cache) for n in nodes}
    alone = []
    for token in tokens.split(1):
        alone.append(verification(size, token, cache)[0])
        cache.advance(1)
    wanted = torch.stack(alone)
    same = all(torch.equal(found, wanted[:n]) for n, found in together.items())
    probs = [probabilities(logits, sampling) for logits in (together[count], wanted)]
    return same, float((probs[0] - probs[1]).abs().sum(-1).mean() / 2)


def steps(size: Size, method: Method, policy: Drafts) -> list[float]:
    """Seconds of a method's steps at the start of a picture with a tree, behind the first, which starts the drafter."""
    config = Config(
        method,
        min(size.tokens, (STEPS + 2) * policy.nodes),
        size.knobs.sampling(),
        size.knobs.rule(method),
        policy,
        some_neighbours(size.target.vocab_size, CPU),
        seed=1,
        row=isqrt(size.tokens),
        dice=size.knobs.dice,
    )
    events = decode(size.target, size.drafter, size.condition, config)
    clock = (event.seconds for event in events if isinstance(event, Step))
    found: list[float] = []
    for began, ended in islice(pairwise(clock), 1, 1 + STEPS):
        found.append(ended - began)
        if len(found) >= FEW_STEPS and sum(found) > ENOUGH:
            break
    return found


def methods(size: Size, calibration: Calibration) -> Report:
    """By method what a picture would take, each with the tree that fits: chosen as the program chooses it, by steps with exact
    acceptance. The chosen ones are timed in turn, each with its method's own rule."""

    def exact_steps(policy: Drafts) -> list[float]:
        return steps(size, next(m for m in METHODS.values() if m.drafts is type(policy) and type(m.rule) is Rule), policy)

    costs, chosen = StepCosts(exact_steps, FIT_ROUNDS), {"vanilla": Drafts()}
    for method in METHODS.values():
        # How large a tree becomes that is chosen anew in every step depends on the prompt, and here is none.
        if method.guesses and not method.drafts.reads_back:
            choice = choose(method, calibration, costs, method.drafts.of(size.knobs))
            if choice is not None:
                chosen[method.id] = choice.policy
    times: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(FIT_ROUNDS):
        for name, policy in chosen.items():
            times[name] += steps(size, METHODS[name], policy)
    alone = median(times["vanilla"])
    found = {"vanilla": told(size, alone, 1.0, alone, "every token is the model's own", 1)}
    borrowed = "as calibrated" if size.id == BORROWED else f"borrowed from {BORROWED}"
    for name, policy in list(chosen.items())[1:]:
        given = given_by(calibration, METHODS[name], policy)
        found[name] = told(size, median(times[name]), given, alone, borrowed, policy.nodes)
    return found


@torch.inference_mode()
def drafts(size: Size) -> dict[str, float]:
    """Median milliseconds of a pass of the drafter in the middle of a picture, by nodes."""
    all_rows, dim = len(size.condition.features), size.target.config.dim
    rows, found = 1 if size.drafter.guided else all_rows, {}
    hidden = size.target.prefill(size.condition, size.target.new_cache(all_rows, size.tokens))[:rows]
    for count in (1, 2, 4):
        cache = size.drafter.new_cache(rows, size.tokens)
        size.drafter.start(hidden, torch.zeros(1, dtype=torch.int64), cache, size.condition)
        cache.advance(size.tokens // 2)
        tokens, states, mask = torch.zeros(count, dtype=torch.int64), torch.ones(rows, count, dim), torch.eye(count).bool()
        found[str(count)] = median(times_of(partial(size.drafter.expand, tokens, states, 1, mask, cache), PASSES))
    return found


def given_by(calibration: Calibration, method: Method, policy: Drafts) -> float:
    """Tokens a step, as calibrated."""
    if method.id in calibration.static:
        return 1 + sum(chances(calibration.static[method.id], *policy.saved()))
    return policy.choices(calibration, method.id)[policy]


def told(size: Size, seconds: float, tokens: float, alone: float, acceptance: str, nodes: int) -> Report:
    """A method's row, of the seconds of its step and of vanilla's."""
    each = seconds / tokens
    return {
        "ms_per_token": 1000 * each,
        "tokens_per_step": tokens,
        "speedup": alone / each,
        "picture_seconds": each * size.tokens,
        "acceptance": acceptance,
        "nodes": nodes,
    }


def resident() -> int | None:
    """Bytes of this process's own memory now, None where the system does not say."""
    try:
        ctypes.CDLL(None).malloc_trim(0)  # what networks have given up lies about in the heap
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
    except (OSError, TypeError, AttributeError, StopIteration):
        return None


def measured(model: str, what: str, nodes: Sequence[int], small: bool) -> Report | None:
    """What a model takes: passes with a kind of products, or with MODULES; LIBRARY; or STEPS_OF_METHODS."""
    if what == LIBRARY:
        return library_times(model, small)
    if what == STEPS_OF_METHODS:
        size, calibration = size_of(model, default_kind(model), small, drafts=True), read_calibration(BUNDLED / BORROWED)
        assert calibration is not None
        return {"methods": methods(size, calibration), "draft_ms": drafts(size)}
    return of_passes(model, what, nodes, small)


def of_passes(model: str, kind: str, nodes: Sequence[int], small: bool) -> Report:
    """What passes of a model with a kind of products take, or with MODULES."""
    before = resident()
    size = size_of(model, kind, small)
    after = resident()
    same, price = (None, None) if kind == MODULES else exactness(size, nodes)
    return {
        "ms": passes(size, nodes),
        "row_exact": same,
        "vanilla_price": price,
        "format": str(size.dtype).removeprefix("torch."),
        "bytes": None if before is None or after is None else after - before,
        "threads": torch.get_num_threads(),
        "parameters": held(size.target.config),
        "tokens": size.tokens,
        "rows": len(size.condition.features),
    }


def library_times(model: str, small: bool) -> Report | None:
    """What a token takes by transformers' own model, by number format; None of a model that it cannot draw with. Raises
    ValueError where memory holds it in neither format."""
    info = model_info(model)
    sizes = info.published and sizes_of(info, small)
    if not isinstance(sizes, JanusConfig):
        return None
    (ids, _), sampling = prompt_of(sizes, CPU), Settings(**info.preset).sampling()
    free, found = free_memory(CPU), {}
    for dtype in (torch.float32, torch.bfloat16):
        if free is None or held(sizes) * dtype.itemsize <= 0.9 * free:
            found[str(dtype).removeprefix("torch.")] = median(step_times(sizes, dtype, ids, sampling, PASSES))
            gc.collect()
    if not found:
        raise ValueError(f"{model} by {NAME} takes about {gib(2 * held(sizes))} of memory, and {gib(free or 0)} are free")
    return {"name": NAME, "ms_per_token": found, "tokens": PASSES}


def found_of(journal: Journal, model: str) -> dict[str, Report | None]:
    """What is measured of a model so far, as `measured` gave it."""
    return {line["what"]: line["found"] for line in journal.of("measured") if line["model"] == model}


def report_of(identity: Report, journal: Journal, models: Sequence[str]) -> Report:
    """The report of what is measured so far; a model whose default kind of products is not is left out."""
    found: dict[str, Report] = {}
    for model in models:
        known, default = found_of(journal, model), default_kind(model)
        library, steps_of = known.pop(LIBRARY, None), known.pop(STEPS_OF_METHODS, None)
        lines = {kind: line for kind, line in known.items() if line is not None}
        if default not in lines:
            continue
        first, fused = lines[default], {kind: line for kind, line in lines.items() if kind != MODULES}
        report = {key: first[key] for key in ("parameters", "tokens", "rows", "threads", "row_exact", "vanilla_price")}
        report |= {"random_weights": model != BORROWED, "default_kind": default}
        report["kinds"] = {kind: line["ms"] for kind, line in lines.items()}
        report["exact"] = {kind: {key: line[key] for key in ("row_exact", "vanilla_price")} for kind, line in fused.items()}
        report["target_bytes"] = {kind: line["bytes"] for kind, line in fused.items()}
        if MODULES in lines:
            report |= {"modules_ms_per_token": lines[MODULES]["ms"]["1"], "modules_format": lines[MODULES]["format"]}
        found[model] = report | (steps_of or {}) | ({LIBRARY: library} if library else {})
    return {**identity, "models": found}


def markdown(models: dict[str, Report]) -> str:
    """Two tables: passes by kind and nodes, and methods."""
    kinds, found, libraries = [], [], []
    for model, report in models.items():
        for kind, times in report["kinds"].items():
            exact = report["exact"].get(kind)
            said = "-" if exact is None else "yes" if exact["row_exact"] else "no"
            kinds.append([model, kind, *(f"{ms:.2f}" for ms in times.values()), said])
        for method, row in report.get("methods", {}).items():
            numbers = [f"{row[key]:.2f}" for key in ("tokens_per_step", "ms_per_token", "speedup")]
            found.append([model, method, str(row["nodes"]), *numbers, f"{row['picture_seconds']:.1f}"])
        if told := report.get(LIBRARY):
            times = ", ".join(f"{ms:.0f} ms a token in {form}" for form, ms in told["ms_per_token"].items())
            libraries.append(f"{model} by {told['name']}: {times}")
    nodes = next(iter(next(iter(models.values()))["kinds"].values()))
    return "\n".join(
        (
            "Milliseconds of a pass, by nodes; row-exact: a node has the same bits in each of them",
            table(["model", "products", *nodes, "row-exact"], kinds),
            "",
            *libraries,
            f"Methods, an estimate: a step as measured, its tokens as {BORROWED} was calibrated",
            table(["model", "method", "nodes", "tokens a step", "ms a token", "speedup", "picture, s"], found),
        )
    )


def parser() -> argparse.ArgumentParser:
    p = parser_of("sizes", __doc__)
    p.add_argument(
        "--models", nargs="+", choices=allowed(), default=list(MODELS), metavar="ID", help=f"of {', '.join(allowed())}"
    )
    p.add_argument(
        "--kinds",
        nargs="+",
        choices=[MODULES, LIBRARY, *KINDS],
        default=[MODULES, LIBRARY, "packed", "half", "bfloat16", "int8"],
        help="of products; modules: PyTorch's, unpacked; library: transformers' generate, where it has the model",
    )
    p.add_argument("--nodes", type=int, nargs="+", default=list(NODES), help="of the passes; 1 is always among them")
    p.add_argument("--threads", type=int, help="how many threads compute (default: as the program chooses)")
    p.add_argument("--small", action="store_true", help="published models of few weights")
    add_report(p)
    return p


def main(argv: Sequence[str]) -> int:
    """The command. Raises ValueError for what cannot be run."""
    p = parser()
    args = p.parse_args(argv)
    nodes = sorted({1, *args.nodes})
    if nodes[0] < 1 or nodes[-1] > 58:
        p.error(f"--nodes must be between 1 and 58, got {' '.join(map(str, args.nodes))}")
    missing = [kind for kind in args.kinds if kind in KINDS and not supported(kind)]
    if missing:
        p.error(f"--kinds: {', '.join(missing)} do not work on this processor with this PyTorch")
    asked = {"nodes": nodes, "small": args.small, "threads": args.threads}
    identity = {"machine": machine_of(CPU), "torch": torch.__version__, **asked}
    models = list(dict.fromkeys(args.models))
    journal = Journal(args.out and args.out.with_suffix(".jsonl"), identity, args.fresh)
    for model in models:
        pick_threads(args.threads, CPU, model_info(model).folder is not None).use()
        for what in dict.fromkeys((default_kind(model), *args.kinds, STEPS_OF_METHODS)):
            if what not in found_of(journal, model):
                journal.add("measured", {"model": model, "what": what, "found": measured(model, what, nodes, args.small)})
            gc.collect()  # two at once might not fit
        report = report_of(identity, journal, models)
        if args.out:
            write(args.out, report, markdown(report["models"]))
    print(markdown(report["models"]))
    return 0
