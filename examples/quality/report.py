"""The tables of a front."""

from __future__ import annotations

from typing import Any

from examples.quality.classifier import READ
from examples.quality.front import MEASURES
from examples.quality.scenes import ALL
from lantern_demo.bench.report import number, table

Report = dict[str, Any]
Row = dict[str, Any]

SPEED = ["nodes", "tokens a step", "c", "gain", "speedup (95 %)", "look-alikes", "TVD"]
HOW = (
    "Tokens a step, and look-alikes, the share of tokens that only a relaxed rule accepted, are "
    "over all pictures of a point. c and the speedup are medians over {rounds} rounds in which all "
    "points drew the same prompt in turn; gain is tokens a step over c, less noisy than the "
    "speedup. TVD is the mean total variation distance between the distributions that tokens were "
    "drawn from and those of the model itself, over the rounds. A measure of pictures is shown "
    "as its difference to vanilla's of the same seeds, and vanilla's own as its difference to "
    "vanilla with other seeds, with the {level:.0%} bootstrap interval over captions; * marks "
    "those that noise does not explain. Fewer pictures have wider intervals."
)


def markdown(report: Report) -> str:
    """Return the tables of a report with a heading."""
    torch, rows = report["versions"]["torch"], report["rows"]
    head = (
        f"{report['model']['id']} ({report['dtype']}) on {report['machine']['device']}; "
        f"{report['seeds']} pictures of each caption; PyTorch {torch}, {report['created'][:10]}"
    )
    measures = [told["title"] for told in MEASURES.values()]
    points = table(["point", *SPEED, "pictures", *measures], [_point(row) for row in rows])
    how = HOW.format(rounds=report["rounds"], level=report["level"])
    parts = [head, points, "What is found of what was asked for:", _attributes(report), how]
    return "\n\n".join(parts) + "\n"


def _point(row: Row) -> list[str]:
    s = row["speed"]
    low, high = s["speedup"]["interval95"] or (0, 0)
    interval = f" ({low:.2f} to {high:.2f})" if low != high else ""
    return [
        row["label"],
        ", ".join(map(str, s["nodes"])),
        f"{s['tokens_per_step']:.2f}",
        f"{s['c']:.2f}",
        f"{s['gain']:.2f}x",
        f"{s['speedup']['median']:.2f}x{interval}",
        number(s["changed"], 4),
        number(s["tvd"], 4),
        str(row["pictures"]),
        *(_loss(row["measures"].get(key)) for key in MEASURES),
    ]


def _loss(measure: dict[str, Any] | None) -> str:
    if measure is None:
        return "-"
    low, high = measure["interval"]
    mark = "" if low <= 0 <= high else " *"
    return f"{measure['difference']:+.4f} ({low:+.4f} to {high:+.4f}){mark}"


def _attributes(report: Report) -> str:
    told = [
        ("true scenes", report["truth"]["true"]["right"]),
        ("through the tokenizer", report["truth"]["again"]["right"]),
    ]
    told += [
        (row["label"], row["right"])
        for row in (report["floor"], *report["rows"])
        if row.get("group", "main") == "main"
    ]
    lines = [[title, *(_share(right[name]) for name in (*READ, ALL))] for title, right in told]
    return table(["", *READ, "all of them"], lines)


def _share(measure: dict[str, Any]) -> str:
    low, high = measure["interval"]
    return f"{100 * measure['share']:.1f} ({100 * low:.0f} to {100 * high:.0f})"
