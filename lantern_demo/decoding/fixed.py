"""A step of fixed shapes: draft, verify, accept and commit without a host read, so that it can be captured once and replayed.

Where a run stands is in tensors on its device, which a step reads and writes. What varies from step to step is never a shape:
attention covers a bucket of slots [0, S) under an additive mask made from the committed length, the drafter's stable pass always
runs D + 1 slots for a tree of depth D, of which the unseen ones count, and D + 1 rows are committed, of which those behind the
accepted path are garbage behind the length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .acceptance import Rule
from .cache import KVCache
from .drafting import Draft, bare_draft, dynamic_draft, static_draft
from .judge import judge, ways, with_self
from .planted import Planted
from .protocols import FixedDrafter, FixedTarget
from .sampling import NO_DRAFT_LAW, Sampling, guide, probabilities
from .trees import TreePolicy, static_tree
from .uniforms import Uniforms
from .walk import NO_LAW, Judged

SMALL = 64  # neighbours of a token that a second table of them is worth
ALIGNED = 8  # attention kernels want the last dimension of a mask to be a multiple of it


class Outcome(NamedTuple):
    """A step as the host sees it; the fields are those of `walk.Walk`."""

    path: list[int]
    tokens: list[int]
    relaxed: list[bool]
    tree_tokens: list[int]
    tree_parents: list[int]
    judged: Sequence[Judged] = ()


class Taken(NamedTuple):
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
    results: Tensor  # [steps, width] int64, a row per step: see `Fixed.outcome`

    def copies(self) -> list[Tensor]:
        """Copies of all tensors, for `restore`."""
        return [value.clone() for value in vars(self).values()]

    def restore(self, copies: list[Tensor]) -> None:
        """Go back to where `copies` were made. Cache slots behind the length need no restoring."""
        for value, kept in zip(vars(self).values(), copies, strict=True):
            value.copy_(kept)


class Fixed:
    """The steps of one run, behind its prefill.

    cache holds the T prefix slots, drafter_cache too (None: vanilla); hidden [Rd, 1, H] is the target's last prefix state as the
    drafter reads it, root [1] the first image token. Both caches have room for `room(...)` slots behind the prefix.
    """

    def __init__(
        self, target: FixedTarget, drafter: FixedDrafter | None, cache: KVCache, drafter_cache: KVCache | None,
        hidden: Tensor, root: Tensor, *, num_tokens: int, sampling: Sampling, rule: Rule, policy: TreePolicy,
        neighbours: Tensor | None, uniforms: Uniforms,
    ) -> None:  # fmt: skip
        self.target, self.drafter, self.cache, self.drafter_cache = target, drafter, cache, drafter_cache
        self.sampling, self.rule, self.policy, self.neighbours = sampling, rule, policy, neighbours
        device = root.device
        self.num_tokens = num_tokens
        self.bare = static_tree((), device)
        self.bare_way = ways(self.bare)
        self.planted = Planted(static_tree(policy.paths), device) if policy.kind == "static" else None
        self.tree = None if self.planted is None else self.planted.tree
        grown = policy.depth + 1 if policy.kind == "dynamic" else 0
        self.depth = grown if self.tree is None else self.tree.depth
        self.way = None if self.tree is None else ways(self.tree)
        if neighbours is not None and rule.relaxes and rule.k <= SMALL:  # as the judge reads them, to do so at once
            self.way = self.way and self.way._replace(near=with_self(neighbours, rule.k))
        self.guides = drafter is not None and drafter.guided
        self.slots = min(c.slots for c in (cache, drafter_cache) if c is not None) // ALIGNED * ALIGNED
        self.columns = torch.arange(self.slots, device=device)
        self.unseen = self.columns[: self.depth + 1] - 1  # from the last committed slot
        self.nothing = torch.zeros((), dtype=cache.k.dtype, device=device)
        self.never = torch.full((), -torch.inf, dtype=cache.k.dtype, device=device)
        self.tree_bias = self.node_bias = None  # of a static tree: what a node may see of it, and what a drafter's pass may
        if self.planted is not None:
            self.tree_bias = self.additive(self.planted.tree.mask)
            self.node_bias = self.additive(self.planted.seen.to(device))
        # 0 where a committed slot is visible, -inf where it is a padded one of the prefix
        self.padding = self.nothing.repeat(cache.k.shape[1], 1, 1, self.slots)
        rows, _, width = hidden.shape
        # side by side, so that one addition moves both on
        self.place = torch.ones(2, dtype=torch.int64, device=device)
        length, step = self.place.split(1)
        root_token, last = torch.zeros(2, 1, dtype=torch.int64, device=device).unbind()
        self.state = State(
            length, root_token, step, last, torch.zeros(self.depth + 1, dtype=torch.int64, device=device), hidden.new_zeros(rows, self.depth + 1, width),
            root.new_zeros(num_tokens, _width(policy.nodes, self.depth, 0 if self.tree is None else self.tree.inner.shape[0])),
        )  # fmt: skip
        self.uniforms = uniforms.room_for(num_tokens)
        self.begin(hidden, root, uniforms)

    def begin(self, hidden: Tensor, root: Tensor, uniforms: Uniforms) -> None:
        """Start a run of at most `num_tokens` tokens: both caches hold its prefix. All tensors stay where they are, so that graphs
        captured in a run before go on being right."""
        cache, state = self.cache, self.state
        self.prefix = cache.length
        self.padding.zero_()
        if cache.visible is not None:
            self.padding[..., : self.prefix].masked_fill_(~cache.visible, -torch.inf)
        self.uniforms.take(uniforms)
        state.length.fill_(self.prefix)
        state.root.copy_(root)
        state.step.fill_(1)
        state.last.zero_()
        state.unseen_tokens[:1] = root
        state.unseen_hidden[:, :1] = hidden

    # -- shapes

    @staticmethod
    def room(num_tokens: int, policy: TreePolicy) -> int:
        """Slots behind the prefix that a run needs."""
        return num_tokens + max(policy.nodes, policy.expanded) + ALIGNED

    def shapes(self, bare_last: bool) -> list[tuple[int, bool]]:
        """The buckets and kinds (bare or not) of all steps that a run of `num_tokens` tokens can have; see `ahead`."""
        buckets = sorted({self.bucket(committed, self.num_tokens) for committed in range(1, self.num_tokens)})
        found = [(slots, self.depth == 0) for slots in buckets]
        return [*found, (buckets[-1], True)] if self.depth > 0 and bare_last and buckets else found

    def bucket(self, committed: int, num_tokens: int) -> int:
        """The slots S that attention covers in a step with at most `committed` tokens behind the prefix: one of about four sizes,
        so that few graphs are captured and short lengths do not pay for long ones."""
        size = max(64, -(-num_tokens // 256) * 64)
        needed = self.prefix + committed + max(self.policy.nodes, self.policy.expanded)
        return min(-(-needed // size) * size, self.slots)

    # -- a step

    def step(self, slots: int, bare: bool, mark: Callable[[int], None] | None = None) -> Taken:
        """One whole step over a bucket; bare: without drafts. `mark` is called with 0 to 3 before and behind the three parts."""
        call = mark or (lambda _: None)
        call(0)
        draft = self.draft(slots, bare)
        call(1)
        hidden, logits = self.verify(draft, slots)
        call(2)
        taken = self.commit(draft, hidden, logits)
        call(3)
        return taken

    def draft(self, slots: int, bare: bool) -> Draft:
        """The drafter's stable pass over what it has not seen, then the tree of the current root. Leaves in `scratch` the slots behind
        the committed ones, for the whole step."""
        state, drafter, cache = self.state, self.drafter, self.drafter_cache
        self.scratch = state.length + self.columns[: max(self.policy.nodes, self.policy.expanded, self.depth + 1)]
        if bare or drafter is None or cache is None:
            return bare_draft(self.bare, state.root)
        at = state.length - state.last + self.unseen
        bias = torch.where(self.columns[:slots] <= at.unsqueeze(1), self.nothing, self.never)
        turn = drafter.turns_at(at, cache)
        output = drafter.run_at(state.unseen_tokens, state.unseen_hidden, turn, at, bias[None, None], cache)
        output = output.index_select(1, state.last)
        passes = _Passes(self, drafter, slots)
        if self.tree is None:
            return dynamic_draft(self.policy, state.root, output, passes, self.target, cache, self.sampling)
        if self.planted is None or self.sampling.greedy:
            unused = self.uniforms.rows[0]  # the likeliest tokens are taken
            return static_draft(self.tree, state.root, output, passes, self.target, cache, self.sampling, unused)
        return self.planted.draft(state.root, output, passes, self.target, self.sampling, self._uniforms())

    def verify(self, draft: Draft, slots: int) -> tuple[Tensor, Tensor]:
        """The target's states [R, n, H] and guided logits [n, V] of a draft."""
        tree, state, size = draft.tree, self.state, draft.tree.size
        at = self.scratch[:size]
        bias = self.committed(self.padding[..., :slots]).repeat(1, 1, size, 1)
        own = self.additive(tree.mask) if self.tree_bias is None or size == 1 else self.tree_bias
        bias.index_copy_(3, at, own.expand(*bias.shape[:2], -1, -1))
        hidden = self.target.forward_at(draft.tokens, state.length + tree.depths, at, bias, self.cache)
        return hidden, guide(self.target.head(hidden), self.sampling.cfg_scale)

    def commit(self, draft: Draft, hidden: Tensor, logits: Tensor) -> Taken:
        """Accept, move the accepted rows up, and write down what happened."""
        tree, state = draft.tree, self.state
        p = probabilities(logits, self.sampling, spent=True)
        columns = self.uniforms.columns if tree.size > 1 else 1
        drawn = self._uniforms() if draft.turns is None else draft.turns.step
        uniforms = drawn[: tree.size * columns].view(tree.size, columns)
        way = self.bare_way if tree.size == 1 else self.way or ways(tree)
        found = judge(self.rule, draft, way, p, self.sampling.greedy, self.neighbours, uniforms)
        following = found.bonus
        if tree.size > 1:  # alone, the root is where it belongs, and the drafter is not asked again
            self._take_root(found.bonus)
            following = self._move(draft, hidden, found.path, found.taken, state.root)
        parts = [found.taken, found.path, following, found.loose, draft.tokens, tree.parents, found.bonus]
        if draft.turns is not None:
            parts.append(draft.drawn[:, 0])  # every law has a first token, unless it is no law
        row = torch.cat(parts)
        state.results[:, : row.shape[0]].index_copy_(0, state.step, row.unsqueeze(0))
        if tree.size == 1:  # not earlier: its token is the root
            self._take_root(found.bonus)
        self.place.add_(found.ahead)
        return Taken(draft, p[0], following[:1])

    def outcome(self, row: list[int], bare: bool) -> Outcome:
        """A row of results: count, path [D + 1], its next tokens [D + 1], flags [D], tree tokens [n], tree parents [n], the bonus token
        and, of a sampled static tree, the first draw at each inner node [I].

        Raises FloatingPointError where a law was none: the bonus token is then no token of the vocabulary, a first draw is -1.
        """
        size, depth = (1, 0) if bare else (self.policy.nodes, self.depth)
        count, found = row[0], row[1:]
        parts = []
        for length in (depth + 1, depth + 1, depth, size, size):
            parts.append(found[:length])
            found = found[length:]
        path, following, loose, tokens, parents = parts
        if self.planted is not None and not self.sampling.greedy and not bare and min(found[1:]) < 0:
            raise FloatingPointError(NO_DRAFT_LAW)
        if not 0 <= found[0] < self.target.vocab_size:
            raise FloatingPointError(NO_LAW)
        return Outcome(path[:count], following[:count], [bool(flag) for flag in loose[: count - 1]], tokens, parents)

    # -- parts of it

    def committed(self, padding: Tensor) -> Tensor:
        """The mask [R or 1, 1, 1, S] of a row that sees the committed slots, those of the prefix as padding [R or 1, 1, 1, S] says."""
        return torch.where(self.columns[: padding.shape[-1]] < self.state.length, padding, self.never)

    def additive(self, mask: Tensor) -> Tensor:
        """A mask, True for what is seen, as what attention adds."""
        return torch.where(mask, self.nothing, self.never)

    def _uniforms(self) -> Tensor:
        """[W] of this step."""
        return self.uniforms.rows.index_select(0, self.state.step)[0]

    def _take_root(self, bonus: Tensor) -> None:
        """The next root; where the bonus token is none any valid one, since steps may be in flight that start from it."""
        torch.clamp(bonus, 0, self.target.vocab_size - 1, out=self.state.root)

    def _move(self, draft: Draft, hidden: Tensor, path: Tensor, count: Tensor, bonus: Tensor) -> Tensor:
        """Move the path's K/V up and hand its states and next tokens to the drafter; returns the next tokens [D + 1]."""
        state, reach = self.state, self.depth + 1
        self.cache.move(state.length + path, self.scratch[:reach])
        # behind the accepted tokens the bonus token, and what is behind that does not count
        torch.index_select(draft.tokens, 0, path[1:], out=state.unseen_tokens[: self.depth])
        torch.sub(count, 1, out=state.last)
        state.unseen_tokens.scatter_(0, state.last, bonus)
        if self.guides:
            state.unseen_hidden.copy_(guide(hidden.index_select(1, path), self.sampling.cfg_scale)[None])
        else:
            torch.index_select(hidden, 1, path, out=state.unseen_hidden)
        return state.unseen_tokens


class _Passes:
    """The drafter's tree passes of one step, as `drafting` and `planted` ask for them."""

    def __init__(self, fixed: Fixed, drafter: FixedDrafter, slots: int) -> None:
        self.fixed, self.drafter = fixed, drafter
        self.committed = fixed.committed(fixed.nothing.expand(1, 1, 1, slots))
        if fixed.node_bias is not None:  # for all passes over a static tree at once
            size = len(fixed.node_bias)
            self.bias = self.committed.repeat(1, 1, size, 1)
            self.bias.index_copy_(3, fixed.scratch[:size], fixed.node_bias[None, None])
            self.turns = drafter.turns_at(
                fixed.scratch[: fixed.depth], fixed.drafter_cache
            )  # a node's depth is its place on the grid

    def over(self, nodes: slice, depth: int, tokens: Tensor, hidden: Tensor) -> Tensor:
        """As `planted.Passes.over`."""
        bias, cache = self.bias[:, :, nodes], self.fixed.drafter_cache
        return self.drafter.run_at(tokens, hidden, self.turns[:, depth - 1 : depth], self.fixed.scratch[nodes], bias, cache)

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor, cache: Any) -> Tensor:
        """As `protocols.Expander.expand`."""
        fixed, length = self.fixed, self.fixed.state.length
        size, width = mask.shape
        if fixed.node_bias is not None:
            return self.over(slice(width - size, width), depth, tokens, hidden)
        at = fixed.scratch[:width]
        bias = self.committed.repeat(1, 1, size, 1)
        bias.index_copy_(3, at, fixed.additive(mask)[None, None])
        turn = self.drafter.turns_at(length + (depth - 1), cache)
        return self.drafter.run_at(tokens, hidden, turn, at[width - size :], bias, cache)


def _width(nodes: int, depth: int, inner: int) -> int:
    """Entries of a row of results: see `Fixed.outcome`."""
    return 1 + 2 * (depth + 1) + depth + 2 * nodes + 1 + inner
