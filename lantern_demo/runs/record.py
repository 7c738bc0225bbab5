"""Define the run record: all that is needed to run a comparison again, and to show it.

The same fields write and read records.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from itertools import pairwise
from math import isqrt
from statistics import median
from typing import Annotated, Any

import torch
import transformers
from PIL import Image
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.results import Judged
from lantern_demo.faults import writable
from lantern_demo.prompt_words import Completed
from lantern_demo.runs.metrics import of_events
from lantern_demo.runs.stats import (
    MOST_NODES,
    MOST_TOKENS,
    READABLE,
    Line,
    Many,
    Name,
    Number,
    Stats,
    Text,
    Whole,
)
from lantern_demo.settings.knobs import OF_TREES
from lantern_demo.settings.settings import Settings, settings_of
from lantern_demo.settings.trees import STATIC_TREES
from lantern_demo.version import __version__

# levels, and characters, of the fields that differ from model to model
DEEPEST, LONGEST = 4, 20_000
# Sentences for faults that pydantic describes in programmers' terms.
SAID = {
    "missing": "must be given",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "dict_type": "must be an object",
    "dataclass_type": "must be an object",
    "list_type": "must be a list",
    "string_unicode": "must be text without control characters",
}
# Names of trees by their paths.
TREE_NAMES = {settings_of(StaticTree(paths))["tree"]: name for name, paths in STATIC_TREES.items()}


def image_hash(image: Image.Image) -> str:
    """Return the SHA-256 of the size and the RGB bytes, independent of the file format.

    Machines are not comparable by it: the same tokens may decode to a picture that differs by a
    level or two of 255.
    """
    return hashlib.sha256(f"{image.size}".encode() + image.tobytes()).hexdigest()


def same_decoder(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether one network draws both models' pictures, by the `trained` of two records."""
    return all(one.get(part) == other.get(part) for part in ("tokenizer", "picture"))


def depth_of(value: Any, deepest: int) -> int:
    """Return the levels of lists and objects of a value, at most `deepest` + 1."""
    level, depth = [value], 0
    while depth <= deepest and (level := [v for v in level if isinstance(v, (list, dict))]):
        depth += 1
        level = [x for v in level for x in (v.values() if isinstance(v, dict) else v)]
    return depth


def _version(text: str) -> str:
    if text.split(".")[:2] != __version__.split(".")[:2]:
        raise ValueError(
            f"the record is of version {text!r}, and this program has version {__version__}; "
            "draw the prompt again"
        )
    return text


def _moment(text: str) -> str:
    try:
        return datetime.fromisoformat(text).isoformat(timespec="seconds")
    except ValueError:
        raise ValueError("must be a date and time") from None


def _bounded(facts: dict[str, Any]) -> dict[str, Any]:
    if depth_of(facts, DEEPEST) > DEEPEST or len(json.dumps(facts)) > LONGEST:
        size = f"at most {LONGEST} characters, {DEEPEST} levels deep"
        raise ValueError(f"must be an object of {size}")
    return facts


def _settings(given: dict[str, Any]) -> dict[str, Any]:
    """Return checked settings, all of them."""
    usual = Settings().as_dict()
    if set(given) != set(usual):
        raise ValueError(f"must be {', '.join(usual)}, got {', '.join(map(str, given))[:200]!r}")
    if empty := [name for name in given if given[name] is None and usual[name] is not None]:
        raise ValueError(f"{empty[0]} must have a value")
    return Settings(**given).as_dict()


# of a model; the page does not show them
Facts = Annotated[dict[str, Any], AfterValidator(_bounded)]
Id = Annotated[Whole, Field(ge=0, le=2**20)]  # of a token
Words = Annotated[Many[Line], Field(max_length=1000)]


@dataclass(frozen=True)
class Versions:
    python: Name
    torch: Name
    transformers: Name


@dataclass(frozen=True)
class Model:
    """The model. `sources`: repository, file and commit of each published part."""

    id: Name
    trained: Facts
    sources: Facts


@dataclass(frozen=True)
class Tree:
    """A step's draft tree, parents before their children, and the path that was taken.

    All are empty without a tree.
    """

    tokens: Annotated[Many[Id], Field(max_length=MOST_NODES)]
    parents: Annotated[Many[Whole], Field(max_length=MOST_NODES)]
    path: Annotated[Many[Whole], Field(max_length=MOST_NODES)]


def _rooted(tree: Tree) -> Tree:
    parents = tree.parents
    path = tree.path
    count = len(tree.tokens)
    root = [0] if count else []
    sound = len(parents) == count and parents[:1] == path[:1] == root
    sound = sound and all(0 <= parent < node for node, parent in enumerate(parents) if node)
    sound = sound and all(0 <= node < count for node in path)
    if not (sound and all(a < b and parents[b] == a for a, b in pairwise(path))):
        raise ValueError("must list parents before their children, and a path from the root")
    return tree


@dataclass(frozen=True, kw_only=True)
class Events:
    """The steps of a run. Step 0 is the prefill, whose token the target draws alone.

    `committed` and `milliseconds` are totals after each step. `kinds` has a letter per token: e for
    a draft that the exact rule accepts, r for one that only the relaxation accepts, t for the
    target's own. `trees` are the draft trees, and `trials` the tried drafts: node, the target's
    probability, the rule's score, and the threshold that the score had to exceed (greedy: reach).
    With shared noise there are no `trials`: drafts are compared with the tokens that follow.
    """

    committed: Many[Whole]
    milliseconds: Many[Annotated[Number, Field(ge=0, le=1e9)]]
    kinds: Annotated[str, Field(max_length=MOST_TOKENS)]
    trees: Many[Annotated[Tree, AfterValidator(_rooted)]]
    trials: Many[Many[list[Any]]]


@dataclass(frozen=True, kw_only=True, repr=False)
class Entry(Stats):
    """A method of a record: the measurements, tokens and steps of its run.

    `image_sha256` is the `image_hash` of the picture decoded in the run. `changed` is the share (0
    to 1) of tokens of kind r.
    """

    speculative_decoding: dict[str, Any] = field(init=False)
    token_ids: Many[Id]
    image_sha256: Name
    events: Events

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = self.events.kinds
        drafts = of_events({"trees": [vars(tree) for tree in self.events.trees]})
        object.__setattr__(self, "changed", kinds.count("r") / max(1, len(kinds)))
        object.__setattr__(self, "speculative_decoding", drafts)


def _within(row: list[Any], low: Sequence[float], high: Sequence[float], whole: int) -> bool:
    """Return whether a row has a number within each bound, the first `whole` of them integers."""
    return len(row) == len(high) and all(
        type(value) in ((int,) if i < whole else (int, float)) and low[i] <= value <= high[i]
        for i, value in enumerate(row)
    )


def _consistent(entry: Entry) -> Entry:
    """Return an entry whose lists fit each other. Raises ValueError otherwise."""
    tokens, events = entry.tokens, entry.events
    if isqrt(tokens) ** 2 != tokens:
        raise ValueError(f"tokens must be the tokens of a square picture, got {tokens}")
    lists = vars(events) | vars(entry)
    lengths = {"accepted_lengths": entry.steps, "token_ids": tokens, "kinds": tokens}
    by_step = ("committed", "milliseconds", "trees", "trials")
    for name, length in (lengths | dict.fromkeys(by_step, entry.steps + 1)).items():
        if len(lists[name]) != length:
            raise ValueError(f"{name} must have {length} entries, got {len(lists[name])}")
    totals, moments = events.committed, events.milliseconds
    if totals[0] != 1 or totals[-1] != tokens or any(b <= a for a, b in pairwise(totals)):
        raise ValueError("committed must rise from 1 to the number of tokens")
    if any(b < a for a, b in pairwise(moments)) or not moments[-1] > 0:
        raise ValueError("milliseconds must not fall")
    if not set(events.kinds) <= set("ert"):
        raise ValueError("kinds must have one of the letters e, r and t for each token")
    for step, tree in enumerate(events.trees):
        last = len(tree.tokens) - 1
        tried = events.trials[step]
        if not all(_within(row, (1, 0, 0, 0), (last, 1e3, 1e3, 1e3), 1) for row in tried):
            numbers = "a node of the tree and three numbers of 0 to 1000"
            raise ValueError(f"trials must list {numbers} for each draft that was tried")
    if not set(entry.tree_settings) <= set(OF_TREES):
        raise ValueError(f"tree_settings must be of {', '.join(sorted(OF_TREES))}")
    Settings().with_changes(**entry.tree_settings)
    return entry


def _named(found: Any) -> Any:
    """Return the entries. Raises ValueError if there are none, or for an unknown method."""
    if not isinstance(found, dict) or not found:
        raise ValueError("must be an object with an entry for each method that ran")
    for name in map(str, found):
        if name not in METHODS:
            allowed = ", ".join(METHODS)
            raise ValueError(f"{name[:40]!r} is no method of this program, which has {allowed}")
    return found


Checked = Annotated[Entry, AfterValidator(_consistent)]


@dataclass(frozen=True, kw_only=True)
class Record:
    """A run or a comparison: its entries by method, in the `order` they ran."""

    lantern_demo: Annotated[Name, AfterValidator(_version)]
    created: Annotated[Name, AfterValidator(_moment)]
    versions: Versions
    model: Model
    device: Line
    prompt: Annotated[str, Field(max_length=1000), READABLE]
    unknown_words: Words
    completed: Annotated[str, Field(max_length=1000), READABLE] | None = None  # the drawn prompt
    warning: Text | None = None  # why the picture does not show all of the prompt
    settings: Annotated[dict[str, Any], AfterValidator(_settings)]
    order: Annotated[Many[Line], Field(min_length=1)]
    methods: Annotated[dict[str, Checked], BeforeValidator(_named)]

    def as_dict(self) -> dict[str, Any]:
        """Return the record as JSON-able values."""
        found: dict[str, Any] = RECORD.dump_python(self, warnings=False)
        for name, entry in found["methods"].items():
            made = self.methods[name]
            entry |= {one.name: getattr(made, one.name) for one in fields(made) if not one.init}
        _compare(found["methods"])
        return found


def _whole(record: Record) -> Record:
    methods, order = (", ".join(names) for names in (record.methods, record.order))
    if order != methods:
        raise ValueError(f"order must name the record's methods, {methods}, got {order}")
    for name, entry in record.methods.items():
        if entry.method != name:
            raise ValueError(f"the entry of {name} says that it is of {entry.method!r}")
    if len({entry.tokens for entry in record.methods.values()}) > 1:
        raise ValueError("the methods of the record differ in how many tokens they drew")
    return record


RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, AfterValidator(_whole)])
# JSON without them is no record
PARTS = ("lantern_demo", "model", "prompt", "settings", "order", "methods")


def parsed(found: Any) -> dict[str, Any]:
    """Check parsed JSON and return its record.

    Raises ValueError with a sentence that names the field.
    """
    if not isinstance(found, dict) or not set(PARTS) <= set(found):
        raise ValueError(f"this is not a run record, which has {', '.join(PARTS)}")
    try:
        return RECORD.validate_python(found).as_dict()
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
    where = writable(".".join(str(part)[:40] for part in fault["loc"]))
    why = fault["msg"].removeprefix("Value error, ").replace(" after validation", "")
    what = SAID.get(fault["type"]) or re.sub(r"^\w+ should", "must", why)
    raise ValueError(f"{where}: {what}" if where else what)


def events_of(steps: list[Step]) -> Events:
    """Return the events of a run's steps."""
    return Events(
        committed=[step.committed for step in steps],
        milliseconds=[round(1000 * step.seconds, 3) for step in steps],
        kinds="".join(kind[0] for step in steps for kind in step.kinds),
        trees=[Tree(step.tree_tokens, step.parents, step.path) for step in steps],
        trials=[[trial_of(judged) for judged in step.judged] for step in steps],
    )


def trial_of(judged: Judged) -> list[float]:
    """Return a trial as records keep it: with five digits, or nine where the score needs them.

    Two float32 numbers differ within nine digits, so the score stays apart from its threshold.
    """
    node, *values = judged
    for digits in (5, 9):
        p, score, limit = (float(f"{value:.{digits}g}") for value in values)
        if score != limit:
            break
    return [node, p, score, limit]


def run_record(
    model: Model,
    prompt: str,
    completed: Completed,
    unknown: list[str],
    settings: Settings,
    entry: Entry,
) -> dict[str, Any]:
    """Return the record of a run, JSON-able."""
    return Record(
        lantern_demo=__version__,
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        versions=Versions(platform.python_version(), torch.__version__, transformers.__version__),
        model=model,
        device=entry.device,
        prompt=prompt,
        unknown_words=unknown,
        completed=completed.prompt if completed.prompt != prompt else None,
        warning=completed.why,
        settings=settings.as_dict(),
        order=[entry.method],
        methods={entry.method: entry},
    ).as_dict()


def merge_records(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge the records of a comparison's methods into one, in the order of METHODS."""
    found = {name: entry for record in records for name, entry in record["methods"].items()}
    merged = {**records[0], "methods": {name: found[name] for name in METHODS if name in found}}
    merged["order"] = list(merged["methods"])
    _compare(merged["methods"])
    return merged


def _compare(entries: dict[str, dict[str, Any]]) -> None:
    """Set each entry's speedup over vanilla, if vanilla ran too."""
    vanilla = entries.get("vanilla")
    for entry in entries.values():
        entry.pop("speedup", None)
        if vanilla is not None:
            entry["speedup"] = vanilla["decode_seconds"] / entry["decode_seconds"]


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
