"""The layer of LLaMA decoders: its gradients in mixed precision."""

from __future__ import annotations

import torch
from torch import nn

from lantern_demo.models.llama import added


def test_training_in_mixed_precision_gets_the_gradients_of_the_sum() -> None:
    torch.manual_seed(0)
    x, part, y = torch.randn(2, 3, 8), nn.Linear(16, 8, bias=False), torch.randn(2, 3, 16)
    for tensor in (x, y):
        tensor.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        added(x, part, y).float().sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.ones_like(x))
    assert part.weight.grad is not None
    wanted = y.detach().sum((0, 1)).expand_as(part.weight)
    torch.testing.assert_close(part.weight.grad, wanted, atol=0.05, rtol=0.02)
