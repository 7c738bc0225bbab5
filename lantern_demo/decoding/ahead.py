"""The host's side of steps of fixed shapes: launch ahead what is certainly needed, read results one step at a time."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from .distortion import RootSample
from .fixed import Fixed, Outcome
from .graphs import Steps


class _Flying(NamedTuple):
    """A step whose result has not been read."""

    number: int
    bare: bool
    most: int  # tokens it commits at most


class Ahead:
    """Keeps up to `steps.ahead` steps in flight.

    A step may be launched before the results of others are known when tokens will be missing even if those commit as many as they
    can, and when it is sure of which kind it is: where `bare_last`, the step that has one token left to find needs no drafts. So
    reading a result is the only wait, once per step, and a run that is given up has at most `steps.ahead` steps too many.
    """

    def __init__(self, fixed: Fixed, steps: Steps, num_tokens: int, bare_last: bool, sample: RootSample | None) -> None:
        self.fixed, self.steps, self.num_tokens, self.bare_last, self.sample = fixed, steps, num_tokens, bare_last, sample
        self.flying: deque[_Flying] = deque()
        self.launched = 0

    def step(self, committed: int) -> Outcome:
        """The next step's outcome, with `committed` tokens so far, fewer than the run needs."""
        while len(self.flying) < self.steps.ahead and self._certain(committed):
            self._launch(committed)
        done = self.flying.popleft()
        return self.fixed.outcome(self.steps.row(done.number), done.bare)

    def _most(self, committed: int) -> int:
        """Tokens committed at most once all that is in flight has come in."""
        return committed + sum(step.most for step in self.flying)

    def _certain(self, committed: int) -> bool:
        if not self.flying:
            return True
        known = self.fixed.depth == 0 or not self.bare_last
        return self._most(committed) < self.num_tokens - (0 if known else 1)

    def _launch(self, committed: int) -> None:
        most = self._most(committed)
        bare = self.fixed.depth == 0 or (self.bare_last and self.num_tokens - most == 1)
        taken = self.steps.launch(self.launched + 1, self.fixed.bucket(most, self.fixed.num_tokens), bare)
        if self.sample is not None and self.sample.wants(self.launched):
            self.sample.add(taken.draft, taken.root_law, taken.emitted.clone())
        self.launched += 1
        self.flying.append(_Flying(self.launched, bare, 1 if bare else self.fixed.depth + 1))
