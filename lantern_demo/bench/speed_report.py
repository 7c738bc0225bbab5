"""The report of the benchmark of speed: one JSON-able document with everything, and its tables in Markdown."""

from __future__ import annotations

from typing import Any

from lantern_demo.bench.report import now, number, table
from lantern_demo.bench.speed import Row
from lantern_demo.bench.summary import FEWEST, PARTS, summarise

Report = dict[str, Any]

HEAD = ["method", "nodes", "MAL", "ms / step", *PARTS, "c", "tokens / s", "speedup", "95 %", "changed", "peak MiB"]
HOW = (
    "Every round draws one prompt with one seed by all contestants in turn, in every other round backwards, after a whole "
    "round that is thrown away. Times are synchronised device work; ms / step is the mean of a run without its prefill, "
    "tokens / s counts the prefill. c is ms / step over vanilla's, speedup is vanilla's decode seconds over the method's, "
    "both taken within a round. Given are medians over the rounds, in brackets the 10th and 90th percentile; the 95 % "
    f"interval is the bootstrap's for the median, rounds taken as independent, and needs {FEWEST} rounds. MAL and changed, the "
    "share of tokens that only the relaxation accepted, are means."
)
HOW_PEERS = (
    "Peers are timed by the wall around their call. They are compared with our wall time of the same stretch, prefill to last "
    "token, which holds all that Python does between the segments of our clock."
)


def report_of(
    identity: dict[str, Any], rows: list[Row], notes: dict[str, str], rounds: list[dict[str, Any]], sessions: list[dict[str, Any]]
) -> Report:
    """The document. `notes` maps peers to what their files say of themselves. Raises ValueError when there is no round."""
    peaks = [r["process_peak_bytes"] for r in rounds if r["process_peak_bytes"] is not None]
    return {
        "created": now(),
        **identity,
        "labels": {row.name: row.label for row in rows},
        "peer_notes": notes,
        "how": HOW,
        "sessions": sessions,
        "process_peak_bytes": max(peaks, default=None),
        "summary": summarise(rounds, {row.name: row.method for row in rows}, notes),
        "rounds": rounds,
    }


def markdown(report: Report) -> str:
    """The tables of a report, with what they are of."""
    summary, labels = report["summary"], report["labels"]
    parts = [_head(report), _speed(report)]
    parts.append("\n".join(f"- Tree of {labels[name]}: {' | '.join(row['tree'])}" for name, row in summary["rows"].items()))
    if summary["peers"]:
        head = ["peer", "tokens / s", "over our vanilla", *(f"our {label} over it" for label in labels.values())]
        lines = []
        for name, row in summary["peers"].items():
            ours = [_spread(row["ours_over_it"][row_name], 2, "x") for row_name in labels]
            lines.append([name, _spread(row["tokens_per_second"], 0), _spread(row.get("speedup"), 2, "x"), *ours])
        parts += [table(head, lines), HOW_PEERS, *dict.fromkeys(note for note in report["peer_notes"].values() if note)]
    parts.append(HOW)
    if report["process_peak_bytes"] is not None and report["machine"]["device_type"] == "cpu":
        peak = _mib(report["process_peak_bytes"])
        parts.append(f"Peak resident memory of the process since it started, all contestants together: {peak} MiB.")
    loads = [s["load"][0] for s in report["sessions"] if s["load"]]
    if loads:
        parts.append(f"Load average of the machine when measuring began: {', '.join(f'{load:.1f}' for load in loads)}.")
    return "\n\n".join(parts) + "\n"


def _head(report: Report) -> str:
    c, m, v = report["command"], report["machine"], report["versions"]
    apart = {"seed"}.union(*c["rows"].values())  # a round's own, and those that rows differ in
    settings = {k: value for k, value in report["settings"].items() if value is not None and k not in apart}
    return (
        f"{report['model']['id']} ({report['dtype']}) on {m['device']}; prompts: {c['prompts']}, seeds of each: {c['seeds']}, "
        f"rounds: {len(report['rounds'])}; PyTorch {v['torch']}, Python {v['python']}, {report['created'][:10]}\n\n"
        f"Settings: {', '.join(f'{k} {value}' for k, value in settings.items())}"
    )


def _speed(report: Report) -> str:
    rows = report["summary"]["rows"] | report["summary"]["peers"]
    lines = [_line(report["labels"].get(name, name), row) for name, row in rows.items()]
    if report["process_peak_bytes"] is not None and all(row["peak_bytes"] is None for row in rows.values()):
        return table(HEAD[:-1], [line[:-1] for line in lines])  # a CPU's peak is the whole process's and stands below
    return table(HEAD, lines)


def _line(label: str, row: Report) -> list[str]:
    """The cells of a method or a peer; a peer has neither steps nor a tree."""
    return [
        label,
        ", ".join(map(str, row.get("nodes", []))) or "-",
        number(row.get("mean_accepted_length"), 2),
        number(row.get("ms_per_step", {}).get("median"), 2),
        *(number(row.get(f"ms_{part}"), 2) for part in PARTS),
        number(row.get("c"), 2),
        _spread(row["tokens_per_second"], 0),
        _spread(row.get("speedup"), 2, "x"),
        _interval(row.get("speedup")),
        number(row.get("changed"), 4),
        _mib(row["peak_bytes"]),
    ]


def _spread(told: dict[str, Any] | None, digits: int, unit: str = "") -> str:
    if told is None:
        return "-"
    value = f"{told['median']:.{digits}f}{unit}"
    # one round, or vanilla over itself: nothing was spread
    return value if told["p10"] == told["p90"] else f"{value} ({told['p10']:.{digits}f} to {told['p90']:.{digits}f})"


def _interval(told: dict[str, Any] | None) -> str:
    low, high = (told and told["interval95"]) or (0, 0)
    return "-" if low == high else f"{low:.2f} to {high:.2f}"


def _mib(value: int | None) -> str:
    return number(None if value is None else value / 2**20, 0)
