"""Prompts to measure with: scenes in words, or classes by number."""

from __future__ import annotations

from typing import Any

import torch

from lantern_demo.models.llamagen.labels import CLASSES
from lantern_demo.models.registry import ModelInfo
from lantern_demo.training.scenes import ATTRIBUTES, full_caption


def scene_prompts(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Prompts that name every attribute, with the class indices they name; the same for the same seed."""
    g = torch.Generator().manual_seed(seed)
    prompts = []
    for _ in range(count):
        wanted = {name: int(torch.randint(len(classes), (1,), generator=g)) for name, classes in ATTRIBUTES.items()}
        prompts.append({"prompt": full_caption(**wanted), "attributes": wanted})
    return prompts


def prompts_for(info: ModelInfo, count: int, seed: int = 0) -> list[str]:
    """Prompts for any model: scenes in words, or classes by number; the same for the same model, count and seed."""
    if info.kind == "class":
        return [str(n) for n in torch.randint(CLASSES, (count,), generator=torch.Generator().manual_seed(seed)).tolist()]
    return [p["prompt"] for p in scene_prompts(count, seed)]
