"""Passes of targets and drafters behind what is committed, which a cache's `length` counts here."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_demo.decoding.interfaces import Pass


def tree_pass(target: Any, tokens: Tensor, depths: Tensor, mask: Tensor, cache: Any) -> Tensor:
    """A target's states [R, n, H] of the nodes of a tree: depths [n], mask [n, n] bool."""
    slots = cache.length + torch.arange(len(depths))
    visible = None if len(depths) == 1 else F.pad(mask, (cache.length, 0), value=True)
    return target.forward(Pass(tokens, cache.length + depths, slots, visible), cache)


def chain_pass(target: Any, tokens: Tensor, cache: Any) -> Tensor:
    """A target's states [R, n, H] of tokens one behind the other."""
    count = len(tokens)
    below = torch.ones(count, count, dtype=torch.bool).tril()
    return tree_pass(target, tokens, torch.arange(count), below, cache)


def step(target: Any, token: Tensor, cache: Any) -> Tensor:
    """Feed one token at the next position and commit it -> its states [R, 1, H]."""
    hidden = chain_pass(target, token.view(1), cache)
    cache.length += 1
    return hidden


def commit(cache: Any, nodes: Tensor) -> None:
    """Keep nodes [m] of the last tree, increasing."""
    cache.move(cache.length + nodes, cache.length + torch.arange(len(nodes)))
    cache.length += len(nodes)


def begin(drafter: Any, hidden: Tensor, token: Tensor, cache: Any, condition: Any = None) -> Tensor:
    """A drafter's prefill -> the output [R, 1, H] that stands for the root."""
    drafter.prefill(hidden, token, cache, condition)
    cache.length -= 1
    return stable_pass(drafter, token, hidden[:, -1:], cache)


def stable_pass(
    drafter: Any, tokens: Tensor, hidden: Tensor, cache: Any, outputs: int = 1
) -> Tensor:
    """The last outputs [R, outputs, H] of m committed tokens with the states before them."""
    slots = cache.length + torch.arange(tokens.shape[-1])
    cache.length += len(slots)
    visible = None if outputs == 1 else torch.arange(cache.length) <= slots[-outputs:, None]
    return drafter.forward(Pass(tokens, slots, slots, visible), hidden, cache)


def node_pass(
    drafter: Any, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor, cache: Any
) -> Tensor:
    """Outputs [R, m, H] of nodes of one depth; mask [m, w + m]: of w nodes before, and of these."""
    m, width = mask.shape
    slots = cache.length + torch.arange(width - m, width)
    positions = torch.full_like(slots, cache.length + depth - 1)
    visible = None if m == 1 and width == depth else F.pad(mask, (cache.length, 0), value=True)
    return drafter.forward(Pass(tokens, positions, slots, visible), hidden, cache)
