"""What a training of a drafter needs of its target, and the sizes of the drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from lantern_demo.decoding import interfaces
from lantern_demo.models.llama import Condition
from lantern_demo.models.registry import DrafterConfig, LlamaGenConfig, check_feature_layers


class Teacher(interfaces.Target, Protocol):
    """A target whose states a drafter learns."""

    config: Any
    rope: Tensor
    # blocks whose outputs the hidden states carry for the drafter
    feature_layers: tuple[int, ...]

    def condition(self, features: Tensor, mask: Tensor | None, guided: bool) -> Condition:
        """Return the rows of B prompts, conditional ones first."""

    def train_hidden(self, tokens: Tensor, features: Tensor, mask: Tensor | None) -> Tensor:
        """Run teacher forcing: tokens [B, N] and the rows of a condition -> hidden [B, T + N, (1 +
        F) H].
        """


def drafter_sizes(
    target: LlamaGenConfig, ffn: int, guided: bool, feature_layers: Sequence[int] = ()
) -> DrafterConfig:
    """Return the configuration of a drafter for a target.

    Raise ValueError if the target lacks a named block.
    """
    made = DrafterConfig(
        dim=target.dim,
        heads=target.heads,
        ffn=ffn,
        vocab=target.vocab,
        grid=target.grid,
        prefix=target.prefix,
        rope_base=target.rope_base,
        guided=guided,
        feature_layers=tuple(feature_layers),
    )
    check_feature_layers(feature_layers, target.layers)
    return made
