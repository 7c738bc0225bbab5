"""The configuration of a run. `Config` checks that its values fit each other, and `check_models`
that they fit the models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from .drafting import DraftConfig
from .methods import Method
from .ops import PYTORCH, Ops
from .rules import Rule, columns
from .sampling import Sampling

NOISE = ("shared", "independent")


@dataclass(frozen=True, eq=False)
class Config:
    """A run's configuration. Raises ValueError for values that do not fit each other."""

    method: Method
    num_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    rule: Rule = field(default_factory=Rule)  # rule and tree are of the method's classes
    tree: DraftConfig = field(default_factory=DraftConfig)
    # [V, >= k] int32 or int64, each token's nearest others; rules that relax need them
    neighbours: Tensor | None = None
    seed: int = 0  # to 2**32 - 1
    device: torch.device | str = "cpu"
    # tokens that a kept runner has room for, so that shorter runs share it; None: num_tokens
    room: int | None = None
    noise: str = "independent"  # or "shared", which relaxed rules ignore (see `shared`)
    ops: Ops = PYTORCH

    def __post_init__(self) -> None:
        method, tree, rule = self.method, self.tree, self.rule
        if self.num_tokens < 1:
            raise ValueError(f"num_tokens is {self.num_tokens}; it must be at least 1")
        if self.room is not None and self.room < self.num_tokens:
            raise ValueError(
                f"room is {self.room}; it must be at least num_tokens, which is {self.num_tokens}"
            )
        if not 0 <= self.seed < 2**32:  # a CPU's generator takes 32 bits and would drop the others
            raise ValueError(f"seed is {self.seed}; it must be between 0 and {2**32 - 1}")
        if self.noise not in NOISE:
            raise ValueError(f"noise is {self.noise!r}; allowed are {', '.join(NOISE)}")
        if type(tree) is not method.drafts:
            raise ValueError(
                f"tree is of kind {type(tree).__name__}; "
                f"method {method.id} needs {method.drafts.__name__}"
            )
        if type(rule) is not type(method.rule):
            kinds = type(rule).__name__, type(method.rule).__name__
            raise ValueError(f"rule is of kind {kinds[0]}; method {method.id} needs {kinds[1]}")
        if tree.drafts_own_draws and rule.relaxes:
            raise ValueError(
                f"rule is {rule}, which relaxes; {type(tree).__name__} needs the exact rule"
            )
        if columns(rule) and self.neighbours is None:
            raise ValueError(f"neighbours is None; method {method.id} needs a neighbour table")

    def check_models(self, vocabulary: int, drafter: object) -> None:
        """Raise ValueError if the method needs a missing drafter, or if tree or neighbour table do
        not fit the vocabulary."""
        if self.method.needs_drafter and drafter is None:
            raise ValueError(f"drafter is None; method {self.method.id} needs one")
        if self.tree.width > vocabulary:
            raise ValueError(
                f"tree has {self.tree.width} children per node; "
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
        return not self.rule.relaxes and (self.noise == "shared" or self.tree.drafts_own_draws)

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
        return self.tree.nodes == 1 or missing == 1
