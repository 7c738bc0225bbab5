"""How often drafts were kept, by their depth, and how many tokens the steps had."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise, zip_longest
from typing import NamedTuple

from lantern_demo.decoding.evidence import tried_drafts
from lantern_demo.runs.record import Drafted, Events


class Depth(NamedTuple):
    """The drafts of one depth whose parent was kept. Siblings are tried in turn until one is kept,
    so a position keeps at most one of them."""

    tried: int
    places: int  # kept parents with a draft that was tried
    kept: int

    @property
    def chance(self) -> float:
        """The share of the tried drafts that were kept; 0 where none was tried."""
        return self.kept / self.tried if self.tried else 0.0

    @property
    def of_places(self) -> float:
        """The share of the positions that kept one of their drafts. Without siblings it is the
        chance."""
        return self.kept / self.places if self.places else 0.0


class Acceptance(NamedTuple):
    """How a run's drafts fared. All of it is counts, so that runs add up."""

    depths: list[Depth]  # of drafts one position ahead, two, ...
    sizes: list[int]  # steps that had one token, two, ..., without those past the picture's end


def acceptance_of(events: Events) -> Acceptance:
    """Count the steps of a run, without the prefill and what lies past the picture's end."""
    depths: list[Depth] = []
    sizes = Counter[int]()
    steps = zip(events["trees"][1:], events["trials"][1:], strict=True)
    for (before, after), (tree, trials) in zip(pairwise(events["committed"]), steps, strict=True):
        sizes[after - before] += 1
        for depth, drafts in enumerate(tried_in(tree, trials, after - before)):
            if drafts:
                depths += [Depth(0, 0, 0)] * (depth + 1 - len(depths))
                kept = depth + 1 < len(tree["path"])
                depths[depth] = _sum([depths[depth], Depth(len(drafts), 1, int(kept))])
    return Acceptance(depths, [sizes[size] for size in range(1, max(sizes, default=0) + 1)])


def tried_in(tree: Drafted, trials: Sequence[Sequence[float]], places: int) -> list[list[int]]:
    """Return the drafts that a step tried, by depth, in the `places` that it filled.

    `trials` names those of them that the drafter could draw; without numbers all count.
    """
    known = {int(node) for node, *_ in trials}
    tried = islice(tried_drafts(tree["parents"], tree["path"]), places)
    return [[node for node in drafts if not known or node in known] for drafts in tried]


def total(runs: Iterable[Acceptance]) -> Acceptance:
    """Add up the counts of several runs."""
    given = list(runs)
    depths = zip_longest(*(run.depths for run in given), fillvalue=Depth(0, 0, 0))
    sizes = zip_longest(*(run.sizes for run in given), fillvalue=0)
    return Acceptance([_sum(same) for same in depths], [sum(same) for same in sizes])


def _sum(depths: Iterable[Depth]) -> Depth:
    return Depth(*map(sum, zip(*depths, strict=True)))
