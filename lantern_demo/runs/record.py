"""Read run records: the settings that draw one again, and the numbers of several races."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.methods import METHODS
from lantern_demo.faults import NotAllowed
from lantern_demo.settings.knobs import KNOBS, bound_of
from lantern_demo.settings.settings import method_of, settings_of
from lantern_demo.settings.trees import STATIC_TREES

# Names of trees by their paths.
TREE_NAMES = {settings_of(StaticTree(paths))["tree"]: name for name, paths in STATIC_TREES.items()}


def trees_of(record: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that request a record's draft trees on any machine and version.

    Methods with drafts of one kind share a tree.
    """
    found: dict[str, Any] = {}
    for method in record["order"]:
        found |= record["methods"][method]["tree_settings"]
    if "tree" in found:
        found["tree"] = TREE_NAMES.get(found["tree"], found["tree"])
    return found


def drawn_with(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record's settings, with the draft trees that ran for those left to be chosen."""
    return record["settings"] | trees_of(record)


def twin_settings(
    record: dict[str, Any], method: str
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the settings of a relaxed method's exact twin, and the tree that it runs with, by
    method. Raise NotAllowed for a method without a bound, or that the record does not have.
    """
    bound = bound_of(method_of(method))
    if bound is None:
        raise NotAllowed("method", f"must be a relaxed one, got {method!r}")
    if method not in record["methods"]:
        known = ", ".join(record["methods"])
        raise NotAllowed("method", f"must be one of the record's, {known}, got {method!r}")
    limit = KNOBS[bound].limit
    assert limit is not None
    tree = record["methods"][method]["tree_settings"]
    settings = {name: value for name, value in record["settings"].items() if name not in tree}
    return settings | {bound: limit.low, "noise": "independent"}, {method: tree}


def summary_of(races: Sequence[Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Summarise several races of one comparison, each the decode seconds of its methods.

    Return by method all its decode seconds, and its speedups over vanilla's of the same race:
    lowest, median, highest; None without vanilla and for vanilla.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in METHODS:
        ran = [race for race in races if name in race]
        if not ran:
            continue
        found[name] = {"decode_seconds": [race[name] for race in ran], "speedup": None}
        gains = [race["vanilla"] / race[name] for race in ran if "vanilla" in race]
        if gains and name != "vanilla":
            spread = {"lowest": min(gains), "median": median(gains), "highest": max(gains)}
            found[name]["speedup"] = spread
    return found
