"""The layer of LLaMA decoders: what it overwrites, and its gradients."""

from __future__ import annotations

import torch
from small_models import model_of
from torch import Tensor, nn

from lantern_demo.models.llama import Layer, added


def operands() -> tuple[Tensor, nn.Linear, Tensor]:
    """States [2, 3, 8], a linear layer and its inputs [2, 3, 16]."""
    torch.manual_seed(0)
    return torch.randn(2, 3, 8), nn.Linear(16, 8, bias=False), torch.randn(2, 3, 16)


def test_rows_that_share_their_vectors_are_added_to_apart() -> None:
    """Vanilla's one node enters both rows of guidance as one vector."""
    model = model_of("llamagen")
    target, _, _ = model.joined
    token, slot = torch.tensor([5]), torch.tensor([7])
    visible = torch.ones(1, 8, dtype=torch.bool)
    with torch.no_grad():
        cache = target.new_cache(2, 8)
        target.prefill(model.condition, cache)
        found = target.forward(token, slot, slot, visible, cache)
        alone = target.forward(token.expand(2, 1), slot, slot, visible, cache)
    assert not torch.equal(found[0], found[1]) and torch.equal(found, alone)


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
    x, part, y = operands()
    for tensor in (x, y):
        tensor.requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        added(x, part, y).float().sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.ones_like(x))
    assert part.weight.grad is not None
    wanted = y.detach().sum((0, 1)).expand_as(part.weight)
    torch.testing.assert_close(part.weight.grad, wanted, atol=0.05, rtol=0.02)
