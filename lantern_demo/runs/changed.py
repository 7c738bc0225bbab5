"""The logits that the target gives to a finished picture, by one pass over it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lantern_demo.decoding.config import Config
from lantern_demo.decoding.interfaces import Target

CHUNK = 32  # tokens per pass over a finished picture


def own_logits(
    target: Target, condition: Any, tokens: list[int], config: Config
) -> Iterator[Tensor]:
    """Yield the target's logits [R, m, V] of positions 1, 2, ... of a picture, each given all
    tokens before it, CHUNK positions at a time.
    """
    cache = target.new_cache(config.rows, len(tokens))
    target.prefill(condition, cache)
    slots = torch.arange(cache.length + len(tokens) - 1, device=config.torch_device)
    read = torch.tensor(tokens[:-1], device=config.torch_device)
    for chunk, at in zip(read.split(CHUNK), slots[cache.length :].split(CHUNK), strict=True):
        visible = slots[: int(at[-1]) + 1] <= at[:, None]
        yield target.head(target.forward(chunk, at, at, visible, cache))
