"""Read a run record that a visitor hands in: every value is checked, and only known fields are kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise
from math import isqrt
from typing import Any, get_args

from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.rules import Rule
from lantern_demo.faults import unreadable
from lantern_demo.knobs import KNOBS
from lantern_demo.metrics import of_events
from lantern_demo.models.device import MOST_THREADS
from lantern_demo.settings import Settings
from lantern_demo.stats import Schedule, disturbed
from lantern_demo.ui.evidence import evidence_of, trials_of_older

# The settings that ask for a very tree again.
OF_TREES = {"tree"} | {name for name, knob in KNOBS.items() if knob.of_tree or knob.fitted}

MEGABYTES = 4
VERSIONS = ("0.1", "0.2")  # whose records are read: 0.2 draws other pictures for a seed than 0.1, since noise is shared
MOST_TOKENS, MOST_NODES = 4096, 256
SECONDS = ("text", "prefill", "draft", "verify", "commit", "decode", "image", "capture")
PARTS = ("lantern_demo", "model", "prompt", "settings", "order", "methods")  # JSON without them is something else
USED = ("same", "own", "none")  # dice
TEXTS = ("tree", "device", "dtype", "products", "engine")


def read_record(data: bytes) -> dict[str, Any]:
    """The record in a file. Raises ValueError with a sentence that says what is wrong with it."""
    if len(data) > MEGABYTES * 2**20:
        raise ValueError(f"the record has {len(data) / 2**20:.1f} MB, at most {MEGABYTES} are allowed")
    try:
        found = json.loads(data.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise ValueError("this is not a run record: not a JSON file that can be read") from None
    return checked(found)


def checked(found: Any) -> dict[str, Any]:
    """A record made anew from what is known of a parsed one. Raises ValueError as `read_record` does."""
    if not isinstance(found, dict) or not set(PARTS) <= set(found):
        raise ValueError(f"this is not a run record, which has {', '.join(PARTS)}")
    record: dict[str, Any] = found
    version = _text(record, "lantern_demo", 20)
    if ".".join(version.split(".")[:2]) not in VERSIONS:
        raise ValueError(f"the record is of version {version!r}; this program reads those of {', '.join(VERSIONS)}")
    model, methods = _mapping(record.get("model"), "model"), _mapping(record.get("methods"), "methods")
    order = _strings(record, "order", 20, len(METHODS))
    if not order or order != list(methods) or not set(order) <= set(METHODS):
        raise ValueError(f"order must name the record's methods, out of {', '.join(METHODS)}, got {order!r}")
    settings = _settings(record.get("settings"))
    kept = {
        "lantern_demo": version,
        "created": _moment(record),
        "versions": {k: _text(_mapping(record.get("versions"), "versions"), k, 60) for k in ("python", "torch", "transformers")},
        "model": {"id": _text(model, "id", 80), "trained": _facts(model, "trained"), "sources": _facts(model, "sources")},
        "device": _text(record, "device", 200),
        "prompt": _text(record, "prompt", 1000),
        "unknown_words": _strings(record, "unknown_words", 200, 1000),
        "settings": settings,
        "order": order,
        "how_timed": _text(record, "how_timed", 1000),
    }  # fmt: skip
    entries = {name: _entry(name, methods[name], Settings(**settings)) for name in order}
    if len({entry["tokens"] for entry in entries.values()}) > 1:
        raise ValueError("the methods of the record differ in how many tokens they drew")
    vanilla = entries.get("vanilla")
    for entry in entries.values() if vanilla is not None else ():
        entry["speedup"] = vanilla["decode_seconds"] / entry["decode_seconds"] if vanilla else None
    return {**kept, "methods": entries}


def _entry(name: str, found: Any, settings: Settings) -> dict[str, Any]:
    entry = _mapping(found, f"the entry of {name}")
    tokens = _whole(entry, "tokens", 1, MOST_TOKENS)
    if isqrt(tokens) ** 2 != tokens:
        raise ValueError(f"tokens must be the tokens of a square picture, got {tokens}")
    steps = _whole(entry, "steps", 0, tokens)
    seconds = {f"{part}_seconds": _number(entry, f"{part}_seconds", 0, 1e6) for part in SECONDS}
    if not seconds["decode_seconds"] > 0:
        raise ValueError(f"decode_seconds of {name} must be more than 0")
    tvd, price = entry.get("one_step_tvd"), entry.get("price")  # records from before there was a price have none
    if _text(entry, "method", 20) != name:
        raise ValueError(f"the entry of {name} says that it is of {entry['method']!r}")
    events = _events(_mapping(entry.get("events"), "events"), tokens, steps, evidence_of(settings, METHODS[name]).rule)
    return {
        "method": name,
        "tokens": tokens,
        "steps": steps,
        "mean_accepted_length": _number(entry, "mean_accepted_length", 0, MOST_NODES),
        "accepted_lengths": _list(entry, "accepted_lengths", steps, _within(1, MOST_NODES)),
        **seconds,
        "tokens_per_second": tokens / seconds["decode_seconds"],
        "one_step_tvd": None if tvd is None else _number(entry, "one_step_tvd", 0, 1),
        "one_step_tvd_method": None if tvd is None else _text(entry, "one_step_tvd_method", 200),
        "price": None if price is None else _number(entry, "price", 0, 1),
        "price_method": None if price is None else _text(entry, "price_method", 200),
        "nodes": _whole(entry, "nodes", 1, MOST_NODES),
        "tree_settings": _tree_settings(entry),
        **{key: _text(entry, key, 2000) for key in TEXTS},
        "dice": _dice(entry),
        **_circumstances(entry, seconds["decode_seconds"]),
        "speculative_decoding": of_events(events),
        "token_ids": _list(entry, "token_ids", tokens, _within(0, 2**20)),
        "image_sha256": _text(entry, "image_sha256", 64),
        "events": events,
    }


def _circumstances(entry: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Under what circumstances a run was timed. Records from before methods raced do not say: then they ran one after the other."""
    schedule = entry.get("schedule", "in turn")
    if schedule not in get_args(Schedule):
        raise ValueError("schedule must be alone, race or in turn")
    waited = None if entry.get("waited_seconds") is None else _number(entry, "waited_seconds", 0, 1e6)
    return {
        "threads": None if entry.get("threads") is None else _whole(entry, "threads", 1, MOST_THREADS),
        **{
            key: _text(entry, key, 2000) if key in entry else "" for key in ("threads_reason", "schedule_reason", "engine_reason")
        },
        "schedule": schedule,
        "waited_seconds": waited,
        "disturbed": disturbed(waited, seconds),
    }


def _dice(entry: dict[str, Any]) -> str:
    """How a method drew. Records from before noise was shared do not say."""
    if (dice := entry.get("dice", "own")) not in USED:
        raise ValueError(f"dice must be one of {', '.join(USED)}")
    return str(dice)


def _events(events: dict[str, Any], tokens: int, steps: int, rule: Rule) -> dict[str, Any]:
    committed = _list(events, "committed", steps + 1, _within(1, tokens))
    moments = _list(events, "milliseconds", steps + 1, lambda x: _is_number(x) and 0 <= x <= 1e9)
    if committed[0] != 1 or committed[-1] != tokens or any(b <= a for a, b in pairwise(committed)):
        raise ValueError("committed must rise from 1 to the number of tokens")
    if any(b < a for a, b in pairwise(moments)) or not moments[-1] > 0:
        raise ValueError("milliseconds must not fall")
    kinds = _text(events, "kinds", MOST_TOKENS)
    if len(kinds) != tokens or not set(kinds) <= set("ert"):
        raise ValueError("kinds must have one of the letters e, r and t for each token")
    trees = [_tree(tree) for tree in _list(events, "trees", steps + 1, lambda x: isinstance(x, dict))]
    trials = (
        _trials(events, "trials", trees) if "trials" in events else trials_of_older(rule, trees, _trials(events, "judged", trees))
    )
    told = {"committed": committed, "milliseconds": moments, "kinds": kinds, "trees": trees, "trials": trials}
    if "compared" in events:
        told["compared"] = _list(events, "compared", steps + 1, lambda x: isinstance(x, list) and len(x) <= MOST_NODES)
        for tree, held in zip(trees, told["compared"], strict=True):
            bounds = ((1, len(tree["tokens"]) - 1), (0, 2**20), (-1, 2**20), (1, 2**20))
            for row in held:
                fits = isinstance(row, list) and len(row) == len(bounds)
                if not fits or not all(_within(*bound)(x) for bound, x in zip(bounds, row, strict=True)):
                    raise ValueError("compared must list a node of the tree, a token, where it stands and how many stand there")
    if "places" in events:
        told["places"] = _list(events, "places", tokens, _within(0, tokens - 1))
        if len(set(told["places"])) != tokens or told["places"][0] != 0:
            raise ValueError("places must name each place of the picture once, the first one first")
    if "prices" in events:
        told["prices"] = _list(events, "prices", tokens, lambda x: x is None or (_is_number(x) and 0 <= x <= 1))
    return told


def _trials(events: dict[str, Any], name: str, trees: list[dict[str, Any]]) -> list[Any]:
    found = _list(events, name, len(trees), lambda x: isinstance(x, list) and len(x) <= MOST_NODES)
    for tree, tried in zip(trees, found, strict=True):
        for row in tried:
            fits = isinstance(row, list) and len(row) == 4 and _within(1, len(tree["tokens"]) - 1)(row[0])
            if not fits or not all(_is_number(x) and 0 <= x <= 1e3 for x in row[1:]):
                raise ValueError(f"{name} must list a node of the tree and three numbers for each draft that was tried")
    return found


def _tree(tree: dict[str, Any]) -> dict[str, Any]:
    tokens = _list(tree, "tokens", None, _within(0, 2**20))
    parents = _list(tree, "parents", len(tokens), _within(0, MOST_NODES))
    path = _list(tree, "path", None, _within(0, max(0, len(tokens) - 1)))
    rooted = all(parent < node for node, parent in enumerate(parents) if node) and parents[:1] in ([], [0])
    followed = all(parents[b] == a and b > a for a, b in pairwise(path)) and path[:1] in ([], [0])
    if not (rooted and followed and (path or not tokens)):
        raise ValueError("trees must list parents before their children, and a path from the root")
    return {"tokens": tokens, "parents": parents, "path": path}


def _settings(found: Any) -> dict[str, Any]:
    """Settings; a knob that is younger than the record has its default, or what there was before it."""
    settings, usual = _mapping(found, "settings"), Settings().as_dict()
    if not {name for name in usual if not KNOBS[name].later} <= set(settings) <= set(usual):
        raise ValueError(f"settings must be {', '.join(usual)}, got {', '.join(map(str, settings))[:200]!r}")
    empty = [name for name in settings if settings[name] is None and usual[name] is not None]
    if empty:
        raise ValueError(f"{empty[0]} must have a value in settings")
    before = {name: knob.before for name, knob in KNOBS.items() if knob.before is not None}
    return Settings(**(before | settings)).as_dict()


def _tree_settings(entry: dict[str, Any]) -> dict[str, Any]:
    asked = _mapping(entry.get("tree_settings"), "tree_settings")
    if not set(asked) <= OF_TREES:
        raise ValueError(f"tree_settings must be of {', '.join(sorted(OF_TREES))}")
    Settings().with_changes(**asked)
    return asked


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _mapping(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {type(value).__name__}")
    return value


def _facts(where: dict[str, Any], name: str, most: int = 20_000, deepest: int = 4) -> dict[str, Any]:
    """An object whose entries differ from model to model: bounded in size and depth, and shown to nobody."""
    value = _mapping(where.get(name), name)
    if _depth(value) > deepest or len(json.dumps(value)) > most:
        raise ValueError(f"{name} must be an object of at most {most} characters, {deepest} levels deep")
    return value


def _depth(value: Any, bound: int = 10) -> int:
    """How deep an object is nested, counted up to a bound."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 0 if bound == 0 or not isinstance(value, (dict, list)) else 1 + max((_depth(x, bound - 1) for x in inner), default=0)


def _text(where: dict[str, Any], name: str, most: int) -> str:
    value = where.get(name)
    if not isinstance(value, str) or len(value) > most:
        raise ValueError(f"{name} must be text of at most {most} characters")
    if bad := unreadable(value):
        raise ValueError(f"{name} must be text without control characters, got {bad}")
    return value


def _moment(record: dict[str, Any]) -> str:
    value = _text(record, "created", 40)
    try:
        return datetime.fromisoformat(value).isoformat(timespec="seconds")
    except ValueError:
        raise ValueError(f"created must be a date and time, got {value!r}") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e12 < value < 1e12


def _number(where: dict[str, Any], name: str, low: float, high: float) -> float:
    value = where.get(name)
    if not _is_number(value) or not low <= value <= high:  # type: ignore[operator]
        raise ValueError(f"{name} must be a number between {low:g} and {high:g}")
    return value  # type: ignore[return-value]


def _within(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _whole(where: dict[str, Any], name: str, low: int, high: int) -> int:
    value = where.get(name)
    if not _within(low, high)(value):
        raise ValueError(f"{name} must be a whole number between {low} and {high}")
    return value  # type: ignore[return-value]


def _list(where: dict[str, Any], name: str, length: int | None, right: Callable[[Any], bool]) -> list[Any]:
    value = where.get(name)
    fits = isinstance(value, list) and (len(value) == length if length is not None else len(value) <= MOST_NODES)
    if not fits or not all(map(right, value)):  # type: ignore[arg-type]
        wanted = f"{length} entries" if length is not None else f"at most {MOST_NODES} entries"
        raise ValueError(f"{name} must be a list of {wanted}, each of the right kind")
    return value  # type: ignore[return-value]


def _strings(where: dict[str, Any], name: str, most: int, count: int) -> list[str]:
    value = where.get(name)
    if (
        not isinstance(value, list)
        or len(value) > count
        or not all(isinstance(x, str) and len(x) <= most and not unreadable(x) for x in value)
    ):
        raise ValueError(f"{name} must be a list of texts of at most {most} characters")
    return value
