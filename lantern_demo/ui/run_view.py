"""A run as the page's components show it: values for its scripts and rows for its table, all made of texts and numbers."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from itertools import cycle, pairwise
from math import isqrt
from statistics import median
from typing import Any

from PIL import Image

from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.evidence import evidence_of
from lantern_demo.ui.run_state import Lane, Source

# In the methods' order Okabe and Ito's colours, which colour-blind people can tell apart, and behind them some for methods that
# are added.
PALETTE = (
    "#7f7f7f",
    "#56b4e9",
    "#0072b2",
    "#e69f00",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#7a4fa3",
    "#9a8700",
    "#a0304a",
    "#1b7837",
    "#8c510a",
    "#2a4b9b",
    "#c51b7d",
    "#01665e",
    "#b15928",
)
COLOURS: dict[str, str] = dict(zip(METHODS, cycle(PALETTE), strict=False))
LABELS: dict[str, str] = {method.id: method.label for method in METHODS.values()}

# What a visitor should compare: the baseline, the exact control, and the method that the demo is about.
LEADS = ("vanilla", "eagle1", "lantern++")

LARGEST = 512  # pixels a side of a picture that travels with the results
PARTS = ("draft", "verify", "commit")


def stem(method: str) -> str:
    """A method's id as a file name that every system and web address takes."""
    return method.replace("+", "p")


def leading(methods: Iterable[str]) -> set[str]:
    """The methods of a run that are shown large: LEADS, and others in their places where some of those are not in the run."""
    there = list(methods)
    return set(sorted(there, key=lambda name: name not in LEADS)[: len(LEADS)])


def lane_view(lane: Lane, vanilla: Lane | None, lead: bool, greedy: bool = False) -> dict[str, Any]:
    """What the page's script shows of a lane: texts, never markup. `vanilla` is the lane that speedups are against; lead: it is
    shown large; greedy: the run takes the likeliest tokens."""
    method = METHODS[lane.method]
    return {
        "id": lane.method,
        "name": stem(lane.method),
        "label": method.label,
        "colour": COLOURS[lane.method],
        "lossless": method.lossless,
        "badge": texts.badge(method),
        "lead": lead,
        "phase": lane.phase,
        "share": f"{lane.committed / lane.total if lane.total else 0.0:.1%}",
        "passes": _passes(lane),
        "took": f"{lane.seconds:.2f} s" if lane.committed else texts.NOT_YET,
        "gain": _speedup(lane, vanilla),
        "short": _in_short(lane, vanilla, method, greedy),
    }


def _passes(lane: Lane) -> str:
    """Passes of the model: what does not depend on the machine comes first."""
    if lane.phase == "stopped":
        return texts.stopped_at(lane.committed, lane.total)
    if not lane.committed:
        return texts.WAITING if lane.phase == "waiting" else texts.NOT_YET
    return texts.passes(lane.steps, lane.total - 1 if lane.phase == "done" else None)


def _speedup(lane: Lane, vanilla: Lane | None) -> str:
    if lane.phase != "done":
        return ""
    if vanilla is None or vanilla.phase != "done":
        return "" if vanilla is not None and vanilla.running else texts.NO_BASELINE
    return texts.times(vanilla.seconds / lane.seconds)


STALL = 10  # times the median step: a step that takes longer is told apart


def stalls(entry: dict[str, Any]) -> tuple[float, float]:
    """Seconds of decoding in steps that took over STALL times the median step, and in all others; the prompt's own pass is
    none."""
    ends = entry["events"]["milliseconds"]
    steps = [(end - start) / 1000 for start, end in pairwise(ends)]
    most = STALL * median(steps) if steps else 0.0
    long = sum(step for step in steps if step > most)
    return long, entry["decode_seconds"] - long


def _in_short(lane: Lane, vanilla: Lane | None, method: Method, greedy: bool) -> str:
    """What the method changed, in a few words, or why it failed."""
    if lane.phase == "failed":
        return lane.message
    if lane.entry is None:
        return ""
    alike = vanilla is not None and vanilla.entry is not None and vanilla.entry["token_ids"] == lane.entry["token_ids"]
    told = texts.changed_in_short(lane.entry, method, greedy, alike)
    long, usual = stalls(lane.entry)
    if not long:
        return told
    baseline = vanilla.entry if vanilla is not None else None
    return f"{told} {texts.stalled(long, usual, None if baseline is None else stalls(baseline)[1] / usual)}"


def _at_length(entry: dict[str, Any], method: Method, greedy: bool) -> str:
    """The same in a sentence or two."""
    told = texts.changed(entry, method, greedy)
    return f"{told} {texts.waited(entry)}" if entry["disturbed"] else told


def picture_address(image: Image.Image, quality: int = 90) -> str:
    """A picture as a data address, small enough to travel with the results."""
    if max(image.size) > LARGEST:
        image = image.resize((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    return webp_address(image, quality)


def webp_address(image: Image.Image, quality: int = 90) -> str:
    """An image as a data address, in its own size."""
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=quality, method=4)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def picture_of(address: str) -> Image.Image:
    """The picture of a data address that `picture_address` made."""
    return Image.open(io.BytesIO(base64.b64decode(address.split(",", 1)[1]))).convert("RGB")


def live(record: dict[str, Any]) -> Source:
    return Source("live", texts.LIVE.format(device=record["device"], seed=record["settings"]["seed"], prompt=record["prompt"]))


def results_view(
    record: dict[str, Any],
    pictures: dict[str, str],
    source: Source,
    play: bool = False,
    run: str | None = None,
    sweeps: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The stage's value for a run that is over. `play`: whether the replay starts by itself; `run`: the id of one that was live;
    `sweeps`: as `Recorded.sweeps_told`."""
    settings = Settings(**record["settings"])
    entries = record["methods"]
    over = {name: Lane(name, "done", entry["tokens"]).finished(entry) for name, entry in entries.items()}
    leads = leading(entries)
    lanes = [
        lane_view(over[name], over.get("vanilla"), name in leads, settings.temperature == 0)
        | _result(name, entry, settings, pictures.get(name))
        for name, entry in entries.items()
    ]
    return {
        "run": run,
        "prompt": record["prompt"],
        "model": record["model"]["id"],
        "settings": record["settings"],
        "grid": isqrt(len(lanes[0]["tokens"])),
        "source": {"kind": source.kind, "text": source.text},
        "play": play,
        "lanes": lanes,
        "sweeps": sweeps,
        "device": texts.one_thread(record["device"]),
    }


def _result(name: str, entry: dict[str, Any], settings: Settings, picture: str | None) -> dict[str, Any]:
    method = METHODS[name]
    evidence = evidence_of(settings, method, entry)
    events = {name: value for name, value in entry["events"].items() if name != evidence.kept_as}
    # Every visit pays for each digit, and no more of them are shown: of what rises only by how much it does.
    for rising in ("milliseconds", "committed"):
        events[rising] = [round(round(to, 2) - round(of, 2), 2) for of, to in pairwise([0, *events[rising]])]
    return {
        "window": method.guesses and not method.needs_drafter,
        "wave": method.drafts.side_by_side,
        "speedup": entry.get("speedup"),
        "changed": texts.changed_of(entry),
        "steps": entry["steps"],
        "greedy": settings.temperature == 0,
        "sentence": texts.method_sentence(method),
        "said": _at_length(entry, method, settings.temperature == 0),
        "evidence": evidence.told(),
        "tokens": entry["token_ids"],
        "picture": picture,
        **{part: entry[f"{part}_seconds"] for part in PARTS},
        **events,
        "trials": [[_shorter(row) for row in step] for step in evidence.trials(entry["events"])],
    }


def _shorter(trial: Sequence[Any]) -> list[Any]:
    """A trial with four digits of its fractions."""
    return [float(f"{value:.4g}") if isinstance(value, float) else value for value in trial]


def table(entries: dict[str, dict[str, Any]]) -> list[list[str]]:
    """A row of text per method, in the order of `texts.TABLE_HEAD`."""
    return [_row(name, entry) for name, entry in entries.items()]


def _row(name: str, entry: dict[str, Any]) -> list[str]:
    return [
        LABELS[name],
        f"{entry['decode_seconds']:.3f}",
        f"{entry['tokens_per_second']:.1f}",
        str(entry["steps"]),
        f"{entry['mean_accepted_length']:.2f}",
        texts.times(entry["speedup"]) if "speedup" in entry else "n/a",
        str(texts.changed_of(entry)),
        *(f"{entry[f'{part}_seconds']:.3f}" for part in ("prefill", "draft", "verify", "commit")),
        str(entry["nodes"]),
    ]
