"""The knobs of a run: their defaults, their limits, and how a method reads them."""

from __future__ import annotations

import reprlib
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from lantern_demo.decoding.acceptance import Rule
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.trees import STATIC_TREES, TreePolicy, read_paths, write_paths

# Trees by name: what static methods use, and what dynamic ones use (top_k, depth, nodes with the root).
# "fit" is chosen for the machine (see `fitting`), "paper" is what LANTERN and LANTERN++ published, "small" suits machines on
# which checking a node is not free, and stands in for "fit" where a model has no calibration.
SMALL_STATIC = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
DYNAMIC_TREES: dict[str, tuple[int, int, int]] = {"small": (4, 2, 8), "paper": (10, 4, 59)}
FIT = "fit"
TREES = (FIT, *DYNAMIC_TREES, *STATIC_TREES)

MAX_SEED = 2**31 - 1
MAX_LANTERN_K = 1000  # columns of the neighbour table

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def told(value: Any) -> str:
    """A value as a sentence repeats it: short, whatever was sent."""
    try:
        text = _SHORT.repr(value)
        return text if len(text) <= 120 else f"{text[:117]}..."
    except (ValueError, RecursionError):  # a number with thousands of digits, which Python does not write down
        return f"a {type(value).__name__} that is too long to repeat"


@dataclass(frozen=True)
class Limit:
    """What a number may be."""

    low: float
    high: float
    whole: bool = False

    def check(self, name: str, value: Any) -> Any:
        """The value as int or float. Raises ValueError naming the parameter, the value and what is allowed."""
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not self.low <= value <= self.high or (self.whole and value != int(value)):
            kind, digits = ("a whole number", ".0f") if self.whole else ("a number", "g")
            raise ValueError(f"{name} must be {kind} between {self.low:{digits}} and {self.high:{digits}}, got {told(value)}")
        return int(value) if self.whole else float(value)


LIMITS: dict[str, Limit] = {
    "seed": Limit(0, MAX_SEED, whole=True),
    "temperature": Limit(0, 2),
    "top_k": Limit(0, 65536, whole=True),
    "top_p": Limit(0.05, 1),
    "cfg_scale": Limit(1, 20),
    "lantern_k": Limit(0, MAX_LANTERN_K, whole=True),
    "lantern_delta": Limit(0, 1),
    "lanternpp_k": Limit(0, MAX_LANTERN_K, whole=True),
    "lanternpp_lambda": Limit(1, 100),
    "draft_top_k": Limit(1, 16, whole=True),
    "draft_depth": Limit(0, 8, whole=True),
    "draft_nodes": Limit(2, 128, whole=True),
}


@dataclass(frozen=True)
class Settings:
    """All knobs of a run. Raises ValueError for a value that is not allowed.

    The draft_* values are those of `tree` unless given: they shape the dynamic tree (EAGLE-2), `nodes` counting the root.
    """

    seed: int = 0
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 keeps the whole vocabulary
    top_p: float = 1.0
    cfg_scale: float = 3.0  # 1 is no guidance
    lantern_k: int = 100
    lantern_delta: float = 0.2
    lanternpp_k: int = 10
    lanternpp_lambda: float = 3.0
    tree: str = FIT  # one of TREES, or the paths of a static tree such as "0 1 00"
    draft_top_k: int | None = None
    draft_depth: int | None = None
    draft_nodes: int | None = None
    residual: Literal["set", "released"] = "set"
    neighbours: Literal["decoder", "raw"] = "decoder"  # which codebook vectors the proximity sets are measured on

    def __post_init__(self) -> None:
        for name, limit in LIMITS.items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, limit.check(name, value))
        if not isinstance(self.tree, str) or self.tree not in TREES:
            _own_tree(self.tree)
        for name, allowed in (("residual", ("set", "released")), ("neighbours", ("decoder", "raw"))):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {told(value)}")
        top_k, depth, nodes = self.dynamic_shape
        pool = top_k + depth * top_k * top_k
        if nodes > pool + 1:
            raise ValueError(
                f"draft_nodes must be at most {pool + 1}, the nodes that draft_top_k {top_k} and draft_depth {depth} make, got {nodes}"
            )

    @property
    def dynamic_shape(self) -> tuple[int, int, int]:
        """top_k, depth and nodes of the dynamic tree."""
        base = DYNAMIC_TREES.get(self.tree, DYNAMIC_TREES["small"])
        given = (self.draft_top_k, self.draft_depth, self.draft_nodes)
        top_k, depth, nodes = (b if g is None else g for b, g in zip(base, given, strict=True))
        return top_k, depth, nodes

    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k, self.top_p, self.cfg_scale)

    def fits(self, method: Method) -> bool:
        """Whether the machine is to choose the tree of a method: not where part of its shape is given."""
        given = (self.draft_top_k, self.draft_depth, self.draft_nodes) if method.tree == "dynamic" else ()
        return self.tree == FIT and method.tree != "none" and all(value is None for value in given)

    def tree_policy(self, method: Method) -> TreePolicy:
        """The draft tree that a method uses under these settings, when the machine does not choose it."""
        if method.tree == "none":
            return TreePolicy.none()
        if method.tree == "dynamic":
            top_k, depth, nodes = self.dynamic_shape
            return TreePolicy.dynamic(top_k=top_k, depth=depth, nodes=nodes)
        if self.tree in (FIT, "small"):
            return TreePolicy.static(SMALL_STATIC)
        if self.tree == "paper":
            return TreePolicy.static("naive_extend_57")
        return TreePolicy.static(self.tree) if self.tree in STATIC_TREES else _own_tree(self.tree)

    def rule(self, method: Method) -> Rule:
        """The acceptance rule that a method uses under these settings."""
        if method.rule == "additive":
            return Rule("additive", self.lantern_k, self.lantern_delta, self.residual)
        if method.rule == "multiplicative":
            return Rule("multiplicative", self.lanternpp_k, self.lanternpp_lambda, self.residual)
        return Rule()

    def with_changes(self, **changes: Any) -> Settings:
        """These settings with some values replaced. Raises ValueError for an unknown name or a value not allowed."""
        known = {f.name for f in fields(self)}
        for name in changes:
            if name not in known:
                raise ValueError(f"unknown setting {told(name)}; allowed are {', '.join(sorted(known))}")
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _own_tree(value: Any) -> TreePolicy:
    """The static tree of a text of paths. Raises ValueError when it is none, or too large."""
    deepest, most = int(LIMITS["draft_depth"].high) + 1, int(LIMITS["draft_nodes"].high)
    try:
        if not isinstance(value, str) or len(value) > most * (deepest + 1) or not set(value) <= set("0123456789 "):
            raise ValueError("it is none of these")
        policy = TreePolicy.static(read_paths(value))
        if policy.nodes > most or len(policy.paths[-1]) > deepest:
            raise ValueError(f"a tree has at most {most} nodes with the root, {deepest} deep")
    except ValueError as error:
        raise ValueError(
            f"tree must be one of {', '.join(TREES)}, or paths such as '0 1 00', got {told(value)}: {error}"
        ) from None
    return policy


def smaller_tree(method: Method) -> TreePolicy:
    """The draft tree of a method where memory is short."""
    return Settings(tree="small").tree_policy(method)


def asking_for(policy: TreePolicy) -> dict[str, Any]:
    """The settings that give a draft tree, so that a record can be run again with the tree it had."""
    if policy.kind == "static":
        return {"tree": write_paths(policy.paths)}
    if policy.kind == "dynamic":
        return {"draft_top_k": policy.top_k, "draft_depth": policy.depth, "draft_nodes": policy.nodes}
    return {}


def method_of(value: Any) -> Method:
    """The method of an id. Raises ValueError naming the value and what is allowed."""
    if not isinstance(value, str) or value not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {told(value)}")
    return METHODS[value]


def methods_of(values: Any) -> list[Method]:
    """The methods of a list of ids, in the order of the table, each once. Raises ValueError as `method_of` does."""
    if not isinstance(values, (list, tuple)) or not values:
        raise ValueError(f"methods must be a list of one or more of {', '.join(METHODS)}, got {told(values)}")
    chosen = {method_of(v).id for v in values}
    return [m for m in METHODS.values() if m.id in chosen]
