"""A step of fixed shapes: draft, verify, accept and commit without a host read, so that it can be captured once and replayed.

Where a run stands is in tensors on its device, which a step reads and writes. What varies from step to step is never a shape:
attention covers a bucket of slots [0, S) under an additive mask made from the committed length, the drafter's stable pass always
runs D + 1 slots for a tree of depth D, of which the unseen ones count, and D + 1 rows are committed, of which those behind the
accepted path are garbage behind the length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..cache import KVCache
from ..config import Config
from ..drafting import Source
from ..protocols import FixedDrafter, FixedTarget
from ..sampling import Uniforms, guide, probabilities
from ..timing import Clock
from ..trees import Draft, TreePolicy
from ..verify import Outcome, read, report, verify

ALIGNED = 8  # attention kernels want the last dimension of a mask to be a multiple of it


class StepLaw(NamedTuple):
    """What a step leaves for the measured distortion, on the device and valid until the next step of its kind."""

    draft: Draft
    root_law: Tensor  # [V] float32
    emitted: Tensor  # [1] int64, the first token


@dataclass
class State:
    """Where a run stands, on its device. The drafter's committed length is `length - last - 1` before its stable pass and `length`
    behind it, so that one number serves both caches."""

    length: Tensor  # [1] int64, committed slots of the target's cache: the prefix and all tokens but the root's
    root: Tensor  # [1] int64, the last committed token, which the target has not seen
    step: Tensor  # [1] int64, number of the next step, from 1
    last: Tensor  # [1] int64, the last of the unseen slots that counts
    unseen_tokens: Tensor  # [D + 1] int64, tokens that the drafter has not seen
    unseen_hidden: Tensor  # [R, D + 1, H], the target's states before them
    results: Tensor  # [steps, width] int64, a `verify.report` per step
    source: tuple[Tensor, ...]  # what the draft source keeps

    def copies(self) -> list[Tensor]:
        """Copies of all tensors, for `restore`."""
        return [value.clone() for value in self._tensors()]

    def restore(self, copies: list[Tensor]) -> None:
        """Go back to where `copies` were made. Cache slots behind the length need no restoring."""
        for value, kept in zip(self._tensors(), copies, strict=True):
            value.copy_(kept)

    def _tensors(self) -> list[Tensor]:
        return [*(value for value in vars(self).values() if isinstance(value, Tensor)), *self.source]


class Fixed:
    """The steps of one run, behind its prefill, for at most `num_tokens` tokens.

    cache and drafter_cache (None: no drafter) have room for `room(...)` slots behind the prefix; hidden [Rd, T, H] are the target's
    prefix states as the drafter reads them, of which only sizes matter here. `begin` starts a run.
    """

    def __init__(
        self, target: FixedTarget, drafter: FixedDrafter | None, cache: KVCache, drafter_cache: KVCache | None,
        hidden: Tensor, config: Config, source: Source, num_tokens: int, uniforms: Uniforms,
    ) -> None:  # fmt: skip
        self.target, self.drafter, self.cache, self.drafter_cache = target, drafter, cache, drafter_cache
        self.config, self.source, self.num_tokens = config, source, num_tokens
        policy, device = config.tree, hidden.device
        self.alone = Source(device)
        self.depth, self.size = source.depth, policy.nodes
        self.slots = min(c.slots for c in (cache, drafter_cache) if c is not None) // ALIGNED * ALIGNED
        self.columns = torch.arange(self.slots, device=device)
        self.ahead = max(policy.nodes, policy.expanded, self.depth + 1)  # slots behind the committed ones that a step writes
        self.offsets = torch.arange(-1, self.ahead, device=device)
        self.nothing = torch.zeros((), dtype=cache.k.dtype, device=device)
        self.never = torch.full((), -torch.inf, dtype=cache.k.dtype, device=device)
        # 0 where a committed slot is visible, -inf where it is a padded one of the prefix
        self.padding = self.nothing.repeat(cache.k.shape[1], 1, 1, self.slots)
        tree = source.tree
        self.tree_bias = None if tree is None else self.additive(tree.mask)
        inner = None if tree is None else tree.inner[1:]
        self.node_bias = None if tree is None or inner is None else self.additive(tree.mask[inner][:, inner])
        rows, _, width = hidden.shape
        count = torch.zeros(4, dtype=torch.int64, device=device)
        length, root, step, last = count.split(1)
        self.place = count[::2]  # length and step, which every step moves on by 1
        unseen = torch.zeros(self.depth + 1, dtype=torch.int64, device=device)
        results = torch.zeros(num_tokens, 3 + 2 * self.depth + 3 * self.size, dtype=torch.int64, device=device)
        self.state = State(length, root, step, last, unseen, hidden.new_zeros(rows, self.depth + 1, width), results, source.state)
        self.rows = uniforms.rows.new_zeros(num_tokens, uniforms.rows.shape[1])
        self.uniforms = uniforms

    def begin(self, hidden: Tensor, root: Tensor, uniforms: Uniforms, seed: int) -> None:
        """Start a run: both caches hold its prefix. All tensors stay where they are, so that graphs captured in a run before go on
        being right. hidden [Rd, T, H] ends with the last state before root [1], the first token; uniforms as the run's seed gives them."""
        cache, state = self.cache, self.state
        self.prefix = cache.length
        self.padding.zero_()
        if cache.visible is not None:
            self.padding[..., : self.prefix].masked_fill_(~cache.visible, -torch.inf)
        self.rows[: uniforms.rows.shape[0]].copy_(uniforms.rows)
        state.length.fill_(self.prefix)
        state.root.copy_(root)
        state.step.fill_(1)
        state.last.zero_()
        state.unseen_tokens[:1] = root
        state.unseen_hidden[:, :1] = hidden[:, -1:]
        self.source.begin(root, seed)

    # -- shapes

    @staticmethod
    def room(num_tokens: int, policy: TreePolicy) -> int:
        """Slots behind the prefix that a run needs."""
        return num_tokens + max(policy.nodes, policy.expanded) + ALIGNED

    def shapes(self) -> list[tuple[int, bool]]:
        """The buckets and kinds (bare or not) of all steps that a run of `num_tokens` tokens can have."""
        buckets = sorted({self.bucket(committed) for committed in range(1, self.num_tokens)})
        found = [(slots, self.depth == 0) for slots in buckets]
        return [*found, (buckets[-1], True)] if self.depth > 0 and self.config.bare(1) and buckets else found

    def bucket(self, committed: int) -> int:
        """The slots S that attention covers in a step with at most `committed` tokens behind the prefix: one of about four sizes,
        so that few graphs are captured and short lengths do not pay for long ones."""
        size = max(64, -(-self.num_tokens // 256) * 64)
        return min(-(-(self.prefix + committed + self.ahead) // size) * size, self.slots)

    # -- a step

    def step(self, slots: int, bare: bool, mark: Callable[[int], None] = lambda _: None) -> StepLaw:
        """One whole step over a bucket; bare: without drafts. `mark` is called with 0 to 3 before and behind the three parts."""
        mark(0)
        draft = self.draft(slots, bare)
        mark(1)
        hidden, p = self.verify(draft, slots)
        mark(2)
        law = self.commit(draft, hidden, p)
        mark(3)
        return law

    def draft(self, slots: int, bare: bool) -> Draft:
        """The tree of the current root. Leaves in `scratch` the slots behind the committed ones, for the whole step."""
        state = self.state
        self.from_last = state.length + self.offsets
        self.scratch = self.from_last[1:]
        self.row = self.rows.index_select(0, state.step)[0]
        source = self.alone if bare else self.source
        return source.draft(state.root, _FixedPasses(self, slots), self.target.head, self.row[self.uniforms.judged :])

    def verify(self, draft: Draft, slots: int) -> tuple[Tensor, Tensor]:
        """The target's states [R, n, H] and laws [n, V] of a draft."""
        tree, state, size, sampling = draft.tree, self.state, draft.tree.size, self.config.sampling
        at = self.scratch[:size]
        seen = self.columns[:slots] < state.length
        bias = torch.where(seen, self.padding[..., :slots].expand(-1, -1, size, -1), self.never)
        own = self.additive(tree.mask) if self.tree_bias is None or size == 1 else self.tree_bias
        bias.index_copy_(3, at, own.expand(*bias.shape[:2], -1, -1))
        hidden = self.target.forward_at(draft.tokens, state.length + tree.depths, at, bias, self.cache)
        return hidden, probabilities(guide(self.target.head(hidden), sampling.cfg_scale), sampling, spent=True)

    def commit(self, draft: Draft, hidden: Tensor, p: Tensor) -> StepLaw:
        """Accept, move the accepted rows up, and write down what happened."""
        tree, state, config = draft.tree, self.state, self.config
        uniforms = self.uniforms.of_nodes(self.row, tree.size)
        found = verify(config.rule, draft, p, config.sampling.greedy, config.neighbours, uniforms)
        row = report(draft, found)
        state.results[:, : row.shape[0]].index_copy_(0, state.step, row.unsqueeze(0))
        # where the bonus token is none any valid one: steps may be in flight that start from it
        torch.clamp(found.bonus, 0, self.target.vocab_size - 1, out=state.root)
        emitted = state.root
        if tree.size > 1:  # alone, the root is where it belongs, and the drafter is not asked again
            emitted = self._move(draft, hidden, found.path, found.depth)
            self.source.observe(p, found, self.row[self.uniforms.judged :])
        self.place.add_(1)
        state.length.add_(found.depth)
        return StepLaw(draft, p[0], emitted[:1])

    def outcome(self, row: list[int], bare: bool) -> Outcome:
        """A row of results. Raises FloatingPointError as `verify.read` does."""
        size, depth = (1, 0) if bare else (self.size, self.depth)
        sampled = not bare and self.config.tree.kind == "static" and not self.config.sampling.greedy
        inner = self.node_bias.shape[0] + 1 if sampled and self.node_bias is not None else 0
        return read(row[: 3 + 2 * depth + 2 * size + inner], size, depth, sampled, self.target.vocab_size)

    # -- parts of it

    def additive(self, mask: Tensor) -> Tensor:
        """A mask, True for what is seen, as what attention adds."""
        return torch.where(mask, self.nothing, self.never)

    def _move(self, draft: Draft, hidden: Tensor, path: Tensor, depth: Tensor) -> Tensor:
        """Move the path's K/V up and hand its states and next tokens to the drafter; returns the next tokens [D + 1], behind the
        accepted ones the new root, and what is behind that does not count."""
        state = self.state
        self.cache.move(state.length + path, self.scratch[: self.depth + 1])
        torch.index_select(draft.tokens, 0, path[1:], out=state.unseen_tokens[: self.depth])
        state.last.copy_(depth)
        state.unseen_tokens.scatter_(0, state.last, state.root)
        if self.drafter is not None and self.drafter.guided:
            state.unseen_hidden.copy_(guide(hidden.index_select(1, path), self.config.sampling.cfg_scale)[None])
        else:
            torch.index_select(hidden, 1, path, out=state.unseen_hidden)
        return state.unseen_tokens


class _FixedPasses:
    """The drafter's passes of one step."""

    def __init__(self, fixed: Fixed, slots: int) -> None:
        self.fixed, self.slots = fixed, slots

    def stable(self) -> Tensor:
        """As `drafting.Passes.stable`: D + 1 slots, of which the unseen ones count."""
        fixed, drafter = self.fixed, self.fixed.drafter
        assert drafter is not None
        state, cache = fixed.state, fixed.drafter_cache
        at = fixed.from_last[: fixed.depth + 1] - state.last
        self.seen = fixed.additive(fixed.columns[: self.slots] <= at.unsqueeze(1))[None, None]
        turn = drafter.turns_at(at, cache)
        output = drafter.run_at(state.unseen_tokens, state.unseen_hidden, turn, at, self.seen, cache)
        if fixed.node_bias is not None:  # for all passes over a tree that is known at once
            size = len(fixed.node_bias)
            self.bias = self._of_nodes(size)
            self.bias.index_copy_(3, fixed.scratch[:size], fixed.node_bias[None, None])
            self.turns = drafter.turns_at(fixed.scratch[: fixed.depth], cache)  # a node's depth is its place on the grid
        return output.index_select(1, state.last)

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor) -> Tensor:
        """As `drafting.Passes.expand`."""
        fixed, drafter, cache = self.fixed, self.fixed.drafter, self.fixed.drafter_cache
        assert drafter is not None
        size, width = mask.shape
        own = slice(width - size, width)
        if fixed.node_bias is not None:
            turn, bias = self.turns[:, depth - 1 : depth], self.bias[:, :, own]
        else:
            bias = self._of_nodes(size)
            bias.index_copy_(3, fixed.scratch[:width], fixed.additive(mask)[None, None])
            turn = drafter.turns_at(fixed.state.length + (depth - 1), cache)
        return drafter.run_at(tokens, hidden, turn, fixed.scratch[own], bias, cache)

    def _of_nodes(self, size: int) -> Tensor:
        """The mask [1, 1, size, S] of nodes that see what the last unseen slot sees, which is all that is committed."""
        return self.seen.index_select(2, self.fixed.state.last.expand(size))


class Eager:
    """Steps as they are written, each part timed where it runs."""

    ahead, reusable, reason = 1, True, ""  # see `graphs.Steps`

    def __init__(self, fixed: Fixed, clock: Clock) -> None:
        self.fixed, self.clock, self.name = fixed, clock, "fixed"

    def begin(self, clock: Clock) -> None:
        self.clock = clock

    def prepare(self, shapes: list[tuple[int, bool]]) -> None:
        """Nothing has to be made."""

    def launch(self, index: int, slots: int, bare: bool) -> StepLaw:
        with self.clock.measure("draft"):
            draft = self.fixed.draft(slots, bare)
        with self.clock.measure("verify"):
            hidden, p = self.fixed.verify(draft, slots)
        with self.clock.measure("commit"):
            return self.fixed.commit(draft, hidden, p)

    def row(self, index: int) -> list[int]:
        found: list[int] = self.fixed.state.results[index].tolist()
        return found

    def close(self) -> None:
        """Nothing is in flight."""
