"""The tables of a front."""

from __future__ import annotations

from typing import Any

from examples.quality.front import MEASURES
from examples.quality.scenes import ALL
from lantern_demo.bench.report import number, table
from lantern_demo.scenes import ATTRIBUTES

Report = dict[str, Any]
Row = dict[str, Any]

ACROSS = 5  # points of a table

HOW = (
    "Tokens a step, and look-alikes, the share of tokens that only a relaxed rule accepted, are "
    "over all pictures of a point. c and the speedup are medians over {rounds} rounds in which all "
    "points drew the same prompt in turn; gain is tokens a step over c, less noisy than the "
    "speedup. TVD is the mean total variation distance between the distributions that tokens were "
    "drawn from and those of the model itself, over the rounds. A measure is shown "
    "as its difference to vanilla's "
    "pictures of the same seeds, and vanilla's own as its difference to vanilla with other seeds, "
    "with the {level:.0%} bootstrap "
    "interval over captions; * marks those that noise does not explain."
)


def markdown(report: Report) -> str:
    """Return the tables of a report with a heading."""
    m, v, rows = report["machine"], report["versions"], report["rows"]
    head = (
        f"{report['model']['id']} ({report['dtype']}) on {m['device']}; {report['pictures']} "
        "pictures of every method, "
        f"{report['sweep_pictures']} or more where a knob was moved, {report['seeds']} of each "
        "caption; PyTorch "
        f"{v['torch']}, {report['created'][:10]}"
    )
    parts = [
        head,
        "Speed:",
        _speed(rows),
        "What is found of what was asked for:",
        _attributes(report),
    ]
    # A measure depends on the number of pictures, so each table has rows with the same number.
    for count in sorted({row["pictures"] for row in rows if row["measures"]}, reverse=True):
        of_it = [row for row in rows if row["measures"] and row["pictures"] == count]
        parts += [
            f"The losses, {count} pictures:",
            *(_losses(of_it[i : i + ACROSS]) for i in range(0, len(of_it), ACROSS)),
        ]
    return "\n\n".join([*parts, HOW.format(rounds=report["rounds"], level=report["level"])]) + "\n"


def _speed(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        s = row["speed"]
        low, high = s["speedup"]["interval95"] or (0, 0)
        speedup = f"{s['speedup']['median']:.2f}x" + (
            f" ({low:.2f} to {high:.2f})" if low != high else ""
        )
        costs = [f"{s['tokens_per_step']:.2f}", f"{s['c']:.2f}", f"{s['gain']:.2f}x", speedup]
        lines.append(
            [
                row["label"],
                ", ".join(map(str, s["nodes"])),
                *costs,
                number(s["changed"], 4),
                number(s["tvd"], 4),
            ]
        )
    return table(
        ["point", "nodes", "tokens a step", "c", "gain", "speedup (95 %)", "look-alikes", "TVD"],
        lines,
    )


def _attributes(report: Report) -> str:
    names = [*ATTRIBUTES, ALL]
    told = [
        ("true scenes", report["truth"]["true"]["right"]),
        ("through the tokenizer", report["truth"]["again"]["right"]),
    ]
    told += [
        (row["label"], row["right"])
        for row in (report["floor"], *report["rows"])
        if row.get("group", "main") == "main"
    ]
    lines = [[title, *(_share(right[name]) for name in names)] for title, right in told]
    return table(["", *ATTRIBUTES, "all of them"], lines)


def _share(told: dict[str, Any]) -> str:
    low, high = told["interval"]
    return f"{100 * told['share']:.1f} ({100 * low:.0f} to {100 * high:.0f})"


def _losses(rows: list[Row]) -> str:
    """Return a table with a row per measure and a column per point."""
    floors = {key: told["floor"] for row in rows for key, told in row["measures"].items()}
    lines = [
        [
            told["title"],
            _signed(floors[key], floors[key], ""),
            *(_cell(row["measures"].get(key), floors[key]) for row in rows),
        ]
        for key, told in MEASURES.items()
        if key in floors
    ]
    return table(["measure", "vanilla", *(row["label"] for row in rows)], lines)


def _cell(told: dict[str, Any] | None, scale: float) -> str:
    if told is None:
        return "-"
    middle, low, high = (_signed(value, scale) for value in (told["difference"], *told["interval"]))
    return f"{middle} ({low} to {high})" + (
        "" if told["interval"][0] <= 0 <= told["interval"][1] else " *"
    )


def _signed(value: float, scale: float, sign: str = "+") -> str:
    return f"{value:{sign}.{4 if abs(scale) < 0.1 else 3 if abs(scale) < 10 else 1}f}"
