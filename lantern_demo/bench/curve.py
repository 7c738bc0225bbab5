"""What a step costs against the nodes it checks: t(N) of verifications, of whole steps, and of passes of the drafter.

All at a picture's start, one size after the other and then all again the other way round, so that drift hits all sizes alike; the
first of these sweeps is thrown away. How steps grow with the tokens before them is in `summary.growth`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from tqdm import tqdm

from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import Drafts, DynamicTree, StaticTree
from lantern_demo.decoding.loop import Step, decode
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import guide
from lantern_demo.decoding.timing import Clock
from lantern_demo.decoding.trees import Path, static_tree
from lantern_demo.pipeline import Pipeline
from lantern_demo.static_trees import STATIC_TREES

NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 59)  # the root included
VERIFICATIONS = 3  # calls per size and sweep
STEPS = 6  # that count, per size and sweep
SKIPPED = 2  # the prefill, and the step in which the drafter reads the prompt
TOP_K, DEPTH = 10, 4  # of the dynamic trees, as published

Measured = dict[str, Any]


@dataclass(frozen=True)
class Probe:
    """One size to measure: a verification alone ("verify"), or steps with a tree ("fixed", "dynamic"; vanilla has one node)."""

    kind: str
    nodes: int

    @property
    def passes(self) -> int:
        """How often the drafter runs for the tree."""
        if self.nodes == 1 or self.kind == "verify":
            return 0
        return DEPTH + 1 if self.kind == "dynamic" else max(map(len, fixed_paths(self.nodes)))


def fixed_paths(nodes: int) -> tuple[Path, ...]:
    """The paths of a tree of at most 59 nodes: the published one of 58 and one more, as many as asked for, likely drafts first.

    A path whose choices sum to less comes first. Its parent's sum is less than its own, so that every beginning is a tree.
    """
    paths = (*STATIC_TREES["naive_extend_57"], (5,))
    return tuple(sorted(paths, key=lambda path: (sum(choice + 1 for choice in path), path))[: nodes - 1])


def probes(drafts: bool, nodes: tuple[int, ...] = NODES) -> list[Probe]:
    """What is measured of a model; without a drafter only vanilla has steps."""
    steps = [Probe("fixed", n) for n in nodes if n == 1 or drafts]
    return [*(Probe("verify", n) for n in nodes), *steps, *(Probe("dynamic", n) for n in nodes if n > 1 and drafts)]


class Bench:
    """A model with a prompt read, ready to be probed."""

    def __init__(self, pipe: Pipeline, prompt: str) -> None:
        self.pipe, self.sampling = pipe, pipe.defaults.sampling()
        self.rows = 1 if self.sampling.cfg_scale == 1 else 2
        with torch.inference_mode():
            encoded = pipe.networks.text.encode(pipe.check_prompt(prompt))
            self.condition = pipe.networks.target.condition(encoded.features, encoded.mask, self.rows == 2)

    @torch.inference_mode()
    def verify(self, nodes: int) -> list[float]:
        """Milliseconds of VERIFICATIONS passes of the target over a tree behind the prompt, with head and guidance."""
        target, device = self.pipe.target, self.pipe.device
        tree = static_tree(fixed_paths(nodes), device)
        cache = target.new_cache(self.rows, self.pipe.info.tokens + nodes)
        target.prefill(self.condition, cache)
        tokens, times = torch.zeros(nodes, dtype=torch.int64, device=device), []
        for _ in range(1 + VERIFICATIONS):
            clock = Clock(device)
            with clock.measure("verify"):
                guide(target.head(target.forward(tokens, tree.depths, tree.mask, cache)), self.sampling.cfg_scale)
            times.append(1000 * clock.seconds["verify"])
        return times[1:]

    def steps(self, probe: Probe, seed: int) -> Measured:
        """Milliseconds of up to STEPS steps with a tree: whole ones, and the drafting in them."""
        if probe.nodes == 1:
            method, tree = METHODS["vanilla"], Drafts()
        elif probe.kind == "dynamic":
            method, tree = METHODS["eagle2"], DynamicTree(TOP_K, DEPTH, probe.nodes)
        else:
            method, tree = METHODS["eagle1"], StaticTree(fixed_paths(probe.nodes))
        pipe, clock = self.pipe, Clock(self.pipe.device)
        config = Config(
            method, pipe.info.tokens, self.sampling, tree=tree, seed=seed, device=pipe.device, dice=pipe.defaults.dice
        )
        events = decode(pipe.target, pipe.drafter, self.condition, config, clock)
        at: list[tuple[float, float]] = []  # the clock after every step: all of it, and its drafting
        for event in events:
            if not isinstance(event, Step) or len(at) == SKIPPED + STEPS:
                break
            at.append((clock.decode_seconds, clock.seconds["draft"]))
        pairs = list(zip(at[SKIPPED - 1 :], at[SKIPPED:], strict=False))
        return {
            "step_ms": [1000 * (b[0] - a[0]) for a, b in pairs],
            "draft_ms": [1000 * (b[1] - a[1]) for a, b in pairs],
        }  # fmt: skip

    def measure(self, probe: Probe, seed: int) -> Measured:
        """One probe's raw milliseconds."""
        told = {"verify_ms": self.verify(probe.nodes)} if probe.kind == "verify" else self.steps(probe, seed)
        return {"probe": probe.kind, "nodes": probe.nodes, "passes": probe.passes, **told}


def sweep(bench: Bench, order: list[Probe], number: int, bar: tqdm[Any]) -> Measured:
    """Every probe once, backwards in every other sweep -> the sweep's record."""
    measured = []
    for probe in order[:: -1 if number % 2 else 1]:
        measured.append(bench.measure(probe, number))
        bar.update()
    return {"number": number, "measured": measured}


def sweeps(pipe: Pipeline, prompt: str, count: int, done: int, nodes: tuple[int, ...] = NODES) -> Iterator[Measured]:
    """Yield the records of the sweeps from number `done` to `count`, after one that is thrown away."""
    if done >= count:
        return
    order, bench = probes(pipe.drafter is not None, nodes), Bench(pipe, prompt)
    with tqdm(total=(1 + count - done) * len(order), desc="cost curve", unit="probe") as bar:
        sweep(bench, order, 0, bar)
        for number in range(done, count):
            yield sweep(bench, order, number, bar)


def best_and_median(values: list[float]) -> dict[str, float]:
    """The least and the median of one or more values."""
    return {"best": min(values), "median": median(values)}


def summarise_curve(records: list[Measured]) -> list[dict[str, Any]]:
    """A row per number of nodes: best and median milliseconds of all sweeps; what was not measured is left out."""
    gathered: dict[tuple[int, str], list[float]] = {}
    passes: dict[tuple[int, str], int] = {}
    for m in (m for record in records for m in record["measured"]):
        if m["probe"] == "verify":
            gathered.setdefault((m["nodes"], "verify_ms"), []).extend(m["verify_ms"])
            continue
        gathered.setdefault((m["nodes"], f"{m['probe']}_step_ms"), []).extend(m["step_ms"])
        if m["passes"]:
            each = [ms / m["passes"] for ms in m["draft_ms"]]
            gathered.setdefault((m["nodes"], f"{m['probe']}_draft_pass_ms"), []).extend(each)
            passes[m["nodes"], f"{m['probe']}_passes"] = m["passes"]
    rows: dict[int, dict[str, Any]] = {nodes: {"nodes": nodes} for nodes, _ in sorted(gathered)}
    for (nodes, what), values in gathered.items():
        if values:
            rows[nodes][what] = best_and_median(values)
    for (nodes, what), count in passes.items():
        rows[nodes][what] = count
    return list(rows.values())
