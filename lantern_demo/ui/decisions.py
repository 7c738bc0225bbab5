"""What decided on the guesses of a step: a sentence about the rule, and a short row per guess.

A row is [node], or where the rule counted probabilities [node, own, counted, limit]: the model's
probability of the guess, the one that the rule counted, and what that had to reach. Whether a guess
was kept follows from the step's path. The page's scripts make the words of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from lantern_demo.decoding.methods import Method
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule, columns
from lantern_demo.runs.acceptance import tried_in
from lantern_demo.runs.record import Entry
from lantern_demo.settings.settings import Settings


class Words(NamedTuple):
    """When a guess is kept, and what became of one without numbers."""

    decides: str
    kept: str = "Kept."
    dropped: str = "Dropped."


DECISIONS = {
    "drawn": Words(
        "A guess is kept if the model drew the same piece, with the same random numbers.",
        "The model drew the same piece: kept.",
        "The model drew another piece: dropped.",
    ),
    "likeliest": Words(
        "A guess is kept if it is the model's likeliest piece in its place.",
        "It is the model's likeliest piece: kept.",
        "The model likes another piece best: dropped.",
    ),
    "chance": Words(
        "A guess is kept if p, the model's probability of it, reaches a number drawn at random."
    ),
    "lent": Words(
        "A guess is kept if its probability p, plus what its look-alikes lend ({most}), reaches a "
        "number drawn at random."
    ),
    "lent, greedy": Words(
        "A guess is kept if its probability p, plus what its look-alikes lend ({most}), reaches "
        "that of the likeliest piece."
    ),
    "relaxed": Words("A rule more relaxed than the exact one decides which guesses are kept."),
}


@dataclass(frozen=True)
class Decision:
    """What decided on a run's guesses: one of DECISIONS, by a rule."""

    name: str
    rule: Rule

    def words(self) -> dict[str, object]:
        """Return the words for the page's scripts, and whether look-alikes lend probability."""
        words = DECISIONS[self.name]
        decides = words.decides.format(most=most_lent(self.rule))
        lends = isinstance(self.rule, Lantern)
        return words._replace(decides=decides)._asdict() | {"lends": lends}

    def trials(self, entry: Entry) -> list[list[list[float]]]:
        """Return the rows of a record's entry by step, without those past the picture's end."""
        found: list[list[list[float]]] = []
        before, events = 0, entry["events"]
        relaxed, rows = isinstance(self.rule, Lantern), events["trials"]
        for after, tree, counted in zip(events["committed"], events["trees"], rows, strict=True):
            tried = tried_in(tree, counted, after - before)
            nodes = [node for drafts in tried for node in drafts]
            kept: dict[float, str]  # by node
            kept = dict(zip(tree["path"][1:], events["kinds"][before:after], strict=False))
            # Where the exact rule keeps a guess, too, it needs nothing of its look-alikes.
            numbers = [
                [node, own, own if relaxed and kept.get(node) == "e" else score, limit]
                for node, own, score, limit in counted
                if node in nodes
            ]
            found.append(numbers if counted else [[node] for node in nodes])
            before = after
        return found

    def lent(self, entry: Entry) -> list[float]:
        """Return the share of its limit that each look-alike was lent, in the picture's order.

        The list is empty where the rule kept no numbers, or lends nothing.
        """
        found: list[float] = []
        before, events = 0, entry["events"]
        if not isinstance(self.rule, Lantern):
            return found
        for after, tree, trials in zip(
            events["committed"], events["trees"], events["trials"], strict=True
        ):
            counted = {node: (own, limit) for node, own, _, limit in trials}
            kinds = events["kinds"][before:after]
            for node, kind in zip(tree["path"][1:], kinds, strict=False):
                if kind == "r" and node in counted:
                    own, limit = counted[node]
                    found.append(min(1.0, max(0.0, 1 - own / limit)))
            before = after
        return found


def most_lent(rule: Rule) -> str:
    """Return how much the look-alikes of a guess lend it at most."""
    if isinstance(rule, LanternPlusPlus):
        return f"at most {rule.bound - 1:g} times p"
    return f"at most {rule.bound:g}" if isinstance(rule, Lantern) else ""


def decision_of(settings: Settings, method: Method, entry: Entry | None = None) -> Decision:
    """Return what decides on a method's guesses.

    entry: the method's part of a record, which shows whether guesses were compared with the model's
    own draws. By default a rule decided by probabilities.
    """
    rule, greedy = settings.rule(method), settings.temperature == 0
    if entry is not None and entry["noise"] == "shared":
        return Decision("drawn", rule)
    if greedy and not columns(rule):
        return Decision("likeliest", Rule())
    if isinstance(rule, Lantern) and rule.relaxes:
        return Decision("lent, greedy" if greedy else "lent", rule)
    return Decision("chance" if type(rule) in (Rule, Lantern, LanternPlusPlus) else "relaxed", rule)
