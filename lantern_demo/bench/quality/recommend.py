"""Settings that the front recommends: the fastest whose loss cannot be told from noise, and a fast one at a stated loss."""

from __future__ import annotations

from typing import Any

FAST_LOSS = 0.05  # of the pictures, in which not everything asked for is found any more
KNOBS = ("lantern_delta", "lantern_k", "lanternpp_lambda", "lanternpp_k", "residual")
Row = dict[str, Any]


def within_noise(row: Row) -> bool:
    """Whether every quality measure's interval of the difference to vanilla contains none at all."""
    return all(told["interval"][0] <= 0 <= told["interval"][1] for told in row["measures"].values())


def loss(row: Row) -> float:
    """By how much fewer pictures show all that was asked for than vanilla's of the same captions; negative where more do."""
    return -row["measures"]["all"]["difference"]


def recommend(rows: list[Row]) -> dict[str, dict[str, Any]]:
    """By relaxed method: "careful" and "fast", each the row's name, settings, gain and loss; None where no row qualifies.

    Rows without pictures or speed are not looked at. The released residual is there for reproduction and never recommended.
    """
    found: dict[str, dict[str, Any]] = {}
    methods = dict.fromkeys(row["method"] for row in rows if row["relaxed"])
    for method in methods:
        known = [
            row for row in rows
            if row["method"] == method and row.get("measures") and row.get("speed") and row["settings"].get("residual") != "released"
        ]  # fmt: skip
        found[method] = {
            "careful": _fastest([row for row in known if within_noise(row)]),
            "fast": _fastest([row for row in known if loss(row) <= FAST_LOSS]),
        }
    return found


def _fastest(rows: list[Row]) -> dict[str, Any] | None:
    if not rows:
        return None
    best = max(rows, key=lambda row: row["speed"]["gain"])
    return {
        "row": best["name"],
        "settings": {key: value for key, value in best["preset"].items() if key in KNOBS},
        "gain": best["speed"]["gain"],
        "loss": loss(best),
        "pictures": best["pictures"],
    }
