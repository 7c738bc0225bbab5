"""A report as a picture: speedups, what a step is made of, the cost curve, the growth of a step with the tokens before it."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lantern_demo.bench.summary import PARTS
from lantern_demo.decoding.methods import METHODS

# Okabe and Ito's colours, which colour-blind people can tell apart.
COLOURS = dict(zip(METHODS, cycle(("#7f7f7f", "#56b4e9", "#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7")), strict=False))
PEER = "#cc79a7"
PART_COLOURS = dict(zip(PARTS, ("#e69f00", "#0072b2", "#009e73"), strict=True))
STYLES = ("-", "--", ":", "-.")  # rows of one method share its colour
MARKERS = ("o", "s", "^", "D", "v")


def draw(report: dict[str, Any], file: Path) -> None:
    """Draw a report to a PNG file; the cost curve only where it was measured."""
    names = [*report["summary"]["rows"], *report["summary"]["peers"]]
    layout = [["speedup", "parts"], ["curve" if report["curve"] else "growth", "growth"]]
    # A figure without pyplot: nothing global, no window, and PNG goes through Agg.
    figure = Figure(figsize=(13, 7 + 0.3 * max(0, len(names) - 6)), dpi=120, layout="constrained")
    axes = figure.subplot_mosaic(layout)
    _speedups(axes["speedup"], report)
    _parts(axes["parts"], report)
    _growth(axes["growth"], report)
    if report["curve"]:
        _curve(axes["curve"], report["curve"])
    figure.suptitle(
        f"{report['model']['id']} ({report['dtype']}) on {report['machine']['device']}, {len(report['rounds'])} rounds"
    )
    for ax in axes.values():
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, format="png")


def _speedups(ax: Axes, report: dict[str, Any]) -> None:
    rows = [(report["labels"][n], COLOURS[r["method"]], r) for n, r in report["summary"]["rows"].items()]
    rows += [(name, PEER, row) for name, row in report["summary"]["peers"].items()]
    rows = [row for row in rows if "speedup" in row[2]]
    for y, (_, colour, row) in enumerate(rows):
        told = row["speedup"]
        ax.barh(y, told["median"], color=colour, height=0.65)
        end = told["median"]
        if told["interval95"] is not None:
            ax.plot(told["interval95"], [y, y], color="black", linewidth=1.6, marker="|", markersize=9)
            end = max(end, told["interval95"][1])
        ax.text(end, y, f"  {told['median']:.2f}x", va="center")
    ax.axvline(1, color="black", linewidth=0.8, linestyle=":")
    _names(ax, [label for label, _, _ in rows])
    ax.margins(x=0.12)
    shown = any(row["speedup"]["interval95"] is not None for _, _, row in rows)
    title = f"Speedup over vanilla: medians{', 95 % intervals' if shown else ''}"
    ax.set_title(title if rows else "Speedup: vanilla did not run")


def _parts(ax: Axes, report: dict[str, Any]) -> None:
    rows = report["summary"]["rows"]
    for y, row in enumerate(rows.values()):
        left = 0.0
        for part in PARTS:
            ax.barh(y, row[f"ms_{part}"], left=left, color=PART_COLOURS[part], height=0.65, label=part if y == 0 else None)
            left += row[f"ms_{part}"]
        ax.text(left, y, f"  {row['mean_accepted_length']:.2f} tokens", va="center")
    _names(ax, [report["labels"][name] for name in rows])
    ax.margins(x=0.25)
    ax.set_xlabel("milliseconds per step")
    ax.set_title("What a step is made of, and what it commits")
    ax.legend(loc="upper right", frameon=False)


def _names(ax: Axes, labels: list[str]) -> None:
    ax.set_yticks(range(len(labels)), labels)
    ax.invert_yaxis()


def _curve(ax: Axes, curve: list[dict[str, Any]]) -> None:
    series = (
        ("verify_ms", "verification", "#0072b2"), ("fixed_step_ms", "step, fixed tree", "#d55e00"),
        ("dynamic_step_ms", "step, dynamic tree", "#e69f00"), ("fixed_draft_pass_ms", "a drafter pass", "#009e73"),
    )  # fmt: skip
    for (key, label, colour), marker in zip(series, MARKERS, strict=False):
        points = [(row["nodes"], row[key]) for row in curve if key in row]
        if points:
            nodes = [n for n, _ in points]
            ax.plot(nodes, [v["median"] for _, v in points], color=colour, marker=marker, markersize=4, label=label)
            ax.fill_between(nodes, [v["best"] for _, v in points], [v["median"] for _, v in points], color=colour, alpha=0.2)
    ax.set_xscale("log", base=2)
    ticks = [row["nodes"] for row in curve]
    ax.set_xticks(ticks, [str(n) for n in ticks])
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    ax.set_xlabel("nodes of the draft tree")
    ax.set_ylabel("milliseconds")
    ax.set_title("Cost curve: medians, shaded down to the best")
    ax.legend(loc="best", frameon=False)


def _growth(ax: Axes, report: dict[str, Any]) -> None:
    used: dict[str, int] = {}
    for name, row in report["summary"]["rows"].items():
        nth = used[row["method"]] = used.get(row["method"], -1) + 1
        middle = [(b["from"] + b["to"]) / 2 for b in row["growth"]]
        ax.plot(
            middle, [b["ms"] for b in row["growth"]], color=COLOURS[row["method"]], linestyle=STYLES[nth % len(STYLES)],
            marker=MARKERS[list(COLOURS).index(row["method"]) % len(MARKERS)], markersize=4, label=report["labels"][name],
        )  # fmt: skip
    ax.set_ylim(0, 1.75 * ax.get_ylim()[1])  # room for the names
    ax.set_xlabel("tokens committed before the step")
    ax.set_ylabel("milliseconds per step")
    ax.set_title("Growth with tokens: median steps")
    ax.legend(loc="upper left", frameon=False, ncols=2)
