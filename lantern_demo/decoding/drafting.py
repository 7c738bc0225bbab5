"""Sources of drafts. A `DraftConfig` describes the shape of a run's drafts; its `Proposer` fills
one draft tree per step.

A `StaticTree` has fixed paths (EAGLE-1, LANTERN++). A `DynamicTree` grows where the drafter is
confident (EAGLE-2, LANTERN). `window` has a further proposer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

from .interfaces import DEEPEST
from .ops import PYTORCH, Ops
from .sampling import Sampling, guide, not_finite, numbers, probabilities, scores
from .trees import Draft, Path, Tree, VerifyOutput, checked_paths, static_tree, whole_tree

# hidden states [R, n, H] -> logits [R, n, V] float32, the target's
Head = Callable[[Tensor], Tensor]
# scores [m, V], the position [1] whose token they draw -> scores with noise
AddNoise = Callable[[Tensor, Tensor], Tensor]


class RunContext(NamedTuple):
    """The values of a run that proposers read."""

    sampling: Sampling
    device: torch.device
    vocabulary: int
    positions: int  # tokens that buffers have room for
    add_noise: AddNoise | None = None  # None unless the run shares its noise
    ops: Ops = PYTORCH


class Passes(Protocol):
    """The drafter's passes of one step."""

    position: Tensor  # [1] int64, the position of the picture whose token the root draws

    def sync(self) -> Tensor:
        """Read the tokens committed since the previous step. Return the last output [R, 1, H], the
        root's."""

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor) -> Tensor:
        """Read m nodes of one depth (1 = the root's children), tokens [m], with their parents'
        outputs hidden [R, m, H]. Return the nodes' outputs [R, m, H]. mask [m, w + m] bool marks
        the tree slots that a node sees: the w slots of earlier passes over this tree, then those of
        this pass."""


class Proposer:
    """Fills draft trees. The base class drafts nothing: its tree is the root alone."""

    draws = 0  # uniforms per step
    slots = 0  # most tree slots that the drafter fills
    # the host reads numbers in every step, so that steps cannot be captured
    needs_host_sync = False
    tree: Tree | None  # if it is the same in every step
    state: tuple[Tensor, ...] = ()  # tensors kept between steps, updated in place

    def __init__(self, device: torch.device | str) -> None:
        self.tree = static_tree((), device)

    def begin(self, root: Tensor, seed: int) -> None:
        """Start a run with its first token root [1] int64."""

    def propose(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        """Return the tree after root [1] int64, the last committed token; uniforms [draws] in
        [TINY, 1)."""
        assert self.tree is not None
        return Draft(self.tree, root, root.new_empty(0, 0))

    def observe(self, out: VerifyOutput, scores: Tensor) -> None:
        """Learn which drafts a step accepted, by the target's scores [n, V]."""


@dataclass(frozen=True)
class DraftConfig:
    """The shape of a run's drafts. The base class drafts nothing."""

    needs_drafter: ClassVar[bool] = False
    # drafts are the target's own draws, and need shared noise
    drafts_own_draws: ClassVar[bool] = False

    @property
    def nodes(self) -> int:
        """Nodes of a draft tree, the root included."""
        return 1

    @property
    def width(self) -> int:
        """The most children of a node."""
        return 0

    @property
    def deepest(self) -> int:
        """The depth of the deepest node."""
        return 0

    def proposer(self, run: RunContext) -> Proposer:
        """Return the `Proposer` of a run."""
        return Proposer(run.device)


def check_sizes(drafts: DraftConfig, proposer: Proposer) -> None:
    """Raise ValueError for sizes that are not the tree's, which would bias drafts, or too deep."""
    name, tree = type(drafts).__name__, proposer.tree
    if tree is not None and tree.size > 1:  # else it has another tree in every step
        told, own = (
            (drafts.nodes, drafts.width, drafts.deepest),
            (tree.size, tree.width, tree.depth),
        )
        if told != own:
            why = f"its tree has {own}, the root included"
            raise ValueError(f"{name} has nodes, width and deepest {told}; {why}")
    if drafts.nodes > 1 and drafts.width < 1:
        raise ValueError(f"{name}.width is {drafts.width}; it must be the most children of a node")
    if drafts.deepest > DEEPEST:
        raise ValueError(f"{name}.deepest is {drafts.deepest}; it must be at most {DEEPEST}")


def check_at_least_one(name: str, value: int) -> None:
    """Raise ValueError for a value below 1."""
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1")


@dataclass(frozen=True)
class StaticTree(DraftConfig):
    """A list of paths such as (0,), (0, 0), (0, 1); child i of a node is the i-th token drawn
    there. Raises ValueError for paths that form no tree."""

    paths: tuple[Path, ...]

    needs_drafter: ClassVar[bool] = True

    def __init__(self, paths: Iterable[Sequence[int]]) -> None:
        object.__setattr__(self, "paths", checked_paths(paths))

    @property
    def nodes(self) -> int:
        return 1 + len(self.paths)

    @property
    def width(self) -> int:
        return max(path[-1] + 1 for path in self.paths)

    @property
    def deepest(self) -> int:
        return len(self.paths[-1])

    def proposer(self, run: RunContext) -> Proposer:
        tree = static_tree(self.paths, run.device)
        return StaticProposer(tree, run.sampling, run.add_noise, run.ops)


@dataclass(frozen=True)
class DynamicTree(DraftConfig):
    """EAGLE-2 (Li et al. 2024): a beam of `top_k` over `depth` drafter passes after the first
    level. The tree is the best `nodes` proposals, the root included; its deepest level is depth +
    1. Raises ValueError when the beam cannot fill the nodes."""

    top_k: int = 10
    depth: int = 4
    nodes: int = 59

    needs_drafter: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_at_least_one("tree top_k", self.top_k)
        if self.depth < 0:
            raise ValueError(f"tree depth is {self.depth}; it must be 0 or more")
        most = 1 + self.top_k + self.depth * self.top_k * self.top_k
        if not 2 <= self.nodes <= most:
            raise ValueError(
                f"tree nodes is {self.nodes}; with top_k {self.top_k} and depth {self.depth} "
                f"it must be between 2 and {most}"
            )

    @property
    def width(self) -> int:
        return min(self.top_k, self.nodes - 1)

    @property
    def deepest(self) -> int:
        return self.depth + 1

    def proposer(self, run: RunContext) -> Proposer:
        if self.top_k > run.vocabulary:
            raise ValueError(
                f"tree top_k is {self.top_k}; "
                f"it must be at most the vocabulary size {run.vocabulary}"
            )
        return DynamicProposer(self, run.sampling, run.ops)


class StaticProposer(Proposer):
    """Fills a tree of fixed paths with tokens drawn from the drafter without replacement. With
    shared noise they are the top tokens of its noisy scores (Kool and others 2019), at temperature
    0 of its scores. Otherwise uniforms draw them in turn."""

    tree: Tree

    def __init__(
        self,
        tree: Tree,
        sampling: Sampling,
        add_noise: AddNoise | None = None,
        ops: Ops = PYTORCH,
    ) -> None:
        self.tree, self.sampling, self.ops = tree, sampling, ops
        self.slots = len(tree.inner) - 1
        self.add_noise = add_noise
        if add_noise is None and sampling.greedy:
            self.add_noise = lambda scored, _: scored
        if self.add_noise is None:
            self.draws = sum(len(level.mask) * level.draws for level in tree.levels)
        self.absent = tree.of_inner(tree.children) < 0  # [I, width] bool, draws that are no nodes

    def propose(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        tree, sampling, ops, output = self.tree, self.sampling, self.ops, passes.sync()
        assert tree.drawn_at is not None
        drawn = root.new_empty(self.absent.shape)
        probs: list[Tensor] = []  # not list[Tensor](), which `torch.compile` cannot trace
        best: list[Tensor] = []
        tokens, used = root, 0
        for depth, level in enumerate(tree.levels):
            if depth > 0:
                own = tokens.flatten()
                if not level.alone:
                    own = drawn.view(-1).index_select(0, level.drawn_at)
                    output = output.index_select(1, level.parents)
                output = passes.expand(own, output, depth, level.mask)
            logits = guide(head(output), sampling.cfg_scale)
            if self.add_noise is not None:
                scored = scores(logits, sampling, overwrite=True, cut=ops.cut)
                scored = self.add_noise(scored, passes.position + depth)
                highest, tokens = ops.top(scored, level.draws)
                best.append(highest)
            else:
                probs.append(probabilities(logits, sampling, overwrite=True, cut=ops.cut))
                u = uniforms[used : used + len(level.mask) * level.draws]
                tokens = ops.draw_in_turn(probs[-1], u.view(-1, level.draws))
                used += len(u)
            drawn[level.rows, : level.draws] = tokens
        nodes = torch.cat([root, drawn.view(-1).index_select(0, tree.drawn_at)])
        if self.add_noise is not None:
            drawn.masked_fill_(self.absent, -1)
            return Draft(tree, nodes, drawn, fault=not_finite(best))
        q = torch.cat(probs)
        count = (q > 0).sum(1, keepdim=True)  # tokens that there were to draw; 0 in a row of NaN
        exhausted = numbers(tree.width, root.device) >= count
        drawn.masked_fill_(self.absent | exhausted, -1)
        return Draft(tree, nodes, drawn, q, (count == 0).any(0))


class DynamicProposer(Proposer):
    """Fills a `DynamicTree`, whose children the prefix fixes. All proposals of the beam enter a
    pool, scored by the sum of log-probabilities along the path. The best form the tree.

    If too few proposals have a probability above 0, padding fills the tree: nodes that no child
    table names, so that they are never accepted."""

    def __init__(self, drafts: DynamicTree, sampling: Sampling, ops: Ops = PYTORCH) -> None:
        self.drafts, self.sampling, self.ops, self.tree = drafts, sampling, ops, None
        self.slots = drafts.depth * drafts.top_k

    def propose(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        drafts, beam = self.drafts, self.drafts.top_k
        self.levels = _levels(drafts, root.device)  # kept: a captured step reads them
        depths, nodes, best, itself = self.levels
        # the pool by depth; the root is its first entry, and scores above all others
        pool_scores, pool_tokens, pool_parents = [best], [root], [nodes[:1]]
        highest: list[Tensor] = []  # not list[Tensor](), which `torch.compile` cannot trace
        output, totals, in_pool, mask = passes.sync(), best.new_zeros(1), nodes[:1], itself
        for depth in range(drafts.depth + 1):
            logits = guide(head(output), self.sampling.cfg_scale)
            probs = probabilities(logits, self.sampling, overwrite=True, cut=self.ops.cut)
            # A log-probability that rounding made positive would rank a child above its parent.
            steps, proposals = probs.log_().clamp_(max=0.0).topk(beam)
            highest.append(steps[:, 0])
            pool_scores.append((totals.unsqueeze(1) + steps).flatten())
            pool_tokens.append(proposals.flatten())
            pool_parents.append(in_pool.repeat_interleave(beam, output_size=len(in_pool) * beam))
            if depth == drafts.depth:
                break
            totals, chosen = pool_scores[-1].topk(beam)
            rows = chosen // beam  # of the parents in the beam before
            if depth > 0:
                mask = torch.cat([mask.index_select(0, rows), itself], dim=1)
            output = passes.expand(
                pool_tokens[-1].index_select(0, chosen),
                output.index_select(1, rows),
                depth + 1,
                mask,
            )
            in_pool = chosen + sum(map(len, pool_scores[:-1]))
        # A child never scores above its parent and follows it in the pool. So after a stable sort
        # the best entries always include their ancestors, even with ties and -inf. A NaN would sort
        # before the root.
        pool = torch.cat(pool_scores).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
        kept = pool.sort(descending=True, stable=True).indices[: drafts.nodes].sort().values
        node_of = torch.zeros_like(depths).index_copy_(0, kept, nodes)
        parents = node_of.index_select(0, torch.cat(pool_parents).index_select(0, kept))
        reachable = pool.index_select(0, kept) > -torch.inf
        tree = whole_tree(
            parents, depths.index_select(0, kept), nodes, reachable, drafts.deepest, drafts.width
        )
        tokens = torch.cat(pool_tokens).index_select(0, kept)
        drawn = tokens[tree.children.clamp(min=0)].masked_fill_(tree.children < 0, -1)
        return Draft(tree, tokens, drawn, fault=not_finite(highest))


@lru_cache(maxsize=16)
def _levels(drafts: DynamicTree, device: torch.device) -> tuple[Tensor, ...]:
    """Return the tensors that all trees of such drafts share: the depths of the pool's entries, the
    nodes, the root's score, and the mask of the beam at depth 1."""
    beam = drafts.top_k
    counts = [1, beam, *([beam * beam] * drafts.depth)]  # entries of the pool by depth
    depths = [depth for depth, count in enumerate(counts) for _ in range(count)]
    best = torch.ones(1, device=device)  # above all scores
    itself = torch.eye(beam, dtype=torch.bool, device=device)
    nodes = torch.arange(drafts.nodes, device=device)
    return torch.tensor(depths, device=device), nodes, best, itself
