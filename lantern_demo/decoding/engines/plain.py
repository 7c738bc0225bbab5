"""The plain engine: it waits for the host in every step, and attention covers what is there. It suits CPUs and is the reference."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..cache import KVCache
from ..config import Config
from ..drafting import Source
from ..protocols import Drafter, Target, Watcher
from ..sampling import Uniforms, guide
from ..timing import Clock
from ..verify import Judge, Outcome


class Plain:
    """The steps of one run behind its prefill. A step starts with at most num_tokens - 1 positions committed behind the prefix and writes
    a whole tree."""

    name, reason = "plain", ""

    def __init__(
        self, target: Target, drafter: Drafter | None, condition: Any, config: Config, clock: Clock, watcher: Watcher | None,
        source: Source, judge: Judge, uniforms: Uniforms,
    ) -> None:  # fmt: skip
        self.target, self.drafter, self.condition, self.config = target, drafter, condition, config
        self.source, self.judge, self.uniforms, self.clock, self.watcher = source, judge, uniforms, clock, watcher
        self.alone = Source(config.place)
        self.cache = target.new_cache(config.rows, config.num_tokens + config.tree.nodes)
        self.small: KVCache | None = None  # the drafter's
        self.steps = 0

    def begin(self, hidden: Tensor, root: Tensor) -> None:
        """The target's states [R, T, H] of the prefix and the first token [1] behind it."""
        self.root = root
        with self.clock.measure("prefill"):
            self.judge.begin(self.config.seed)
            self.source.begin(root, self.config.seed)
        # target states that the drafter has not seen, and the tokens that follow them
        self.unseen = self._for_drafter(hidden), root

    def next(self, committed: int) -> Outcome:
        """Draft, verify, accept and commit one step, with so many tokens before it."""
        config, clock, judge = self.config, self.clock, self.judge
        row = self.uniforms.rows[self.steps + 1]
        with clock.measure("draft"):
            bare = config.bare(config.num_tokens - committed)
            source = self.alone if bare else self.source
            draft = source.draft(self.root, self, self.target.head, row[self.uniforms.judged :])
        tree = draft.tree
        with clock.measure("verify"):
            hidden = self.target.forward(draft.tokens, tree.depths, tree.mask, self.cache)
            looked = judge.look(guide(self.target.head(hidden), config.sampling.cfg_scale))
        with clock.measure("commit"):
            found = judge.judge(draft, looked, row)
            laws = 0 if draft.rest is None else len(draft.rest)
            outcome = judge.read(judge.report(draft, found).tolist(), tree.size, tree.depth, laws)
            count = len(outcome.path)
            if tree.size == 1:  # nothing to choose
                nodes, depth, following = judge.walk(draft, found)
            else:
                nodes, following = (torch.tensor(numbers, device=config.place) for numbers in (outcome.path, outcome.tokens))
                depth = nodes.new_full((1,), count - 1)
            if outcome.path[-1] == count - 1:
                self.cache.advance(count)  # already where it belongs
            else:
                self.cache.commit(nodes)
            self.root = following[-1:]
            if not bare:
                self.source.observe(judge.seen(found), depth, self.root, row[self.uniforms.judged :])
            judge.move(depth)
            if self.drafter is not None:
                self.unseen = self._for_drafter(hidden.index_select(1, nodes)), following
        if self.watcher is not None and self.watcher.wants(self.steps):
            self.watcher.add(draft, judge.law(looked), nodes)
        self.steps += 1
        return judge.evidence(outcome, draft, found)

    def close(self, whole: bool) -> None:
        """Nothing is kept."""

    # the drafter's passes: see `drafting.Passes`

    def stable(self) -> Tensor:
        assert self.drafter is not None
        hidden, tokens = self.unseen
        if self.small is not None:
            return self.drafter.extend(tokens, hidden, self.small)
        room = self.config.num_tokens + self.config.tree.nodes + self.config.tree.expanded
        self.small = self.drafter.new_cache(1 if self.drafter.guided else self.config.rows, room)
        return self.drafter.start(hidden, tokens, self.small, self.condition)

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor) -> Tensor:
        assert self.drafter is not None
        return self.drafter.expand(tokens, hidden, depth, mask, self.small)

    def _for_drafter(self, hidden: Tensor) -> Tensor:
        """Target states [R, m, H] as the drafter reads them."""
        if self.drafter is None or not self.drafter.guided:
            return hidden
        return guide(hidden, self.config.sampling.cfg_scale)[None].to(hidden.dtype)
