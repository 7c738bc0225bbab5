"""Why a guess was kept or not, in the words of the rule that decided: what it counted, what that had to exceed, and what follows.

What a rule counts is the rule's to say (`explain` of `decoding.rules.Rule`), and here are the sentences around it. With shared
noise there is nothing to count: a guess was held against the model's own draw, and there are classes for that. The page's script
fills in numbers and prints, and knows no rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from lantern_demo.decoding.methods import Method
from lantern_demo.decoding.rules import Lantern
from lantern_demo.settings.settings import Settings


@dataclass(frozen=True)
class Evidence:
    """The sentences around a rule's words. `greedy`: no dice were thrown, and what was counted had to reach the chance of the
    model's favourite."""

    rule: Any  # a `Rule`, of the class that the words are for
    greedy: bool = False

    kept_as: ClassVar[str] = "trials"  # what a record's events call what was tried
    reason: ClassVar[str] = (
        ""  # why a guess was kept that the exact rule would have refused, where that is not what the rule says
    )

    def case(self, kept: str | None) -> str:
        """Which of the `cases` a trial is. kept: the letter that records have for an accepted guess, None for a refused one."""
        if kept == "e" and isinstance(self.rule, Lantern):
            return "alone"
        return {"e": "exact", "r": "relaxed"}.get(kept or "", "refused")

    def cases(self) -> dict[str, dict[str, Any]]:
        """What is said of a trial, and the numbers that belong to it: without any, {0}, {1}... of a sentence are what its row
        ends with."""
        own, told = ("the model's chance of it", "{own}"), self.rule.explain()
        limit = (
            "had to reach (the chance of the model's favourite)" if self.greedy else "had to exceed (drawn at random)",
            "{limit}",
        )
        numbers = [own, *told.counts, limit]
        return {
            "refused": {"said": "was refused.", "numbers": numbers},
            "exact": {"said": "was accepted, as exact decoding would have.", "numbers": numbers},
            "alone": {"said": "was accepted: its own chance was enough.", "numbers": [own, limit]},
            "relaxed": {"said": f"was accepted only {told.only}: exact decoding would have refused it here.", "numbers": numbers},
        }

    def told(self) -> dict[str, Any]:
        """All that the page's script says of the rule."""
        return {
            "headings": {"e": "a guess kept exactly", "r": self.rule.explain().heading, "t": "drawn by the model"},
            "because": self.because(),
            "cases": self.cases(),
            "note": self.note(),
        }

    def note(self) -> str:
        """What the bar of a trial shows."""
        told = self.rule.explain()
        return f"{told.bar} A guess is kept when the bar {'reaches' if self.greedy else 'passes'} the line.{told.note}"

    def because(self) -> dict[str, str]:
        """Why a token is what it is: by the letter that records have for it, where it is the first, and where guesses were
        refused."""
        if self.greedy:
            kept = "A guess stood here, and it is what the model itself likes best."
            alone = "This guess is not what the model likes best."
            refused = "The guesses tried here were refused, and what the model likes best stands here."
        else:
            kept = "A guess stood here, and the model's own dice took it: exact decoding keeps it too."
            alone = "The model's dice alone would have refused this guess."
            refused = "The guesses tried here were refused, and the model drew another piece itself."
        return {
            "first": "The first piece: the model draws it itself after reading the prompt.",
            "e": kept,
            "r": f"{alone} {self.reason or self.rule.explain().because}",
            "t": "The model drew this piece itself: no guess reached this place.",
            "refused": refused,
        }

    def trials(self, events: dict[str, Any]) -> list[list[list[Any]]]:
        """What was tried in a record's events by step, without what was for tokens behind the picture's end: [node, case, and
        what belongs to the case: own, counted, limit, or what its sentence names]. None where it was not kept."""
        found, before = [], 0
        rows = events.get(self.kept_as, [[]] * len(events["committed"]))
        for after, tree, tried in zip(events["committed"], events["trees"], rows, strict=True):
            kept = dict(zip(tree["path"][1:], events["kinds"][before:after], strict=False))
            decided = set(tree["path"][: after - before])  # nodes whose children were tried for tokens of the picture
            found.append([self.row(row, kept.get(row[0])) for row in tried if tree["parents"][row[0]] in decided])
            before = after
        return found

    def row(self, trial: Sequence[Any], kept: str | None) -> list[Any]:
        """A record's row as `trials` gives it. kept: as in `case`."""
        node, own, stands, limit = trial
        case = self.case(kept)
        return [node, case, own, own if case == "alone" else stands, limit]


class Undrafted(Evidence):
    """Methods without drafts, which have no rule."""

    def told(self) -> dict[str, Any]:
        told = super().told()
        return told | {"headings": told["headings"] | {"r": "another one than the model's own"}}

    def because(self) -> dict[str, str]:
        own = "likes another piece best here" if self.greedy else "draws another piece here, with the same noise"
        return super().because() | {
            "t": "This method makes no guesses: the model drew this piece itself.",
            "r": f"With all pieces before it the model {own}.",
        }


class Compared(Evidence):
    """Shared noise: a guess was held against what the model itself drew in its place. Greedy that is its favourite."""

    kept_as = "compared"
    reason = "The model itself drew another piece here, and the guess stands for it."

    def cases(self) -> dict[str, dict[str, Any]]:
        drew, this = (
            ("likes {0} best here", "likes this very piece best") if self.greedy else ("drew {0}", "drew this very piece")
        )
        said = {
            "refused": f"was refused: the model itself {drew}{{1}}.",
            "exact": f"was accepted: the model itself {this} here.",
            "relaxed": f"was accepted: the model itself {drew}{{1}}.",
        }
        return {case: {"said": sentence, "numbers": []} for case, sentence in said.items()}

    def note(self) -> str:
        kept = "it is what the model itself likes best" if self.greedy else "the model itself drew it"
        return f"A guess is kept when {kept} in its place{self.also()}."

    def also(self) -> str:
        """What else keeps a guess."""
        return ""

    def because(self) -> dict[str, str]:
        told = super().because()
        if self.greedy:
            return told
        return told | {
            "e": "The model's own draw here is this very guess. After the same pieces vanilla draws it too, with the same dice.",
            "r": self.reason,
            "refused": f"The model drew this piece itself, and no guess tried here was the same{self.nor()}.",
        }

    def nor(self) -> str:
        """What else none of the refused guesses was."""
        return ""

    def row(self, trial: Sequence[Any], kept: str | None) -> list[Any]:
        node, drawn, near, tokens = trial
        case = "refused" if near < 0 else "relaxed" if near else "exact"
        return [node, case, drawn, self.where(near, tokens - 1)]

    def where(self, near: int, others: int) -> str:
        """Where the model's own draw stands, when it is not the guess: the near-th of so many others that count, or at -1 none of
        them."""
        return ""


class ComparedNear(Compared):
    """LANTERN with shared noise: the guess stands for its neighbours in the codebook as well, as many as may lend to it."""

    reason = "The model itself drew another piece here, a look-alike of this guess, and the guess stands for it."

    def also(self) -> str:
        return (
            f", or one of its look-alikes that count: the {self.rule.k} nearest at most, as long as their chances add up to no "
            f"more than {self.rule.most()}"
        )

    def nor(self) -> str:
        return ", or had it among its look-alikes that count"

    def where(self, near: int, others: int) -> str:
        if not others:
            return ", and none of the guess's look-alikes count"
        if others == 1:
            return f", which is {'not ' if near < 0 else ''}the guess's one look-alike that counts"
        place = "none" if near < 0 else f"the {ordinal(near)}"
        return f", which is {place} of the guess's {others} look-alikes that count"


def evidence_of(settings: Settings, method: Method, entry: dict[str, Any] | None = None) -> Evidence:
    """The words for a method's trials under these settings. entry: what a record has of the run, which says whether drafts were
    held against the model's own draws; without it, and where it does not say so, a rule of chances decided."""
    greedy = settings.temperature == 0
    rule = settings.rule(method).greedy if greedy else settings.rule(method)
    if not method.guesses:
        return Undrafted(rule, greedy)
    # greedy there is no noise to share, and what was compared is there all the same
    if entry is not None and (entry["noise"] == "shared" or "compared" in entry["events"]):
        return (ComparedNear if isinstance(rule, Lantern) else Compared)(rule, greedy)
    return Evidence(rule, greedy)


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def trials_of_older(judged: list[list[Sequence[float]]]) -> list[list[list[float]]]:
    """The trials of an older record, which has [node, p, near, limit] of each: near is the proximity set's mass without p, or 0
    where p was enough by itself. There p stands for what was counted: at least that much was."""
    return [[[node, p, p + near, limit] for node, p, near, limit in tried] for tried in judged]
