"""Say in a few words what a method of a run record ran with."""

from __future__ import annotations

from typing import Any

from lantern_demo.decoding.methods import METHODS
from lantern_demo.settings.knobs import KNOBS, short_name
from lantern_demo.settings.settings import Settings


def describe_run(entry: dict[str, Any], settings: Settings) -> str:
    """Return the draft tree of a record's entry and the values of its acceptance rule: "chain of 3, k 10, lambda 4"."""
    method = METHODS[entry["method"]]
    if method.alone:
        return "no guesses"
    drafts = method.drafts.of(settings.with_changes(**entry["tree_settings"]))
    guesses = entry["nodes"] - 1
    shape = drafts.words()
    if method.needs_drafter:
        shape = f"chain of {guesses}" if guesses == drafts.deepest else f"tree of {guesses}, {drafts.deepest} deep"
    rule = [f"{short_name(name)} {getattr(settings, name):g}" for name, knob in KNOBS.items() if knob.sets and knob.reads(method)]
    return ", ".join([shape, *rule])
