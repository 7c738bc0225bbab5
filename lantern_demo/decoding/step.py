"""One step of decoding: draft, verify, commit.

It runs in two ways. On a processor, where reading a number is free, it is `exact`: attention covers what is committed and the
tree, the drafter reads the accepted tokens, and the host reads the step before the next one. On an accelerator it has fixed
shapes and reads nothing, so that it can be captured once and replayed. Where it stands is then in tensors that stay where they
are. Attention covers a bucket of slots [0, S), the drafter reads D + 1 slots for a tree of depth D, of which those up to `last`
count, and D + 1 slots move up, of which those behind the accepted path are garbage behind the length.

Vanilla is the step of the root alone, which needs no mask.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .cache import ALIGNED
from .config import Config
from .evidence import evidence
from .interfaces import Drafter, Target
from .sampling import guide, warp
from .timing import Part
from .trees import Draft, Source, VerifyOutput
from .verify import Step, Verifier, pack_step, row_length, unpack_step


class TreeSteps:
    """The steps of one run after the other, each behind its prefill. Raises what the models raise."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        config: Config,
        source: Source,
        verifier: Verifier,
        draws: int,
        exact: bool,
    ) -> None:
        """draws: uniforms of a step."""
        self.target, self.drafter, self.config, self.exact = target, drafter, config, exact
        self.source, self.verifier, self.alone = source, verifier, Source(config.torch_device)
        self.num_tokens = config.num_tokens if exact else config.positions
        self.depth, self.size = source.depth, config.nodes
        # slots behind the committed ones that a step writes
        self.ahead = max(config.tree.nodes, config.tree.expanded, self.depth + 1)
        room = self.num_tokens + self.ahead + ALIGNED
        self.cache = target.new_cache(config.rows, room)
        self.drafter_cache = drafter and drafter.new_cache(1 if drafter.guided else config.rows, room)
        self.slots = min(cache.slots for cache in self.caches) // ALIGNED * ALIGNED
        self.arange = torch.arange(self.slots + ALIGNED, device=config.torch_device)
        # committed slots, in both caches; the step, from 1; the last of the pending slots; the position of the picture whose
        # token the root draws; the last committed token, which the target has not seen
        self.numbers = torch.zeros(5, dtype=torch.int64, device=config.torch_device)
        self.length, self.number, self.last, self.position, self.root = self.numbers.split(1)
        self.uniforms = torch.zeros(self.num_tokens, draws, device=config.torch_device)
        # what the drafter has not seen: tokens, and the target's states before them
        self.tokens, self.hidden = self.numbers.new_zeros(self.depth + 1), torch.empty(0)
        self.results = self.numbers.new_zeros(self.num_tokens, row_length(self.size, self.depth))  # a `pack_step` per step
        self.done: Step | None = None  # of an exact step

    @property
    def caches(self) -> list[Any]:
        """The target's and the drafter's."""
        return [self.cache] if self.drafter_cache is None else [self.cache, self.drafter_cache]

    def begin(self, hidden: Tensor, root: Tensor, uniforms: Tensor, condition: Any) -> None:
        """Start a run: the cache holds its prefix. hidden [R, T, H] are the target's states of it, root [1] is the first token,
        uniforms [steps, draws] are the run's."""
        config, self.prefix = self.config, self.cache.length
        hidden = self._for_drafter(hidden)
        if self.drafter is not None and not config.no_draft(config.num_tokens - 1):
            self.drafter.prefill(hidden, root, self.drafter_cache, condition)
        self.numbers.zero_()
        self.root.copy_(root)
        self.position.fill_(1)
        self.source.begin(root, config.seed)
        if self.exact:
            self.uniforms, self.tokens, self.hidden = uniforms, self.root.clone(), hidden[:, -1:]
            self.length, self.number = self.prefix, 1  # the host's
            return
        self.uniforms[: len(uniforms)].copy_(uniforms)
        self.length.fill_(self.prefix)
        self.number.fill_(1)
        if not self.hidden.numel():
            self.hidden = hidden.new_zeros(hidden.shape[0], self.depth + 1, hidden.shape[2])
        self.tokens[:1] = root
        self.hidden[:, :1] = hidden[:, -1:]

    def state(self) -> list[Tensor]:
        """All that a step of fixed shapes changes, but for cache slots behind the length."""
        return [self.numbers, self.tokens, self.hidden, self.results, *self.source.state]

    # -- shapes

    def upcoming(self, committed: int, flying: bool) -> tuple[int, bool, int] | None:
        """The step behind at most `committed` tokens: how many slots attention covers, whether it drafts, how many tokens it
        commits at most. None while steps are in flight on which it hangs whether tokens are missing, or of which kind it is."""
        missing = self.config.num_tokens - committed
        if flying and missing <= (self.config.tree.nodes > 1):  # the last token needs no drafts
            return None
        drafts = not self.config.no_draft(missing)
        return self.bucket(committed), drafts, self.depth + 1 if drafts else 1

    def bucket(self, committed: int) -> int:
        """The slots S that attention covers with at most `committed` tokens behind the prefix: one of about four sizes, so that
        few graphs are captured and short lengths do not pay for long ones. An exact step knows better."""
        size = max(64, -(-self.num_tokens // 256) * 64)
        return min(-(-(self.prefix + committed + self.ahead) // size) * size, self.slots)

    def shapes(self) -> list[tuple[int, bool]]:
        """The buckets and kinds (with drafts or without) of all steps that a run can have."""
        buckets = sorted({self.bucket(committed) for committed in range(1, self.num_tokens)})
        found = [(slots, self.depth > 0) for slots in buckets]
        return [*found, (buckets[-1], False)] if self.depth > 0 and buckets else found

    # -- a step

    def step(self, slots: int, drafts: bool, part: Part = nullcontext) -> None:
        """One step over a bucket of slots, with drafts or without. Each part is done within `part` of its name."""
        with part("draft"):
            self.bucketed = slots
            if self.exact:
                self.row = self.uniforms[self.number]
            else:
                self.row = self.uniforms.index_select(0, self.number)[0]
                self.scratch = self.length + self.arange[: self.ahead]
                self.committed = self.arange[:slots] < self.length
            source = self.source if drafts else self.alone
            draft = source.draft(self.root, self, self.target.head, self.row[self.verifier.draws :])
        with part("verify"):
            tree = draft.tree
            at = self.behind(0, tree.size)
            positions = at if tree.size == 1 else self.length + tree.depths
            hidden = self.target.forward(draft.tokens, positions, at, self.visible(tree.mask, 1), self.cache)
            scores = warp(self.target.head(hidden), self.config.sampling)
        with part("commit"):
            self.commit(draft, hidden, scores, drafts)

    def commit(self, draft: Draft, hidden: Tensor, scores: Tensor, drafts: bool) -> None:
        """Accept, move the keys and values of the accepted path up, and write down what happened."""
        out, depth, in_place = self.verifier.verify(draft, scores, self.position, self.row), 0, False
        path, row, last = out.path, pack_step(draft, out), self.target.vocab_size - 1
        # where the bonus token is none, any valid one: steps may be in flight that start from it
        torch.clamp(out.bonus, 0, last, out=self.root)
        if self.exact:
            step = self.unpack(row.tolist(), draft)
            self.done = evidence(self.verifier, step, draft, out, scores, self.row)
            depth = step.accepted_length - 1
            path, in_place = path[: depth + 1], step.path[-1] == depth
        else:
            self.results[:, : row.shape[0]].index_copy_(0, self.number, row.unsqueeze(0))
        if drafts:
            if not in_place:
                self.cache.move(self.length + path, self.behind(0, len(path)))
            if self.drafter is not None:
                self._leave_to_drafter(out, self._for_drafter(hidden.index_select(1, path)), last)
            self.source.observe(out, scores)
        if self.exact:
            self.length, self.number = self.length + depth + 1, self.number + 1
            self.position += depth + 1
        else:
            self.numbers[:2].add_(1)
            self.position.add_(out.depth).add_(1)
            self.length.add_(out.depth)

    def _leave_to_drafter(self, out: VerifyOutput, hidden: Tensor, last: int) -> None:
        """What the drafter reads next: the accepted tokens, the new root behind them, and the states before these."""
        if self.exact:
            self.tokens, self.hidden = out.tokens[: hidden.shape[1]], hidden
        else:
            torch.clamp(out.tokens, 0, last, out=self.tokens)
            self.hidden.copy_(hidden)
            self.last.copy_(out.depth)

    def unpack(self, row: list[int], draft: Draft | bool) -> Step:
        """Read a row of results, of a draft or, in steps of fixed shapes, of one with drafts or without."""
        size, depth = (self.size, self.depth) if draft is True else (1, 0)
        if isinstance(draft, Draft):
            size, depth = draft.tree.size, draft.tree.depth
        return unpack_step(row, size, depth, self.target.vocab_size)

    # -- parts of it

    def behind(self, first: int, count: int) -> Tensor:
        """`count` slots, the first one `first` behind the committed ones."""
        first = int(self.length) + first if self.exact else first
        return (self.arange if self.exact else self.scratch)[first : first + count]

    def visible(self, mask: Tensor, depth: int) -> Tensor | None:
        """What nodes see [n, S] bool: all that is committed, and of the w slots behind it what mask [n, w] says. None for a node
        alone that has a slot for each of its `depth` ancestors, itself among them."""
        n, width = mask.shape
        if self.exact:
            return None if n == 1 and width == depth else F.pad(mask, (int(self.length), 0), value=True)
        return self.committed.expand(n, -1).index_copy(1, self.scratch[:width], mask)

    def _for_drafter(self, hidden: Tensor) -> Tensor:
        """Target states [R, n, H] as the drafter reads them."""
        if self.drafter is None or not self.drafter.guided:
            return hidden
        return guide(hidden, self.config.sampling.cfg_scale)[None].to(hidden.dtype)

    # -- the drafter's passes: see `trees.Passes`

    def stable(self) -> Tensor:
        assert self.drafter is not None
        if self.exact:
            at = self.behind(-len(self.tokens), len(self.tokens))
            return self.drafter.forward(self.tokens, self.hidden, at, at, None, self.drafter_cache)
        at = self.scratch[: self.depth + 1] - (self.last + 1)
        visible = self.arange[: self.bucketed] <= at.unsqueeze(1)
        return self.drafter.forward(self.tokens, self.hidden, at, at, visible, self.drafter_cache).index_select(1, self.last)

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor) -> Tensor:
        assert self.drafter is not None
        size, width = mask.shape
        at, positions = self.behind(width - size, size), self.behind(depth - 1, 1).expand(size)
        return self.drafter.forward(tokens, hidden, positions, at, self.visible(mask, depth), self.drafter_cache)
