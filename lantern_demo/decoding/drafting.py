"""Trees that a drafter fills: of fixed paths, or grown where it is sure. A kind of drafts is a value (see `trees.Drafts`), and
its source fills a tree in every step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from .sampling import NOTHING, Sampling, draw_in_turn, guide, not_finite, probabilities, scores, zero
from .trees import (
    Asked,
    Draft,
    Head,
    Noisy,
    Passes,
    Path,
    Source,
    Tree,
    at_least_one,
    checked_paths,
    static_tree,
    whole_tree,
)
from .trees import Drafts as Drafts


@dataclass(frozen=True)
class StaticTree(Drafts):
    """A list of paths such as (0,), (0, 0), (0, 1); child i of a node is the i-th token drawn there. Raises ValueError for paths
    that make no tree."""

    paths: tuple[Path, ...]

    name: ClassVar[str] = "static"
    needs_drafter: ClassVar[bool] = True
    reads: ClassVar[dict[str, str]] = {"paths": "static_paths"}
    asks: ClassVar[dict[str, str]] = {"paths": "tree"}

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

    @property
    def expanded(self) -> int:
        return len({path[:-1] for path in self.paths} - {()})

    def source(self, asked: Asked, vocabulary: int, noisy: Noisy | None) -> Source:
        return StaticSource(static_tree(self.paths, asked.torch_device), asked.sampling, noisy)

    @classmethod
    def fits(cls, settings: Any) -> bool:
        return settings.fits_tree

    @classmethod
    def asked(cls, settings: Any) -> str:
        return f"{settings.tree}: as asked"

    def asking(self) -> dict[str, Any]:
        return {"tree": " ".join("".join(map(str, path)) for path in self.paths)}

    def words(self) -> str:
        guesses, levels = len(self.paths), self.deepest
        return f"static chain of {guesses}" if guesses == levels else f"static tree of {guesses} in {levels} levels"


@dataclass(frozen=True)
class DynamicTree(Drafts):
    """EAGLE-2 (Li et al. 2024): a beam of `top_k` over `depth` drafter passes behind the first level, of which the best `nodes`
    are kept, the root counted; the deepest lies at depth + 1. Raises ValueError when the beam cannot fill the nodes."""

    top_k: int = 10
    depth: int = 4
    nodes: int = 59

    name: ClassVar[str] = "dynamic"
    needs_drafter: ClassVar[bool] = True
    by_prefix: ClassVar[bool] = True
    asks: ClassVar[dict[str, str]] = {"top_k": "draft_top_k", "depth": "draft_depth", "nodes": "draft_nodes"}

    def __post_init__(self) -> None:
        at_least_one("tree top_k", self.top_k)
        if self.depth < 0:
            raise ValueError(f"tree depth is {self.depth}; it must be 0 or more")
        most = 1 + self.top_k + self.depth * self.top_k * self.top_k
        if not 2 <= self.nodes <= most:
            raise ValueError(
                f"tree nodes is {self.nodes}; with top_k {self.top_k} and depth {self.depth} it must be between 2 and {most}"
            )

    @property
    def width(self) -> int:
        return min(self.top_k, self.nodes - 1)

    @property
    def deepest(self) -> int:
        return self.depth + 1

    @property
    def expanded(self) -> int:
        return self.depth * self.top_k

    def source(self, asked: Asked, vocabulary: int, noisy: Noisy | None) -> Source:
        return DynamicSource(self, asked.sampling)

    @classmethod
    def of(cls, settings: Any) -> DynamicTree:
        return cls(*settings.dynamic_shape)

    @classmethod
    def fits(cls, settings: Any) -> bool:
        return settings.fits_tree and not settings.shape_given

    @classmethod
    def asked(cls, settings: Any) -> str:
        if settings.shape_given:
            return f"{cls.of(settings).words()}: as asked"
        return f"{settings.tree}: as asked" if settings.names_a_shape else f"small: {settings.tree} is no dynamic tree"

    def words(self) -> str:
        guesses, levels = self.nodes - 1, min(self.nodes - 1, self.deepest)
        return f"dynamic chain of {guesses}" if self.top_k == 1 else f"dynamic tree of {guesses} in up to {levels} levels"


class StaticSource(Source):
    """A tree of fixed paths, filled with tokens drawn from the drafter without replacement: the top of its scores with the run's
    noise (Kool and others 2019), at temperature 0 without; or, where no `noisy` is given, one after the other with uniforms."""

    def __init__(self, tree: Tree, sampling: Sampling, noisy: Noisy | None = None) -> None:
        self.tree: Tree = tree
        self.noisy = (lambda scored, _: scored) if noisy is None and sampling.greedy else noisy
        self.sampling, self.depth = sampling, tree.depth
        self.draws = 0 if self.noisy is not None else sum(len(level.nodes) * level.draws for level in tree.levels)
        self.absent = tree.children.index_select(0, tree.inner) < 0  # [I, width] bool, which draws are no nodes

    def draft(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        tree, sampling, output = self.tree, self.sampling, passes.stable()
        assert tree.drawn_at is not None
        last = tree.levels[-1].span.stop
        tokens = root.new_empty(last + 1)
        tokens[::last] = root  # and where no draw is, since any valid token will do
        nothing = zero(root.device)
        probs, masses, best, used = list[Tensor](), [nothing], list[Tensor](), 0
        for depth, level in enumerate(tree.levels):
            if depth > 0:
                parents = output.index_select(1, level.parent_rows)
                output = passes.expand(tokens.index_select(0, level.own), parents, depth, level.mask)
            logits = guide(head(output), sampling.cfg_scale)
            drawn, count = tokens[level.span].view(level.draws, -1), len(level.nodes) * level.draws
            if self.noisy is not None:
                scored = self.noisy(scores(logits, sampling, spent=True), passes.position + depth)
                top = scored.topk(level.draws)
                drawn[:, : len(level.nodes)] = top.indices.t()
                best.append(top.values[:, 0])
            else:
                probs.append(probabilities(logits, sampling, spent=True))
                masses += draw_in_turn(probs[-1], uniforms[used : used + count].view(-1, level.draws), drawn)
                used += count
        found = tokens.index_select(0, tree.drawn_at)
        nodes, proposed = found[: tree.size], found[tree.size :].view(-1, tree.width)
        if self.noisy is not None:
            return Draft(tree, nodes, proposed.masked_fill_(self.absent, -1), fault=not_finite(best))
        rest = torch.cat([*masses, nothing]).index_select(0, tree.drawn_at[tree.size :]).view(-1, tree.width)
        fault = (rest[:, 0] < NOTHING).any(0, keepdim=True)  # a finite distribution has a first token
        return Draft(tree, nodes, proposed, torch.cat(probs), rest, fault)


class DynamicSource(Source):
    """A `DynamicTree`, whose children are fixed by the prefix: all proposals of the beam gather in a pool, scored by the sum of
    log-probabilities along the path, and the best are the tree."""

    def __init__(self, policy: DynamicTree, sampling: Sampling) -> None:
        self.policy, self.sampling, self.depth, self.tree = policy, sampling, policy.depth + 1, None

    def draft(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        beam = passes.stable()

        def log_probs() -> Tensor:
            return probabilities(guide(head(beam), self.sampling.cfg_scale), self.sampling, spent=True).log_()

        def expand(tokens: Tensor, parent_rows: Tensor, depth: int, mask: Tensor) -> Tensor:
            nonlocal beam
            beam = passes.expand(tokens, beam.index_select(1, parent_rows), depth, mask)
            return log_probs()

        tree, tokens, fault = grow(log_probs()[0], expand, self.policy)
        tokens[:1] = root
        drawn = tokens[tree.children.clamp(min=0)].masked_fill_(tree.children < 0, -1)
        return Draft(tree, tokens, drawn, fault=fault)


def grow(
    root: Tensor, expand: Callable[[Tensor, Tensor, int, Tensor], Tensor], policy: DynamicTree
) -> tuple[Tree, Tensor, Tensor]:
    """The tree and its tokens [n] int64 (0 in the root's place) of a dynamic policy, and whether a log-probability is no number,
    [1] bool.

    root [V] float32: log-probabilities of the root's children, -inf for filtered tokens. expand(tokens [m], parent_rows [m],
    depth, mask [m, w + m]) -> those [m, V] of the beam's children at that depth, where parent_rows are the rows of the nodes'
    parents in the beam before (depth 1: the root, row 0) and mask is the one `Passes.expand` asks for. Where too few proposals
    have mass, the nodes left over hang on the tree as padding that no child table names, so they are never accepted. Raises
    ValueError when the vocabulary is smaller than the beam.
    """
    beam = policy.top_k
    if root.shape[0] < beam:
        raise ValueError(f"tree top_k is {beam}; it must be at most the vocabulary size {root.shape[0]}")
    depths, nodes, first_node, in_pool, best, itself = _levels(policy, root.device)
    scores, tokens = root.clamp(max=0.0).topk(beam)
    highest = [scores[:1]]
    # the root is the pool's first entry, and better than all
    pool_scores, pool_tokens, pool_parents = [best, scores], [first_node, tokens], [first_node.expand(1 + beam)]
    parent_rows, mask = first_node.expand(beam), itself
    for depth in range(1, policy.depth + 1):
        # A log-probability that rounding made positive would rank a child above its parent.
        steps, proposals = expand(tokens, parent_rows, depth, mask).clamp(max=0.0).topk(beam)
        highest.append(steps[:, 0])
        totals, proposals = (scores.unsqueeze(1) + steps).flatten(), proposals.flatten()
        pool_scores.append(totals)
        pool_tokens.append(proposals)
        pool_parents.append(in_pool.repeat_interleave(beam, output_size=beam * beam))
        scores, chosen = totals.topk(beam)
        tokens, parent_rows = proposals.index_select(0, chosen), chosen // beam
        in_pool = chosen + (1 + beam + (depth - 1) * beam * beam)
        mask = torch.cat([mask.index_select(0, parent_rows), itself], dim=1)
    # A child never scores above its parent and comes after it in the pool, so with a stable sort the best entries always hold
    # their ancestors, ties and -inf included. A score that is no number would come before the root's.
    pool = torch.cat(pool_scores).nan_to_num(nan=-torch.inf, neginf=-torch.inf)
    kept = pool.sort(descending=True, stable=True).indices[: policy.nodes].sort().values
    node_of = torch.zeros_like(depths).index_copy_(0, kept, nodes)
    parents = node_of.index_select(0, torch.cat(pool_parents).index_select(0, kept))
    reachable = pool.index_select(0, kept) > -torch.inf
    tree = whole_tree(parents, depths.index_select(0, kept), nodes, reachable, policy.depth + 1, policy.width)
    return tree, torch.cat(pool_tokens).index_select(0, kept), not_finite(highest)


@lru_cache(maxsize=16)
def _levels(policy: DynamicTree, device: torch.device) -> tuple[Tensor, ...]:
    """What does not change from tree to tree of a policy."""
    beam, nodes = policy.top_k, torch.arange(policy.nodes, device=device)
    counts = [1, beam, *([beam * beam] * policy.depth)]  # of the pool's entries by depth
    depths = torch.tensor([depth for depth, count in enumerate(counts) for _ in range(count)], device=device)  # [pool]
    first = torch.arange(1, beam + 1, device=device)  # where the entries of depth 1 are
    best = torch.ones(1, device=device)  # above all scores
    itself = torch.eye(beam, dtype=torch.bool, device=device)  # what the beam at depth 1 sees
    return depths, nodes, nodes[:1], first, best, itself
