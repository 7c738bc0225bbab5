"""How our targets are compared with the library's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from passes import commit, tree_pass

from lantern_demo.decoding.trees import static_tree

Theirs = Callable[[torch.Tensor | None, torch.Tensor, torch.Tensor, Any], torch.Tensor]


def walk(
    target: Any, condition: Any, theirs: Theirs, check: Callable[[torch.Tensor, torch.Tensor], None]
) -> None:
    """Check a target's states of a prompt, a cached step, a tree, its accepted path moved up, and a
    step behind it. `theirs` gives the library's [R, n, H] behind a cache of its own, of image
    tokens [n] (None: of the prompt), at slots [n] that see [n, all].
    """
    t = condition.features.shape[1]
    cache, library = target.new_cache(len(condition.features), 32), transformers.DynamicCache()
    check(
        target.prefill(condition, cache),
        theirs(None, torch.arange(t), torch.ones(t, t, dtype=torch.bool).tril(), library),
    )

    def read(tokens: torch.Tensor, depths: torch.Tensor, mask: torch.Tensor) -> None:
        hidden = tree_pass(target, tokens, depths, mask, cache)
        seen = torch.cat((torch.ones(len(tokens), cache.length, dtype=torch.bool), mask), 1)
        check(hidden, theirs(tokens, cache.length + depths, seen, library))

    def step(token: int) -> None:
        read(
            torch.tensor([token]),
            torch.zeros(1, dtype=torch.int64),
            torch.ones(1, 1, dtype=torch.bool),
        )
        cache.length += 1

    step(41)
    tree = static_tree(((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))
    read(torch.arange(7, 7 + 9 * tree.size, 9) % target.config.vocab, tree.depths, tree.mask)
    path, length = torch.tensor([0, 1, 4]), cache.length
    assert tree.mask[4].nonzero().flatten().tolist() == path.tolist()
    commit(cache, path)
    kept = torch.cat((torch.arange(length), length + path))
    for layer in library.layers:
        layer.keys, layer.values = layer.keys[:, :, kept], layer.values[:, :, kept]
    step(60)
