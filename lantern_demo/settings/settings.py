"""The settings of a run: checked values for the knobs, and the rule and drafts that they make."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

from lantern_demo.decoding.drafting import DraftConfig, DynamicTree, StaticTree
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.rules import Rule
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.trees import Path
from lantern_demo.decoding.window import Window
from lantern_demo.faults import NotAllowed
from lantern_demo.settings.knobs import KNOBS, MAX_DEPTH, MAX_NODES, Knobs, is_id, quoted
from lantern_demo.settings.named_trees import (
    DEFAULT,
    DEFAULTS,
    DYNAMIC_TREES,
    STATIC_BY_NAME,
    TREES,
    DefaultDrafts,
    read_paths,
)

DEEPEST = MAX_DEPTH + 1  # levels of a static tree


@dataclass(frozen=True)
class Settings(Knobs):
    """All knobs of a run. Raises NotAllowed for a value that is not allowed.

    The draft_* values shape the dynamic tree, nodes counting the root. One that is None is that of
    `tree`.
    """

    def __post_init__(self) -> None:
        for name, knob in KNOBS.items():
            value = getattr(self, name)
            if knob.limit is not None and not (value is None and knob.of_tree):
                object.__setattr__(self, name, knob.limit.check(name, value))
            elif name == "tree":
                if not isinstance(value, str) or value not in TREES:
                    _own_paths(value)
            elif knob.choices and (not isinstance(value, str) or value not in knob.choices):
                allowed = ", ".join(knob.choices)
                raise NotAllowed(name, f"must be one of {allowed}, got {quoted(value)}")
        # else a pipeline checks the nodes, which then depend on its device's default tree
        if self.tree != DEFAULT or None not in (self.draft_top_k, self.draft_depth):
            self.dynamic_shape(DYNAMIC_TREES["small"])

    def dynamic_shape(self, default: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return top_k, depth and nodes of the dynamic tree, where the default one is `default`.

        One that is not given is that of `tree`, or of the small tree where `tree` names no dynamic
        one; nodes that are not given are no more than the others make. Raise NotAllowed for too
        many nodes.
        """
        small = DYNAMIC_TREES["small"]
        base = default if self.tree == DEFAULT else DYNAMIC_TREES.get(self.tree, small)
        given = (self.draft_top_k, self.draft_depth, self.draft_nodes)
        top_k, depth, nodes = (b if g is None else g for b, g in zip(base, given, strict=True))
        most = top_k + depth * top_k * top_k + 1
        if self.draft_nodes is not None and nodes > most:
            made = f"the nodes that draft_top_k {top_k} and draft_depth {depth} make"
            raise NotAllowed("draft_nodes", f"must be at most {most}, {made}, got {nodes}")
        return top_k, depth, min(nodes, most)

    def static_paths(self, default: tuple[Path, ...]) -> tuple[Path, ...]:
        """Return the static tree, where the default one is `default`."""
        if self.tree == DEFAULT:
            return default
        return STATIC_BY_NAME.get(self.tree) or _own_paths(self.tree)

    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p, self.cfg_scale)

    def rule(self, method: Method) -> Rule:
        """Return the acceptance rule that a method uses under these settings."""
        own = {name: knob for name, knob in KNOBS.items() if knob.sets and knob.reads(method)}
        return replace(
            method.rule, **{knob.sets: getattr(self, name) for name, knob in own.items()}
        )

    def with_changes(self, **changes: Any) -> Settings:
        """Return these settings with some values replaced.

        Raises NotAllowed for an unknown name or a value not allowed.
        """
        return replace(self, **by_name(changes))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


# names of other libraries
ELSEWHERE = {"guidance_scale": "cfg_scale", "generator": "seed", "do_sample": "temperature"}


def by_name(values: Any) -> dict[str, Any]:
    """Return values of settings by their names. Raises NotAllowed for anything else."""
    allowed = f"allowed are {', '.join(KNOBS)}"
    if not isinstance(values, dict):
        wrong = f"must be an object of values by name, got {quoted(values)}"
        raise NotAllowed("settings", f"{wrong}; {allowed}")
    for name in values:
        if name in ELSEWHERE:
            here = f"it is {ELSEWHERE[name]} here"
            raise NotAllowed("unknown setting", f"{name!r}; {here}; {allowed}")
        if name not in KNOBS:
            raise NotAllowed("unknown setting", f"{quoted(name)}; {allowed}")
    return values


def _own_paths(value: Any) -> tuple[Path, ...]:
    """Return the static tree of a text of paths.

    Raises NotAllowed for a text that is no tree or too large a tree.
    """
    longest = MAX_NODES * (DEEPEST + 1)
    try:
        text = isinstance(value, str) and len(value) <= longest
        if not text or not set(value) <= set("0123456789 "):
            raise ValueError("it is none of these")
        return _paths_of(value)
    except ValueError as error:
        allowed = f"one of {', '.join(TREES)}, or paths such as '0 1 00'"
        raise NotAllowed("tree", f"must be {allowed}, got {quoted(value)}: {error}") from None


@lru_cache(maxsize=64)  # each of a request's settings has the same text
def _paths_of(text: str) -> tuple[Path, ...]:
    tree = StaticTree(read_paths(text))
    if tree.nodes > MAX_NODES or tree.deepest > DEEPEST:
        raise ValueError(f"a tree has at most {MAX_NODES} nodes with the root, {DEEPEST} deep")
    return tree.paths


def method_of(value: Any) -> Method:
    """Return the method of an id. Raises NotAllowed with the value and the allowed ids."""
    if not isinstance(value, str) or value not in METHODS:
        raise NotAllowed("method", f"must be one of {', '.join(METHODS)}, got {quoted(value)}")
    return METHODS[value]


def methods_of(values: Any) -> list[Method]:
    """Return the methods of a list of ids, in the order of the table, each once.

    Raises NotAllowed with the value and the allowed ids.
    """
    if not isinstance(values, (list, tuple)) or not values:
        allowed = f"a list of one or more of {', '.join(METHODS)}"
        raise NotAllowed("methods", f"must be {allowed}, got {quoted(values)}")
    for value in values:
        if not isinstance(value, str) or value not in METHODS:
            raise NotAllowed(
                "methods", f"must be one or more of {', '.join(METHODS)}, got {quoted(value)}"
            )
    return [method for method in METHODS.values() if method.id in values]


def kept_rows(tokens: Any, grid: int, codes: int) -> tuple[int, ...]:
    """Return the tokens of the rows that a picture keeps, of `grid` tokens each; None keeps none.

    Raises NotAllowed unless they are whole rows, with one left to draw, of `codes` tokens.
    """
    found = () if tokens is None else tokens
    if not isinstance(found, (list, tuple)):
        raise NotAllowed("keep", f"must be a list of token ids, got {quoted(tokens)}")
    if len(found) % grid or len(found) >= grid * grid:
        rows = f"whole rows of {grid} token ids, at most {grid - 1} rows"
        raise NotAllowed("keep", f"must be {rows}, got {len(found)} ids")
    for token in found:
        if not is_id(token, codes):
            raise NotAllowed(
                "keep", f"must be token ids from 0 to {codes - 1}, got {quoted(token)}"
            )
    return tuple(found)


@dataclass(frozen=True)
class Planned:
    """A method with its drafts and rule, decided when a request is checked."""

    method: Method
    settings: Settings
    drafts: DraftConfig
    source: str  # of the drafts, such as "default"; empty: no setting shapes them
    rule: Rule
    keep: tuple[int, ...] = ()  # the tokens of the upper rows, where only the rest is drawn

    @property
    def tree(self) -> str:
        """The drafts in words, and their source: "static chain of 3 (default)"."""
        shape = describe_drafts(self.drafts)
        return f"{shape} ({self.source})" if self.source else shape


def planned(
    method: Method, settings: Settings, default: DefaultDrafts = DEFAULTS["cpu"]
) -> Planned:
    """Decide the drafts and the rule of a method under some settings."""
    drafts, source = drafts_of(method.drafts, settings, default)
    return Planned(method, settings, drafts, source, settings.rule(method))


def drafts_of(
    cls: type[DraftConfig], settings: Settings, default: DefaultDrafts = DEFAULTS["cpu"]
) -> tuple[DraftConfig, str]:
    """Return the drafts of a class under some settings, and their source as in `Planned`.

    Drafts that no setting shapes have their defaults.
    """
    if issubclass(cls, StaticTree):
        return cls(settings.static_paths(default.static)), settings.tree
    if issubclass(cls, DynamicTree):
        source = settings.tree
        if {settings.draft_top_k, settings.draft_depth, settings.draft_nodes} != {None}:
            source = "as asked"
        elif source != DEFAULT and source not in DYNAMIC_TREES:
            source = f"small, since {source} is no dynamic tree"
        return cls(*settings.dynamic_shape(default.dynamic)), source
    if issubclass(cls, Window):
        return cls(settings.window or default.window), "as asked" if settings.window else "default"
    return cls(), ""


def settings_of(drafts: DraftConfig) -> dict[str, Any]:
    """Return the settings from which `drafts_of` makes these drafts again."""
    if isinstance(drafts, StaticTree):
        return {"tree": " ".join("".join(map(str, path)) for path in drafts.paths)}
    if isinstance(drafts, DynamicTree):
        top_k, depth, nodes = drafts.top_k, drafts.depth, drafts.nodes
        return {"draft_top_k": top_k, "draft_depth": depth, "draft_nodes": nodes}
    return {"window": drafts.nodes} if isinstance(drafts, Window) else {}


def describe_drafts(drafts: DraftConfig) -> str:
    """Return the shape of drafts in words: "static chain of 3".

    The root is no draft and does not count.
    """
    count = drafts.nodes - 1
    if isinstance(drafts, StaticTree):
        if count == drafts.deepest:
            return f"static chain of {count}"
        return f"static tree of {count} in {drafts.deepest} levels"
    if isinstance(drafts, DynamicTree):
        if drafts.top_k == 1:
            return f"dynamic chain of {count}"
        return f"dynamic tree of {count} in up to {min(count, drafts.deepest)} levels"
    if isinstance(drafts, Window):
        return f"window of {drafts.nodes}"
    return f"up to {count} drafts" if count else "no tree"
