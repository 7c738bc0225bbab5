"""One step of decoding: draft, verify, commit.

The same code runs on every device. Its state lies in tensors that are updated in place, and it
reads nothing back, so that a CUDA graph can replay it. The host chooses the sizes of a step, its
`Shape`. On a CPU they are those in use. On a GPU a step has one of about four sizes, for each of
which a graph is captured.

Vanilla is the step of the root alone.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .cache import ALIGNED, KVCache
from .checks import check_draft
from .config import Config
from .drafting import Proposer, check_sizes
from .interfaces import Drafter, Pass, Target
from .results import Kept, Step, pack_step, row_length, unpack_step
from .sampling import NO_PROBS, guide, uniform_dtype, uniforms_of, warp
from .timing import Part
from .trees import Draft
from .verify import Verifier


class Shape(NamedTuple):
    """The sizes of a step."""

    slots: int  # S, slots of the caches that attention covers
    pending: int  # m, tokens that the drafter reads: those it lacks and, after those, any others
    drafts: bool  # whether it drafts


class Steps:
    """The state of a run and its step. `prefill` starts the next run with the same tensors. Raises
    the models' errors."""

    length: Tensor  # [1], committed slots in both caches
    position: Tensor  # [1], position of the picture whose token the root draws
    progress: Tensor  # [2], these two, which advance together
    number: Tensor  # [1], of the step, from 1
    root: Tensor  # [1], the last committed token, which the target has not read
    accepted: Tensor  # [1], drafts that the previous step accepted
    tokens: Tensor  # [depth + 1], that the drafter has not read: the accepted ones, then the root
    hidden: Tensor  # [R, depth + 1, H], the target's states before them, as the drafter reads them
    uniforms: Tensor  # [steps, draws], the run's
    results: Tensor  # [steps, m], a row of `pack_step` per step
    # of the newest step
    shape: Shape
    scratch: Tensor  # [slots], that it may write
    committed: Tensor  # [S] bool, slots that all of its nodes see
    u: Tensor  # [draws], its uniforms: the verifier's, then the proposer's
    kept: Kept = None

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        config: Config,
        proposer: Proposer,
        verifier: Verifier,
    ) -> None:
        """Raises ValueError for drafts of other sizes than their tree."""
        check_sizes(config.drafts, proposer)
        self.target = target
        self.drafter = drafter
        self.config = config
        self.proposer = proposer
        # the first drafts of a class from outside are looked at
        self.unchecked = not type(proposer).__module__.startswith("lantern_demo.")
        self.verifier = verifier
        self.draws = verifier.draws + proposer.draws  # uniforms per step
        self.no_drafts = Proposer(config.torch_device)
        self.depth = config.drafts.deepest
        # slots after the committed ones that a step writes
        self.ahead = max(config.drafts.nodes, proposer.slots, self.depth + 1)
        room = config.positions + self.ahead + ALIGNED
        self.cache = target.new_cache(config.rows, room)
        self.drafter_cache: KVCache | None = None
        if drafter is not None:
            self.drafter_cache = drafter.new_cache(1 if drafter.guided else config.rows, room)
        self.slots = min(cache.slots for cache in self.caches) // ALIGNED * ALIGNED
        device = config.torch_device
        self.arange = torch.arange(self.slots + ALIGNED, device=device)
        zero = self.arange.new_zeros(1)
        self.progress = self.arange.new_zeros(2)
        self.length, self.position = self.progress.split(1)
        self.number = zero.clone()
        self.root = zero.clone()
        self.accepted = zero.clone()
        self.tokens = zero.new_zeros(self.depth + 1)
        self.hidden = torch.empty(0, device=device)  # made by the first run, which knows its sizes
        dtype = uniform_dtype(device)
        self.uniforms = torch.zeros(config.positions, self.draws, dtype=dtype, device=device)
        self.results = zero.new_zeros(config.positions, row_length(config.drafts.nodes, self.depth))
        # nodes and depth of the newest tree, with drafts and without
        self.sizes: dict[bool, tuple[int, int]] = {}

    @property
    def caches(self) -> list[KVCache]:
        """The caches of target and drafter."""
        return [self.cache] if self.drafter_cache is None else [self.cache, self.drafter_cache]

    @property
    def exact(self) -> bool:
        """Whether the host gives each step the sizes in use: on a CPU they are free to read, and a
        proposer that reads is never captured."""
        return self.config.torch_device.type == "cpu" or self.proposer.needs_host_sync

    def prefill(self, config: Config, condition: Any) -> int:
        """Start a run: read the prompt and the tokens to keep, and draw and return the first token.
        Raise ValueError for a condition with another number of rows, and FloatingPointError if no
        token can be drawn."""
        self.config = config  # with the values of this run
        count, device = len(config.keep), config.torch_device
        # With its own seed, no kept token was drawn by one of these rows.
        uniforms = uniforms_of(config.seed, device, config.num_tokens, self.draws)[count:]
        hidden = self.target.prefill(condition, self.cache)
        if hidden.shape[0] != config.rows:
            raise ValueError(f"condition gave {hidden.shape[0]} rows; this run needs {config.rows}")
        keep = torch.tensor(config.keep, dtype=torch.int64, device=device)
        if count:
            hidden = torch.cat([hidden, self._read(keep)], 1)
        self.verifier.begin(config.seed)
        scores = warp(self.target.head(hidden[:, -1:]), config.sampling, config.ops.cut)
        root = self.verifier.sample(scores, torch.full_like(self.position, count), uniforms[0])
        if not 0 <= int(root) < self.target.vocab_size:
            raise FloatingPointError(NO_PROBS)
        if config.num_tokens > count + 1:
            self.begin(hidden, torch.cat([keep, root]), uniforms, condition)
        return int(root)

    def _read(self, keep: Tensor) -> Tensor:
        """Return the target's states [R, k, H] of kept tokens [k], read in one pass."""
        slots = self.cache.length + self.arange[: len(keep)]
        visible = self.arange[: self.cache.length + len(keep)] <= slots.unsqueeze(1)
        return self.target.forward(Pass(keep, slots, slots, visible), self.cache)

    def begin(self, hidden: Tensor, tokens: Tensor, uniforms: Tensor, condition: Any) -> None:
        """Set the state after a prefix and k kept tokens, which are in the cache. hidden [R, T + k,
        H] are the target's states of them, tokens [k + 1] the kept ones and the first that was
        drawn, uniforms [steps, draws] the run's."""
        config, root, kept = self.config, tokens[-1:], len(tokens) - 1
        self.prefix = self.cache.length
        hidden = self._for_drafter(hidden)
        if self.drafter is not None and not config.no_draft(config.num_tokens - len(tokens)):
            before, after = hidden[:, : self.prefix], hidden[:, self.prefix :]
            self.drafter.prefill(before, tokens[:1], self.drafter_cache, condition)
            if kept:
                slots = self.prefix + self.arange[:kept]
                self.drafter.forward(
                    Pass(tokens[1:], slots, slots, None), after, self.drafter_cache
                )
        self.proposer.begin(root, config.seed)
        self.uniforms[: len(uniforms)] = uniforms
        self.length.fill_(self.prefix + kept)
        self.number.fill_(1)
        self.position.fill_(len(tokens))
        self.root.copy_(root)
        self.accepted.zero_()
        if not self.hidden.numel():
            self.hidden = hidden.new_zeros(hidden.shape[0], self.depth + 1, hidden.shape[2])
        self.tokens[:1] = root
        # in all rows: a state that the last run left there may not be finite
        self.hidden.copy_(hidden[:, -1:].expand_as(self.hidden))
        self.pending = 1  # tokens that the drafter lacks, as the host last read

    def state(self) -> list[Tensor]:
        """Return the tensors that a step changes, except for cache slots beyond the length."""
        counts = [self.progress, self.number, self.root, self.accepted]
        return [*counts, self.tokens, self.hidden, self.results, *self.proposer.state]

    # -- shapes

    def upcoming(self, committed: int, flying: bool) -> tuple[Shape, int] | None:
        """Return the shape of the step after at most `committed` tokens, and the most tokens that
        it commits. None while steps in flight still decide whether another one is needed and
        whether it drafts."""
        missing = self.config.num_tokens - committed
        fewest = 1 if self.config.drafts.nodes == 1 else 2  # the last token needs no drafts
        if flying and missing < fewest:
            return None
        drafts = not self.config.no_draft(missing)
        most = self.depth + 1 if drafts else 1
        if self.exact:
            slots = self.prefix + committed + (self.ahead if drafts else 1)
            return Shape(slots, self.pending, drafts), most
        return Shape(self.bucket(committed), self.depth + 1, drafts), most

    def bucket(self, committed: int) -> int:
        """Return the slots of a captured step after at most `committed` tokens. There are about
        four sizes: few graphs are captured, and short lengths do not pay for long ones."""
        size = max(64, -(-self.config.positions // 256) * 64)
        slots = self.prefix + committed + self.ahead
        return min(-(-slots // size) * size, self.slots)

    def shapes(self) -> list[Shape]:
        """Return the shapes of all captured steps that the run can have. A smaller one would have
        no room for the kept tokens."""
        counts = range(len(self.config.keep) + 1, self.config.positions)
        buckets = sorted({self.bucket(count) for count in counts})
        shapes = [Shape(slots, self.depth + 1, self.depth > 0) for slots in buckets]
        if self.depth > 0 and buckets:
            shapes.append(Shape(buckets[-1], self.depth + 1, False))
        return shapes

    # -- a step

    def step(self, shape: Shape, part: Part = nullcontext) -> None:
        """Take one step. Each phase runs within `part` of its name."""
        with part("draft"):
            draft = self.draft(shape)
        with part("verify"):
            hidden, scores = self.verify(draft)
        with part("commit"):
            self.commit(draft, hidden, scores)

    def draft(self, shape: Shape) -> Draft:
        """Propose a tree after the root."""
        self.shape = shape
        self.scratch = self.length + self.arange[: self.ahead]
        self.committed = self.arange[: shape.slots] < self.length
        self.u = self.uniforms.index_select(0, self.number)[0]
        proposer = self.proposer if shape.drafts else self.no_drafts
        uniforms = self.u[self.verifier.draws :]
        draft = proposer.propose(self.root, self, self.target.head, uniforms)
        if shape.drafts and self.unchecked:  # once, before any capture
            check_draft(draft, type(proposer).__name__, self.target.vocab_size)
            self.unchecked = False
        return draft

    def verify(self, draft: Draft) -> tuple[Tensor, Tensor]:
        """Read the tree in one pass. Return the target's states [R, n, H] and scores [n, V]."""
        tree, config = draft.tree, self.config
        positions, slots = self.length + tree.depths, self.scratch[: tree.size]
        nodes = Pass(draft.tokens, positions, slots, self.visible(tree.mask))
        hidden = self.target.forward(nodes, self.cache)
        return hidden, warp(self.target.head(hidden), config.sampling, config.ops.cut)

    def commit(self, draft: Draft, hidden: Tensor, scores: Tensor) -> None:
        """Accept a path, move it up in the cache, and note the host's row."""
        tree, last = draft.tree, self.target.vocab_size - 1
        out = self.verifier.verify(draft, scores, self.position, self.u)
        row = pack_step(draft, out)
        self.results[:, : len(row)].index_copy_(0, self.number, row.unsqueeze(0))
        # an invalid bonus token becomes a valid one, since steps in flight may start from it
        torch.clamp(out.bonus, 0, last, out=self.root)
        if self.shape.drafts:
            path = out.path
            if tree.width > 1:  # the nodes of a chain are in their places
                self.cache.move(self.length + path, self.scratch[: len(path)])
            self.proposer.observe(out, scores)
            if self.drafter is not None:
                self.tokens[: len(path)] = out.tokens.clamp(0, last)
                self.hidden[:, : len(path)] = self._for_drafter(hidden.index_select(1, path))
                self.accepted.copy_(out.depth)
        self.number.add_(1)
        self.progress.add_(out.depth).add_(1)
        self.sizes[self.shape.drafts] = tree.size, tree.depth
        self.kept = (tree, out) if tree.size > 1 else None

    def unpack(
        self, row: list[int], drafts: bool, index: int, before: int, seconds: float, kept: Kept
    ) -> Step:
        """Make step `index` of its row, with drafts or without. `before` tokens were committed
        before it. Raises FloatingPointError for probabilities that are not finite."""
        ends = self.target.vocab_size, self.config.num_tokens
        step = unpack_step(row, *self.sizes[drafts], *ends, index, before, seconds, kept)
        self.pending = step.accepted_length
        return step

    # -- the drafter's passes: see `drafting.Passes`

    def sync(self) -> Tensor:
        assert self.drafter is not None
        tokens = self.tokens[: self.shape.pending]
        hidden = self.hidden[:, : self.shape.pending]
        at = self.scratch[: self.shape.pending] - (self.accepted + 1)
        if self.exact:  # the last token is the root, and its output alone is needed
            return self.drafter.forward(Pass(tokens, at, at, None), hidden, self.drafter_cache)
        visible = self.arange[: self.shape.slots] <= at.unsqueeze(1)
        nodes = Pass(tokens, at, at, visible)
        outputs = self.drafter.forward(nodes, hidden, self.drafter_cache)
        # A sum, since 0 times a number that is not finite is not finite either: no row hides one.
        chosen = self.arange[: self.shape.pending] == self.accepted
        return (outputs * chosen.unsqueeze(1)).sum(1, keepdim=True)

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor) -> Tensor:
        assert self.drafter is not None
        count, width = mask.shape
        slots = self.scratch[width - count : width]
        positions = self.scratch[depth - 1 : depth].expand(count)
        nodes = Pass(tokens, positions, slots, self.visible(mask, depth))
        return self.drafter.forward(nodes, hidden, self.drafter_cache)

    def visible(self, mask: Tensor, depth: int = 1) -> Tensor | None:
        """Return the slots that nodes see, [n, S] bool: all committed ones, and of the w slots
        after them those of mask [n, w]. None for a lone node, if each depth down to its own has
        one: it sees all slots."""
        count, width = mask.shape
        if self.exact and mask.shape == (1, depth):
            return None
        return self.committed.expand(count, -1).index_copy(1, self.scratch[:width], mask)

    def _for_drafter(self, hidden: Tensor) -> Tensor:
        """Return the target's states [R, n, H] as the drafter reads them."""
        if self.drafter is None or not self.drafter.guided:
            return hidden
        return guide(hidden, self.config.sampling.cfg_scale)[None].to(hidden.dtype)
