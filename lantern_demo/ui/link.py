"""Links that restore a run's prompt, model, methods, settings and draft trees.

They are written from a record, and read from an address and checked.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from lantern_demo.models.registry import ModelInfo
from lantern_demo.prompt_words import check_length
from lantern_demo.runs.load import check_id
from lantern_demo.runs.race import Request
from lantern_demo.runs.record import Record, drawn_with, trees_of
from lantern_demo.settings.knobs import KNOBS
from lantern_demo.settings.settings import Settings, methods_of

LONGEST = 40  # characters of a number
CHOSEN = [name for name in Settings().as_dict() if name != "seed"]
KNOWN = ("prompt", "model", "methods", "seed", *CHOSEN)  # parameters of a link


def query(record: Record, preset: Settings) -> str:
    """Return the query string of a record's link.

    It has the draft trees that ran, so that it draws the same pictures where others are chosen. It
    also has the other settings that differ from the model's preset.
    """
    facts = record["prompt"], record["model"]["id"], record["order"]
    return _query(*facts, drawn_with(record), preset, trees_of(record))


def query_of(request: Request, preset: Settings) -> str:
    """Return the query string of a run that begins."""
    settings = next(iter(request.runs.values())).settings.as_dict()
    return _query(request.prompt, request.model, request.methods, settings, preset, ())


def _query(
    prompt: str,
    model: str,
    methods: list[str],
    settings: Mapping[str, object],
    preset: Settings,
    always: Collection[str],
) -> str:
    values = {
        "prompt": prompt,
        "model": model,
        "methods": ",".join(methods),
        "seed": settings["seed"],
    }
    usual = preset.as_dict()
    told = [name for name in CHOSEN if name in always or settings[name] != usual[name]]
    return "?" + urlencode(
        values | {name: settings[name] for name in told if settings[name] is not None}
    )


@dataclass(frozen=True)
class LinkedRun:
    """The run that a link requests."""

    settings: Settings
    prompt: str | None = None
    methods: list[str] | None = None
    seeded: bool = False  # whether it names a seed


def read(parameters: Mapping[str, str], info: ModelInfo) -> LinkedRun | None:
    """Read the run that a link requests of a model; None if it requests none.

    Parameters of other names are ignored: other sites add theirs. Raise NotAllowed for a value that
    is not allowed.
    """
    given = {name: parameters[name] for name in KNOWN if name in parameters}
    if not given:
        return None
    model, prompt = given.pop("model", info.id), given.pop("prompt", None)
    check_id(info, model)
    if prompt is not None:
        check_length(info, prompt)
    methods = given.pop("methods", None)
    chosen = None if methods is None else [one.id for one in methods_of(methods.split(","))]
    changes = {name: _value(name, value) for name, value in given.items()}
    settings = Settings(**info.preset).with_changes(**changes)
    return LinkedRun(settings, prompt, chosen, "seed" in changes)


def _value(name: str, text: str) -> int | float | str:
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
