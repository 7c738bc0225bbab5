"""The report of a benchmark: one JSON-able document with everything, and its tables in Markdown."""

from __future__ import annotations

import json
import os
import platform
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from lantern_demo.bench.curve import summarise_curve
from lantern_demo.bench.speed import Row
from lantern_demo.bench.summary import FEWEST, summarise
from lantern_demo.models.device import device_name

Report = dict[str, Any]

HOW = (
    "Every round draws one prompt with one seed by all contestants in turn, in every other round backwards, after a whole round that "
    "is thrown away. Times are synchronised device work; ms / step is the mean of a run without its prefill, tokens / s counts the prefill. "
    "c is ms / step over "
    "vanilla's, speedup is vanilla's decode seconds over the method's, both taken within a round. Given are medians over the rounds, "
    "in brackets the 10th and 90th percentile; the 95 % interval is the bootstrap's for the median, rounds taken as independent, and "
    f"needs {FEWEST} rounds. MAL and one-step TVD are means."
)
HOW_PEERS = (
    "Peers are timed by the wall around their call. They are compared with our wall time of the same stretch, prefill to last token, "
    "which holds all that Python does between the segments of our clock."
)
NO_PICTURE = "There is no picture, since matplotlib is not installed: pip install -r requirements-test.txt"
CROWDED = "{world} processes measured at once on one processor and disturbed each other: read ratios, not times."


def machine_of(device: torch.device) -> dict[str, Any]:
    """What measures: device, system, processors and threads, a GPU's memory in bytes."""
    told: dict[str, Any] = {
        "device": device_name(device),
        "device_type": device.type,
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        told |= {"gpu_memory": properties.total_memory, "gpu_capability": f"{properties.major}.{properties.minor}"}
    return told


def session_of(rank: int) -> dict[str, Any]:
    """When a process began or went on, and how busy the machine was: load averages of 1, 5 and 15 minutes where there are any."""
    load = list(os.getloadavg()) if hasattr(os, "getloadavg") else None
    return {"rank": rank, "started": datetime.now(timezone.utc).isoformat(timespec="seconds"), "load": load}


def report_of(
    identity: dict[str, Any], rows: list[Row], peers: dict[str, str], rounds: list[dict[str, Any]],
    sweeps: list[dict[str, Any]], sessions: list[dict[str, Any]],
) -> Report:  # fmt: skip
    """The document. `peers` maps names to what their files say of themselves. Raises ValueError when there is no round."""
    peaks = [r["process_peak_bytes"] for r in rounds if r["process_peak_bytes"] is not None]
    return {
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **identity,
        "labels": {row.name: row.label for row in rows},
        "peer_notes": peers,
        "how": HOW,
        "sessions": sessions,
        "process_peak_bytes": max(peaks, default=None),
        "summary": summarise(rounds, {row.name: row.method for row in rows}, peers),
        "curve": summarise_curve(sweeps),
        "rounds": rounds,
        "sweeps": sweeps,
    }


def markdown(report: Report) -> str:
    """The tables of a report, with what they are of."""
    summary, labels = report["summary"], report["labels"]
    parts = [_head(report), _speed_table(report)]
    parts.append("\n".join(_trees(labels[name], row) for name, row in summary["rows"].items()))
    if summary["peers"]:
        notes = [f"{', '.join(names)}: {note}" for note, names in _by_note(report["peer_notes"]).items() if note]
        parts += [_peer_table(report), HOW_PEERS, *notes]
    if report["curve"]:
        parts += ["Milliseconds by the nodes of a step, best / median:", _curve_table(report["curve"])]
    if any(row["growth"] for row in summary["rows"].values()):
        parts += ["Milliseconds of a step by the tokens before it, medians:", _growth_table(report)]
    parts += [HOW, *_notes(report)]
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


def _table(head: list[str], lines: list[list[str]]) -> str:
    rule = "|---|" + "--:|" * (len(head) - 1)
    return "\n".join([f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)])


def _spread(told: dict[str, Any] | None, digits: int, unit: str = "") -> str:
    if told is None:
        return "-"
    value = f"{told['median']:.{digits}f}{unit}"
    # one round, or vanilla over itself: nothing was spread
    return value if told["p10"] == told["p90"] else f"{value} ({told['p10']:.{digits}f} to {told['p90']:.{digits}f})"


def _interval(told: dict[str, Any] | None) -> str:
    if told is None or told["interval95"] is None:
        return "-"
    low, high = told["interval95"]
    return "-" if low == high else f"{low:.2f} to {high:.2f}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _mib(value: int | None) -> str:
    return "-" if value is None else f"{value / 2**20:.0f}"


def _speed_table(report: Report) -> str:
    head = [
        "method", "nodes", "MAL", "ms / step", "draft", "verify", "commit", "c", "tokens / s", "speedup", "95 %", "price",
        "one-step TVD", "peak MiB",
    ]  # fmt: skip
    lines = []
    for name, row in report["summary"]["rows"].items():
        lines.append([
            report["labels"][name], ", ".join(map(str, row["nodes"])), f"{row['mean_accepted_length']:.2f}",
            f"{row['ms_per_step']['median']:.2f}", *(f"{row[f'ms_{p}']:.2f}" for p in ("draft", "verify", "commit")),
            _number(row.get("c"), 2), _spread(row["tokens_per_second"], 0), _spread(row.get("speedup"), 2, "x"),
            _interval(row.get("speedup")), _number(row["price"], 4), _number(row["one_step_tvd"], 4),
            _mib(row["peak_bytes"]),
        ])  # fmt: skip
    for name, row in report["summary"]["peers"].items():
        lines.append([
            name, *["-"] * 7, _spread(row["tokens_per_second"], 0), _spread(row.get("speedup"), 2, "x"),
            _interval(row.get("speedup")), "-", "-", _mib(row["peak_bytes"]),
        ])  # fmt: skip
    if report["process_peak_bytes"] is not None and all(line[-1] == "-" for line in lines):
        head, lines = head[:-1], [line[:-1] for line in lines]  # a CPU's peak is the whole process's and stands below
    return _table(head, lines)


def _trees(label: str, row: dict[str, Any]) -> str:
    return f"- Tree of {label}: {' | '.join(row['tree'])}"


def _peer_table(report: Report) -> str:
    labels = report["labels"]
    head = ["peer", "tokens / s", "over our vanilla", *(f"our {label} over it" for label in labels.values())]
    lines = [
        [name, _spread(row["tokens_per_second"], 0), _spread(row.get("speedup"), 2, "x"),
         *(_spread(row["ours_over_it"][ours], 2, "x") for ours in labels)]
        for name, row in report["summary"]["peers"].items()
    ]  # fmt: skip
    return _table(head, lines)


def _by_note(notes: dict[str, str]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for name, note in notes.items():
        names.setdefault(note, []).append(name)
    return names


CURVE = {
    "verify_ms": "verification",
    "fixed_step_ms": "step, fixed tree",
    "fixed_passes": "drafter passes",
    "fixed_draft_pass_ms": "a pass, fixed",
    "dynamic_step_ms": "step, dynamic tree",
    "dynamic_passes": "drafter passes",
    "dynamic_draft_pass_ms": "a pass, dynamic",
}


def _curve_table(curve: list[dict[str, Any]]) -> str:
    shown = {key: title for key, title in CURVE.items() if any(key in row for row in curve)}

    def cell(value: Any) -> str:
        if isinstance(value, dict):
            return f"{value['best']:.2f} / {value['median']:.2f}"
        return "-" if value is None else str(value)

    return _table(["nodes", *shown.values()], [[str(row["nodes"]), *(cell(row.get(key)) for key in shown)] for row in curve])


def _growth_table(report: Report) -> str:
    rows = report["summary"]["rows"]
    bins = sorted({(b["from"], b["to"]) for row in rows.values() for b in row["growth"]})
    lines = []
    for name, row in rows.items():
        ms = {(b["from"], b["to"]): b["ms"] for b in row["growth"]}
        lines.append([report["labels"][name], *(_number(ms.get(b), 2) for b in bins)])
    return _table(["tokens", *(f"{low} to {high - 1}" for low, high in bins)], lines)


def _notes(report: Report) -> list[str]:
    notes = []
    if report["process_peak_bytes"] is not None and report["machine"]["device_type"] == "cpu":
        peak = _mib(report["process_peak_bytes"])
        notes.append(f"Peak resident memory of the process since it started, all contestants together: {peak} MiB.")
    world = report["command"]["processes"]
    if world > 1 and report["machine"]["device_type"] == "cpu":
        notes.append(CROWDED.format(world=world))
    loads = [s["load"][0] for s in report["sessions"] if s["load"]]
    if loads:
        notes.append(f"Load average of the machine when measuring began: {', '.join(f'{load:.1f}' for load in loads)}.")
    return notes


def write(report: Report, out: Path) -> list[Path]:
    """Write FILE.json and FILE.md beside each other, and FILE.png where it can be drawn; returns them."""
    files = [out, out.with_suffix(".md")]
    out.parent.mkdir(parents=True, exist_ok=True)
    # a line per key: thousands of token ids need no line each
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in report.items())
    files[0].write_text(f"{{\n{lines}\n}}\n")
    files[1].write_text(markdown(report))
    if can_draw():
        from lantern_demo.bench.plot import draw

        files.append(out.with_suffix(".png"))
        draw(report, files[-1])
    return files


def can_draw() -> bool:
    """Whether there is matplotlib, which only pictures need; says so where there is none."""
    if find_spec("matplotlib") is None:
        print(NO_PICTURE)
        return False
    return True
