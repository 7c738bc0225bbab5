"""Describe in a few words how a run drafts and verifies."""

from __future__ import annotations

from typing import Any

from lantern_demo.decoding.methods import METHODS
from lantern_demo.settings.drafts import choice_of, describe_drafts
from lantern_demo.settings.knobs import KNOBS, short_name
from lantern_demo.settings.settings import Settings


def describe_run(entry: dict[str, Any], settings: Settings) -> str:
    """Return the drafts of a record's entry and its rule's values: "static chain of 3, k 10, lambda
    4".

    The root is no guess and does not count. settings: those of the record.
    """
    return ", ".join(
        [
            tree_of(entry, settings),
            *(f"{name} {value:g}" for name, value in rule_values(entry, settings).items()),
        ]
    )


def tree_of(entry: dict[str, Any], settings: Settings) -> str:
    """Return the shape of an entry's draft tree, window or rows."""
    return describe_drafts(
        choice_of(
            METHODS[entry["method"]].drafts, settings.with_changes(**entry["tree_settings"])
        ).policy
    )


def rule_values(entry: dict[str, Any], settings: Settings) -> dict[str, float]:
    """Return the values of an entry's acceptance rule by name, such as k and delta; the exact rule
    has none.
    """
    method = METHODS[entry["method"]]
    return {
        short_name(name): getattr(settings, name)
        for name, knob in KNOBS.items()
        if knob.sets and knob.reads(method)
    }
