"""What the results show of a run, for the scripts of the page: from its record and its pictures."""

from __future__ import annotations

import base64
import io
import secrets
from dataclasses import dataclass, field
from math import isqrt
from typing import Any, Literal

from PIL import Image

from lantern_demo.decoding.methods import METHODS
from lantern_demo.settings import Settings
from lantern_demo.ui import words
from lantern_demo.ui.charts import COLOURS, LABELS
from lantern_demo.ui.lanes import Lane

LARGEST = 512  # pixels a side of a picture that travels with the results
PARTS = ("draft", "verify", "commit")


@dataclass(frozen=True)
class Source:
    """Where a run that is shown comes from: drawn just now, recorded with the code, or loaded from a visitor's file."""

    kind: Literal["live", "recorded", "loaded"]
    text: str


@dataclass
class Shown:
    """A run on a visitor's page: the lanes, and of the methods that finished the record and the pictures.

    A run hands it to the page's state once and from then on changes it in place: handing it over with every frame would cost the
    server more with every method that is done.
    """

    lanes: dict[str, Lane] = field(default_factory=dict)
    record: dict[str, Any] | None = None
    pictures: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # addresses of the pictures as files
    seed: int | None = None
    run: str = field(default_factory=lambda: secrets.token_hex(4))  # tells one run's updates from another's
    exploring: bool = False
    settled: bool = False  # it is over, and the page shows what came of it; a step that was going on may still be noted

    @property
    def running(self) -> bool:
        return self.exploring or (not self.settled and any(lane.running for lane in self.lanes.values()))


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
    return Source("live", words.LIVE.format(device=record["device"], seed=record["settings"]["seed"]))


def view(record: dict[str, Any], pictures: dict[str, str], source: Source, play: bool = False) -> dict[str, Any]:
    """The value of the results' component. `play`: whether the replay starts by itself."""
    settings = Settings(**record["settings"])
    lanes = [_lane(name, entry, settings, pictures.get(name)) for name, entry in record["methods"].items()]
    grid = isqrt(len(lanes[0]["tokens"]))
    origin = {"kind": source.kind, "text": source.text}
    return {"prompt": record["prompt"], "grid": grid, "source": origin, "play": play, "lanes": lanes, "words": words.WEB}


def _lane(name: str, entry: dict[str, Any], settings: Settings, picture: str | None) -> dict[str, Any]:
    method = METHODS[name]
    rule = settings.rule(method)
    return {
        "id": name,
        "label": LABELS[name],
        "sentence": words.method_sentence(method),
        "colour": COLOURS[name],
        "lossless": method.lossless,
        "speedup": entry.get("speedup"),
        "tvd": entry["one_step_tvd"],
        "steps": entry["steps"],
        "greedy": settings.temperature == 0,
        "rule": {"kind": rule.kind, "k": rule.k, "bound": rule.bound},
        "tokens": entry["token_ids"],
        "picture": picture,
        **{part: entry[f"{part}_seconds"] for part in PARTS},
        **entry["events"],
    }
