"""Links that restore a run's prompt, model, methods, settings and draft trees.

They are written from a record, and read from an address and checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from lantern_demo.models.registry import ModelInfo
from lantern_demo.runs.record import drawn_with, trees_of
from lantern_demo.settings.knobs import KNOBS, shown
from lantern_demo.settings.settings import Settings, methods_of

RUN = "run"  # the name of a kept run
LONGEST = 40  # characters of a number
CHOSEN = [name for name in Settings().as_dict() if name != "seed"]


def query(record: dict[str, Any], preset: Settings, kept_as: str | None = None) -> str:
    """Return the query string of a link.

    It has the draft trees that ran, so that it draws the same pictures where others are chosen, and
    the other settings that differ from the model's preset. `kept_as` names the run itself, which is
    shown as long as the program that drew it keeps it.
    """
    settings, trees = drawn_with(record), trees_of(record)
    values = {
        "prompt": record["prompt"],
        "model": record["model"]["id"],
        "methods": ",".join(record["order"]),
        "seed": settings["seed"],
    }
    usual = preset.as_dict()
    told = [name for name in CHOSEN if name in trees or settings[name] != usual[name]]
    values |= {name: settings[name] for name in told if settings[name] is not None}
    return "?" + urlencode(values | ({} if kept_as is None else {RUN: kept_as}))


@dataclass
class Asked:
    """The run that a link requests."""

    model: str
    settings: Settings
    prompt: str | None = None
    methods: list[str] | None = None
    seeded: bool = False  # whether it names a seed
    # by parameter that was left out, the reason as a sentence
    refused: dict[str, str] = field(default_factory=dict)


def read(
    parameters: Mapping[str, str], default: str, offered: Mapping[str, ModelInfo]
) -> Asked | None:
    """Read the run that a link requests, of the models on offer; None if it requests none.

    Parameters of other names are ignored: other sites add theirs.
    """
    known = {"prompt", "model", "methods", "seed", *CHOSEN}
    given = {name: value for name, value in parameters.items() if name in known}
    if not given:
        return None
    refused: dict[str, str] = {}
    model = given.pop("model", default)
    if model not in offered:
        refused["model"] = f"model must be one of {', '.join(offered)}, got {shown(model)}"
        model = default
    info = offered[model]
    asked = Asked(model, Settings(**info.preset), refused=refused)
    prompt, methods = given.pop("prompt", None), given.pop("methods", None)
    try:
        info.check_length(prompt or "")
        asked.prompt = prompt
    except ValueError as error:
        refused["prompt"] = str(error)
    try:
        if methods is not None:
            asked.methods = [method.id for method in methods_of(methods.split(","))]
    except ValueError as error:
        refused["methods"] = str(error)
    changes = {name: _value(name, value) for name, value in given.items()}
    while changes:
        try:
            asked.settings = asked.settings.with_changes(**changes)
            break
        # its first word names a setting, perhaps one that the link does not change
        except ValueError as error:
            name = str(error).partition(" ")[0]
            refused[name] = str(error)
            gone = (
                [name]
                if name in changes
                else [other for other in changes if other.startswith("draft_")] or list(changes)
            )
            changes = {other: value for other, value in changes.items() if other not in gone}
    asked.seeded = "seed" in changes
    return asked


def _value(name: str, text: str) -> Any:
    """Return a number where the setting is one.

    Other text is returned unchanged: the settings refuse it with their sentence.
    """
    if len(text) > LONGEST or (name in KNOBS and KNOBS[name].limit is None):
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else text
