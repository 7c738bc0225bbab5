"""The layer of LLaMA decoders: its gradients."""

from __future__ import annotations

import torch
from torch import nn

from lantern_demo.models.llama import Layer, added


def test_gradients_are_those_of_the_formula() -> None:
    """Finite differences of the half of a layer after attention, in double precision."""
    torch.manual_seed(0)
    layer = Layer(4, 2, 6, 1e-5).double()
    weights = layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight
    x, attended = torch.randn(2, 2, 3, 4, dtype=torch.double).requires_grad_()
    before = x.detach().clone()
    assert torch.autograd.gradcheck(lambda x, y, *_: layer.finish(x, y), (x, attended, *weights))
    assert torch.equal(x.detach(), before)


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
