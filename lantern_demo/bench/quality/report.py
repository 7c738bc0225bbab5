"""The report of the quality benchmark: rows of points, and the tables that people read."""

from __future__ import annotations

from typing import Any

from lantern_demo.bench.quality.measuring import MEASURES
from lantern_demo.bench.quality.recommend import FAST_LOSS
from lantern_demo.bench.quality.scenes import ALL
from lantern_demo.training.scenes import ATTRIBUTES

Report = dict[str, Any]
Row = dict[str, Any]

ACROSS = 5  # points of a table

HOW = (
    "Tokens / step is over all pictures of a point, c and the speedup are medians over {rounds} rounds in which all points drew the same "
    "prompt in turn; gain is tokens / step over c, less noisy than the speedup. A measure stands as its difference to what vanilla's "
    "pictures of the same seeds come to, and a distance to these (vanilla's own row: every measure) to what vanilla comes to with other seeds, "
    "with the {level:.0%} bootstrap interval over captions; * marks those that noise does not explain. "
    "Scene-FID is the Frechet distance in the features of this project's attribute classifier: it compares with no FID but its own."
)


def markdown(report: Report) -> str:
    """The tables of a report, with what they are of."""
    m, v = report["machine"], report["versions"]
    head = (
        f"{report['model']['id']} ({report['dtype']}) on {m['device']}; {report['pictures']} pictures of every method, "
        f"{report['sweep_pictures']} or more where a knob was moved, {report['seeds']} of each caption; PyTorch {v['torch']}, {report['created'][:10]}"
    )
    main = [row for row in report["rows"] if row["group"] == "main"]
    parts = [head, "Speed:", _speed(report["rows"]), "What is found of what was asked for:", _attributes(report, main)]
    # A measure depends on how many pictures it is of, so that only rows of as many stand in one table.
    for count in sorted({row["pictures"] for row in report["rows"] if row["measures"]}, reverse=True):
        parts += [f"The price, {count} pictures:", _price([row for row in report["rows"] if row["pictures"] == count])]
    parts += ["Recommended:", _recommended(report)]
    parts.append(HOW.format(rounds=report["rounds"], level=report["level"]))
    return "\n\n".join(parts) + "\n"


def table(head: list[str], lines: list[list[str]]) -> str:
    """A Markdown table whose first column is text."""
    return "\n".join(
        [f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1), *(f"| {' | '.join(line)} |" for line in lines)]
    )


def _speed(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        s = row.get("speed")
        if s is None:
            continue
        interval = s["speedup"]["interval95"]
        lines.append([
            row["label"], ", ".join(map(str, s["nodes"])), f"{s['tokens_per_step']:.2f}", f"{s['c']:.2f}", f"{s['gain']:.2f}x",
            f"{s['speedup']['median']:.2f}x" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval and interval[0] != interval[1] else ""),
            known(s["price"]), known(s["one_step_tvd"]), known(s["price_of_first_tokens"]),
        ])  # fmt: skip
    return table(
        ["point", "nodes", "tokens / step", "c", "gain", "speedup (95 %)", "price", "one-step TVD", "price there"], lines
    )


def known(value: float | None) -> str:
    """What was measured, or that it was not."""
    return "-" if value is None else f"{value:.4f}"


def _attributes(report: Report, rows: list[Row]) -> str:
    names = [*ATTRIBUTES, ALL]
    told = [
        (title, report["truth"][key]["right"]) for key, title in (("true", "true scenes"), ("again", "through the tokenizer"))
    ]
    told += [(report["floor"]["label"], report["floor"]["right"])]
    told += [(row["label"], row["right"]) for row in rows]
    lines = [[title, *(_share(right[name]) for name in names)] for title, right in told]
    return table(["", *ATTRIBUTES, "all of them"], lines)


def _share(told: dict[str, Any]) -> str:
    low, high = told["interval"]
    return f"{100 * told['share']:.1f} ({100 * low:.0f} to {100 * high:.0f})"


def _price(rows: list[Row]) -> str:
    """Measures down, points across, a few to a table: a dozen measures of many points fit no page otherwise."""
    rows = [row for row in rows if row["measures"]]
    parts = []
    for start in range(0, len(rows), ACROSS):
        some = rows[start : start + ACROSS]
        floors = {key: told["floor"] for row in some for key, told in row["measures"].items()}
        lines = [
            [told.title, _number(floors[key], floors[key]), *(_cell(row["measures"].get(key), floors[key]) for row in some)]
            for key, told in MEASURES.items()
            if key in floors
        ]
        parts.append(table(["measure", "vanilla", *(row["label"] for row in some)], lines))
    return "\n\n".join(parts)


def _cell(told: dict[str, Any] | None, scale: float) -> str:
    if told is None:
        return "-"
    low, high = told["interval"]
    mark = "" if low <= 0 <= high else " *"
    return f"{_number(told['difference'], scale, True)} ({_number(low, scale, True)} to {_number(high, scale, True)}){mark}"


def _number(value: float, scale: float, signed: bool = False) -> str:
    digits = 4 if abs(scale) < 0.1 else 3 if abs(scale) < 10 else 1
    return f"{value:{'+' if signed else ''}.{digits}f}"


def _recommended(report: Report) -> str:
    lines = []
    for method, kinds in report["recommended"].items():
        for kind, told in kinds.items():
            if told is None:
                lines.append([f"{method}, {kind}", "none qualifies", "-", "-", "-"])
            else:
                said = ", ".join(f"{key} {value}" for key, value in told["settings"].items())
                lines.append(
                    [
                        f"{method}, {kind}",
                        said or "its fitted window",
                        f"{told['gain']:.2f}x",
                        f"{100 * told['loss']:+.1f}",
                        str(told["pictures"]),
                    ]
                )
    note = (
        "Careful is the fastest point none of whose measures noise does not explain; fast is the fastest that loses at most "
        f"{100 * FAST_LOSS:.0f} in 100 of the pictures in which everything asked for is found."
    )
    return table(["method", "settings", "gain", "pictures lost in 100", "measured on"], lines) + "\n\n" + note
