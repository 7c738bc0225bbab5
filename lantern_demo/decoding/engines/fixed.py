"""A step of fixed shapes: draft, verify, accept and commit without a host read, so that it can be captured once and replayed.

Where a run stands is in tensors on its device, which a step reads and writes. What varies from step to step is never a shape:
attention covers a bucket of slots [0, S) under an additive mask made from the committed length, the drafter's stable pass always
runs D + 1 slots for a tree of depth D, of which the unseen ones count, and D + 1 rows are committed, of which those behind the
accepted path are garbage behind the length.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ..cache import KVCache
from ..config import Config
from ..protocols import FixedDrafter, FixedTarget
from ..sampling import guide, warp
from ..trees import Draft, Drafts, Source
from ..verify import Step, Verifier, pack_step, row_length, unpack_step

Part = Callable[[str], AbstractContextManager[object]]
ALIGNED = 8  # attention kernels want the last dimension of a mask to be a multiple of it


class Fixed:
    """The steps of one run after the other, behind its prefill, for at most `num_tokens` tokens. cache and drafter_cache (None:
    no drafter) have room for `room(...)` slots behind the prefix; of uniforms only what a step has of them matters here. `begin`
    starts a run."""

    def __init__(
        self,
        target: FixedTarget,
        drafter: FixedDrafter | None,
        cache: KVCache,
        drafter_cache: KVCache | None,
        config: Config,
        source: Source,
        verifier: Verifier,
        num_tokens: int,
        uniforms: Tensor,
    ) -> None:
        self.target, self.drafter, self.cache, self.drafter_cache = target, drafter, cache, drafter_cache
        self.config, self.source, self.verifier, self.num_tokens = config, source, verifier, num_tokens
        policy, device, tree = config.tree, config.torch_device, source.tree
        self.alone, self.depth, self.size = Source(device), source.depth, config.nodes
        self.slots = min(c.slots for c in (cache, drafter_cache) if c is not None) // ALIGNED * ALIGNED
        self.slot_numbers = torch.arange(self.slots, device=device)
        self.ahead = max(policy.nodes, policy.expanded, self.depth + 1)  # slots behind the committed ones that a step writes
        self.offsets = torch.arange(-1, self.ahead, device=device)
        self.nothing = torch.zeros((), dtype=cache.k.dtype, device=device)
        self.never = torch.full_like(self.nothing, -torch.inf)
        # 0 where a committed slot is visible, -inf where it is a padded one of the prefix
        self.padding = self.nothing.repeat(cache.k.shape[1], 1, 1, self.slots)
        self.tree_bias = None if tree is None else self.additive(tree.mask)
        self.node_bias = None if tree is None else self.additive(tree.mask[tree.inner[1:]][:, tree.inner[1:]])
        # Where a run stands. The drafter's committed length is `length - last - 1` before its stable pass and `length` behind it,
        # so that one number serves both caches.
        self.numbers = torch.zeros(5, dtype=torch.int64, device=device)
        # [1] each: committed slots of the target's cache, the prefix and all tokens but the root's; the last committed token,
        # which the target has not seen; the next step, from 1; the last of the unseen slots that counts; the position of the
        # picture whose token the root draws
        self.length, self.root, self.number, self.last, self.position = self.numbers.split(1)
        self.counters = self.numbers[::2]  # length, number and position, which every step moves on by 1
        self.lengths = self.numbers[::4]  # length and position, which it moves on by the accepted drafts too
        self.unseen_tokens = self.numbers.new_zeros(self.depth + 1)  # tokens that the drafter has not seen
        self.unseen_hidden = torch.empty(0)  # [Rd, D + 1, H], the target's states before them, from the first run on
        # a `verify.pack_step` per step, and zeros behind it
        self.results = self.numbers.new_zeros(num_tokens, row_length(self.size, self.depth))
        self.kept = source.state
        self.rows = uniforms.new_zeros(num_tokens, uniforms.shape[1])

    def begin(self, hidden: Tensor, root: Tensor, uniforms: Tensor, seed: int) -> None:
        """Start a run: both caches hold its prefix. All tensors stay where they are, so that graphs captured in a run before go
        on being right. hidden [Rd, T, H], the target's states as the drafter reads them, ends with the last one before root [1],
        the first token; uniforms as the run's seed gives them."""
        if not self.unseen_hidden.numel():
            self.unseen_hidden = hidden.new_zeros(hidden.shape[0], self.depth + 1, hidden.shape[2])
        self.prefix = self.cache.length
        self.cache.hide_padding(self.padding)
        self.rows[: len(uniforms)].copy_(uniforms)
        self.length.fill_(self.prefix)
        self.root.copy_(root)
        self.number.fill_(1)
        self.position.fill_(1)
        self.last.zero_()
        self.unseen_tokens[:1] = root
        self.unseen_hidden[:, :1] = hidden[:, -1:]
        self.source.begin(root, seed)

    def state(self) -> list[Tensor]:
        """All that a step changes, but for cache slots behind the length."""
        return [self.numbers, self.unseen_tokens, self.unseen_hidden, self.results, *self.kept]

    def restore(self, copies: list[Tensor]) -> None:
        """Go back to where copies of the `state` were made."""
        for part, copy in zip(self.state(), copies, strict=True):
            part.copy_(copy)

    # -- shapes

    @staticmethod
    def room(num_tokens: int, policy: Drafts) -> int:
        """Slots behind the prefix that a run needs."""
        return num_tokens + max(policy.nodes, policy.expanded) + ALIGNED

    def shapes(self) -> list[tuple[int, bool]]:
        """The buckets and kinds (with drafts or without) of all steps that a run of `num_tokens` tokens can have."""
        buckets = sorted({self.bucket(committed) for committed in range(1, self.num_tokens)})
        found = [(slots, self.depth == 0) for slots in buckets]
        return [*found, (buckets[-1], True)] if self.depth > 0 and self.config.no_draft(1) and buckets else found

    def bucket(self, committed: int) -> int:
        """The slots S that attention covers in a step with at most `committed` tokens behind the prefix: one of about four sizes,
        so that few graphs are captured and short lengths do not pay for long ones."""
        size = max(64, -(-self.num_tokens // 256) * 64)
        return min(-(-(self.prefix + committed + self.ahead) // size) * size, self.slots)

    # -- a step

    def step(self, slots: int, no_draft: bool, part: Part = nullcontext) -> None:
        """One whole step over a bucket; no_draft: without drafts. Each of its parts is done within `part` of its name."""
        with part("draft"):
            draft = self.draft(slots, no_draft)
        with part("verify"):
            hidden, scores = self.verify(draft)
        with part("commit"):
            self.commit(draft, hidden, scores)

    def draft(self, slots: int, no_draft: bool) -> Draft:
        """The tree of the current root. What is set here is for the whole step."""
        self.bucketed = slots
        self.from_last = self.length + self.offsets
        self.scratch = self.from_last[1:]  # the slots behind the committed ones
        self.row = self.rows.index_select(0, self.number)[0]
        source = self.alone if no_draft else self.source
        return source.draft(self.root, self, self.target.head, self.row[self.verifier.draws :])

    def verify(self, draft: Draft) -> tuple[Tensor, Tensor]:
        """The target's states [R, n, H] of a draft, and the scores there [n, V]."""
        tree, size = draft.tree, draft.tree.size
        at, slots = self.scratch[:size], self.bucketed
        seen = self.slot_numbers[:slots] < self.length
        bias = torch.where(seen, self.padding[..., :slots].expand(-1, -1, size, -1), self.never)
        own = self.additive(tree.mask) if self.tree_bias is None or size == 1 else self.tree_bias
        bias.index_copy_(3, at, own.expand(*bias.shape[:2], -1, -1))
        hidden = self.target.forward_at(draft.tokens, self.length + tree.depths, at, bias, self.cache)
        return hidden, warp(self.target.head(hidden), self.config.sampling)

    def commit(self, draft: Draft, hidden: Tensor, scores: Tensor) -> None:
        """Accept, move the K/V of the accepted path up, and write down what happened."""
        out = self.verifier.verify(draft, scores, self.position, self.row)
        row = pack_step(draft, out)
        self.results[:, : row.shape[0]].index_copy_(0, self.number, row.unsqueeze(0))
        # where the bonus token is none any valid one: steps may be in flight that start from it
        torch.clamp(out.bonus, 0, self.target.vocab_size - 1, out=self.root)
        if draft.tree.size > 1:  # alone, the root is where it belongs, and the drafter is not asked again
            path = out.path
            self.cache.move(self.length + path, self.scratch[: self.depth + 1])
            # what the drafter reads next: the accepted tokens, the new root behind them, and what is behind that does not count
            torch.clamp(out.tokens, 0, self.target.vocab_size - 1, out=self.unseen_tokens)
            self.last.copy_(out.depth)
            if self.drafter is not None and self.drafter.guided:
                self.unseen_hidden.copy_(guide(hidden.index_select(1, path), self.config.sampling.cfg_scale)[None])
            else:
                torch.index_select(hidden, 1, path, out=self.unseen_hidden)
            self.source.observe(out, scores)
        self.counters.add_(1)
        self.lengths.add_(out.depth)

    def outcome(self, row: list[int], no_draft: bool) -> Step:
        """Of a row of results, as `verify.unpack_step`."""
        size, deepest = (1, 0) if no_draft else (self.size, self.depth)
        return unpack_step(row, size, deepest, self.target.vocab_size)

    # -- parts of it

    def additive(self, mask: Tensor) -> Tensor:
        """A mask, True for what is seen, as what attention adds."""
        return torch.where(mask, self.nothing, self.never)

    # -- the drafter's passes: see `trees.Passes`

    def stable(self) -> Tensor:
        """Of D + 1 slots the unseen ones count."""
        drafter, cache = self.drafter, self.drafter_cache
        assert drafter is not None
        at = self.from_last[: self.depth + 1] - self.last
        self.seen = self.additive(self.slot_numbers[: self.bucketed] <= at.unsqueeze(1))[None, None]
        turn = drafter.turns_at(at, cache)
        output = drafter.run_at(self.unseen_tokens, self.unseen_hidden, turn, at, self.seen, cache)
        if self.node_bias is not None:  # for all passes over a tree that is known at once
            self.bias = self._of_nodes(self.node_bias)
            self.turns = drafter.turns_at(self.scratch[: self.depth], cache)  # a node's depth is its place on the grid
        return output.index_select(1, self.last)

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor) -> Tensor:
        drafter, cache = self.drafter, self.drafter_cache
        assert drafter is not None
        size, width = mask.shape
        own = slice(width - size, width)
        if self.node_bias is not None:
            turn, bias = self.turns[:, depth - 1 : depth], self.bias[:, :, own]
        else:
            bias = self._of_nodes(self.additive(mask))
            turn = drafter.turns_at(self.length + (depth - 1), cache)
        return drafter.run_at(tokens, hidden, turn, self.scratch[own], bias, cache)

    def _of_nodes(self, own: Tensor) -> Tensor:
        """The mask [1, 1, m, S] of m nodes that see what the last unseen slot sees, which is all that is committed, and of the w
        slots behind it what own [m, w] says."""
        size, width = own.shape
        return self.seen.index_select(2, self.last.expand(size)).index_copy_(3, self.scratch[:width], own[None, None])
