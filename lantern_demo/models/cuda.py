"""Weights of several linear layers as one, and products whose result is not rounded back: what the twins for accelerators share."""

from __future__ import annotations

from functools import cache
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Rows(nn.Module):
    """A linear layer without a bias whose weight is some rows of a joined one.

    The rows are looked up when they are used. A kept view would be a tensor of its own for ZeroGPU, which packs tensors by where they
    begin and what shape they have, so that every weight would be packed and moved twice.
    """

    def __init__(self, whole: Tensor, first: int, count: int) -> None:
        super().__init__()
        # in a tuple it is no parameter of this module: it would be listed once for each layer that shares it
        self._whole = (whole,)
        self.first, self.out_features, self.in_features = first, count, whole.shape[1]

    @property
    def weight(self) -> Tensor:
        """[count, inputs], a view."""
        return self._whole[0][self.first : self.first + self.out_features]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def join(owner: nn.Module, *names: str) -> Tensor:
    """Join the weights of an owner's linear layers to one [sum of outputs, D], of which the layers then use their rows."""
    parts = [cast(nn.Linear, owner.get_submodule(name)).weight.detach() for name in names]
    whole = torch.cat(parts)
    first = 0
    for name, part in zip(names, parts, strict=True):
        setattr(owner, name, Rows(whole, first, len(part)))
        first += len(part)
    return whole


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x [M, D] times weight [O, D] -> [M, O] float32. Sums are kept in float32 anyway; where the device allows, half precision is not
    rounded to on the way out, which matters where differences are enlarged, as guidance does to those of logits."""
    if x.dtype != torch.float32 and keeps_sums(x.device.type, x.dtype) and not _short_sums(x.dtype):
        return torch.mm(x, weight.t(), out_dtype=torch.float32)
    return F.linear(x, weight).float()


def _short_sums(dtype: torch.dtype) -> bool:
    """Whether sums of this dtype are asked to be short ones: see `llamagen.accumulation`."""
    return dtype == torch.float16 and torch.backends.cuda.matmul.allow_fp16_accumulation


@cache
def keeps_sums(device: str, dtype: torch.dtype) -> bool:
    """Whether products of this dtype can give their float32 sums on a device: on CUDA since PyTorch 2.8."""
    try:
        ones = torch.ones(8, 8, dtype=dtype, device=device)
        return torch.mm(ones, ones, out_dtype=torch.float32).dtype == torch.float32
    except (RuntimeError, TypeError, NotImplementedError):
        return False
