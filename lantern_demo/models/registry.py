"""The models on offer, with presets and what each needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUNDLED = Path(__file__).resolve().parent.parent / "bundled"


@dataclass(frozen=True)
class ModelInfo:
    """One model on offer. `preset` holds the settings that differ from the defaults."""

    id: str
    title: str
    description: str
    folder: Path
    image_size: int  # pixels a side
    grid: int  # tokens a side
    max_prompt: int  # characters
    preset: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.grid * self.grid


REGISTRY: dict[str, ModelInfo] = {
    "lantern-scenes": ModelInfo(
        id="lantern-scenes",
        title="lantern-scenes (bundled)",
        description=(
            "A small model of the LlamaGen family that ships with this code. It draws paper lanterns: one to four, in six "
            "colours, round, box or sky lanterns, over a lake, hills or a plain, at dusk, night or dawn."
        ),
        folder=BUNDLED / "lantern-scenes",
        image_size=128,
        grid=16,
        max_prompt=200,
        preset={"cfg_scale": 3.0, "lantern_k": 100, "lantern_delta": 0.2, "lanternpp_k": 10, "lanternpp_lambda": 3.0},
    ),
}


def model_info(model: Any) -> ModelInfo:
    """The model of an id. Raises ValueError naming the value and what is allowed."""
    if not isinstance(model, str) or model not in REGISTRY:
        raise ValueError(f"model must be one of {', '.join(REGISTRY)}, got {model!r}")
    return REGISTRY[model]
