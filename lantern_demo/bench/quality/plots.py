"""The front as a picture: speed against every quality measure, a curve for each relaxed method, lossless methods marked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lantern_demo.bench.plot import COLOURS, MARKERS
from lantern_demo.decoding.methods import METHODS
from lantern_demo.knobs import bound_of

COLUMNS = 3
CURVES = {method.id: bound for method in METHODS.values() if (bound := bound_of(method))}  # the knob whose points are joined
Row = dict[str, Any]


class Value(NamedTuple):
    """A measure of a row, and its interval."""

    middle: float
    low: float
    high: float


def draw_front(report: dict[str, Any], file: Path) -> None:
    """Draw a report's front to a PNG file: one panel for the price, one for each quality measure."""
    rows = [row for row in report["rows"] if row.get("speed") and row["group"] in ("main", "sweep")]
    panels = ["price", *report["measures"]]
    lines = math.ceil((len(panels) + 1) / COLUMNS)
    figure = Figure(figsize=(15, 3.9 * lines), dpi=110, layout="constrained")
    axes = figure.subplots(lines, COLUMNS).flatten().tolist()
    for ax, key in zip(axes, panels, strict=False):
        _panel(ax, report, rows, key)
        ax.spines[["top", "right"]].set_visible(False)
    handles, labels = axes[0].get_legend_handles_labels()
    for ax in axes[len(panels) :]:
        ax.axis("off")
    axes[len(panels)].legend(handles, labels, loc="center", frameon=False, title=f"bars: {report['level']:.0%} intervals")
    figure.suptitle(f"{report['model']['id']} on {report['machine']['device']}: what speed costs. Grey line: vanilla itself")
    figure.savefig(file, format="png")


PRICE = {"title": "price: how far the laws of the picture's tokens move", "better": "lower"}
BETTER = {"lower": " (lower is better)", "higher": " (higher is better)"}


def _panel(ax: Axes, report: dict[str, Any], rows: list[Row], key: str) -> None:
    told = PRICE if key == "price" else report["measures"][key]
    values = [(row, value) for row in rows if (value := _value(row, key)) is not None]
    for method in METHODS:
        mine = [(row, value) for row, value in values if row["method"] == method]
        joined = [(row, value) for row, value in mine if row["knob"] in (None, CURVES.get(method))]
        _points(ax, method, sorted(joined, key=lambda point: _knob(point[0])), curve=True)
        _points(ax, method, [point for point in mine if point not in joined], curve=False)
    ax.axhline(0, color="grey", linewidth=0.8)
    _scale(ax, values)
    ax.set_xlabel("gain: tokens a step over what a step costs")
    ax.set_title(told["title"] + BETTER.get(told["better"], ""), fontsize=9)


def _scale(ax: Axes, values: list[tuple[Row, Value]]) -> None:
    """Fit the axes to all points but those of the released residual, one of which may lie so far off that nothing else could be told
    apart; what is then off the scale is named."""
    kept = [(row, value) for row, value in values if row["settings"].get("residual") != "released"]
    if not kept:
        return
    x, low, high = zip(*((row["speed"]["gain"], v.low, v.high) for row, v in kept), strict=True)
    for limit, least, most in ((ax.set_xlim, min(x), max(x)), (ax.set_ylim, min(0.0, *low), max(0.0, *high))):
        margin = 0.08 * (most - least) or 0.1
        limit(least - margin, most + margin)
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    off = [
        f"{row['label']}: gain {row['speed']['gain']:.2f}, {value.middle:.3g}" for row, value in values
        if not (left <= row["speed"]["gain"] <= right and bottom <= value.middle <= top)
    ]  # fmt: skip
    if off:
        said = "off the scale: " + "; ".join(off)
        ax.text(0.5, 0.99, said, transform=ax.transAxes, ha="center", va="top", fontsize=7, color="grey")


def _points(ax: Axes, method: str, points: list[tuple[Row, Value]], curve: bool) -> None:
    if not points:
        return
    x, y = [row["speed"]["gain"] for row, _ in points], [value.middle for _, value in points]
    bars = [[max(0.0, v.middle - v.low) for _, v in points], [max(0.0, v.high - v.middle) for _, v in points]]
    lossless, colour = METHODS[method].lossless, COLOURS[method]
    marker = "*" if lossless else MARKERS[list(COLOURS).index(method) % len(MARKERS)]
    ax.errorbar(
        x, y, bars if any(map(any, bars)) else None, color=colour, marker=marker, markersize=11 if lossless else 6,
        markerfacecolor=colour if curve else "white", linestyle="-" if curve and len(points) > 1 else "none",
        elinewidth=0.8, capsize=2, label=METHODS[method].label + (" (lossless)" if lossless else "" if curve else ", other knobs"),
    )  # fmt: skip
    for row, value in points if curve and len(points) > 1 else []:
        place = {"textcoords": "offset points", "xytext": (5, 5), "fontsize": 7, "color": colour}
        ax.annotate(f"{_knob(row):g}", (row["speed"]["gain"], value.middle), **place)


def _value(row: Row, key: str) -> Value | None:
    """A measure with its interval; the difference to vanilla's where pictures are compared."""
    if key == "price":
        value = row["speed"]["price"]
        return None if value is None else Value(value, value, value)
    told = row["measures"].get(key)
    return None if told is None else Value(told["difference"], *told["interval"])


def _knob(row: Row) -> float:
    """Where on its method's curve a row lies."""
    return row["preset"].get(CURVES.get(row["method"], ""), 0.0)


def draw_premise(report: dict[str, Any], file: Path) -> None:
    """Draw what replacing tokens does to pixels and attributes, by the share of tokens that are replaced."""
    figure = Figure(figsize=(13, 5), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    kinds = dict.fromkeys((r["kind"], r["j"]) for r in report["premise"])
    names = {"neighbour": "codebook neighbour", "probable": "most probable token", "random": "random token"}
    colours = {"neighbour": "#d55e00", "probable": "#0072b2", "random": "#7f7f7f"}
    for kind, j in kinds:
        some = sorted((r for r in report["premise"] if (r["kind"], r["j"]) == (kind, j)), key=lambda r: r["share"])
        ranks = [n for k, n in kinds if k == kind]
        shade = 1.0 if j is None else 1 - 0.75 * ranks.index(j) / max(1, len(ranks))
        label = names[kind] if j is None else f"{j}. {names[kind]}"
        style = {"color": colours[kind], "alpha": shade, "marker": "o", "markersize": 4, "label": label}
        left.plot([r["share"] for r in some], [r["psnr"] for r in some], **style)
        right.plot([r["share"] for r in some], [r["all"] for r in some], **style)
    left.set_ylabel("PSNR to the picture as it was, dB")
    right.set_ylabel("pictures in which everything asked for is found")
    for ax in (left, right):
        ax.set_xlabel("share of tokens replaced")
        ax.spines[["top", "right"]].set_visible(False)
    right.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    figure.suptitle(f"{report['model']['id']}: what is left when tokens are replaced")
    figure.savefig(file, format="png")
