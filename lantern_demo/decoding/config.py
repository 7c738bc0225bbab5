"""The configuration of a run. `settings` checks its values, and `check_models` that they fit the
models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from .drafting import DraftConfig
from .ops import PYTORCH, Ops
from .rules import Rule, columns
from .sampling import Sampling

NOISE = ("shared", "independent")


@dataclass(frozen=True, eq=False)
class Config:
    """A run's configuration. Raises ValueError for a rule that does not fit the drafts, or
    that lacks its neighbours."""

    num_tokens: int  # of the picture
    sampling: Sampling = field(default_factory=Sampling)
    rule: Rule = field(default_factory=Rule)
    drafts: DraftConfig = field(default_factory=DraftConfig)
    # [V, >= k] int32 or int64, each token's nearest others; rules that relax need them
    neighbours: Tensor | None = None
    seed: int = 0  # to 2**32 - 1: a CPU's generator would drop further bits
    device: torch.device | str = "cpu"
    # tokens that a kept runner has room for, so that shorter runs share it; None: num_tokens
    room: int | None = None
    noise: str = "independent"  # or "shared", which relaxed rules ignore (see `shared`)
    ops: Ops = PYTORCH
    keep: tuple[int, ...] = ()  # the picture's first tokens, where the run draws only the rest

    def __post_init__(self) -> None:
        assert 1 <= self.num_tokens <= self.positions and len(self.keep) < self.num_tokens
        assert 0 <= self.seed < 2**32 and self.noise in NOISE
        if self.neighbours is None and columns(self.rule):
            raise ValueError(f"neighbours is None; {self.rule} needs a neighbour table")
        if self.drafts.drafts_own_draws and self.rule.relaxes:
            needs = f"{type(self.drafts).__name__} needs the exact rule"
            raise ValueError(f"rule is {self.rule}, which relaxes; {needs}")

    def check_models(self, vocabulary: int, drafter: object) -> None:
        """Raise ValueError if the drafts need a missing drafter, or if tree or neighbour table do
        not fit the vocabulary."""
        if self.drafts.needs_drafter and drafter is None:
            raise ValueError(f"drafter is None; {type(self.drafts).__name__} needs one")
        if self.drafts.width > vocabulary:
            raise ValueError(
                f"tree has {self.drafts.width} children per node; "
                f"allowed are at most the {vocabulary} tokens"
            )
        if columns(self.rule) and self.neighbours is not None:
            least, shape = min(columns(self.rule), vocabulary - 1), list(self.neighbours.shape)
            if len(shape) != 2 or shape[0] != vocabulary or shape[1] < least:
                raise ValueError(
                    f"neighbours has shape {shape}; "
                    f"with {self.rule} it must be [{vocabulary}, {least} or more]"
                )

    @property
    def shared(self) -> bool:
        """Whether drafts are compared with the target's own draws. Relaxed rules run as published
        instead. At temperature 0 there is no noise, and every rule without neighbours compares."""
        if self.sampling.greedy:
            return not columns(self.rule)
        return not self.rule.relaxes and (self.noise == "shared" or self.drafts.drafts_own_draws)

    @property
    def noise_used(self) -> Literal["shared", "independent", "none"]:
        """How the run draws: "shared" or "independent" noise, or "none" at temperature 0."""
        return "none" if self.sampling.greedy else "shared" if self.shared else "independent"

    @property
    def rows(self) -> int:
        """The rows R of `interfaces`: 2 with guidance."""
        return 1 if self.sampling.cfg_scale == 1 else 2

    @property
    def torch_device(self) -> torch.device:
        return torch.device(self.device)

    @property
    def positions(self) -> int:
        """Tokens that caches and buffers have room for."""
        return self.room or self.num_tokens

    def no_draft(self, missing: int) -> bool:
        """Whether a step with `missing` tokens left needs no drafts: the last token is the bonus
        token after the root."""
        return self.drafts.nodes == 1 or missing == 1
