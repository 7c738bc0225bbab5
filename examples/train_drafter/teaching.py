"""Interfaces for training a drafter. A family whose drafter implements `Learner` can be trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from lantern_demo.decoding import interfaces
from lantern_demo.models.families import drafter_for, family_of
from lantern_demo.models.llama import Condition
from lantern_demo.models.registry import DrafterSizes, TargetSizes


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


@runtime_checkable
class Learner(Protocol):
    """A drafter that can be trained."""

    @property
    def lead(self) -> int:
        """The number of slots that the drafter reads in front of the first image token's."""

    def learn_from(self, target: Any) -> None:
        """Copy the weights that start as the target's."""

    def train_passes(self, tokens: Tensor, hidden: Tensor, passes: int) -> list[Tensor]:
        """Run teacher forcing over S slots, `lead` of them in front of the picture's -> outputs [B,
        S, H] a pass. tokens [B, S] has the token after each slot's state, 0 in front of the
        picture; hidden is [B, S, (1 + F) H]. See `models.llama.DecoderDrafter.train_passes`.
        """


def drafter_sizes(
    target: TargetSizes, ffn: int, guided: bool, feature_layers: Sequence[int] = ()
) -> DrafterSizes:
    """Return the configuration of a drafter for a target.

    Raise ValueError if its family has no drafter for guided states or feature layers, or if the
    target lacks a named block.
    """
    kind: Any = family_of(target).drafter
    known = {field.name for field in fields(kind)}
    if guided and "guided" not in known:
        raise ValueError(
            "--guided is not possible: guided states need a head that is linear, and this target's "
            "is not"
        )
    if feature_layers and "feature_layers" not in known:
        raise ValueError(
            "--feature-layers is not possible: drafters of this family read final states alone"
        )
    asked: dict[str, Any] = {"guided": True} if guided else {}
    asked |= {"feature_layers": tuple(feature_layers)} if feature_layers else {}
    made = drafter_for(target, ffn=ffn, **asked)
    made.check_feature_layers(target.layers)
    return made
