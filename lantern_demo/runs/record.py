"""The run record: its form, the settings that draw it again, and the numbers of several races."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Literal, TypedDict, final

from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.methods import METHODS
from lantern_demo.faults import NotAllowed
from lantern_demo.settings.knobs import KNOBS, bound_of
from lantern_demo.settings.named_trees import STATIC_TREES
from lantern_demo.settings.settings import method_of, settings_of

if TYPE_CHECKING:
    from typing import NotRequired  # of Python 3.11

Noise = Literal["shared", "independent", "none"]  # none at temperature 0
Schedule = Literal["alone", "race", "in turn"]  # how methods share the device


class Drafted(TypedDict):
    """A step's draft tree, parents before children, with the path that was taken."""

    tokens: list[int]
    parents: list[int]
    path: list[int]


class Events(TypedDict):
    """The steps of a run. Step 0 is the prefill, whose token the target draws alone."""

    committed: list[int]  # tokens after each step
    milliseconds: list[float]  # of decoding after each step
    # a letter per token: e for a draft that the exact rule accepts, r for one that only the
    # relaxation accepts, t for the target's own, k for one that was kept of another picture
    kinds: str
    trees: list[Drafted]
    # the tried drafts of each step: node, the target's probability, the rule's score, and the
    # threshold that the score had to exceed (greedy: reach). With shared noise there are none,
    # since drafts are compared with the tokens that follow; captured steps keep none
    trials: list[list[list[float]]]


class Entry(TypedDict):
    """A method's part of a record."""

    method: str
    tokens: int
    steps: int
    mean_accepted_length: float
    accepted_lengths: list[int]
    decode_seconds: float
    nodes: int
    tree: str  # the drafts in words, with their source in brackets
    tree_settings: dict[str, Any]  # from which they are made again
    noise: Noise
    schedule: Schedule
    schedule_reason: str
    changed: float
    waited_seconds: float | None
    disturbed: bool
    tokens_per_second: float
    text_seconds: float
    capture_seconds: float
    prefill_seconds: float
    draft_seconds: float
    verify_seconds: float
    commit_seconds: float
    image_seconds: float
    device: str
    dtype: str
    products: str
    threads: int | None
    threads_reason: str
    engine: str
    engine_reason: str
    token_ids: list[int]
    image_sha256: str  # the `image_hash` of the picture
    events: Events
    speedup: NotRequired[float]  # where vanilla ran


class Drawer(TypedDict):
    """The model of a record."""

    id: str
    trained: dict[str, Any]
    preset: NotRequired[dict[str, Any]]  # settings that differ from the usual ones
    sources: dict[str, dict[str, Any]]  # repository, file and commit of each part


class Task(TypedDict):
    """The task: the same for all methods of a comparison."""

    created: str  # date and time
    model: Drawer
    prompt: str
    unknown_words: list[str]
    completed: str | None  # the prompt that was drawn, if it is another
    warning: str | None  # why the pictures do not show all of the prompt
    settings: dict[str, Any]


@final
class Record(Task):
    """All that is needed to draw the pictures of a comparison again, JSON-able."""

    lantern_demo: str  # its version
    versions: dict[str, str]
    device: str
    order: list[str]  # of the methods
    methods: dict[str, Entry]
    # of the API: sentences by method, and `summary_of` several races
    failed: NotRequired[dict[str, str]]
    not_saved: NotRequired[dict[str, str]]
    repeats: NotRequired[dict[str, dict[str, Any]]]


# Names of trees by their paths.
TREE_NAMES = {settings_of(StaticTree(paths))["tree"]: name for name, paths in STATIC_TREES.items()}


def kept_of(entry: Entry) -> list[int]:
    """Return the tokens that a run kept of another picture, those of its upper rows."""
    return entry["token_ids"][: entry["events"]["kinds"].count("k")]


def trees_of(record: Record) -> dict[str, Any]:
    """Return the settings that request a record's draft trees on any machine and version.

    Methods with drafts of one kind share a tree.
    """
    found: dict[str, Any] = {}
    for method in record["order"]:
        found |= record["methods"][method]["tree_settings"]
    if "tree" in found:
        found["tree"] = TREE_NAMES.get(found["tree"], found["tree"])
    return found


def drawn_with(record: Record) -> dict[str, Any]:
    """Return a record's settings, with the draft trees that ran for those left to be chosen."""
    return record["settings"] | trees_of(record)


def twin_settings(record: Record, method: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
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
    entry = record["methods"][method]
    tree = entry["tree_settings"]
    settings = {name: value for name, value in record["settings"].items() if name not in tree}
    # the run's own: a rule that relaxes nothing may have had vanilla's
    noise = "shared" if entry["noise"] == "shared" else "independent"
    return settings | {bound: limit.low, "noise": noise}, {method: tree}


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
