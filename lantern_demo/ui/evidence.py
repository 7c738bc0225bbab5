"""Why a guess was kept or not, in the words of the rule that decided: what it counted, what that had to exceed, and what follows.

A rule has a class of words here, made once for a run; one that has none is told in general words, which are true of any rule. With shared
noise there is nothing to count: a guess was held against the model's own draw, and there are classes for that. The page's script fills
in numbers and prints, and knows no rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from lantern_demo.decoding.acceptance import Ensemble, Lantern, LanternPlusPlus, Rule, Typical, Weighted
from lantern_demo.decoding.acceptance import Grouped as GroupedRule
from lantern_demo.decoding.methods import Method
from lantern_demo.settings.settings import Settings

Line = tuple[str, str]  # a label, and a value in which {own}, {counted}, {extra} (counted without own) and {limit} are filled in


@dataclass(frozen=True)
class Evidence:
    """The words of any rule. `greedy`: no dice were thrown, and what was counted had to reach the chance of the model's favourite."""

    rule: Any  # a `Rule` of the class that the words are for
    greedy: bool = False

    kept_as: ClassVar[str] = "trials"  # what a record's events call what was tried
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
        """What is said of a trial, and the numbers that belong to it: without any, {0}, {1}... of a sentence are what its row ends with."""
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
        """What was tried in a record's events by step, without what was for tokens behind the picture's end: [node, case, and what belongs
        to the case: own, counted, limit, or what its sentence names]. None where it was not kept."""
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


class Likely(Evidence):
    """Medusa's typical acceptance: no dice, a threshold that falls with how unsure the model is."""

    heading = "a guess kept because it is likely enough"
    reason = "It was likely enough for how sure the model is here: the piece may not be what the model would have drawn."
    only = "because it is likely enough"
    bar = "The bar is the model's chance of the guess; the line is lower where the model is less sure."

    def counts(self) -> list[Line]:
        return []


class Mixed(Evidence):
    """The model's odds mixed with the drafter's."""

    heading = "a guess kept by mixed odds"
    reason = "The drafter's odds count too, and with these it was kept: the piece may not be what the model would have drawn."
    only = "because the drafter's odds count too"

    def counts(self) -> list[Line]:
        return [("mixed with the drafter's, it counts as", "{counted}")]

    def note(self) -> str:
        return f"{super().note()} The model's share in the mixture is {self.rule.bound:g}."


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
        """Where the model's own draw stands, when it is not the guess: the near-th of so many others that count, or at -1 none of them."""
        return ""


class ComparedNear(Compared, Lent):
    """LANTERN with shared noise: the guess stands for its neighbours in the codebook as well, as many as may lend to it."""

    reason = "The model itself drew another piece here, a look-alike of this guess, and the guess stands for it."

    def also(self) -> str:
        return f", or one of its look-alikes that count: the {self.rule.k} nearest at most, as long as their chances add up to no more than {self.most()}"

    def nor(self) -> str:
        return ", or had it among its look-alikes that count"

    def where(self, near: int, others: int) -> str:
        if not others:
            return ", and none of the guess's look-alikes count"
        if others == 1:
            return f", which is {'not ' if near < 0 else ''}the guess's one look-alike that counts"
        place = "none" if near < 0 else f"the {ordinal(near)}"
        return f", which is {place} of the guess's {others} look-alikes that count"


class ComparedNearByShare(ComparedNear, LentByShare):
    """The same of LANTERN++."""


class ComparedLikely(Compared, Likely):
    """The same with shared noise: what is likely enough is kept whatever the model drew."""

    reason = "The model itself drew another piece here, and the guess was kept since it is likely enough."

    def also(self) -> str:
        return ", or when it is likely enough for how sure the model is"

    def nor(self) -> str:
        return ", or likely enough"

    def where(self, near: int, others: int) -> str:
        return ", and the guess is likely enough by itself" if others else ", and the guess is not likely enough by itself"


class ComparedMixed(Compared, Mixed):
    """The same with shared noise: the model and the drafter draw together."""

    reason = "The model itself drew another piece here; together with the drafter's odds it came to this guess."

    def cases(self) -> dict[str, dict[str, Any]]:
        drew = {
            "refused": "was refused: model and drafter together drew {0}{1}.",
            "exact": "was accepted: the model itself drew this very piece here.",
        }
        drew["relaxed"] = "was accepted: model and drafter together drew this very piece here."
        return {case: {"said": said, "numbers": []} for case, said in drew.items()}

    def note(self) -> str:
        return f"A guess is kept when model and drafter together drew it in its place; the model's share is {self.rule.bound:g}."

    def row(self, trial: Sequence[Any], kept: str | None) -> list[Any]:
        node, case, *told = super().row(trial, kept)
        return [node, "relaxed" if kept == "r" else case, *told]


WORDS: dict[type[Rule], type[Evidence]] = {
    Rule: Exact, Lantern: Lent, LanternPlusPlus: LentByShare, Weighted: Weighed, GroupedRule: Grouped, Typical: Likely,
    Ensemble: Mixed,
}  # fmt: skip
COMPARED: dict[type[Rule], type[Evidence]] = {
    Rule: Compared, Lantern: ComparedNear, LanternPlusPlus: ComparedNearByShare, Typical: ComparedLikely, Ensemble: ComparedMixed,
}  # fmt: skip


def evidence_of(settings: Settings, method: Method, entry: dict[str, Any] | None = None) -> Evidence:
    """The words for a method's trials under these settings. entry: what a record has of the run, which says whether drafts were held against
    the model's own draws; without it, and where it does not say so, a rule of chances decided."""
    greedy = settings.temperature == 0
    rule = settings.rule(method).greedy if greedy else settings.rule(method)
    if not method.guesses:
        return Undrafted(rule, greedy)
    # greedy there is no noise to share, and what was compared is there all the same
    if entry is not None and (entry["dice"] == "same" or "compared" in entry["events"]):
        return COMPARED.get(type(rule), Compared)(rule, greedy)
    return WORDS.get(type(rule), Evidence)(rule, greedy)


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def trials_of_older(rule: Rule, trees: list[dict[str, Any]], judged: list[list[Sequence[float]]]) -> list[list[list[float]]]:
    """The trials of an older record, which has [node, p, near, limit] of each: near is the proximity set's mass without p, or 0 where p
    was enough by itself. There p stands for what was counted: at least that much was."""
    rows = [(*row, tree["parents"]) for tree, tried in zip(trees, judged, strict=True) for row in tried]
    depths = torch.tensor([_depth(parents, int(node)) - 1 for node, *_, parents in rows])
    p, near = (torch.tensor([row[i] for row in rows], dtype=torch.float64) for i in (1, 2))
    stands = iter(rule.counts(p, near, depths).tolist())
    return [[[node, own, next(stands), limit] for node, own, _, limit in tried] for tried in judged]


def _depth(parents: list[int], node: int) -> int:
    """How far a node lies below the root, which is its own parent."""
    return 0 if node == 0 else 1 + _depth(parents, parents[node])
