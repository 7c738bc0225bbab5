"""What models of every size take on a processor: `python -m lantern_demo.bench sizes --out sizes.json`.

Of the bundled model, and of published sizes with random weights: passes of the target by nodes and by kinds of products, as PyTorch modules
too, whole steps of every method, and the drafter's passes. What a step costs depends neither on the weights nor on what is accepted. How many
tokens a step gives is borrowed from the bundled model's calibration, so that what a method would take for a picture is an estimate.

Each size is measured in this process, one after the other. `--small` shrinks the published ones, to look at the command itself.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isqrt
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from lantern_demo.bench.quality.report import table
from lantern_demo.bench.report import machine_of
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.loop import Step, decode
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.sampling import guide, probabilities
from lantern_demo.decoding.trees import TreePolicy, static_tree
from lantern_demo.models import bundled
from lantern_demo.models.blank import blank_network, fill
from lantern_demo.models.common import Condition
from lantern_demo.models.llamagen.cpu import LeanDrafter, LeanTarget
from lantern_demo.models.llamagen.drafter import Drafter, DrafterConfig
from lantern_demo.models.llamagen.target import LlamaGen, LlamaGenConfig
from lantern_demo.models.products import KINDS, OF_FORMAT, exact_kinds, sixteen_bits, supported
from lantern_demo.models.registry import BUNDLED, REGISTRY, model_info
from lantern_demo.settings import Settings
from lantern_demo.tree_fitting import Calibration, chances, choose, fit_name, read_calibration

BORROWED = "lantern-scenes"  # whose calibration tells how many tokens a step gives
MODELS = (BORROWED, "llamagen-c2i-b-256", "llamagen-t2i-256")
NODES = (1, 2, 4, 6, 8, 16)
PASSES = 5  # of each size that count
STEPS = 4  # of each tree that count
BLOCK = 2**22  # random numbers that all weights are made of
MODULES = "modules"  # the networks as they are, in float32
SMALL: dict[str, Any] = {"dim": 64, "layers": 2, "heads": 2, "ffn": 64, "vocab": 1024, "grid": 6}

Report = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """A model to measure, its prompt read."""

    id: str
    target: LlamaGen
    drafter: Drafter
    condition: Condition
    knobs: Settings
    random: bool  # whether its weights are

    @property
    def tokens(self) -> int:
        """Of a picture."""
        return self.target.config.tokens


def random_network(sizes: Any, block: Tensor) -> Any:
    """A network of random weights that float16 holds, at which states neither vanish nor blow up."""
    network: nn.Module = blank_network(sizes)

    def weight(name: str, shape: torch.Size) -> Tensor:
        if len(shape) == 1:
            return torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
        return block.repeat(-(-shape.numel() // len(block)))[: shape.numel()].view(shape) * shape[1] ** -0.5

    weights = {name: weight(name, w.shape).half() for name, w in network.state_dict().items()}
    return fill(network, weights, torch.device("cpu"), torch.float32)


def size_of(model: str, small: bool) -> Size:
    """A model on offer: the bundled one as it ships, a LlamaGen with random weights. Raises ValueError for any other."""
    info = model_info(model)
    knobs = Settings(**info.preset)
    generator = torch.Generator().manual_seed(0)
    if info.folder is not None:
        networks = bundled.load(info.folder, torch.device("cpu"))
        assert networks.drafter is not None
        target, drafter = networks.target, networks.drafter
    else:
        sizes = info.published.target if info.published else None
        if not isinstance(sizes, LlamaGenConfig):
            raise ValueError(f"--models: {model} is not measured here; allowed are {', '.join(allowed())}")
        sizes = replace(sizes, **SMALL, prefix=min(sizes.prefix, 24)) if small else sizes
        block = torch.randn(BLOCK, generator=generator)
        # where none is published, one of the target's own sizes
        of_target = {name: getattr(sizes, name) for name in ("dim", "heads", "ffn", "vocab", "grid", "prefix")}
        target, drafter = random_network(sizes, block), random_network(DrafterConfig(**of_target), block)
    c = target.config
    features = torch.zeros(1, dtype=torch.int64) if c.classes else torch.randn(1, c.prefix, c.caption_dim, generator=generator)
    condition = target.condition(features, None, knobs.cfg_scale != 1)
    return Size(model, target, drafter, condition, knobs, info.folder is None)


def allowed() -> list[str]:
    """The models that can be measured."""
    return [i.id for i in REGISTRY.values() if i.folder or (i.published and isinstance(i.published.target, LlamaGenConfig))]


def times_of(call: Callable[[], object], count: int) -> list[float]:
    """Milliseconds of so many calls, after one that is thrown away."""
    call()
    found = []
    for _ in range(count):
        began = perf_counter()
        call()
        found.append(1000 * (perf_counter() - began))
    return found


def in_the_middle(size: Size, target: Any, room: int) -> Any:
    """A cache that stands in the middle of a picture; what lies in it does not matter for times."""
    cache = target.new_cache(len(size.condition.features), size.tokens + room)
    target.prefill(size.condition, cache)
    cache.advance(size.tokens // 2)
    return cache


def verification(size: Size, target: Any, tokens: Tensor, cache: Any) -> Tensor:
    """Guided logits [n, V] of a chain of tokens [n]."""
    tree = static_tree([(0,) * depth for depth in range(1, len(tokens))])
    return guide(target.head(target.forward(tokens, tree.depths, tree.mask, cache)), size.knobs.cfg_scale)


def passes(size: Size, target: Any, nodes: Sequence[int]) -> dict[str, float]:
    """Median milliseconds of a pass with head and guidance, by nodes."""
    cache, found = in_the_middle(size, target, max(nodes)), {}
    for count in nodes:
        tokens = torch.arange(count) % target.vocab_size
        found[str(count)] = median(times_of(lambda tokens=tokens: verification(size, target, tokens, cache), PASSES))  # type: ignore[misc]
    return found


def exactness(size: Size, target: Any, nodes: Sequence[int]) -> tuple[bool, float]:
    """Whether the nodes of passes of several sizes have the same bits as those of passes of one, and the mean total variation distance
    between their laws in the largest pass: what vanilla's price would show."""
    count, sampling = max(nodes), size.knobs.sampling()
    tokens = torch.arange(count) * 7 % target.vocab_size
    cache = in_the_middle(size, target, count)
    start = cache.length
    together = {n: verification(size, target, tokens[:n], cache) for n in nodes}
    alone = []
    for token in tokens.split(1):
        alone.append(verification(size, target, token, cache)[0])
        cache.advance(1)
    assert cache.length == start + count
    wanted = torch.stack(alone)
    same = all(torch.equal(found, wanted[:n]) for n, found in together.items())
    laws = [probabilities(logits, sampling) for logits in (together[count], wanted)]
    return same, float((laws[0] - laws[1]).abs().sum(-1).mean() / 2)


def steps(size: Size, target: Any, drafter: Any, policy: TreePolicy) -> Iterator[float]:
    """Seconds of steps at the start of a picture with a tree of a kind, behind the first, which starts the drafter."""
    method = next(m for m in METHODS.values() if m.source == policy.kind and m.rule in ("exact", "none"))
    tokens = min(size.tokens, (STEPS + 2) * policy.nodes)
    config = Config(method, tokens, size.knobs.sampling(), tree=policy, seed=1, row=isqrt(size.tokens))
    clock = [event.seconds for event in decode(target, drafter, size.condition, config) if isinstance(event, Step)]
    yield from [b - a for a, b in pairwise(clock)][1 : 1 + STEPS]


def methods(size: Size, target: Any, drafter: Any, calibration: Calibration) -> tuple[Report, Report]:
    """By method what a picture would take, each with the tree that fits; and what the drafter's passes take."""
    known: dict[TreePolicy, float] = {}

    def seconds(policies: list[TreePolicy]) -> list[float]:
        for policy in policies:
            if policy not in known:
                known[policy] = median(steps(size, target, drafter, policy))
        return [known[policy] for policy in policies]

    (alone,) = seconds([TreePolicy.none()])
    found = {"vanilla": told(size, alone, 1.0, alone, "every token is the model's own", 1)}
    for method in METHODS.values():
        if method.source in ("none", "wavefront"):
            continue
        choice = choose(method, calibration, seconds, size.knobs.tree_policy(method))
        if choice is None:
            continue
        given = given_by(calibration, method, choice.policy)
        borrowed = f"borrowed from {BORROWED}" if size.id != BORROWED else "as calibrated"
        found[method.id] = told(size, known[choice.policy], given, alone, borrowed, choice.policy.nodes)
    cache = drafter.new_cache(1 if drafter.guided else len(size.condition.features), size.tokens)
    cache.advance(size.target.config.prefix + size.tokens // 2)
    rows, dim = (1 if drafter.guided else len(size.condition.features)), size.target.config.dim
    draft = {}
    for count in (1, 2, 4):
        tokens, hidden, mask = torch.zeros(count, dtype=torch.int64), torch.ones(rows, count, dim), torch.eye(count).bool()
        call = lambda tokens=tokens, hidden=hidden, mask=mask: drafter.expand(tokens, hidden, 1, mask, cache)  # noqa: E731
        draft[str(count)] = median(times_of(call, PASSES))
    return found, draft


def given_by(calibration: Calibration, method: Method, policy: TreePolicy) -> float:
    """Tokens a step, as calibrated."""
    if policy.kind == "static":
        return 1 + sum(chances(calibration.static[method.id], policy.paths))
    if policy.kind == "dynamic":
        shape = policy.top_k, policy.depth, policy.nodes
        return next(tokens for *known, tokens in calibration.dynamic[method.id] if tuple(known) == shape)
    return dict(calibration.windows[fit_name(method, policy)])[policy.nodes]


def told(size: Size, seconds: float, tokens: float, alone: float, acceptance: str, nodes: int) -> Report:
    """A method's row, of the seconds of its step and of vanilla's."""
    each = seconds / tokens
    return {
        "ms_per_token": 1000 * each, "tokens_per_step": tokens, "speedup": alone / each, "picture_seconds": each * size.tokens,
        "acceptance": acceptance, "nodes": nodes,
    }  # fmt: skip


def resident() -> int | None:
    """Bytes of this process's own memory now, None where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))
    except (OSError, StopIteration):
        return None


@torch.inference_mode()
def measure(size: Size, kinds: Sequence[str], nodes: Sequence[int], calibration: Calibration) -> Report:
    """A model's report. Kinds are those of `products.KINDS`, and MODULES."""
    default = OF_FORMAT.get(sixteen_bits(), "packed") if size.random else exact_kinds(size.target.parameters())[-1]
    report: Report = {
        "parameters": sum(p.numel() for p in size.target.parameters()), "random_weights": size.random, "tokens": size.tokens,
        "rows": len(size.condition.features), "default_kind": default, "kinds": {}, "exact": {}, "target_bytes": {},
    }  # fmt: skip
    if MODULES in kinds:
        report["kinds"][MODULES] = passes(size, size.target, nodes)
        report["modules_ms_per_token"] = report["kinds"][MODULES]["1"]
    for kind in dict.fromkeys((*(k for k in kinds if k != MODULES), default)):
        before = resident()
        target = LeanTarget(size.target, kind)
        after = resident()
        report["target_bytes"][kind] = None if before is None or after is None else after - before
        report["kinds"][kind] = passes(size, target, nodes)
        same, price = exactness(size, target, nodes)
        report["exact"][kind] = {"row_exact": same, "vanilla_price": price}
        if kind == default:
            report |= {"row_exact": same, "vanilla_price": price}
            drafter = LeanDrafter(size.drafter, "bfloat16" if supported("bfloat16") else default)
            report["methods"], report["draft_ms"] = methods(size, target, drafter, calibration)
        del target
    return report


def markdown(models: dict[str, Report]) -> str:
    """Two tables: passes by kind and nodes, and methods."""
    kinds, found = [], []
    for model, report in models.items():
        for kind, times in report["kinds"].items():
            exact = report["exact"].get(kind)
            said = "-" if exact is None else "yes" if exact["row_exact"] else "no"
            kinds.append([model, kind, *(f"{ms:.2f}" for ms in times.values()), said])
        for method, row in report["methods"].items():
            found.append(
                [model, method, str(row["nodes"]), f"{row['tokens_per_step']:.2f}", f"{row['ms_per_token']:.2f}", f"{row['speedup']:.2f}", f"{row['picture_seconds']:.1f}"]
            )  # fmt: skip
    nodes = next(iter(next(iter(models.values()))["kinds"].values()))
    return "\n".join(
        (
            "Milliseconds of a pass, by nodes; row-exact: a node has the same bits in each of them",
            table(["model", "products", *nodes, "row-exact"], kinds),
            "",
            f"Methods, an estimate: a step as measured, its tokens as {BORROWED} was calibrated",
            table(["model", "method", "nodes", "tokens a step", "ms a token", "speedup", "picture, s"], found),
        )
    )


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m lantern_demo.bench sizes", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument(
        "--models", nargs="+", choices=allowed(), default=list(MODELS), metavar="ID", help=f"of {', '.join(allowed())}"
    )
    every = [MODULES, *KINDS]
    p.add_argument(
        "--kinds", nargs="+", choices=every, default=[MODULES, "packed", "half", "bfloat16", "int8"], help="of products"
    )
    p.add_argument("--nodes", type=int, nargs="+", default=list(NODES), help="of the passes; 1 is always among them")
    p.add_argument("--threads", type=int, help="how many threads compute (default: as PyTorch chooses)")
    p.add_argument("--small", action="store_true", help="published models of few weights")
    p.add_argument("--out", type=Path, help="FILE.json to write")
    return p


def main(argv: Sequence[str]) -> int:
    """The command; 2 for a command line that cannot be run."""
    p = parser()
    args = p.parse_args(argv)
    nodes = sorted({1, *args.nodes})
    if nodes[0] < 1 or nodes[-1] > 58:
        p.error(f"--nodes must be between 1 and 58, got {' '.join(map(str, args.nodes))}")
    if args.threads is not None:
        if args.threads < 1:
            p.error(f"--threads must be at least 1, got {args.threads}")
        torch.set_num_threads(args.threads)
    missing = [kind for kind in args.kinds if kind != MODULES and not supported(kind)]
    if missing:
        p.error(f"--kinds: {', '.join(missing)} do not work on this processor with this PyTorch")
    calibration = read_calibration(BUNDLED / BORROWED)
    assert calibration is not None
    models: dict[str, Report] = {}
    report = {
        "machine": machine_of(torch.device("cpu")),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "models": models,
    }
    for model in dict.fromkeys(args.models):
        models[model] = measure(size_of(model, args.small), args.kinds, nodes, calibration)
        if args.out:
            args.out.write_text(json.dumps(report, indent=1) + "\n")
    print(markdown(models))
    return 0
