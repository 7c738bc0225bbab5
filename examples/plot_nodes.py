"""Plot speed against the nodes that a step checks.

    python examples/plot_nodes.py nodes.json

Reads the report of `python -m lantern_demo.bench nodes`, and writes nodes.svg next to it. Without a
report it plots docs/numbers.json, whose figure docs/benchmark.md shows. A ring marks a default
tree. Needs matplotlib (pip install -r requirements-test.txt).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import json
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lantern_demo.bench.report import parser_of
from lantern_demo.decoding.methods import METHODS
from lantern_demo.paths import user_path
from lantern_demo.ui.run_view import colour

DOCS = Path(__file__).resolve().parents[1] / "docs"
LINES = {"chain": "-", "tree": "--", "dynamic": ":", "window": "-."}
# Text stays text, and the same numbers give the same file.
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "nodes", "font.family": "sans-serif"}


def draw_nodes(rows: list[dict[str, Any]], title: str, file: Path) -> None:
    """Plot rows of a report to an SVG file, a panel for each temperature."""
    temperatures = list(dict.fromkeys(row["temperature"] for row in rows))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 4.6), layout="constrained")
        axes = figure.subplots(1, len(temperatures), sharey=True, squeeze=False)[0]
        for ax, temperature in zip(axes, temperatures, strict=True):
            _panel(ax, [row for row in rows if row["temperature"] == temperature])
            ax.set_title(f"temperature {temperature:g}", fontsize=10)
        axes[0].set_ylabel("speedup over vanilla, median and 95 %")
        axes[0].legend(loc="upper left", frameon=False, fontsize=9)
        figure.suptitle(title, fontsize=10)
        figure.savefig(file, format="svg", metadata={"Date": None})


def _panel(ax: Axes, rows: list[dict[str, Any]]) -> None:
    for method, shape in dict.fromkeys((row["method"], row["shape"]) for row in rows):
        if not shape:  # vanilla itself
            continue
        own = [row for row in rows if (row["method"], row["shape"]) == (method, shape)]
        x, y = [row["nodes"] for row in own], [row["speedup"] for row in own]
        ends = [row["interval"] or (row["speedup"], row["speedup"]) for row in own]
        bars = [
            [max(0.0, value - low) for value, (low, _) in zip(y, ends, strict=True)],
            [max(0.0, high - value) for value, (_, high) in zip(y, ends, strict=True)],
        ]
        label, ink = f"{METHODS[method].label}, {shape}", colour(method)
        ax.errorbar(x, y, bars, color=ink, linestyle=LINES[shape], elinewidth=0.6, label=label)
        usual = [row for row in own if row["default"]]
        places = [row["nodes"] for row in usual], [row["speedup"] for row in usual]
        ax.plot(*places, "o", markersize=11, markerfacecolor="none", markeredgecolor=ink)
    ticks = sorted({row["nodes"] for row in rows})
    ax.axhline(1, color="grey", linewidth=0.8)
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.minorticks_off()
    ax.set_xlabel("nodes that a step checks, the root included")
    ax.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("report", type=user_path, nargs="?", help="FILE.json")
    file = parser.parse_args().report
    if file is None:
        numbers = json.loads((DOCS / "numbers.json").read_text(encoding="utf-8"))["nodes"]
        where, date = f"{numbers['model']} on {numbers['device']}", numbers["date"]
        out = DOCS / "nodes.svg"
    else:
        numbers = json.loads(file.read_text(encoding="utf-8"))
        where = f"{numbers['model']['id']} on {numbers['machine']['device']}"
        date = numbers["created"][:10]
        out = file.with_suffix(".svg")
    draw_nodes(numbers["rows"], f"{where}, {date}. Rings mark default trees", out)


if __name__ == "__main__":
    main()
