"""Plot a front: speed against every quality measure.

A relaxed method has a curve, a lossless one a marker.

    python examples/quality/plot_front.py runs/quality/front.json

Writes front.png next to the report. Needs matplotlib (pip install -r requirements-test.txt).
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json
import math
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lantern_demo.bench.report import parser_of
from lantern_demo.decoding.methods import METHODS
from lantern_demo.paths import user_path
from lantern_demo.settings.knobs import bound_of
from lantern_demo.ui.run_view import colour

COLUMNS = 3
MARKERS = ("o", "s", "^", "D", "v")
Row = dict[str, Any]


def draw_front(report: dict[str, Any], file: Path) -> None:
    """Plot a report's front to a PNG file: one panel for the distance, one for each quality
    measure.
    """
    rows = [row for row in report["rows"] if row["group"] in ("main", "sweep")]
    panels = {
        "tvd": {"title": "TVD of the tokens' distributions from the model's", "better": "lower"},
        **report["measures"],
    }
    lines = math.ceil((len(panels) + 1) / COLUMNS)
    figure = Figure(figsize=(15, 3.9 * lines), dpi=110, layout="constrained")
    axes = figure.subplots(lines, COLUMNS).flatten().tolist()
    for ax in axes[len(panels) :]:
        ax.axis("off")
    for ax, (key, told) in zip(axes, panels.items(), strict=False):
        for method in METHODS:
            _curve(
                ax,
                method,
                [
                    (row, value)
                    for row in rows
                    if row["method"] == method and (value := value_of(row, key))
                ],
            )
        ax.axhline(0, color="grey", linewidth=0.8)
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_xlabel("gain: tokens a step over what a step costs")
        ax.set_title(
            told["title"] + (f" ({told['better']} is better)" if told["better"] else ""), fontsize=9
        )
    handles, labels = axes[0].get_legend_handles_labels()
    axes[len(panels)].legend(
        handles, labels, loc="center", frameon=False, title=f"bars: {report['level']:.0%} intervals"
    )
    figure.suptitle(
        f"{report['model']['id']} on {report['machine']['device']}: what speed costs. Grey line: "
        "vanilla itself"
    )
    figure.savefig(file, format="png")


def value_of(row: Row, key: str) -> tuple[float, float, float] | None:
    """Return a measure and its interval, or None if it was not measured.

    Measures of pictures are differences to vanilla's."""
    if key == "tvd":
        tvd = row["speed"]["tvd"]
        return None if tvd is None else (tvd, tvd, tvd)
    told = row["measures"].get(key)
    return None if told is None else (told["difference"], *told["interval"])


def _curve(ax: Axes, method: str, points: list[tuple[Row, tuple[float, float, float]]]) -> None:
    """Plot a method's points: its bound's joined and labelled, those of other knobs hollow."""
    bound, lossless, ink = bound_of(METHODS[method]), METHODS[method].lossless, colour(method)
    joined = sorted(
        (p for p in points if p[0]["knob"] in (None, bound)),
        key=lambda p: p[0]["preset"].get(bound, 0.0),
    )
    marker = "*" if lossless else MARKERS[list(METHODS).index(method) % len(MARKERS)]
    for some, line, fill, said in (
        (joined, "-", ink, " (lossless)" if lossless else ""),
        ([p for p in points if p not in joined], "none", "white", ", other knobs"),
    ):
        x, y = [row["speed"]["gain"] for row, _ in some], [value[0] for _, value in some]
        bars = [[max(0.0, v[0] - v[1]) for _, v in some], [max(0.0, v[2] - v[0]) for _, v in some]]
        if some:
            ax.errorbar(
                x,
                y,
                bars,
                color=ink,
                marker=marker,
                markersize=11 if lossless else 6,
                markerfacecolor=fill,
                linestyle=line,
                elinewidth=0.8,
                capsize=2,
                label=METHODS[method].label + said,
            )
    for row, value in joined if bound else []:
        ax.annotate(
            f"{row['preset'].get(bound, 0):g}",
            (row["speed"]["gain"], value[0]),
            textcoords="offset points",
            xytext=(5, 5),
            fontsize=7,
            color=ink,
        )


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "report", type=user_path, help="front.json of `python examples/quality/run.py`"
    )
    file = parser.parse_args().report
    draw_front(json.loads(file.read_text(encoding="utf-8")), file.with_suffix(".png"))


if __name__ == "__main__":
    main()
