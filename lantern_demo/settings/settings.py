"""The settings of a run: values for the knobs, checked, and how a method reads them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.rules import Rule
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.trees import Path
from lantern_demo.settings.knobs import KNOBS, MAX_DEPTH, MAX_NODES, Knobs, shown
from lantern_demo.settings.trees import (
    DEFAULT,
    DYNAMIC_TREES,
    SMALL_STATIC,
    STATIC_TREES,
    TREES,
    read_paths,
)


@dataclass(frozen=True)
class Settings(Knobs):
    """All knobs of a run. Raises ValueError for a value that is not allowed.

    The draft_* values are those of `tree` unless given: they shape the dynamic tree (EAGLE-2),
    `nodes` counting the root.
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
                raise ValueError(
                    f"{name} must be one of {', '.join(knob.choices)}, got {shown(value)}"
                )
        top_k, depth, nodes = self.dynamic_shape(DYNAMIC_TREES["small"])
        pool = top_k + depth * top_k * top_k
        if nodes > pool + 1:
            raise ValueError(
                f"draft_nodes must be at most {pool + 1}, the nodes that draft_top_k {top_k} and draft_depth {depth} make, "
                f"got {nodes}"
            )

    def dynamic_shape(self, default: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return top_k, depth and nodes of the dynamic tree, where the default one is `default`.

        If only some are given, the others are those of `tree`, or of the small one where `tree`
        names no dynamic tree.
        """
        given = (self.draft_top_k, self.draft_depth, self.draft_nodes)
        if self.tree == DEFAULT and given == (None, None, None):
            return default
        base = DYNAMIC_TREES.get(self.tree, DYNAMIC_TREES["small"])
        top_k, depth, nodes = (b if g is None else g for b, g in zip(base, given, strict=True))
        return top_k, depth, nodes

    def static_paths(self, default: tuple[Path, ...]) -> tuple[Path, ...]:
        """Return the static tree, where the default one is `default`."""
        if self.tree == DEFAULT:
            return default
        if self.tree == "small":
            return SMALL_STATIC
        named = STATIC_TREES.get("naive_extend_57" if self.tree == "paper" else self.tree)
        return _own_paths(self.tree) if named is None else named

    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p, self.cfg_scale)

    def rule(self, method: Method) -> Rule:
        """Return the acceptance rule that a method uses under these settings."""
        changes = {
            knob.sets: getattr(self, name)
            for name, knob in KNOBS.items()
            if knob.sets and knob.reads(method)
        }
        return replace(method.rule, **changes)

    def with_changes(self, **changes: Any) -> Settings:
        """Return these settings with some values replaced.

        Raises ValueError for an unknown name or a value not allowed.
        """
        return replace(self, **by_name(changes))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def by_name(values: Any) -> dict[str, Any]:
    """Return values of settings by their names. Raises ValueError for anything else."""
    if not isinstance(values, dict):
        raise ValueError(
            f"settings must be an object of values by name, got {shown(values)}; allowed are {', '.join(KNOBS)}"
        )
    for name in values:
        if name not in KNOBS:
            raise ValueError(f"unknown setting {shown(name)}; allowed are {', '.join(KNOBS)}")
    return values


def _own_paths(value: Any) -> tuple[Path, ...]:
    """Return the static tree of a text of paths.

    Raises ValueError for a text that is no tree or too large a tree.
    """
    deepest = MAX_DEPTH + 1
    try:
        if (
            not isinstance(value, str)
            or len(value) > MAX_NODES * (deepest + 1)
            or not set(value) <= set("0123456789 ")
        ):
            raise ValueError("it is none of these")
        policy = StaticTree(read_paths(value))
        if policy.nodes > MAX_NODES or len(policy.paths[-1]) > deepest:
            raise ValueError(f"a tree has at most {MAX_NODES} nodes with the root, {deepest} deep")
    except ValueError as error:
        raise ValueError(
            f"tree must be one of {', '.join(TREES)}, or paths such as '0 1 00', got {shown(value)}: {error}"
        ) from None
    return policy.paths


def method_of(value: Any) -> Method:
    """Return the method of an id. Raises ValueError naming the value and the allowed ids."""
    if not isinstance(value, str) or value not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {shown(value)}")
    return METHODS[value]


def methods_of(values: Any) -> list[Method]:
    """Return the methods of a list of ids, in the order of the table, each once.

    Raises ValueError as `method_of` does.
    """
    if not isinstance(values, (list, tuple)) or not values:
        raise ValueError(
            f"methods must be a list of one or more of {', '.join(METHODS)}, got {shown(values)}"
        )
    chosen = {method_of(v).id for v in values}
    return [m for m in METHODS.values() if m.id in chosen]
