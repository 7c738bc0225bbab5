"""The methods as data: drafts and an acceptance rule each. A new method is a new row, of those that a comparison has
by default or of the others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .config import Method as Method
from .drafting import Drafts, DynamicTree, StaticTree
from .opt_tree import OptTree
from .rules import Lantern, LanternPlusPlus, Rule
from .successors import Ensemble, Grouped, Typical, Weighted
from .wavefront import Wavefront
from .window import CoupledWindow, Window

_BY_DEFAULT = (
    Method("vanilla", "Vanilla", Drafts, Rule, True, "One target pass per token, no drafts."),
    Method("eagle1", "EAGLE-1", StaticTree, Rule, True, "A fixed draft tree of sampled tokens, exact acceptance."),
    Method("eagle2", "EAGLE-2", DynamicTree, Rule, True, "A draft tree grown where the drafter is sure, exact acceptance."),
    Method(
        "lantern",
        "LANTERN",
        DynamicTree,
        Lantern,
        False,
        "EAGLE-2's tree; a draft also counts the mass of its codebook neighbours, up to delta.",
    ),
    Method(
        "lantern++",
        "LANTERN++",
        StaticTree,
        LanternPlusPlus,
        False,
        "A fixed tree; the neighbours' mass counts up to lambda - 1 times the draft's own probability.",
    ),
)
_OTHERS = (
    Method("sjd", "SJD", Window, Rule, True, "No drafter: the model's own guesses from the pass before, exact acceptance."),
    Method("scd", "SCD", CoupledWindow, Rule, True, "As SJD, but a guess that is made anew mostly stays what it was."),
    Method("gsd", "GSD", Window, Grouped, False, "As SJD; a guess counts together with the tokens that are about as likely."),
    Method(
        "cool-sd",
        "COOL-SD",
        StaticTree,
        Weighted,
        False,
        "A fixed tree; a guess's own probability is weighted up, the less the deeper it lies.",
    ),
    Method(
        "typical",
        "Typical",
        StaticTree,
        Typical,
        False,
        "A fixed tree; every guess is kept that is likely enough for how sure the model is.",
    ),
    Method(
        "ensemble",
        "Ensemble",
        StaticTree,
        Ensemble,
        False,
        "A fixed tree; exact acceptance against a mixture of the model's odds and the drafter's.",
    ),
    Method(
        "opt-tree",
        "OPT-Tree",
        OptTree,
        Rule,
        True,
        "A draft tree chosen anew in each step: it grows where the drafter is sure, exact acceptance.",
    ),
    Method(
        "zipar",
        "ZipAR",
        Wavefront,
        Rule,
        False,
        "No drafts: a row begins while the one above is still being drawn, and each pass draws a token of every open row.",
    ),
)

METHODS: dict[str, Method] = {row.id: row for row in (*_BY_DEFAULT, *(replace(row, default=False) for row in _OTHERS))}


def default_methods(available: Iterable[Method]) -> list[str]:
    """The ids that a comparison has which names none: those by default, and without a drafter all lossless ones."""
    found = list(available)
    with_drafter = any(method.needs_drafter for method in found)
    return [method.id for method in found if method.default or (method.lossless and not with_drafter)]
