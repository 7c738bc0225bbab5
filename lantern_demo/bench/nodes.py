"""Time trees of many sizes on this machine: `python -m lantern_demo.bench nodes --out nodes.json`.

A step checks the nodes of its draft tree, the root included. A static method drafts chains, in
which every node has one child, and trees, in which some have siblings. A dynamic method keeps the
best nodes of a beam. SJD drafts a window. All of these and vanilla take turns as in `bench speed`,
at temperature 1 and 0.7. Gains are over vanilla at the same temperature. With --out FILE.json the
report is also written as FILE.json and FILE.md. `python examples/plot_nodes.py FILE.json` plots it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lantern_demo.bench import report
from lantern_demo.bench.speed import Row, described, measure, play, prompts_for
from lantern_demo.bench.summary import heading, summarise
from lantern_demo.decoding.drafting import DynamicTree, StaticTree
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.window import Window
from lantern_demo.runs.load import load
from lantern_demo.settings.settings import DEEPEST, methods_of

TEMPERATURES = (1.0, 0.7)
NODES = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
# Small ones have a sibling or two beside their deepest path. 8 nodes are `small`, 16 the default of
# a GPU, and 32 grow those further.
TREES = {
    3: "0 1",
    4: "0 1 00",
    5: "0 1 00 000",
    6: "0 1 00 01 000",
    8: "0 1 2 00 01 10 000",
    16: "0 1 2 3 00 01 02 10 11 20 000 001 010 100 0000",
    32: "0 1 2 3 4 00 01 02 03 10 11 12 20 21 22 30 000 001 002 010 011 020 100 101 110 200 "
    "0000 0001 0010 0100 00000",
}
# top-k and depth of a dynamic tree by its nodes
BEAMS = {2: (1, 0), 3: (2, 1), 4: (3, 1), 5: (3, 1), 6: (3, 1), 8: (4, 2), 16: (6, 3), 32: (8, 4)}
KEPT = ("mean_accepted_length", "c", "ms_draft", "ms_verify", "ms_commit", "changed")
CELLS = (
    "A cell is the median gain, in brackets tokens a step / c. The gain is about their ratio. Bold "
    "are the default trees of this model and device."
)


@dataclass(frozen=True)
class Point(Row):
    """A method with one tree at one temperature."""

    shape: str  # chain, tree, dynamic or window; empty for vanilla
    nodes: int


def points_of(methods: Iterable[str], nodes: Iterable[int] = NODES) -> list[Point]:
    """Return vanilla and every tree of some methods that has one of these numbers of nodes."""
    return [
        Point(
            f"{f'{method} {shape}'.strip()}, {count} at {temperature}",
            method,
            {"temperature": temperature} | tree,
            shape,
            count,
        )
        for temperature in TEMPERATURES
        for method in ("vanilla", *methods)
        for shape, trees in shapes_of(METHODS[method]).items()
        for count, tree in trees.items()
        if count in (1, *nodes)
    ]


def shapes_of(method: Method) -> dict[str, dict[int, dict[str, Any]]]:
    """Return the settings of a method's trees by shape and by number of nodes."""
    if method.alone:
        return {"": {1: {}}}
    if issubclass(method.drafts, Window):
        return {"window": {count: {"window": count} for count in NODES}}
    if issubclass(method.drafts, StaticTree):
        chains = {
            count: " ".join("0" * depth for depth in range(1, count))
            for count in NODES
            if count <= DEEPEST + 1
        }
        shapes = {"chain": chains, "tree": TREES}
        return {
            name: {count: {"tree": paths} for count, paths in trees.items()}
            for name, trees in shapes.items()
        }
    names = ("draft_top_k", "draft_depth", "draft_nodes")
    return {
        "dynamic": {
            count: dict(zip(names, (*beam, count), strict=True)) for count, beam in BEAMS.items()
        }
    }


def curve(rows: list[dict[str, Any]]) -> str:
    """Return a table for each temperature, with a row by nodes and a column by method and shape."""
    cells = {}
    for row in rows:
        drawn = f"({row['mean_accepted_length']:.2f} / {row['c']:.2f})"
        gain = f"**{row['speedup']:.2f}x**" if row["default"] else f"{row['speedup']:.2f}x"
        cells[row["temperature"], row["nodes"], row["method"], row["shape"]] = f"{gain} {drawn}"
    series = dict.fromkeys((row["method"], row["shape"]) for row in rows if row["shape"])
    counts = sorted({row["nodes"] for row in rows if row["shape"]})
    parts = []
    for temperature in dict.fromkeys(row["temperature"] for row in rows):
        head = [f"nodes, temperature {temperature:g}"]
        head += [f"{METHODS[method].label}, {shape}" for method, shape in series]
        lines = [
            [str(count), *(cells.get((temperature, count, *one), "") for one in series)]
            for count in counts
        ]
        parts.append(report.table(head, lines))
    return "\n\n".join(parts)


def parser() -> argparse.ArgumentParser:
    p = report.parser_of(__doc__, "nodes")
    report.add_model(p)
    drafting = [
        name
        for name, row in METHODS.items()
        if issubclass(row.drafts, (StaticTree, DynamicTree, Window)) and not row.alone
    ]
    usual = ["eagle1", "lantern++", "eagle2", "sjd"]
    p.add_argument("--prompts", type=report.at_least(1), default=6, help="rounds (default: 6)")
    p.add_argument(
        "--methods", nargs="+", choices=drafting, default=usual, help="default: all four"
    )
    p.add_argument(
        "--nodes", nargs="+", type=int, choices=NODES, default=NODES, help="default: all"
    )
    p.add_argument("--out", type=report.json_file, help="FILE.json: write FILE.json and FILE.md")
    return p


def benchmark(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the points of a command line and return the report.

    Raises ValueError for a model without a drafter, RuntimeError if a method fails.
    """
    pipe = load(args.model, args.device, args.dtype)
    methods = [method.id for method in pipe.check_methods(methods_of(args.methods))]
    points = points_of(methods, args.nodes)
    rounds = measure(
        {point.name: partial(play, pipe, point) for point in points}, prompts_for(args.prompts)
    )
    rows = []
    for temperature in TEMPERATURES:
        own = [point for point in points if point.settings["temperature"] == temperature]
        found = summarise(rounds, {point.name: point.method for point in own})
        for point in own:
            row, method = found[point.name], METHODS[point.method]
            drafts, usual = (
                pipe.planned(method, pipe.settings(**settings)).drafts
                for settings in (point.settings, {})
            )
            rows.append(
                {
                    "method": point.method,
                    "shape": point.shape,
                    "nodes": point.nodes,
                    "temperature": temperature,
                    "default": drafts == usual,
                    "speedup": row["gain"]["median"],
                    "interval": row["gain"]["interval95"],
                    **{key: row[key] for key in KEPT},
                }
            )
    return described(pipe) | {"rows": rows, "rounds": rounds}


def markdown(found: dict[str, Any]) -> str:
    """Return the tables of a report with its procedure."""
    return "\n\n".join([heading(found), curve(found["rows"]), CELLS, found["how"]]) + "\n"


def main(argv: Sequence[str]) -> None:
    """Run the command. Raises ValueError for invalid arguments."""
    args = parser().parse_args(argv)
    found = benchmark(args)
    text = markdown(found)
    print(text)
    if args.out:
        print(f"wrote {', '.join(map(str, report.write(args.out, found, text)))}")
