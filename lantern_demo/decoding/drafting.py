"""Draft sources: what fills a draft tree in every step. A source is asked by both engines in the same way.

A static tree is filled with tokens drawn from the drafter without replacement, or with the likeliest ones when greedy. A dynamic one
(EAGLE-2, Li et al. 2024) is a beam of `top_k` nodes that the drafter expands `depth` times; all proposals gather in a pool, scored by
the sum of log-probabilities along the path, and the best are the tree. Shapes are fixed, and nothing is read back to the host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from .sampling import Sampling, draw_without_replacement, guide, probabilities
from .trees import Draft, Tree, TreePolicy, ancestor_mask, child_table, static_tree

Head = Callable[[Tensor], Tensor]  # hidden states [R, n, H] -> logits [R, n, V] float32, the target's


class Passes(Protocol):
    """One step's way to the drafter."""

    def stable(self) -> Tensor:
        """Read what has been committed since the step before; the last output [R, 1, H], which stands for the root."""
        ...

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor) -> Tensor:
        """As `protocols.Expander.expand`, with the drafter's own cache."""
        ...


class Source(Protocol):
    """Fills draft trees."""

    depth: int  # of the deepest node
    draws: int  # uniforms that it takes in a step

    def draft(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        """The tree of the last committed token root [1] int64; uniforms [draws] in [0, 1)."""
        ...


def source_of(policy: TreePolicy, sampling: Sampling, device: torch.device | str) -> Source:
    """The draft source of a tree policy."""
    if policy.kind == "static":
        return StaticSource(static_tree(policy.paths, device), sampling)
    return DynamicSource(policy, sampling) if policy.kind == "dynamic" else NoSource(device)


class NoSource:
    """No drafts: the root alone."""

    depth = draws = 0

    def __init__(self, device: torch.device | str) -> None:
        self.tree = static_tree((), device)

    def draft(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        return Draft(self.tree, root, root.new_empty(0, 0))


class StaticSource:
    """A tree of fixed paths."""

    def __init__(self, tree: Tree, sampling: Sampling) -> None:
        self.tree, self.sampling = tree, sampling
        self.depth, self.draws = tree.depth, tree.draws

    def draft(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        tree, sampling, output = self.tree, self.sampling, passes.stable()
        tokens = root.new_zeros(tree.size)
        tokens[:1] = root
        drawn = tree.inner.new_full((tree.inner.shape[0], tree.width), -1)
        laws, used, row = [], 0, 0
        for depth, level in enumerate(tree.levels):
            if depth > 0:
                parents = output.index_select(1, level.parent_rows)
                output = passes.expand(tokens[level.nodes], parents, depth, level.mask)
            logits = guide(head(output), sampling.cfg_scale)
            if sampling.greedy:
                found = logits.topk(level.draws).indices
            else:
                laws.append(probabilities(logits, sampling, spent=True))
                count = level.nodes.shape[0] * level.draws
                found = draw_without_replacement(laws[-1], uniforms[used : used + count].view(-1, level.draws))
                used += count
            # a draw that found no token leaves a node that is never accepted; its token only has to be a valid one
            tokens[level.child_nodes] = found[level.child_rows, level.child_draws].clamp(min=0)
            drawn[row : row + len(level.nodes), : level.draws] = found
            row += len(level.nodes)
        if sampling.greedy:
            drawn = drawn.masked_fill(tree.children[tree.inner] < 0, -1)
        return Draft(tree, tokens, drawn, torch.cat(laws) if laws else None)


class DynamicSource:
    """EAGLE-2's tree. Its children are fixed by the prefix."""

    draws = 0

    def __init__(self, policy: TreePolicy, sampling: Sampling) -> None:
        self.policy, self.sampling, self.depth = policy, sampling, policy.depth + 1

    def draft(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        beam = passes.stable()

        def log_probs() -> Tensor:
            return probabilities(guide(head(beam), self.sampling.cfg_scale), self.sampling).log()

        def expand(tokens: Tensor, parent_rows: Tensor, depth: int, mask: Tensor) -> Tensor:
            nonlocal beam
            beam = passes.expand(tokens, beam.index_select(1, parent_rows), depth, mask)
            return log_probs()

        tree, tokens = grow(log_probs()[0], expand, self.policy)
        tokens[:1] = root
        return Draft(tree, tokens, tokens[tree.children.clamp(min=0)].masked_fill(tree.children < 0, -1))


def grow(root: Tensor, expand: Callable[[Tensor, Tensor, int, Tensor], Tensor], policy: TreePolicy) -> tuple[Tree, Tensor]:
    """The tree and its tokens [n] int64 (0 in the root's place) of a dynamic policy.

    root [V] float32: log-probabilities of the root's children. expand(tokens [m], parent_rows [m], depth,
    mask [m, w + m]) -> log-probabilities [m, V] of the children of the beam at that depth, where parent_rows
    are the rows of the nodes' parents in the beam before (depth 1: the root, row 0) and mask is the one
    `Passes.expand` asks for. Raises ValueError when the vocabulary is smaller than the beam.

    Log-probabilities may be -inf (filtered tokens). Where a tree cannot be filled with proposals of positive
    probability, the nodes left over hang on it as padding that no child table names, so they are never
    accepted.
    """
    beam = policy.top_k
    if root.shape[0] < beam:
        raise ValueError(f"tree top_k is {beam}; it must be at most the vocabulary size {root.shape[0]}")
    device = root.device
    scores, tokens = root.clamp(max=0.0).topk(beam)
    pool_scores, pool_tokens = [scores], [tokens]
    pool_parents = [torch.full((beam,), -1, dtype=torch.int64, device=device)]
    identity = torch.eye(beam, dtype=torch.bool, device=device)
    in_pool = torch.arange(beam, device=device)  # where the beam's nodes are in the pool
    parent_rows, mask = torch.zeros_like(in_pool), identity
    for depth in range(1, policy.depth + 1):
        # A log-probability that rounding made positive would rank a child above its parent.
        steps, proposals = expand(tokens, parent_rows, depth, mask).clamp(max=0.0).topk(beam)
        totals = (scores.unsqueeze(1) + steps).flatten()
        pool_scores.append(totals)
        pool_tokens.append(proposals.flatten())
        pool_parents.append(in_pool.repeat_interleave(beam))
        scores, chosen = totals.topk(beam)
        tokens, parent_rows = proposals.flatten()[chosen], chosen // beam
        in_pool = chosen + (beam + (depth - 1) * beam * beam)
        mask = torch.cat([mask[parent_rows], identity], dim=1)
    return _rerank(torch.cat(pool_scores), torch.cat(pool_tokens), torch.cat(pool_parents), policy)


def _rerank(scores: Tensor, tokens: Tensor, parents: Tensor, policy: TreePolicy) -> tuple[Tree, Tensor]:
    """The tree of the best pool entries: scores, tokens, parents (pool index or -1 for the root), each
    [pool].

    A child never scores above its parent and comes after it in the pool, so with a stable sort the best
    entries always hold their ancestors, ties and -inf included.
    """
    size, device = policy.nodes, scores.device
    best = scores.sort(descending=True, stable=True).indices[: size - 1]
    kept = best.sort().values
    node = torch.arange(size, device=device)
    node_of = torch.zeros(scores.shape[0] + 1, dtype=torch.int64, device=device)  # by pool index + 1, root first
    node_of[kept + 1] = node[1:]
    root = node.new_zeros(1)
    tree_parents = torch.cat([root, node_of[parents[kept] + 1]])
    depths = torch.cat([root, _pool_depths(kept, policy)])
    reachable = torch.cat([torch.ones(1, dtype=torch.bool, device=device), scores[kept].isfinite()])
    depth, width = policy.depth + 1, min(policy.top_k, size - 1)
    tree = Tree(
        parents=tree_parents, depths=depths, children=child_table(tree_parents, reachable, width),
        mask=ancestor_mask(tree_parents, depth), inner=node, inner_rows=node, nodes=node,
        size=size, depth=depth, width=width,
    )  # fmt: skip
    return tree, torch.cat([root, tokens[kept]])


def _pool_depths(entries: Tensor, policy: TreePolicy) -> Tensor:
    """Depths of pool entries: the first top_k lie at depth 1, then every top_k^2 one deeper."""
    beam = policy.top_k
    behind = (entries - beam).clamp(min=-1)
    return torch.where(behind < 0, 1, 2 + behind.div(beam * beam, rounding_mode="floor"))
