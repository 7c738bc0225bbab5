"""Explain why a draft was accepted or refused, by the rule that decided.

`Explained` holds the words of a rule, and the classes below it hold the sentences around them. With
shared noise no probability is counted: a draft is compared with the model's own draw, and
`Compared` has the sentences. The page's script only fills in numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lantern_demo.decoding.drafting import DynamicTree
from lantern_demo.decoding.evidence import tried_drafts
from lantern_demo.decoding.methods import Method
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule, columns
from lantern_demo.settings.settings import Settings


class Explained(NamedTuple):
    """The words of a rule; the defaults are true of any relaxed rule.

    counts: labels and values to show with the target's probability. {counted} is the probability
    that the rule counted, {extra} its part without the draft's own.
    """

    # of a draft that the exact rule would have refused
    heading: str = "a guess that only a relaxed rule accepts"
    because: str = "The method's relaxed rule accepted it."
    only: str = "by the relaxed rule"
    bar: str = (
        "The dark part of the bar is the model's probability of the guess, the striped one "
        "what the method adds."
    )
    counts: tuple[tuple[str, str], ...] = (("the method counts", "{counted}"),)


def explained(rule: Rule) -> Explained:
    """Return the words of a rule."""
    if type(rule) is Rule:
        return Explained(bar="The bar is the model's probability of the guess.", counts=())
    if not isinstance(rule, Lantern):
        return Explained()
    return Explained(
        "a guess that its neighbours helped to be accepted",
        "Its neighbours in the codebook lent it their probability, and with that it was accepted.",
        "because its neighbours count with it",
        (
            "The dark part of the bar is the model's probability of the guess, the striped "
            "one what its neighbours lend."
        ),
        (("its neighbours lend", "{extra}"), ("they may lend at most", budget_of(rule))),
    )


def budget_of(rule: Lantern) -> str:
    """Return how much the neighbours of a draft may lend at most."""
    if isinstance(rule, LanternPlusPlus):
        return f"{rule.bound - 1:g} times its own probability (lambda \u2212 1)"
    return f"{rule.bound:g} (delta)"


@dataclass(frozen=True)
class Evidence:
    """The sentences around a rule's words.

    greedy: temperature 0, where the counted probability has to reach that of the likeliest token.
    sampled: the drafts were drawn from the drafter's distribution, as in a static tree.
    """

    rule: Any  # a `Rule`, which decided
    greedy: bool = False
    sampled: bool = True

    def cases(self) -> dict[str, dict[str, Any]]:
        """Return the sentence of every case, and the labels and values of its numbers.

        A sentence without numbers is filled with the last values of the trial's row: {0}, {1}...
        """
        own, told = ("the model's probability of it", "{own}"), explained(self.rule)
        limit = (
            "had to reach (the probability of the model's likeliest piece)"
            if self.greedy
            else "had to exceed (drawn at random)",
            "{limit}",
        )
        numbers = [own, *told.counts, limit]
        return {
            "refused": {"said": "was refused.", "numbers": numbers},
            "exact": {"said": "was accepted, as exact decoding would have.", "numbers": numbers},
            "alone": {
                "said": "was accepted: its own probability was enough.",
                "numbers": [own, limit],
            },
            "relaxed": {
                "said": (
                    f"was accepted only {told.only}: with the same random number, exact decoding "
                    "refuses it."
                ),
                "numbers": numbers,
            },
        }

    def told(self) -> dict[str, Any]:
        """Return all sentences about the rule for the page's script."""
        return {
            "headings": {
                "e": "a guess that exact decoding accepts",
                "r": explained(self.rule).heading,
                "t": "drawn by the model itself",
            },
            "because": self.because(),
            "rule": self.sentence(),
            "cases": self.cases(),
            "note": self.note(),
        }

    def sentence(self) -> str:
        """Describe when this rule accepts a draft."""
        if type(self.rule) not in (Rule, Lantern, LanternPlusPlus):
            return "A rule more relaxed than the exact one decides which guesses are accepted."
        more = ""
        if isinstance(self.rule, Lantern) and self.rule.relaxes:
            more = (
                f" Its neighbours lend it probability: the {self.rule.k} most similar pieces of "
                "the model's list (codebook) at most, and together no more than "
                f"{budget_of(self.rule)}."
            )
        if self.greedy:
            return (
                "A guess is accepted when the model's probability of it reaches that of "
                f"the likeliest piece.{more}"
            )
        if not self.sampled:
            return f"A guess is accepted with the probability that the model gives it.{more}"
        return (
            "A guess is accepted with probability min(1, p/q). Here p is the model's "
            f"probability of it, q the drafter's.{more}"
        )

    def note(self) -> str:
        """Describe the bar of a trial."""
        passes = "reaches" if self.greedy else "passes"
        return f"{explained(self.rule).bar} A guess is accepted when the bar {passes} the line."

    def because(self) -> dict[str, str]:
        """Explain a token by its letter in the record, as the first, or after refused drafts."""
        if self.greedy:
            kept = "This guess is the model's likeliest piece."
            alone = "This guess is not the model's likeliest piece."
            refused = (
                "The guesses tried here were refused, and the model's likeliest piece stands here."
            )
        else:
            kept = "Exact decoding accepts this guess too."
            alone = "With the same random number, exact decoding refuses this guess."
            refused = (
                "The guesses tried here were refused, and the model drew another piece itself."
            )
        return {
            "first": "The first piece: the model draws it itself after reading the prompt.",
            "e": kept,
            "r": f"{alone} {explained(self.rule).because}",
            "t": "The model drew this piece itself: no guess reached this place.",
            "refused": refused,
        }

    def trials(self, entry: dict[str, Any]) -> list[list[list[Any]]]:
        """Return the trials of a record's entry by step, as [node, case, own, counted, limit].

        Another form is [node, case, and the values that its sentence names]. Trials past the
        picture's end are left out; a run that kept none has none.
        """
        found, before, events = [], 0, entry["events"]
        rows = events["trials"]
        for after, tree, tried in zip(events["committed"], events["trees"], rows, strict=True):
            kept = dict(zip(tree["path"][1:], events["kinds"][before:after], strict=False))
            # nodes whose children were tried for tokens of the picture
            decided = set(tree["path"][: after - before])
            found.append(
                [
                    self.row(row, kept.get(row[0]))
                    for row in tried
                    if tree["parents"][row[0]] in decided
                ]
            )
            before = after
        return found

    def row(self, trial: Sequence[Any], kept: str | None) -> list[Any]:
        """Turn a record's row into a row of `trials`.

        kept: the letter that records have for an accepted draft, None for a refused one.
        """
        node, own, stands, limit = trial
        exact = "alone" if isinstance(self.rule, Lantern) else "exact"
        case = {"e": exact, "r": "relaxed"}.get(kept or "", "refused")
        return [node, case, own, own if case == "alone" else stands, limit]


class Undrafted(Evidence):
    """The sentences of methods without drafts, which have no rule."""

    def sentence(self) -> str:
        return ""

    def told(self) -> dict[str, Any]:
        told = super().told()
        return told | {"headings": told["headings"] | {"r": "another one than the model's own"}}

    def because(self) -> dict[str, str]:
        own = (
            "has another likeliest piece here"
            if self.greedy
            else "draws another piece here, with the same random numbers"
        )
        return super().because() | {
            "t": "This method makes no guesses: the model drew this piece itself.",
            "r": f"Given all pieces before it the model {own}.",
        }


class Compared(Evidence):
    """The sentences for shared noise: a draft is compared with the model's own draw.

    At temperature 0 that is the likeliest token.
    """

    def cases(self) -> dict[str, dict[str, Any]]:
        drew, this = (
            ("likes {0} best here", "likes this very piece best")
            if self.greedy
            else ("drew {0}", "drew this very piece")
        )
        said = {
            "refused": f"was refused: the model itself {drew}.",
            "exact": f"was accepted: the model itself {this} here.",
        }
        return {case: {"said": sentence, "numbers": []} for case, sentence in said.items()}

    def sentence(self) -> str:
        kept = "it is the model's likeliest piece" if self.greedy else "the model itself drew it"
        return f"A guess is accepted when {kept} at its place."

    def note(self) -> str:
        return ""

    def because(self) -> dict[str, str]:
        told = super().because()
        if self.greedy:
            return told
        return told | {
            "e": (
                "The model itself drew this very piece here. After the same pieces vanilla "
                "draws it too, with the same random numbers."
            ),
            "refused": "The model drew this piece itself, and no guess tried here was the same.",
        }

    def trials(self, entry: dict[str, Any]) -> list[list[list[Any]]]:
        """Return [node, case, the model's own draw], from the trees and the tokens that follow."""
        found, before, events = [], 0, entry["events"]
        for after, tree in zip(events["committed"], events["trees"], strict=True):
            own, drafts = entry["token_ids"][before:after], tree["tokens"]
            tried = tried_drafts(tree["parents"], tree["path"])
            found.append(
                [
                    [node, "exact" if drafts[node] == drawn else "refused", drawn]
                    for drawn, nodes in zip(own, tried, strict=False)
                    for node in nodes
                ]
            )
            before = after
        return found


def evidence_of(
    settings: Settings, method: Method, entry: dict[str, Any] | None = None
) -> Evidence:
    """Return the sentences for a method's trials.

    entry: the method's part of a record, which shows whether drafts were compared with the model's
    own draws. By default a rule decided by probabilities.
    """
    greedy = settings.temperature == 0
    rule = settings.rule(method)
    if greedy and not columns(rule):
        rule = Rule()
    if method.alone:
        return Undrafted(rule, greedy)
    # At temperature 0 drafts are compared too, though there is no noise to share.
    if entry is not None and (entry["noise"] == "shared" or (greedy and not columns(rule))):
        return Compared(rule, greedy)
    return Evidence(rule, greedy, method.drafts is not DynamicTree)
