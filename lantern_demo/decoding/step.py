"""One step of decoding, `TreeSteps`: draft, verify, commit. It has two forms.

On a CPU reading a number is free, and the step is `eager`. Attention covers the committed slots and the tree, and the drafter
reads the accepted tokens. The host reads each step before it starts the next one.

On an accelerator the step has fixed shapes and reads nothing back, so that it can be captured once and replayed. Its state
tensors are updated in place. Attention covers a bucket of slots [0, S). For a tree of depth D the drafter reads D + 1 slots,
and those up to `last` count. D + 1 slots move up, and those after the accepted path are garbage beyond the length.

Vanilla is the step of the root alone, which needs no mask.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .cache import ALIGNED
from .config import Config
from .drafting import Proposer
from .interfaces import Drafter, Target, Verifier
from .results import Kept, Step, pack_step, row_length, unpack_step
from .sampling import guide, warp
from .timing import Part
from .trees import Draft, VerifyOutput


class TreeSteps:
    """Takes the steps of a run, and of the next run after `begin`. Raises the models' errors."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        config: Config,
        proposer: Proposer,
        verifier: Verifier,
        draws: int,
        eager: bool,
    ) -> None:
        """draws: uniforms per step."""
        self.target, self.drafter, self.config, self.eager = target, drafter, config, eager
        self.proposer, self.verifier, self.no_drafts = proposer, verifier, Proposer(config.torch_device)
        self.num_tokens = config.num_tokens if eager else config.positions
        self.depth, self.size = proposer.depth, config.nodes
        # slots after the committed ones that a step writes
        self.ahead = max(config.tree.nodes, proposer.slots, self.depth + 1)
        room = self.num_tokens + self.ahead + ALIGNED
        self.cache = target.new_cache(config.rows, room)
        self.drafter_cache = drafter and drafter.new_cache(1 if drafter.guided else config.rows, room)
        self.caches: list[Any] = [self.cache] if self.drafter_cache is None else [self.cache, self.drafter_cache]
        self.slots = min(cache.slots for cache in self.caches) // ALIGNED * ALIGNED
        self.arange = torch.arange(self.slots + ALIGNED, device=config.torch_device)
        # the step, from 1; committed slots, in both caches; the position of the picture whose token the
        # root draws; the last of the pending slots; the last committed token, which the target has not
        # seen
        self.numbers = torch.zeros(5, dtype=torch.int64, device=config.torch_device)
        self.number, self.length, self.position, self.last_pending, self.root = self.numbers.split(1)
        self.uniforms = torch.zeros(self.num_tokens, draws, device=config.torch_device)
        # pending, not seen by the drafter: tokens, and the target's states before them
        self.tokens, self.hidden = self.numbers.new_zeros(self.depth + 1), torch.empty(0)
        self.results = self.numbers.new_zeros(self.num_tokens, row_length(self.size, self.depth))  # a `pack_step` per step
        self.done: Step | None = None  # of an eager step

    def begin(self, hidden: Tensor, root: Tensor, uniforms: Tensor, condition: Any) -> None:
        """Start a run, whose prefix is in the cache. hidden [R, T, H] are the target's states of it, root [1] is the first
        token, uniforms [steps, draws] are the run's."""
        config, self.prefix = self.config, self.cache.length
        hidden = self._for_drafter(hidden)
        if self.drafter is not None and not config.no_draft(config.num_tokens - 1):
            self.drafter.prefill(hidden, root, self.drafter_cache, condition)
        self.numbers.zero_()
        self.root.copy_(root)
        self.position.fill_(1)
        self.proposer.begin(root, config.seed)
        if self.eager:
            self.uniforms, self.tokens, self.hidden = uniforms, self.root.clone(), hidden[:, -1:]
            self.length, self.number = self.prefix, 1  # the host's
            return
        self.uniforms[: len(uniforms)].copy_(uniforms)
        self.length.fill_(self.prefix)
        self.number.fill_(1)
        if not self.hidden.numel():
            self.hidden = hidden.new_zeros(hidden.shape[0], self.depth + 1, hidden.shape[2])
        self.tokens[:1] = root
        # in all rows: a state that the last run left there may not be finite
        self.hidden.copy_(hidden[:, -1:].expand_as(self.hidden))

    def state(self) -> list[Tensor]:
        """Return the tensors that a step of fixed shapes changes, except for cache slots beyond the length."""
        return [self.numbers, self.tokens, self.hidden, self.results, *self.proposer.state]

    # -- shapes

    def upcoming(self, committed: int, flying: bool) -> tuple[int, bool, int] | None:
        """Return the step after at most `committed` tokens: the slots that attention covers, whether it drafts, and the most
        tokens that it commits. None while steps in flight still decide whether another one is needed and whether it drafts."""
        missing = self.config.num_tokens - committed
        if flying and missing <= (self.config.tree.nodes > 1):  # the last token needs no drafts
            return None
        drafts = not self.config.no_draft(missing)
        return self.bucket(committed), drafts, self.depth + 1 if drafts else 1

    def bucket(self, committed: int) -> int:
        """Return the slots S that attention covers with at most `committed` tokens after the prefix. There are about four
        sizes: few graphs are captured, and short lengths do not pay for long ones. An eager step covers only the slots in
        use."""
        size = max(64, -(-self.num_tokens // 256) * 64)
        return min(-(-(self.prefix + committed + self.ahead) // size) * size, self.slots)

    def shapes(self) -> list[tuple[int, bool]]:
        """Return the buckets and kinds (with drafts or without) of all steps that a run can have."""
        buckets = sorted({self.bucket(committed) for committed in range(1, self.num_tokens)})
        found = [(slots, self.depth > 0) for slots in buckets]
        return [*found, (buckets[-1], False)] if self.depth > 0 and buckets else found

    # -- a step

    def step(self, slots: int, drafts: bool, part: Part = nullcontext) -> None:
        """Take one step over a bucket of slots, with drafts or without. Each phase runs within `part` of its name."""
        with part("draft"):
            self.attended = slots
            if self.eager:
                self.step_uniforms = self.uniforms[self.number]
            else:
                self.step_uniforms = self.uniforms.index_select(0, self.number)[0]
                self.scratch = self.length + self.arange[: self.ahead]
                self.committed = self.arange[:slots] < self.length
            proposer = self.proposer if drafts else self.no_drafts
            draft = proposer.propose(self.root, self, self.target.head, self.step_uniforms[self.verifier.draws :])
        with part("verify"):
            tree = draft.tree
            at = self.behind(0, tree.size)
            positions = at if tree.size == 1 else self.length + tree.depths
            hidden = self.target.forward(draft.tokens, positions, at, self.visible(tree.mask, 1), self.cache)
            scores = warp(self.target.head(hidden), self.config.sampling)
        with part("commit"):
            self.accept(draft, hidden, scores, drafts)

    def accept(self, draft: Draft, hidden: Tensor, scores: Tensor, drafts: bool) -> None:
        """Accept drafts, move the keys and values of the accepted path up, and store the results."""
        out, depth, in_place = self.verifier.verify(draft, scores, self.position, self.step_uniforms), 0, False
        path, row, last = out.path, pack_step(draft, out), self.target.vocab_size - 1
        # an invalid bonus token becomes a valid one, since steps in flight may start from it
        torch.clamp(out.bonus, 0, last, out=self.root)
        if self.eager:
            self.done = step = self.unpack(row.tolist(), draft)
            if draft.tree.size > 1:
                self.done = replace(step, kept=Kept(self.verifier, draft, out, scores, self.step_uniforms))
            depth = step.accepted_length - 1
            path, in_place = path[: depth + 1], step.path[-1] == depth
        else:
            self.results[:, : row.shape[0]].index_copy_(0, self.number, row.unsqueeze(0))
        if drafts:
            if not in_place:
                self.cache.move(self.length + path, self.behind(0, len(path)))
            if self.drafter is not None:
                self._leave_to_drafter(out, self._for_drafter(hidden.index_select(1, path)), last)
            self.proposer.observe(out, scores)
        if self.eager:
            self.length, self.number = self.length + depth + 1, self.number + 1
            self.position += depth + 1
        else:
            self.numbers[:3].add_(1)
            self.numbers[1:3].add_(out.depth)  # length and position

    def _leave_to_drafter(self, out: VerifyOutput, hidden: Tensor, last: int) -> None:
        """Keep the drafter's next input: the accepted tokens, the new root after them, and the states before these."""
        if self.eager:
            self.tokens, self.hidden = out.tokens[: hidden.shape[1]], hidden
        else:
            torch.clamp(out.tokens, 0, last, out=self.tokens)
            self.hidden.copy_(hidden)
            self.last_pending.copy_(out.depth)

    def unpack(self, row: list[int], draft: Draft | bool) -> Step:
        """Read a row of results: of a draft or, with fixed shapes, of a step with drafts or without."""
        size, depth = (self.size, self.depth) if draft is True else (1, 0)
        if isinstance(draft, Draft):
            size, depth = draft.tree.size, draft.tree.depth
        return unpack_step(row, size, depth, self.target.vocab_size)

    # -- parts of it

    def behind(self, first: int, count: int) -> Tensor:
        """Return `count` slots, the first one `first` after the committed ones."""
        first = int(self.length) + first if self.eager else first
        return (self.arange if self.eager else self.scratch)[first : first + count]

    def visible(self, mask: Tensor, depth: int) -> Tensor | None:
        """Return the slots that nodes see, [n, S] bool: all committed ones, and of the w slots after them those of mask [n, w].
        None for a lone node with a slot for each of its `depth` ancestors, itself included."""
        n, width = mask.shape
        if self.eager:
            return None if n == 1 and width == depth else F.pad(mask, (int(self.length), 0), value=True)
        return self.committed.expand(n, -1).index_copy(1, self.scratch[:width], mask)

    def _for_drafter(self, hidden: Tensor) -> Tensor:
        """Return the target's states [R, n, H] as the drafter reads them."""
        if self.drafter is None or not self.drafter.guided:
            return hidden
        return guide(hidden, self.config.sampling.cfg_scale)[None].to(hidden.dtype)

    # -- the drafter's passes: see `drafting.Passes`

    def sync(self) -> Tensor:
        assert self.drafter is not None
        if self.eager:
            at = self.behind(-len(self.tokens), len(self.tokens))
            return self.drafter.forward(self.tokens, self.hidden, at, at, None, self.drafter_cache)
        at = self.scratch[: self.depth + 1] - (self.last_pending + 1)
        visible = self.arange[: self.attended] <= at.unsqueeze(1)
        outputs = self.drafter.forward(self.tokens, self.hidden, at, at, visible, self.drafter_cache)
        # A sum, since 0 times a number that is not finite is not finite either: no row hides one.
        chosen = self.arange[: self.depth + 1] == self.last_pending
        return (outputs * chosen.unsqueeze(1)).sum(1, keepdim=True)

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor) -> Tensor:
        assert self.drafter is not None
        size, width = mask.shape
        at, positions = self.behind(width - size, size), self.behind(depth - 1, 1).expand(size)
        return self.drafter.forward(tokens, hidden, positions, at, self.visible(mask, depth), self.drafter_cache)
