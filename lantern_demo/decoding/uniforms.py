"""All the randomness of a run, drawn at once from its seed: a step only reads its row, on whatever device."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from .sampling import TINY


class Uniforms:
    """Uniforms [steps, walk + draws] in [0, 1). A row's first entries are for the walk, per node one for each draw number and one for
    the bonus token; the others are for the draws of a static tree.

    On a CPU they are float64 multiples of 2^-48. With a float32's 24 bits alone every chance would be a multiple of 6e-8, which
    over 16,384 tokens puts some 1e-4 of the mass elsewhere. On an accelerator they are float32.
    """

    def __init__(self, seed: int, device: torch.device, steps: int, nodes: int, width: int, draws: int) -> None:
        generator = torch.Generator(device).manual_seed(seed)
        self.columns, self.judged = width + 1, nodes * (width + 1)
        self.rows = torch.rand(steps, self.judged + draws, generator=generator, device=device)
        if self.rows.device.type == "cpu":
            self.rows = self.rows.double().add_(torch.rand(self.rows.shape, generator=generator), alpha=2.0**-24)

    def walk(self, step: int, nodes: int) -> Tensor:
        """[nodes, width + 1] of a step; [1, 1] for the root alone."""
        columns = self.columns if nodes > 1 else 1
        return self.rows[step, : nodes * columns].view(nodes, columns)

    def draws(self, step: int) -> Tensor:
        """[draws] of a step."""
        return self.rows[step, self.judged :]

    def room_for(self, steps: int) -> Uniforms:
        """An empty table of the same columns for `steps` steps, to be filled by `take`."""
        table = copy(self)
        table.rows = self.rows.new_zeros(steps, self.rows.shape[1])
        return table

    def take(self, other: Uniforms) -> None:
        """Copy another table of the same columns, of no more steps, over the first ones of this, with `sampling.TINY` for 0."""
        self.rows[: other.rows.shape[0]].copy_(other.rows).clamp_(min=TINY)
