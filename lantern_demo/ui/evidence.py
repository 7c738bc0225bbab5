"""Why a guess was kept or not, in the words of the rule that decided: what it counted, what that had to exceed, and what follows.

A rule has a class of words here, made once for a run; one that has none is told in general words, which are true of any rule. The page's
script fills in numbers and prints, and knows no rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from lantern_demo.decoding.acceptance import Rule, counted
from lantern_demo.decoding.methods import Method
from lantern_demo.settings import Settings

Line = tuple[str, str]  # a label, and a value in which {own}, {counted}, {extra} (counted without own) and {limit} are filled in


@dataclass(frozen=True)
class Evidence:
    """The words of any rule. `greedy`: no dice were thrown, and what was counted had to reach the chance of the model's favourite."""

    rule: Rule
    greedy: bool = False

    # Of a guess that the exact rule would have refused: what is over it, why it was kept, and the same in a list of trials.
    heading: ClassVar[str] = "a guess kept by a looser rule"
    reason: ClassVar[str] = "The method's looser rule kept it: the piece may not be what the model would have drawn."
    only: ClassVar[str] = "by the looser rule"
    bar: ClassVar[str] = "The dark part of the bar is the model's chance of the guess, the striped one what the method adds."

    def counts(self) -> list[Line]:
        """What the rule counts beside the model's chance of the guess."""
        return [("the method counts", "{counted}")]

    def case(self, kept: str | None, own: float, limit: float) -> str:
        """Which of the `cases` a trial is. kept: the letter that records have for an accepted guess, None for a refused one."""
        return {"e": "exact", "r": "relaxed"}.get(kept or "", "refused")

    def cases(self) -> dict[str, dict[str, Any]]:
        """What is said of a trial, and the numbers that belong to it."""
        own = ("the model's chance of it", "{own}")
        limit = (
            "had to reach (the chance of the model's favourite)" if self.greedy else "had to exceed (drawn at random)",
            "{limit}",
        )
        numbers = [own, *self.counts(), limit]
        return {
            "refused": {"said": "was refused.", "numbers": numbers},
            "exact": {"said": "was accepted, as exact decoding would have.", "numbers": numbers},
            "alone": {"said": "was accepted: its own chance was enough.", "numbers": [own, limit]},
            "relaxed": {"said": f"was accepted only {self.only}: exact decoding would have refused it here.", "numbers": numbers},
        }

    def told(self) -> dict[str, Any]:
        """All that the page's script says of the rule."""
        return {
            "headings": {"e": "a guess kept exactly", "r": self.heading, "t": "drawn by the model"},
            "because": self.because(),
            "cases": self.cases(),
            "note": self.note(),
        }

    def note(self) -> str:
        """What the bar of a trial shows."""
        return f"{self.bar} A guess is kept when the bar {'reaches' if self.greedy else 'passes'} the line."

    def because(self) -> dict[str, str]:
        """Why a token is what it is: by the letter that records have for it, where it is the first, and where guesses were refused."""
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
            "r": f"{alone} {self.reason}",
            "t": "The model drew this piece itself: no guess reached this place.",
            "refused": refused,
        }

    def trials(self, events: dict[str, Any]) -> list[list[list[Any]]]:
        """The trials of a record's events by step, without those for tokens behind the picture's end: [node, case, own, counted, limit]."""
        found, before = [], 0
        for after, tree, tried in zip(events["committed"], events["trees"], events["trials"], strict=True):
            kept = dict(zip(tree["path"][1:], events["kinds"][before:after], strict=False))
            decided = set(tree["path"][: after - before])  # nodes whose children were tried for tokens of the picture
            found.append([self._row(trial, kept.get(trial[0])) for trial in tried if tree["parents"][trial[0]] in decided])
            before = after
        return found

    def _row(self, trial: Sequence[float], kept: str | None) -> list[Any]:
        node, own, stands, limit = trial
        case = self.case(kept, own, limit)
        return [node, case, own, own if case == "alone" else stands, limit]


class Undrafted(Evidence):
    """Methods without drafts, which have no rule."""

    def because(self) -> dict[str, str]:
        return super().because() | {"t": "This method makes no guesses: the model drew this piece itself."}


class Exact(Evidence):
    """Nothing counts but the model's chance of the draft."""

    bar = "The bar is the model's chance of the guess."

    def counts(self) -> list[Line]:
        return []


class Lent(Evidence):
    """LANTERN: the draft's neighbours in the codebook lend it their probability, up to delta. When its own is enough, none is needed."""

    heading = "a guess kept because it looks right"
    reason = (
        "Its look-alikes lent it their chances, and with these it was kept: the picture may differ from the model's own here, mostly by "
        "something that looks the same."
    )
    only = "because its look-alikes count with it"
    bar = "The dark part of the bar is the model's chance of the guess, the striped one what its look-alikes lend."

    def counts(self) -> list[Line]:
        return [("its look-alikes lend", "{extra}"), ("they may lend at most", self.most())]

    def most(self) -> str:
        return f"{self.rule.bound:g} (delta)"

    def case(self, kept: str | None, own: float, limit: float) -> str:
        return "alone" if kept == "e" else super().case(kept, own, limit)


class LentByShare(Lent):
    """LANTERN++: up to lambda - 1 times the draft's own probability."""

    def most(self) -> str:
        return f"{self.rule.slack:g} times its own chance (lambda \u2212 1)"


class Weighed(Evidence):
    """COOL-SD: the draft's probability is weighed up, the less the deeper it lies."""

    heading = "a guess kept because guesses count for more"
    reason = (
        "This method lets a guess count for more than its chance, and with that it was kept: the piece may not be what the model would "
        "have drawn."
    )
    only = "because its chance is weighed up"
    bar = "The dark part of the bar is the model's chance of the guess, the striped one what weighing adds."

    def counts(self) -> list[Line]:
        return [("weighed, it counts as", "{counted}")]

    def note(self) -> str:
        first = self.rule.bound * math.exp(-self.rule.mu)
        return (
            f"{super().note()} The weight is {first:.3g} for a step's first guess, and about half of that for each one behind it."
        )


class Grouped(Evidence):
    """GSD: the draft counts together with the tokens about as likely, in what was counted as well as in what that had to exceed."""

    heading = "a guess kept with others about as likely"
    reason = (
        "It counted together with pieces that are about as likely, and with these it was kept: the piece may not be what the model would "
        "have drawn."
    )
    only = "because pieces about as likely count with it"
    bar = "The dark part of the bar is the model's chance of the guess, the striped one that of pieces about as likely; the line is for all of them."

    def counts(self) -> list[Line]:
        return [
            ("pieces about as likely add", "{extra}"),
            ("whose chances differ from its own by less than", f"{self.rule.bound:g} (delta)"),
        ]

    def case(self, kept: str | None, own: float, limit: float) -> str:
        return "alone" if kept == "e" and own > limit else super().case(kept, own, limit)


WORDS: dict[str, type[Evidence]] = {
    "none": Undrafted, "exact": Exact, "additive": Lent, "multiplicative": LentByShare, "weighted": Weighed, "grouped": Grouped,
}  # fmt: skip


def evidence_of(settings: Settings, method: Method) -> Evidence:
    """The words for a method's trials under these settings."""
    greedy = settings.temperature == 0
    rule = settings.rule(method).greedy if greedy else settings.rule(method)
    return WORDS.get("none" if method.rule == "none" else rule.kind, Evidence)(rule, greedy)


def trials_of_older(rule: Rule, trees: list[dict[str, Any]], judged: list[list[Sequence[float]]]) -> list[list[list[float]]]:
    """The trials of an older record, which has [node, p, near, limit] of each: near is the proximity set's mass without p, or 0 where p
    was enough by itself. There p stands for what was counted: at least that much was."""
    rows = [(*row, tree["parents"]) for tree, tried in zip(trees, judged, strict=True) for row in tried]
    depths = torch.tensor([_depth(parents, int(node)) - 1 for node, *_, parents in rows])
    p, near = (torch.tensor([row[i] for row in rows], dtype=torch.float64) for i in (1, 2))
    stands = iter(counted(rule, p, near, depths).tolist())
    return [[[node, own, next(stands), limit] for node, own, _, limit in tried] for tried in judged]


def _depth(parents: list[int], node: int) -> int:
    """How far a node lies below the root, which is its own parent."""
    return 0 if node == 0 else 1 + _depth(parents, parents[node])
