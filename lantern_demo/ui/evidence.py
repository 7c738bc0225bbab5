"""Say why a guess was accepted or not, by the rule that decided: what it counted, and the limit of that.

`explained` has the words of each rule, and the classes have the sentences around them. With shared noise there is nothing to
count: a guess was held against the model's own draw, and there are classes for that. The page's script fills in numbers and
prints, and knows no rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from lantern_demo.decoding.methods import Method
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule, columns
from lantern_demo.settings.settings import Settings


class Explained(NamedTuple):
    """What is said of the drafts that a rule tried; as it stands here, what is true of any rule. In `counts`, labels and values
    beside the target's probability, {counted} stands for what the rule counted and {extra} for what is over in that."""

    heading: str = "a guess that only a looser rule accepts"  # over a draft that the exact rule would have refused
    because: str = "The method's looser rule accepted it."
    only: str = "by the looser rule"
    bar: str = "The dark part of the bar is the model's probability of the guess, the striped one what the method adds."
    counts: tuple[tuple[str, str], ...] = (("the method counts", "{counted}"),)


def explained(rule: Rule) -> Explained:
    """Why a rule accepts what it accepts."""
    if type(rule) is Rule:
        return Explained(bar="The bar is the model's probability of the guess.", counts=())
    if not isinstance(rule, Lantern):
        return Explained()
    return Explained(
        "a near miss that was accepted",
        "Its neighbours in the codebook lent it their probability, and with that it was accepted.",
        "because its neighbours count with it",
        "The dark part of the bar is the model's probability of the guess, the striped one what its neighbours lend.",
        (("its neighbours lend", "{extra}"), ("they may lend at most", budget_of(rule))),
    )


def budget_of(rule: Lantern) -> str:
    """What the neighbours of a guess may lend at most."""
    if isinstance(rule, LanternPlusPlus):
        return f"{rule.bound - 1:g} times its own probability (lambda \u2212 1)"
    return f"{rule.bound:g} (delta)"


@dataclass(frozen=True)
class Evidence:
    """The sentences around a rule's words. `greedy`: no dice were thrown, and what was counted had to reach the chance of the
    model's favourite."""

    rule: Any  # a `Rule`, which decided
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
        own, told = ("the model's probability of it", "{own}"), explained(self.rule)
        limit = (
            "had to reach (the probability of the model's likeliest token)" if self.greedy else "had to exceed (drawn at random)",
            "{limit}",
        )
        numbers = [own, *told.counts, limit]
        return {
            "refused": {"said": "was refused.", "numbers": numbers},
            "exact": {"said": "was accepted, as exact decoding would have.", "numbers": numbers},
            "alone": {"said": "was accepted: its own probability was enough.", "numbers": [own, limit]},
            "relaxed": {"said": f"was accepted only {told.only}: exact decoding would have refused it here.", "numbers": numbers},
        }

    def told(self) -> dict[str, Any]:
        """All that the page's script says of the rule."""
        return {
            "headings": {
                "e": "a guess that exact decoding accepts",
                "r": explained(self.rule).heading,
                "t": "drawn by the model",
            },
            "because": self.because(),
            "rule": self.sentence(),
            "cases": self.cases(),
            "note": self.note(),
        }

    def sentence(self) -> str:
        """Say when this rule accepts a guess."""
        lent = ""
        if isinstance(self.rule, Lantern) and self.rule.relaxes:
            lent = (
                f", plus those of its nearest tokens in the codebook, {self.rule.k} at most and as long as they add up to no more"
            )
            lent = f"{lent} than {budget_of(self.rule)}"
        elif type(self.rule) not in (Rule, Lantern, LanternPlusPlus):
            return "A rule looser than the exact one decides which guesses are accepted."
        if self.greedy:
            return f"A guess is accepted when the model's probability of it{lent} reaches that of the likeliest token."
        return (
            "A guess is accepted with probability min(1, p/q): q is the drafter's probability of it, and p is the model's "
            f"probability of it{lent}."
        )

    def note(self) -> str:
        """Say what the bar of a trial shows."""
        bar = explained(self.rule).bar
        return f"{bar} A guess is accepted when the bar {'reaches' if self.greedy else 'passes'} the line."

    def because(self) -> dict[str, str]:
        """Why a token is what it is: by the letter that records have for it, where it is the first, and where guesses were
        refused."""
        if self.greedy:
            kept = "This guess is the model's likeliest token."
            alone = "This guess is not the model's likeliest token."
            refused = "The guesses tried here were refused, and the model's likeliest token stands here."
        else:
            kept = "Exact decoding accepts this guess too."
            alone = "Exact decoding would have refused this guess."
            refused = "The guesses tried here were refused, and the model drew another token itself."
        return {
            "first": "The first token: the model draws it itself after reading the prompt.",
            "e": kept,
            "r": f"{alone} {self.reason or explained(self.rule).because}",
            "t": "The model drew this token itself: no guess reached this position.",
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

    def sentence(self) -> str:
        return ""

    def told(self) -> dict[str, Any]:
        told = super().told()
        return told | {"headings": told["headings"] | {"r": "another one than the model's own"}}

    def because(self) -> dict[str, str]:
        own = "has another likeliest token here" if self.greedy else "draws another token here, with the same noise"
        return super().because() | {
            "t": "This method makes no guesses: the model drew this token itself.",
            "r": f"Given all tokens before it the model {own}.",
        }


class Compared(Evidence):
    """Shared noise: a guess was held against what the model itself drew in its place. Greedy that is its favourite."""

    kept_as = "compared"
    reason = "The model itself drew another token here, and the guess stands for it."

    def cases(self) -> dict[str, dict[str, Any]]:
        drew, this = (
            ("likes {0} best here", "likes this very token best") if self.greedy else ("drew {0}", "drew this very token")
        )
        said = {
            "refused": f"was refused: the model itself {drew}{{1}}.",
            "exact": f"was accepted: the model itself {this} here.",
            "relaxed": f"was accepted: the model itself {drew}{{1}}.",
        }
        return {case: {"said": sentence, "numbers": []} for case, sentence in said.items()}

    def sentence(self) -> str:
        kept = "it is the model's likeliest token" if self.greedy else "the model itself drew it"
        return f"A guess is accepted when {kept} at its position{self.also()}."

    def note(self) -> str:
        return ""

    def also(self) -> str:
        """Say what else makes the rule accept a guess."""
        return ""

    def because(self) -> dict[str, str]:
        told = super().because()
        if self.greedy:
            return told
        return told | {
            "e": "The model itself drew this very token here. After the same tokens vanilla draws it too, with the same noise.",
            "r": self.reason,
            "refused": f"The model drew this token itself, and no guess tried here was the same{self.nor()}.",
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

    reason = "The model itself drew another token here, a neighbour of this guess, and the guess stands for it."

    def also(self) -> str:
        return (
            f", or one of its neighbours: the nearest tokens in the codebook, {self.rule.k} at most and as long as their "
            f"probabilities add up to no more than {budget_of(self.rule)}"
        )

    def nor(self) -> str:
        return ", or had it among its neighbours"

    def where(self, near: int, others: int) -> str:
        if not others:
            return ", and the guess has no neighbours that count"
        if others == 1:
            return f", which is {'not ' if near < 0 else ''}the guess's one neighbour that counts"
        place = "none" if near < 0 else f"the {ordinal(near)}"
        return f", which is {place} of the guess's {others} neighbours that count"


def evidence_of(settings: Settings, method: Method, entry: dict[str, Any] | None = None) -> Evidence:
    """The words for a method's trials under these settings. entry: what a record has of the run, which says whether drafts were
    held against the model's own draws; without it, and where it does not say so, a rule of chances decided."""
    greedy = settings.temperature == 0
    rule = settings.rule(method)
    if greedy and not columns(rule):
        rule = Rule()
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
