"""Growth of the dynamic tree of EAGLE-2 (Li et al., 2024): fixed shapes, tensor operations only, no host
reads.

A beam of `top_k` nodes is expanded `depth` times by the drafter. All proposals gather in a pool, scored by
the sum of log-probabilities along the path; the best are the tree.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .trees import Tree, TreePolicy, ancestor_mask, child_table

Expand = Callable[[Tensor, Tensor, int, Tensor], Tensor]


def grow(root: Tensor, expand: Expand, policy: TreePolicy) -> tuple[Tree, Tensor]:
    """The tree and its tokens [n] int64 (0 in the root's place) of a dynamic policy.

    root [V] float32: log-probabilities of the root's children. expand(tokens [m], parent_rows [m], depth,
    mask [m, w + m]) -> log-probabilities [m, V] of the children of the beam at that depth, where parent_rows
    are the rows of the nodes' parents in the beam before (depth 1: the root, row 0) and mask is the one
    `Drafter.expand` asks for. Raises ValueError when the vocabulary is smaller than the beam.

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
        mask=ancestor_mask(tree_parents, depth), inner=node, inner_rows=node,
        size=size, depth=depth, width=width,
    )  # fmt: skip
    return tree, torch.cat([root, tokens[kept]])


def _pool_depths(entries: Tensor, policy: TreePolicy) -> Tensor:
    """Depths of pool entries: the first top_k lie at depth 1, then every top_k^2 one deeper."""
    beam = policy.top_k
    behind = (entries - beam).clamp(min=-1)
    return torch.where(behind < 0, 1, 2 + behind.div(beam * beam, rounding_mode="floor"))
