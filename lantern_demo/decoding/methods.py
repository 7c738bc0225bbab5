"""The methods as data: a draft source and an acceptance rule each. A new method is a new row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """One row of the table of methods.

    `source` says where drafts come from: "none", the drafter with a "static" or a "dynamic" tree, or a
    "window" or "coupled" window that the target guesses itself; "wavefront" draws rows side by side instead. `rule` is a kind of
    `acceptance.Rule`, "none" without drafts. `lossless`: every token follows the target's own law. `summary` is a sentence for
    people. `default`: a comparison that names no methods has it.
    """

    id: str
    label: str
    source: str
    rule: str
    lossless: bool
    summary: str
    default: bool = True

    @property
    def needs_drafter(self) -> bool:
        """Whether it cannot do without a drafter."""
        return self.source in ("static", "dynamic")


_ROWS = (
    Method("vanilla", "Vanilla", "none", "none", True, "One target pass per token, no drafts."),
    Method("eagle1", "EAGLE-1", "static", "exact", True, "A fixed draft tree of sampled tokens, exact acceptance."),
    Method("eagle2", "EAGLE-2", "dynamic", "exact", True, "A draft tree grown where the drafter is sure, exact acceptance."),
    Method(
        "lantern", "LANTERN", "dynamic", "additive", False,
        "EAGLE-2's tree; a draft also counts the mass of its codebook neighbours, up to delta.",
    ),
    Method(
        "lantern++", "LANTERN++", "static", "multiplicative", False,
        "A fixed tree; the neighbours' mass counts up to lambda - 1 times the draft's own probability.",
    ),
    Method(
        "sjd", "SJD", "window", "exact", True,
        "No drafter: the model's own guesses from the pass before, exact acceptance.", default=False,
    ),
    Method(
        "scd", "SCD", "coupled", "exact", True,
        "As SJD, but a guess that is made anew mostly stays what it was.", default=False,
    ),
    Method(
        "gsd", "GSD", "window", "grouped", False,
        "As SJD; a guess counts together with the tokens that are about as likely.", default=False,
    ),
    Method(
        "cool-sd", "COOL-SD", "static", "weighted", False,
        "A fixed tree; a guess's own probability is weighted up, the less the deeper it lies.", default=False,
    ),
    Method(
        "zipar", "ZipAR", "wavefront", "none", False,
        "No drafts: a row begins while the one above is still being drawn, and each pass draws a token of every open row.", default=False,
    ),
)  # fmt: skip

METHODS: dict[str, Method] = {method.id: method for method in _ROWS}


def default_methods(available: Iterable[Method]) -> list[str]:
    """The ids that a comparison has which names none: those by default, and without a drafter all lossless ones."""
    found = list(available)
    with_drafter = any(method.needs_drafter for method in found)
    return [method.id for method in found if method.default or (method.lossless and not with_drafter)]
