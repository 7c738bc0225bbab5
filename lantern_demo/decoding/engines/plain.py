"""The plain engine: it waits for the host in every step, and attention covers what is there. It suits CPUs and is the
reference."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor

from ..cache import KVCache
from ..config import Config
from ..evidence import evidence
from ..sampling import guide, warp
from ..timing import Clock
from ..trees import Source
from ..verify import Step, Verifier, pack_step, unpack_step


class Run(ABC):
    """A run on either engine, behind its prefill: the loop calls `begin` once, `next` for every step, and at last `close`."""

    name, reason = "plain", ""  # of the engine; why it is not what it could be, if so
    cache: KVCache  # the target's

    def __init__(
        self,
        target: Any,
        drafter: Any,
        condition: Any,
        config: Config,
        clock: Clock,
        source: Source,
        verifier: Verifier,
        uniforms: Tensor,
    ) -> None:
        """uniforms are the run's: see `sampling.uniforms_of`."""
        self.target, self.drafter, self.condition, self.config = target, drafter, condition, config
        self.source, self.verifier, self.uniforms, self.clock = source, verifier, uniforms, clock

    @abstractmethod
    def begin(self, hidden: Tensor, root: Tensor) -> None:
        """The target's states [R, T, H] of the prefix and the first token [1] behind it."""

    @abstractmethod
    def next(self, committed: int) -> Step:
        """Draft, verify, accept and commit a step, with so many tokens before it."""

    def close(self, whole: bool) -> None:  # noqa: B027  # the plain engine has nothing to hand back
        """The run is over; whole: without a fault."""

    def for_drafter(self, hidden: Tensor) -> Tensor:
        """Target states [R, m, H] as the drafter reads them."""
        if self.drafter is None or not self.drafter.guided:
            return hidden
        return guide(hidden, self.config.sampling.cfg_scale)[None].to(hidden.dtype)

    def cache_for_drafter(self, slots: int) -> KVCache | None:
        """A cache for the drafter, if there is one."""
        return self.drafter and self.drafter.new_cache(1 if self.drafter.guided else self.config.rows, slots)


class Plain(Run):
    """A step starts with at most num_tokens - 1 positions committed behind the prefix and writes a whole tree."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        config = self.config
        self.alone = Source(config.torch_device)
        self.cache = self.target.new_cache(config.rows, config.num_tokens + config.tree.nodes)
        self.small: KVCache | None = None  # the drafter's
        self.steps = 0

    def begin(self, hidden: Tensor, root: Tensor) -> None:
        self.root, self.position = root, root.new_ones(1)
        with self.clock.measure("prefill"):
            self.source.begin(root, self.config.seed)
        # target states that the drafter has not seen, and the tokens that follow them
        self.unseen = self.for_drafter(hidden), root

    def next(self, committed: int) -> Step:
        config, clock, verifier = self.config, self.clock, self.verifier
        row = self.uniforms[self.steps + 1]
        with clock.measure("draft"):
            no_draft = config.no_draft(config.num_tokens - committed)
            source = self.alone if no_draft else self.source
            draft = source.draft(self.root, self, self.target.head, row[verifier.draws :])
        tree = draft.tree
        with clock.measure("verify"):
            hidden = self.target.forward(draft.tokens, tree.depths, tree.mask, self.cache)
            scores = warp(self.target.head(hidden), config.sampling)
        with clock.measure("commit"):
            out = verifier.verify(draft, scores, self.position, row)
            step = unpack_step(pack_step(draft, out).tolist(), tree.size, tree.depth, self.target.vocab_size)
            count = len(step.path)
            nodes, following = out.path[:count], out.tokens[:count]
            if step.path[-1] == count - 1:
                self.cache.advance(count)  # already where it belongs
            else:
                self.cache.commit(nodes)
            self.root = following[-1:]
            if not no_draft:
                self.source.observe(out, scores)
            self.position += count
            if self.drafter is not None:
                self.unseen = self.for_drafter(hidden.index_select(1, nodes)), following
        self.steps += 1
        return evidence(verifier, step, draft, out, scores, row)

    # the drafter's passes: see `trees.Passes`

    def stable(self) -> Tensor:
        hidden, tokens = self.unseen
        if self.small is not None:
            return self.drafter.extend(tokens, hidden, self.small)
        self.small = self.cache_for_drafter(self.config.num_tokens + self.config.tree.nodes + self.config.tree.expanded)
        return self.drafter.start(hidden, tokens, self.small, self.condition)

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor) -> Tensor:
        return self.drafter.expand(tokens, hidden, depth, mask, self.small)
