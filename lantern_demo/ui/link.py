"""Links that restore a run's prompt, model, methods and settings: written from a record, read from an address and checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from lantern_demo.settings.knobs import KNOBS, shown
from lantern_demo.settings.settings import RETIRED, Settings, methods_of, renamed, without_retired

RUN = "run"  # names a run that is kept
LONGEST = 4000  # characters of a value
CHOSEN = [name for name in Settings().as_dict() if name != "seed"]


def query(record: dict[str, Any], preset: Settings, kept_as: str | None = None) -> str:
    """The part of a link behind the page's address; settings as the model's preset has them are left out. `kept_as` names the run
    itself, which is shown as long as the program that drew it keeps it."""
    settings = record["settings"]
    values = {
        "prompt": record["prompt"],
        "model": record["model"]["id"],
        "methods": ",".join(record["order"]),
        "seed": settings["seed"],
    }
    usual = preset.as_dict()
    values |= {name: settings[name] for name in CHOSEN if settings[name] != usual[name] and settings[name] is not None}
    return "?" + urlencode(values | ({} if kept_as is None else {RUN: kept_as}))


def read(parameters: Mapping[str, str], default: str, presets: Mapping[str, Settings]) -> dict[str, Any] | None:
    """What a link asks for: model, settings and, where given, prompt and methods; None when it asks for nothing.

    Parameters of other names are let alone, as other sites add theirs. Raises ValueError with a sentence for a bad value.
    """
    known = {"prompt", "model", "methods", "seed", *CHOSEN}
    without_retired({name: _value(name, value) for name, value in parameters.items() if name in RETIRED})
    given = {name: value for name, value in renamed(dict(parameters)).items() if name in known}
    if not given:
        return None
    for name, value in given.items():
        if len(value) > LONGEST:
            raise ValueError(f"{name} has {len(value)} characters, at most {LONGEST} are allowed in a link")
    model = given.get("model", default)
    if model not in presets:
        raise ValueError(f"model must be one of {', '.join(presets)}, got {shown(model)}")
    changes = {name: _value(name, value) for name, value in given.items() if name == "seed" or name in CHOSEN}
    found: dict[str, Any] = {"model": model, "settings": presets[model].with_changes(**changes), "seed": "seed" in changes}
    if "methods" in given:
        found["methods"] = [method.id for method in methods_of(given["methods"].split(","))]
    if "prompt" in given:
        found["prompt"] = given["prompt"]
    return found


def _value(name: str, text: str) -> Any:
    """A number where the setting is one; what is no number is left for the settings to refuse by their sentence."""
    if name in KNOBS and KNOBS[name].limit is None:
        return text
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else text
