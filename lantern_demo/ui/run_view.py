"""A run as the page's components show it: values for scripts and rows for the table."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import isqrt
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from PIL import Image

from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.registry import REGISTRY
from lantern_demo.runs.acceptance import acceptance_of
from lantern_demo.runs.record import Entry, Record, kept_of, summary_of
from lantern_demo.settings.knobs import KNOBS, own_name, short_name
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.decisions import decision_of
from lantern_demo.ui.frames import Token
from lantern_demo.ui.run_state import Lane, PageRun

# In the order of the methods: Okabe and Ito's colours, which colour-blind people can distinguish,
# and a violet. Further methods begin again at the front.
PALETTE = ("#7f7f7f", "#56b4e9", "#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7", "#7a4fa3")

# settings that a lane shows where they are not the preset's, and their names there
SAMPLING = {"temperature": "temperature", "cfg_scale": "guidance"}
LARGEST = 512  # pixels a side of a picture that travels with the results


def colour(method: str) -> str:
    """Return the colour of a method, also of one that was registered just now."""
    return PALETTE[list(METHODS).index(method) % len(PALETTE)]


def stem(method: str) -> str:
    """Return a method's id as a file name that every system and web address takes."""
    return method.replace("+", "p")


def lane_view(
    lane: Lane, record: Record | None = None, preset: Settings | None = None
) -> dict[str, object]:
    """Return the numbers and texts that a lane shows, never markup.

    record: of a lane that is done. preset: the settings that need no words.
    """
    method = METHODS[lane.method]
    message, ran = lane.message, ""
    if lane.phase == "stopped":
        message = texts.stopped_at(lane.drawn, lane.to_draw)
    if lane.phase == "done" and record is not None:
        ran = describe_run(record, lane.method)
        for name, told in SAMPLING.items():
            value = record["settings"][name]
            if value != getattr(preset or Settings(), name):
                ran += f", {told} {value:g}"
    return {
        "id": lane.method,
        "name": stem(lane.method),
        "label": method.label,
        "colour": colour(lane.method),
        "lossless": method.lossless,
        "kind": texts.exactness(method),
        "phase": lane.phase,
        "kept": lane.kept,
        "committed": lane.drawn,
        "total": lane.to_draw,
        "steps": lane.steps,
        "seconds": round(lane.seconds, 5),
        "message": message,
        "ran": ran,
    }


def around(image: Image.Image, cell: int, grid: int, cells: int) -> Image.Image:
    """Return a cell with `cells` on each side; at the picture's edge it is not in the middle."""
    size, wide = image.width // grid, min(grid, 2 * cells + 1)
    left, top = (min(max(at - cells, 0), grid - wide) * size for at in (cell % grid, cell // grid))
    return image.crop((left, top, left + wide * size, top + wide * size))


def picture_address(image: Image.Image, quality: int = 90) -> str:
    """Return a picture as a data address, small enough to travel with the results."""
    if max(image.size) > LARGEST:
        image = image.resize((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    return webp_address(image, quality)


def webp_address(image: Image.Image, quality: int = 90) -> str:
    """Return an image as a data address, in its own size."""
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=quality, method=4)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def picture_of(address: str) -> Image.Image:
    """Return the picture of a data address that `picture_address` made."""
    return Image.open(io.BytesIO(base64.b64decode(address.split(",", 1)[1]))).convert("RGB")


def live_view(
    page_run: PageRun,
    fresh: dict[str, list[Token]] | None = None,
    link: str | None = None,
) -> dict[str, Any]:
    """Return the stage's value before and during a run.

    `fresh` are the tokens to paint now: by default all that are drawn so far. `link` becomes the
    page's address, so that a reload finds the request.
    """
    lanes = [lane_view(lane, page_run.record, page_run.preset) for lane in page_run.lanes.values()]
    phases = {lane.phase for lane in page_run.lanes.values()}
    if "stopped" in phases:
        told = texts.STOPPED_RACE
    elif "asked" in phases:
        told = texts.NOT_DRAWN_YET
    else:
        told = texts.NO_METHOD_FINISHED if phases == {"failed"} else texts.RACING
    return {
        "run": page_run.run,
        "live": told,
        "racing": told == texts.RACING,
        "grid": isqrt(next(iter(page_run.lanes.values())).total),
        "model": page_run.request.model if page_run.request else "",
        "kept": page_run.request.keep if page_run.request else [],
        "lanes": lanes,
        "fresh": page_run.tokens if fresh is None else fresh,
        "link": link,
        "own": link is not None,
    }


def results_view(
    record: Record,
    pictures: dict[str, str],
    source: str,
    run: str | None = None,
) -> dict[str, Any]:
    """Return the stage's value for a finished run.

    `source`: one of `texts.SOURCES`; `run`: the id of a live one.
    """
    settings, preset = Settings(**record["settings"]), preset_of(record)
    vanilla = record["methods"].get("vanilla")
    typical = typical_speedups(record, settings, preset)
    lanes = [
        lane_view(Lane.done(entry), record, preset)
        | _result(name, entry, settings, pictures.get(name), vanilla)
        | {"typical": typical.get(name)}
        for name, entry in record["methods"].items()
    ]
    return {
        "run": run,
        "model": record["model"]["id"],
        "grid": isqrt(record["methods"][record["order"][0]]["tokens"]),
        "source": {"kind": "live" if source == "kept" else source},
        "lanes": lanes,
    }


def typical_speedups(
    record: Record, settings: Settings, preset: Settings
) -> dict[str, list[float]]:
    """Return by method the lowest and the highest of its speedups in the benchmark.

    There is none for a run that the benchmark does not stand for: of another model, on another kind
    of machine, with other settings than the preset's, with rows that were kept, or beside other
    work. A method whose tree was another then has none either.
    """
    usual = settings.with_changes(seed=preset.seed) == preset
    entries = record["methods"]
    if not usual or any(kept_of(entry) or entry["disturbed"] for entry in entries.values()):
        return {}
    measured = _benchmark().get((record["model"]["id"], record["device"]), {})
    return {
        name: measured[name]["range"]
        for name, entry in entries.items()
        if name in measured and measured[name]["tree"] == entry["tree"]
    }


@cache
def _benchmark() -> dict[tuple[str, str], dict[str, dict[str, Any]]]:
    """Return the benchmark's methods by model and machine, which docs/fill.py writes."""
    text = Path(__file__).with_name("typical.json").read_text(encoding="utf-8")
    return {(row["model"], row["device"]): row["methods"] for row in json.loads(text)}


def preset_of(record: Record) -> Settings:
    """Return the preset of a record's model, or by its id where an older record lacks it."""
    model = record["model"]
    known = REGISTRY[model["id"]].preset if model["id"] in REGISTRY else {}
    return Settings(**model.get("preset", known))


def changed_settings(record: Record) -> list[str]:
    """Return the settings of a record that are not its model's preset, such as "delta 1"."""
    usual = preset_of(record).as_dict() | {"seed": record["settings"]["seed"]}
    return told_settings(record["settings"], usual)


def told_settings(
    settings: Mapping[str, Any], usual: Mapping[str, Any], names: Iterable[str] = KNOBS
) -> list[str]:
    """Return those of some settings that are not the usual ones, each as "delta 1"."""
    changed = {name: settings[name] for name in names if settings[name] != usual[name]}
    return [
        f"{own_name(name)} {f'{value:g}' if isinstance(value, float) else value}"
        for name, value in changed.items()
    ]


def _result(
    name: str,
    entry: Entry,
    settings: Settings,
    picture: str | None,
    vanilla: Entry | None,
) -> dict[str, object]:
    method, events = METHODS[name], entry["events"]
    decision = decision_of(settings, method, entry)
    return {
        **acceptance_of(events)._asdict(),
        "lent": [round(share, 2) for share in decision.lent(entry)],
        "window": not method.alone and not method.needs_drafter,
        "shares": vanilla is not None and entry["noise"] == vanilla["noise"] != "independent",
        "changed": texts.changed_of(entry),
        "spent": {
            part: round(spent, 3)
            for part, spent in zip(("draft", "check", "keep"), _parts(entry), strict=True)
        },
        "disturbed": entry["disturbed"],
        "evidence": decision.words(),
        "tokens": entry["token_ids"],
        "picture": picture,
        "committed": _rises(events["committed"]),
        "milliseconds": _rises(events["milliseconds"]),
        "kinds": events["kinds"],
        "trees": events["trees"],
        "trials": [[_shorter(row) for row in step] for step in decision.trials(entry)],
    }


def _rises(numbers: Sequence[float]) -> list[float]:
    """Return the differences of rising numbers, with the digits that are shown: every visit
    downloads each digit.
    """
    return [round(round(to, 2) - round(of, 2), 2) for of, to in pairwise([0, *numbers])]


def _shorter(trial: Sequence[float]) -> list[float]:
    """Return a trial with four significant digits of its fractions."""
    return [float(f"{value:.4g}") if isinstance(value, float) else value for value in trial]


class Measured(NamedTuple):
    """The numbers of a method; those of several races are their medians."""

    steps: float
    pieces: float  # a step
    seconds: float
    gain: dict[str, float] | None  # over vanilla: lowest, median and highest; None without it
    changed: float  # look-alikes
    parts: list[float]  # milliseconds of a step: draft, check and keep
    cost: float | None  # c
    ran: str  # drafts, the rule's values, noise


def measured(record: Record, name: str, again: Sequence[Record] = ()) -> Measured:
    """Return the numbers of a method of a record.

    again: further records of it, whose numbers count instead.
    """
    entry = record["methods"][name]
    races = [one["methods"] for one in again if name in one["methods"]] or [record["methods"]]
    seconds = [{own["method"]: own["decode_seconds"] for own in race.values()} for race in races]
    summary = summary_of(seconds)[name]
    entries = [race[name] for race in races]
    parts = [median(part) for part in zip(*map(_parts, entries), strict=True)]
    raced = [(race[name], race["vanilla"]) for race in races if "vanilla" in race]
    own_gain = dict.fromkeys(("lowest", "median", "highest"), 1.0)  # vanilla's, over itself
    costs = [sum(_parts(own)) / sum(_parts(vanilla)) for own, vanilla in raced]
    values = [f"{knob} {value:g}" for knob, value in rule_values(record, name).items()]
    noise = f"{entry['noise']} noise"
    if raced and raced[0][1]["noise"] != entry["noise"] != "independent":
        noise += ", vanilla's independent"
    return Measured(
        steps=median(own["steps"] for own in entries),
        pieces=median(own["mean_accepted_length"] for own in entries),
        seconds=median(summary["decode_seconds"]),
        gain=(summary["speedup"] or own_gain) if raced else None,
        changed=median(map(texts.changed_of, entries)),
        parts=parts,
        cost=median(costs) if costs else None,
        ran=", ".join([shape_of(entry), *values, noise]),
    )


def table(record: Record, again: Sequence[Record] = ()) -> list[list[str]]:
    """Return a row per method, in the order of `texts.TABLE_HEAD`.

    again: further records of it. All numbers are their medians, and the speedup has its range.
    """
    return [_row(name, measured(record, name, again)) for name in measured_in(record, again)]


def measured_in(record: Record, again: Sequence[Record]) -> list[str]:
    """Return the methods of a record that its further records have, if there are any."""
    return [
        name
        for name in record["methods"]
        if not again or any(name in one["methods"] for one in again)
    ]


def _parts(entry: Entry) -> list[float]:
    """Return the milliseconds of a step: draft, check and keep. Reading the prompt is a check."""
    draft, keep = entry["draft_seconds"], entry["commit_seconds"]
    parts = draft, entry["decode_seconds"] - draft - keep, keep
    return [1000 * seconds / max(1, entry["steps"]) for seconds in parts]


def _row(name: str, numbers: Measured) -> list[str]:
    gain = texts.NOT_YET
    if numbers.gain is not None:
        low, high = numbers.gain["lowest"], numbers.gain["highest"]
        gain = texts.times(numbers.gain["median"])
        gain += f" ({low:.2f}\u2013{high:.2f})" if low < high else ""
    cost = "" if numbers.cost is None else f" (c {numbers.cost:.2f})"
    return [
        METHODS[name].label,
        gain,
        f"{numbers.seconds:.2f}",
        f"{numbers.steps:g} ({numbers.pieces:.2f})",
        f"{numbers.changed:g}",
        " + ".join(f"{part:.2f}" for part in numbers.parts) + cost,
        numbers.ran,
    ]


def describe_run(record: Record, method: str) -> str:
    """Return a method's drafts and its rule's values, in short: "chain of 3, k 10, lambda 4"."""
    values = (f"{name} {value:g}" for name, value in rule_values(record, method).items())
    shape = shape_of(record["methods"][method]).removeprefix("static ").removeprefix("dynamic ")
    return ", ".join([shape.partition(" in ")[0], *values])


def shape_of(entry: Entry) -> str:
    """Return the shape of an entry's draft tree or window, without its source in brackets."""
    return entry["tree"].partition(" (")[0]


def rule_values(record: Record, method: str) -> dict[str, float]:
    """Return the values of a method's rule by name, such as k and delta."""
    own = (name for name, knob in KNOBS.items() if knob.sets and knob.reads(METHODS[method]))
    return {short_name(name): record["settings"][name] for name in own}
