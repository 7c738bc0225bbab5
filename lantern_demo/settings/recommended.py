"""Settings of the relaxed methods that were chosen for a model from speed against quality.

`python -m lantern_demo.bench quality` chooses them (see `bench.quality.recommend`); they lie in the model's folder as
recommended.json.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lantern_demo.settings.settings import Settings, method_of

FILE = "recommended.json"
Kind = Literal["careful", "fast"]
KINDS: tuple[Kind, ...] = ("careful", "fast")


@dataclass(frozen=True)
class Recommendation:
    """Settings of one method: what they gained (tokens a step over what a step costs), and the share of pictures that lost something
    of what was asked for, negative where vanilla's lost more; both measured on `pictures` pictures."""

    settings: dict[str, Any]
    gain: float
    loss: float
    pictures: int


@dataclass(frozen=True)
class Found:
    """On how many of `of` pictures everything asked for was found (`right`), drawn by a method with the model's preset but for `settings`."""

    method: str
    settings: dict[str, Any]
    right: int
    of: int


@dataclass(frozen=True)
class Recommended:
    """The recommendations of a model by method and kind; None where nothing that was tried qualifies. Fast ones lose `fast_loss` at most.
    `found`: what the pictures of the points that were measured showed."""

    device: str
    level: float
    measures: int
    fast_loss: float
    methods: dict[str, dict[Kind, Recommendation | None]]
    found: tuple[Found, ...] = ()

    def settings(self, kind: Kind) -> dict[str, Any]:
        """The settings of all methods that have a recommendation of a kind."""
        return {
            name: value for by_kind in self.methods.values() if (one := by_kind[kind]) for name, value in one.settings.items()
        }


def read_recommended(folder: Path | None) -> Recommended | None:
    """The recommendations in a model folder, None where there are none. Raises ValueError naming the file when it is damaged."""
    if folder is None or not (folder / FILE).exists():
        return None
    try:
        found: dict[str, Any] = json.loads((folder / FILE).read_text())
        methods = {
            method_of(name).id: {kind: None if row[kind] is None else _recommendation(row[kind]) for kind in KINDS}
            for name, row in found["methods"].items()
        }
        return Recommended(
            str(found["device"]), float(found["level"]), int(found["measures"]), float(found["fast_loss"]), methods,
            tuple(_found(row) for row in found.get("found", ())),
        )  # fmt: skip
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / FILE} holds no recommended settings: {error!r}") from error


def _found(row: dict[str, Any]) -> Found:
    Settings().with_changes(**row["settings"])
    return Found(method_of(row["method"]).id, dict(row["settings"]), int(row["right"]), int(row["of"]))


def _recommendation(row: dict[str, Any]) -> Recommendation:
    Settings().with_changes(**row["settings"])
    return Recommendation(dict(row["settings"]), float(row["gain"]), float(row["loss"]), int(row["pictures"]))
