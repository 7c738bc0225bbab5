"""Prompts to measure with: scenes in words, or classes by number."""

from __future__ import annotations

import torch

from lantern_demo.models.llamagen.labels import CLASSES
from lantern_demo.models.registry import ModelInfo
from lantern_demo.scenes import ATTRIBUTES, full_caption


def prompts_for(info: ModelInfo, count: int, seed: int = 0) -> list[str]:
    """Prompts for any model: scenes in words that name every attribute, or classes by number; the same for the same model, count
    and seed."""
    g = torch.Generator().manual_seed(seed)
    if info.kind == "class":
        return [str(n) for n in torch.randint(CLASSES, (count,), generator=g).tolist()]
    return [
        full_caption(**{name: int(torch.randint(len(classes), (1,), generator=g)) for name, classes in ATTRIBUTES.items()})
        for _ in range(count)
    ]
