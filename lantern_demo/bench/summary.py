"""Summarise rounds: medians with their spread, and ratios within a round."""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean, median
from typing import Any

import numpy

from lantern_demo.bench.report import number, table
from lantern_demo.runs.acceptance import Acceptance, Depth, total

Run = dict[str, Any]  # of one contestant in one round, JSON-able
Round = dict[str, Any]  # prompt, its kind, seed, and `runs` by contestant

RESAMPLES = 5000
# With fewer values, even the range from lowest to highest covers the median less than 95 times in
# 100: 1 - 2^(1-n).
FEWEST = 6
PARTS = ("draft", "verify", "commit")
HEAD = ["method", "nodes", "steps", "tokens a step", "ms / step", *PARTS, "c", "seconds"]
HEAD += ["gain", "95 %", "look-alikes"]
HOW = (
    "Every round draws one prompt with one seed by all methods in turn, in half of the rounds "
    "backwards, after a whole round that is thrown away. Seconds are synchronised device work from "
    "the prefill to the last token; ms / step is the mean of a run without its prefill. c is "
    "ms / step over vanilla's, gain is vanilla's seconds over the method's, both taken within a "
    "round. Given are medians over the rounds, in brackets the 10th and 90th percentile; the 95 % "
    "interval is the bootstrap's for the median, rounds taken as independent, and needs "
    f"{FEWEST} rounds. Steps are the forward passes of the target after the prefill. They, tokens "
    "a step, and look-alikes, the share of tokens that only the relaxation accepted, are means."
)
KINDS = "By kind of prompt: the median gain, in brackets tokens a step."
DEPTHS = (
    "The chance of a draft once its parent was kept, by its depth; where siblings are tried in "
    "turn, in brackets that one of them is kept."
)
SIZES = "The share of the steps by their tokens."


def interval(values: list[float]) -> tuple[float, float] | None:
    """Return the bootstrap 95 % interval of the median, or None for fewer than FEWEST values."""
    if len(values) < FEWEST:
        return None
    g = numpy.random.default_rng(0)  # the same values give the same interval
    medians = numpy.median(g.choice(numpy.array(values), (RESAMPLES, len(values))), axis=1)
    low, high = numpy.quantile(medians, (0.025, 0.975))
    return float(low), float(high)


def spread(values: list[float]) -> dict[str, Any]:
    """Return the median, the 10th and 90th percentile, and the interval of the median."""
    low, high = map(float, numpy.quantile(values, (0.1, 0.9)))
    return {"median": median(values), "p10": low, "p90": high, "interval95": interval(values)}


def step_ms(run: Run) -> float:
    """Return the mean milliseconds of a step, without the prefill."""
    return 1000 * (run["decode_seconds"] - run["prefill_seconds"]) / max(1, run["steps"])


def summarise(rounds: list[Round], rows: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Summarise rounds by row.

    `rows` maps rows to method ids. Gains are over the first vanilla row and absent without one.
    """
    vanilla = next((name for name, method in rows.items() if method == "vanilla"), None)

    def ratio(above: str, below: str, of: Callable[[Run], float]) -> list[float]:
        return [of(r["runs"][above]) / of(r["runs"][below]) for r in rounds]

    found = {name: _row([r["runs"][name] for r in rounds]) for name in rows}
    if vanilla is not None:
        for name, row in found.items():
            row["c"] = median(ratio(name, vanilla, step_ms))
            row["gain"] = spread(ratio(vanilla, name, lambda run: run["decode_seconds"]))
    return found


def by_kind(rounds: list[Round], rows: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Summarise rounds by the kind of their prompt: how many, and the medians and means of rows."""
    found = {}
    for kind in dict.fromkeys(r["kind"] for r in rounds):
        own = [r for r in rounds if r["kind"] == kind]
        found[kind] = {
            "rounds": len(own),
            "methods": {
                name: {
                    "gain": row["gain"]["median"] if "gain" in row else None,
                    "mean_accepted_length": row["mean_accepted_length"],
                }
                for name, row in summarise(own, rows).items()
            },
        }
    return found


def _row(runs: list[Run]) -> dict[str, Any]:
    def part_ms(part: str) -> float:
        return median(1000 * run[f"{part}_seconds"] / max(1, run["steps"]) for run in runs)

    return {
        "method": runs[0]["method"],
        "seconds": spread([run["decode_seconds"] for run in runs]),
        "tokens_per_second": spread([run["tokens_per_second"] for run in runs]),
        "steps": mean(run["steps"] for run in runs),
        "mean_accepted_length": mean(run["mean_accepted_length"] for run in runs),
        "changed": mean(run["changed"] for run in runs),
        "nodes": sorted({run["nodes"] for run in runs}),
        "tree": sorted({run["tree"] for run in runs}),
        "ms_per_step": spread([step_ms(run) for run in runs]),
        **{f"ms_{part}": part_ms(part) for part in PARTS},
        **total(Acceptance(run["depths"], run["sizes"]) for run in runs)._asdict(),
    }


def heading(report: dict[str, Any]) -> str:
    """Return the model, machine, versions and day of a report."""
    commit = f" ({report['commit']})" if report["commit"] else ""
    return (
        f"{report['model']['id']} ({report['dtype']}) on {report['machine']['device']}; rounds: "
        f"{len(report['rounds'])}; PyTorch {report['libraries']['torch']}, "
        f"lantern-demo {report['version']}{commit}, {report['created'][:10]}"
    )


def markdown(report: dict[str, Any], depths: bool = False) -> str:
    """Return the tables of a speed report, with its settings and procedure.

    `depths`: also those of drafts by their depth, and of steps by their tokens.
    """
    rows = report["methods"]
    # settings that vary by round or by row
    apart = {"seed"}.union(*(row["settings"] for row in rows.values()))
    common = {k: v for k, v in report["settings"].items() if v is not None and k not in apart}
    settings = f"Settings: {', '.join(f'{key} {value}' for key, value in common.items())}"
    lines = table(HEAD, [_line(row) for row in rows.values()])
    trees = [f"- Tree of {row['label']}: {' | '.join(row['tree'])}" for row in rows.values()]
    reasons = [_why(row) for row in rows.values() if row.get("c") and row["method"] != "vanilla"]
    parts = [heading(report), settings, lines, "\n".join(reasons), "\n".join(trees)]
    parts += [KINDS, _kinds(report)]
    if depths:
        chances = {row["label"]: _chances(row["depths"]) for row in rows.values() if row["depths"]}
        sizes = {row["label"]: _shares(row["sizes"]) for row in rows.values()}
        parts += [DEPTHS, _numbered("depth", chances), SIZES, _numbered("tokens", sizes)]
    return "\n\n".join(filter(None, [*parts, HOW])) + "\n"


def _why(row: dict[str, Any]) -> str:
    """Explain a row's gain, and name the point where it would end."""
    drawn, cost = row["mean_accepted_length"], row["c"]
    return (
        f"- Why {row['label']}: {drawn:.2f} tokens a step, over a step that costs {cost:.2f} of "
        f"vanilla's, are {drawn / cost:.2f}x. It breaks even at {cost:.2f} tokens a step."
    )


def _kinds(report: dict[str, Any]) -> str:
    labels = [row["label"] for row in report["methods"].values()]
    lines = []
    for kind, found in report["kinds"].items():
        cells = []
        for row in found["methods"].values():
            drawn = f"{row['mean_accepted_length']:.2f}"
            cells.append(drawn if row["gain"] is None else f"{row['gain']:.2f}x ({drawn})")
        lines.append([kind, str(found["rounds"]), *cells])
    return table(["kind", "rounds", *labels], lines)


def _chances(depths: list[list[int]]) -> list[str]:
    """Format by depth the chance of a draft, and of a position where that is another one."""
    found = [Depth(*depth) for depth in depths]
    return [
        f"{one.chance:.0%}" + (f" ({one.of_places:.0%})" if one.tried > one.places else "")
        for one in found
    ]


def _shares(sizes: list[int]) -> list[str]:
    return [f"{size / sum(sizes):.0%}" for size in sizes]


def _numbered(of: str, rows: dict[str, list[str]]) -> str:
    """Return a table whose columns are 1, 2, ... of something."""
    columns = max(map(len, rows.values()), default=0)
    lines = [[label, *cells, *[""] * (columns - len(cells))] for label, cells in rows.items()]
    return table([f"method, {of}", *map(str, range(1, columns + 1))], lines)


def _line(row: dict[str, Any]) -> list[str]:
    gain = row.get("gain")
    low, high = (gain and gain["interval95"]) or (0, 0)
    return [
        row["label"],
        ", ".join(map(str, row["nodes"])),
        number(row["steps"], 1),
        number(row["mean_accepted_length"], 2),
        number(row["ms_per_step"]["median"], 2),
        *(number(row[f"ms_{part}"], 2) for part in PARTS),
        number(row.get("c"), 2),
        _spread(row["seconds"], 3),
        "-" if gain is None else _spread(gain, 2, "x"),
        "-" if low == high else f"{low:.2f} to {high:.2f}",
        number(row["changed"], 4),
    ]


def _spread(row: dict[str, Any], digits: int, unit: str = "") -> str:
    value = f"{row['median']:.{digits}f}{unit}"
    if row["p10"] == row["p90"]:  # one round, or vanilla over itself
        return value
    return f"{value} ({row['p10']:.{digits}f} to {row['p90']:.{digits}f})"
