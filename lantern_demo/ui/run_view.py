"""A run as the page's components show it: values for its scripts and rows for its table, all made of texts and numbers."""

from __future__ import annotations

import base64
import io
from itertools import cycle
from math import isqrt
from typing import Any

from PIL import Image

from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.run_state import Lane, Source

# In the methods' order Okabe and Ito's colours, which colour-blind people can tell apart, and behind them some for methods that are added.
PALETTE = ("#7f7f7f", "#56b4e9", "#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7", "#7a4fa3", "#9a8700", "#a0304a")
COLOURS: dict[str, str] = dict(zip(METHODS, cycle(PALETTE), strict=False))
LABELS: dict[str, str] = {method.id: method.label for method in METHODS.values()}

LARGEST = 512  # pixels a side of a picture that travels with the results
PARTS = ("draft", "verify", "commit")


def stem(method: str) -> str:
    """A method's id as a file name that every system and web address takes."""
    return method.replace("+", "p")


def lane_view(lane: Lane, vanilla: Lane | None, greedy: bool = False) -> dict[str, Any]:
    """What the page's script shows of a lane: texts, never markup. `vanilla` is the lane that speedups are against; greedy: the run takes
    the likeliest tokens."""
    method = METHODS[lane.method]
    badge, badge_title = (texts.LOSSLESS, texts.LOSSLESS_TITLE) if method.lossless else (texts.LOSSY, texts.LOSSY_TITLE)
    price, price_hint = _price(lane, method, greedy)
    return {
        "id": lane.method, "name": stem(lane.method), "label": method.label, "colour": COLOURS[lane.method],
        "sentence": texts.method_sentence(method), "badge": badge, "badgeTitle": badge_title,
        "alt": texts.WEB["drawnWith"].format(method=method.label), "download": texts.WEB["download"].format(method=method.label),
        "phase": lane.phase, "share": f"{lane.committed / lane.total if lane.total else 0.0:.1%}",
        "passes": _passes(lane), "progress": _phase(lane), "rows": _rows(lane, vanilla), "price": price, "priceHint": price_hint,
    }  # fmt: skip


def _passes(lane: Lane) -> str:
    """Passes of the model: what does not depend on the machine comes first."""
    if not lane.committed:
        return texts.NOT_YET
    return texts.passes(lane.steps, lane.total - 1 if lane.has_picture else None)


def _phase(lane: Lane) -> str:
    progress = f"{lane.committed} of {lane.total} tokens"
    return {
        "idle": "not run yet",
        "waiting": "waiting for the start",
        "drawing": progress,
        "drawn": f"{lane.total} tokens drawn",
        "done": f"{lane.total} tokens drawn",
        "failed": "failed",
        "stopped": f"stopped at {progress}" if lane.committed else "stopped before the start",
    }[lane.phase]


def _rows(lane: Lane, vanilla: Lane | None) -> list[tuple[str, str, str | None]]:
    """(name, value, hint)"""
    rate = f"{lane.committed / lane.seconds:.0f}" if lane.seconds else texts.NOT_YET
    accepted = f"{(lane.committed - 1) / lane.steps:.2f}" if lane.steps else texts.NOT_YET
    nodes, tree = (texts.NOT_YET, None) if lane.entry is None else (str(lane.entry["nodes"]), lane.entry["tree"])
    seconds, waited = f"{lane.seconds:.2f} s" if lane.committed else texts.NOT_YET, None
    if lane.entry is not None and lane.entry["disturbed"]:
        seconds, waited = f"{seconds} \u26a0", texts.waited(lane.entry)
    return [
        ("Decoding", seconds, waited),
        ("Speedup", _speedup(lane, vanilla), None),
        ("Tokens/s", rate, None),
        ("Tokens/pass", accepted, texts.MAL_TITLE),
        ("Tree nodes", nodes, tree),
    ]


def _speedup(lane: Lane, vanilla: Lane | None) -> str:
    if not lane.has_picture:
        return texts.NOT_YET
    if vanilla is None or not vanilla.has_picture:
        return texts.NOT_YET if vanilla is not None and vanilla.running else texts.WAITING_FOR_VANILLA
    return texts.times(vanilla.seconds / lane.seconds)


def _price(lane: Lane, method: Method, greedy: bool) -> tuple[str, str | None]:
    """What the method gave up for its speed, and how that was measured."""
    if lane.phase == "failed":
        return lane.message, None
    if lane.phase == "drawn":
        return texts.MEASURED_LATER, None
    if lane.entry is None:
        return "", None
    price = lane.entry["price"]
    if price is None:
        return texts.NOT_MEASURED, None
    return texts.price(price, method, greedy), f"{texts.PRICE_TITLE} ({lane.entry['price_method']})"


def picture_address(image: Image.Image) -> str:
    """A picture as a data address, small enough to travel with the results."""
    if max(image.size) > LARGEST:
        image = image.resize((LARGEST, LARGEST), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=90, method=4)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def picture_of(address: str) -> Image.Image:
    """The picture of a data address that `picture_address` made."""
    return Image.open(io.BytesIO(base64.b64decode(address.split(",", 1)[1]))).convert("RGB")


def live(record: dict[str, Any]) -> Source:
    return Source("live", texts.LIVE.format(device=record["device"], seed=record["settings"]["seed"]))


def results_view(record: dict[str, Any], pictures: dict[str, str], source: Source, play: bool = False) -> dict[str, Any]:
    """The value of the results' component. `play`: whether the replay starts by itself."""
    settings = Settings(**record["settings"])
    lanes = [_result(name, entry, settings, pictures.get(name)) for name, entry in record["methods"].items()]
    grid = isqrt(len(lanes[0]["tokens"]))
    origin = {"kind": source.kind, "text": source.text}
    return {"prompt": record["prompt"], "grid": grid, "source": origin, "play": play, "lanes": lanes, "words": texts.WEB}


def _result(name: str, entry: dict[str, Any], settings: Settings, picture: str | None) -> dict[str, Any]:
    method = METHODS[name]
    rule = settings.rule(method)
    return {
        "id": name,
        "label": LABELS[name],
        "sentence": texts.method_sentence(method),
        "colour": COLOURS[name],
        "lossless": method.lossless,
        "window": method.source in ("window", "coupled"),
        "wave": method.source == "wavefront",
        "speedup": entry.get("speedup"),
        "price": entry["price"],
        "said": texts.NOT_MEASURED if entry["price"] is None else texts.price(entry["price"], method, settings.temperature == 0),
        "steps": entry["steps"],
        "greedy": settings.temperature == 0,
        "rule": {"kind": rule.kind, "k": rule.k, "bound": rule.bound},
        "tokens": entry["token_ids"],
        "picture": picture,
        **{part: entry[f"{part}_seconds"] for part in PARTS},
        **entry["events"],
    }


def table(entries: dict[str, dict[str, Any]]) -> list[list[str]]:
    """A row of text per method, in the order of `texts.TABLE_HEAD`."""
    return [_row(name, entry) for name, entry in entries.items()]


def _row(name: str, entry: dict[str, Any]) -> list[str]:
    price, tvd = entry["price"], entry["one_step_tvd"]
    return [
        LABELS[name],
        f"{entry['decode_seconds']:.3f}",
        f"{entry['tokens_per_second']:.1f}",
        str(entry["steps"]),
        f"{entry['mean_accepted_length']:.2f}",
        texts.times(entry["speedup"]) if "speedup" in entry else "n/a",
        "n/a" if price is None else f"{price:.4f}",
        "n/a" if tvd is None else f"{tvd:.4f}",
        *(f"{entry[f'{part}_seconds']:.3f}" for part in ("prefill", "draft", "verify", "commit")),
        str(entry["nodes"]),
    ]
