"""Settings that the front recommends: the fastest whose loss cannot be told from noise, and a fast one at a stated loss."""

from __future__ import annotations

from typing import Any

from lantern_demo.decoding.methods import METHODS
from lantern_demo.settings.knobs import KNOBS, swept_by

FAST_LOSS = 0.05  # of the pictures, in which not everything asked for is found any more
ENOUGH = 500  # pictures; of fewer no loss can be told from noise, and the luckiest point would be chosen
Row = dict[str, Any]


def within_noise(row: Row) -> bool:
    """Whether every quality measure's interval of the difference to vanilla contains none at all."""
    return all(told["interval"][0] <= 0 <= told["interval"][1] for told in row["measures"].values())


def loss(row: Row) -> float:
    """By how much fewer pictures show all that was asked for than vanilla's of the same captions; negative where more do."""
    return -row["measures"]["all"]["difference"]


def recommend(rows: list[Row]) -> dict[str, dict[str, Any]]:
    """By relaxed method: "careful" and "fast", each the row's name, settings, gain and loss; None where no row qualifies.

    Rows of fewer than ENOUGH pictures are not looked at. Nor are windows, which every machine
    fits to itself: settings are empty for a method that has no other knob.
    """
    found: dict[str, dict[str, Any]] = {}
    methods = dict.fromkeys(row["method"] for row in rows if row["relaxed"])
    for method in methods:
        known = [
            row
            for row in rows
            if row["method"] == method and row["pictures"] >= ENOUGH and not (row.get("knob") and KNOBS[row["knob"]].fitted)
        ]
        found[method] = {
            "careful": _fastest([row for row in known if within_noise(row)]),
            "fast": _fastest([row for row in known if loss(row) <= FAST_LOSS]),
        }
    return found


def _knobs_of(method: str) -> list[str]:
    """The knobs of a method that a recommendation sets; none where a machine fits all there is."""
    return [name for name in swept_by(METHODS[method]) if KNOBS[name].limit is not None and not KNOBS[name].fitted]


def _fastest(rows: list[Row]) -> dict[str, Any] | None:
    if not rows:
        return None
    best = max(rows, key=lambda row: row["speed"]["gain"])
    return {
        "row": best["name"],
        "settings": {key: best["preset"][key] for key in _knobs_of(best["method"]) if key in best["preset"]},
        "gain": best["speed"]["gain"],
        "loss": loss(best),
        "pictures": best["pictures"],
    }
