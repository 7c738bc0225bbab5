"""The table of methods: each row has a kind of drafts and an acceptance rule. A new method is a new
row, here or passed to `register`."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass

from .checks import check_rule
from .drafting import DraftConfig, DynamicTree, StaticTree
from .rules import Lantern, LanternPlusPlus, Rule
from .window import Window


@dataclass(frozen=True)
class Method:
    """One row of the table of `methods`: the source of the drafts, and the rule that accepts them.
    A method without drafts has the exact rule. `lossless`: every token follows the target's own
    distribution. `summary` is one sentence for the page. `default`: part of a comparison that names
    no methods."""

    id: str
    label: str
    drafts: type[DraftConfig]
    rule: Rule  # with its default values
    lossless: bool
    summary: str
    default: bool = True

    @property
    def needs_drafter(self) -> bool:
        """Whether it cannot run without a drafter."""
        return self.drafts.needs_drafter

    @property
    def alone(self) -> bool:
        """Whether the target draws token by token, without drafts."""
        return self.drafts is DraftConfig


_ROWS = (
    Method(
        "vanilla", "Vanilla", DraftConfig, Rule(), True, "One target pass per token, no drafts."
    ),
    Method(
        "eagle1",
        "EAGLE-1",
        StaticTree,
        Rule(),
        True,
        "A fixed draft tree of sampled tokens, exact acceptance.",
    ),
    Method(
        "eagle2",
        "EAGLE-2",
        DynamicTree,
        Rule(),
        True,
        "A draft tree grown where the drafter is sure, exact acceptance.",
    ),
    Method(
        "lantern",
        "LANTERN",
        DynamicTree,
        Lantern(),
        False,
        "EAGLE-2's tree; the probability of a draft's codebook neighbours counts too, up to delta.",
    ),
    Method(
        "lantern++",
        "LANTERN++",
        StaticTree,
        LanternPlusPlus(),
        False,
        "A fixed tree; the neighbours' probability counts up to lambda - 1 times the draft's own.",
    ),
    Method(
        "sjd",
        "SJD",
        Window,
        Rule(),
        True,
        "No drafter: the model guesses in the step before. Exact acceptance.",
        default=False,
    ),
)

METHODS: dict[str, Method] = {row.id: row for row in _ROWS}


def register(method: Method) -> Method:
    """Add a method to this process: its drafts, and its rule with the rule's values. Return it.
    It replaces one registered before with its id. Raise ValueError for the id of a method here,
    and for a row that cannot be run."""
    name, rule = method.id, method.rule
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9+-]{0,39}", name):
        raise ValueError(
            f"method id is {name!r:.80}; it must be 1 to 40 of a to z, 0 to 9, + and -"
        )
    if name in {row.id for row in _ROWS}:
        raise ValueError(f"method id is {name!r}, which there is already; take another")
    if not isinstance(method.drafts, type) or not issubclass(method.drafts, DraftConfig):
        raise ValueError(
            f"method {name} has the drafts {method.drafts!r:.80}; "
            "they must be a class of DraftConfig"
        )
    if not isinstance(rule, Rule):
        raise ValueError(
            f"method {name} has the rule {rule!r:.80}; it must be a Rule with its values"
        )
    if rule.relaxes and (method.lossless or method.alone):
        why = "is said to be lossless" if method.lossless else "makes no guesses"
        raise ValueError(
            f"method {name} {why}, and its rule {rule} relaxes; one of the two must change"
        )
    if rule.relaxes and method.drafts.drafts_own_draws:
        raise ValueError(
            f"method {name} drafts from a window, and its rule {rule} relaxes; it must be exact"
        )
    check_rule(rule)
    METHODS[name] = method
    return method


def default_methods(available: Iterable[Method]) -> list[str]:
    """Return the ids for a comparison that names no methods: the default ones, and without a
    drafter all lossless ones."""
    found = list(available)
    with_drafter = any(method.needs_drafter for method in found)
    return [
        method.id for method in found if method.default or (method.lossless and not with_drafter)
    ]


def default_method(unavailable: Container[str]) -> str:
    """Return the id of a run that names no method: LANTERN++, or SJD without a drafter."""
    return "sjd" if "lantern++" in unavailable else "lantern++"
