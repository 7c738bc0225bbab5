"""A group norm whose backward pass is fast in channels-last bfloat16 on a CPU, where the library's is up to nine times slower."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        b, c, h, w = x.shape
        y, mean, rstd = torch.native_group_norm(x, weight, bias, b, c, h * w, groups, eps)
        ctx.save_for_backward(x, weight, mean, rstd)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, mean, rstd = ctx.saved_tensors
        b, c, h, w = x.shape
        per = c // mean.shape[1]  # channels in a group
        flat_x, flat_dy = (t.permute(0, 2, 3, 1).reshape(b, h * w, c) for t in (x, dy))
        mean, rstd = (t.float().repeat_interleave(per, 1) for t in (mean, rstd))  # [B, C]
        sum_dy = flat_dy.sum(1, dtype=torch.float32)
        sum_dy_normed = ((flat_dy * flat_x).sum(1, dtype=torch.float32) - mean * sum_dy) * rstd
        scale = weight.float()

        def group_mean(value: Tensor) -> Tensor:
            return (value * scale).view(b, -1, per).sum(2).div(h * w * per).repeat_interleave(per, 1)

        offset, slope = group_mean(sum_dy), group_mean(sum_dy_normed)
        # dx = rstd (dy weight - offset - normed slope), written as one product each of dy and x with a constant per channel
        by_dy, by_x = rstd * scale, -rstd * rstd * slope
        constant = -mean * by_x - rstd * offset
        by_dy, by_x, constant = (t.to(x.dtype)[:, None] for t in (by_dy, by_x, constant))
        dx = torch.addcmul(constant, flat_dy, by_dy).addcmul_(flat_x, by_x)
        return (
            dx.reshape(b, h, w, c).permute(0, 3, 1, 2),
            sum_dy_normed.sum(0).to(weight.dtype),
            sum_dy.sum(0).to(weight.dtype),
            None,
            None,
        )


class FastGroupNorm(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        return _GroupNorm.apply(x, self.weight, self.bias, self.num_groups, self.eps)


def use_fast_group_norm(model: nn.Module) -> None:
    """Turn every nn.GroupNorm of a model that trains on a CPU into the fast one."""
    for module in model.modules():
        if type(module) is nn.GroupNorm:
            module.__class__ = FastGroupNorm
