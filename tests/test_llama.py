"""The layer of LLaMA decoders: its gradients, and the order of its rows."""

from __future__ import annotations

import torch
from torch import nn

from lantern_demo.models.llama import Layer, added, angles, rotated, rotations
from lantern_demo.models.llamagen import PairedAttention


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


def test_queries_and_keys_in_published_pairs_turn_by_halves() -> None:
    """Scores are those of adjacent pairs, and the state that is saved is the one that was read."""
    torch.manual_seed(0)
    own, heads, nodes = PairedAttention(24, 3), 3, 5
    state = {name: torch.randn(24, 24) for name in own.state_dict()}
    own.load_state_dict(state)
    assert all(torch.equal(own.state_dict()[name], weight) for name, weight in state.items())
    x = torch.randn(1, nodes, 24)
    table = rotations(angles(nodes, 8, 100.0))[None]
    q, k, _ = rotated(own.read(x).view(1, nodes, 3, heads, 8), table, x.dtype).unbind(2)

    def published(name: str) -> torch.Tensor:
        pairs = (x @ state[f"{name}_proj.weight"].t()).view(1, nodes, heads, 4, 2)
        return torch.view_as_real(torch.view_as_complex(pairs) * table[:, :, 0]).flatten(-2)

    found, wanted = (
        torch.einsum("rnhd,rmhd->rhnm", *both) for both in ((q, k), map(published, "qk"))
    )
    torch.testing.assert_close(found, wanted)
