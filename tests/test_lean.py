"""Networks: fused and joined ones compute the modules' states; drafters read blocks of targets."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import small_models as small
import torch
from passes import begin, chain_pass, commit, node_pass, stable_pass, tree_pass
from runs import decode
from small_models import FEATURE_LAYERS, MODELS, STATIC, TEXT, model_of, networks, stored
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.trees import static_tree
from lantern_demo.models.cpu import PRODUCTS, exact_product, supported
from lantern_demo.models.llamagen import LeanDrafter, LeanTarget

WIDTH = 128 * (1 + len(FEATURE_LAYERS))
SUPPORTED = [product for product in PRODUCTS if supported(product)]


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def states(target: Any, condition: Any) -> list[Tensor]:
    """Prefill, a tree, its path moved up, single tokens, other trees, one over the end."""
    cache = target.new_cache(len(condition.features), 40)
    found = [target.prefill(condition, cache)]

    def forward(paths: Any, *kept: int) -> None:
        tree = static_tree(paths)
        tokens = (torch.arange(tree.size) * 7 + cache.length) % 60
        hidden = tree_pass(target, tokens, tree.depths, tree.mask, cache)
        found.extend((hidden, target.head(hidden)))
        commit(cache, torch.tensor([0, *kept]))

    forward(STATIC, 2, 6)
    for _ in range(2):
        forward(())
    forward([(0,), (0, 0), (0, 0, 0)], 1)
    forward(STATIC)
    for _ in range(6):
        forward(())
    forward(STATIC)
    return found


def outputs(drafter: Any, condition: Any) -> tuple[list[Tensor], list[Tensor]]:
    c, g = drafter.config, torch.Generator().manual_seed(2)
    rows = 1 if drafter.guided else len(condition.features)
    width = c.dim * (1 + len(c.feature_layers))

    def hidden(m: int) -> Tensor:
        return torch.randn(rows, m, width, generator=g)

    cache, nodes = drafter.new_cache(rows, 30), list[Tensor]()
    stable = [begin(drafter, hidden(c.prefix), torch.tensor([5]), cache, condition)]
    apart = torch.eye(2, dtype=torch.bool)
    under = torch.tensor([[1, 0, 1, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]).bool()
    chain = torch.tensor([[1, 0, 1, 0, 0, 1]]).bool()
    for m in (1, 3, 2):
        stable.append(stable_pass(drafter, torch.arange(m) + 9, hidden(m), cache))
        root = stable[-1].expand(-1, 2, -1)
        first = node_pass(drafter, torch.tensor([1, 2]), root, 1, apart, cache)
        above = first[:, [0, 0, 1]]
        nodes += [first, node_pass(drafter, torch.tensor([3, 4, 5]), above, 2, under, cache)]
    nodes.append(node_pass(drafter, torch.tensor([8]), nodes[-1][:, :1], 3, chain, cache))
    return stable, nodes


@pytest.mark.parametrize("model", MODELS)
def test_fused_and_joined_models_compute_the_modules_states(model: str) -> None:
    of = model_of(model)
    wanted = states(of.target, of.condition), outputs(of.drafter, of.condition)
    for target, drafter, *_ in of.runners[1:]:
        found = states(target, of.condition), outputs(drafter, of.condition)
        for one, other in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
            error = (one - other).abs().max() / other.abs().max()
            assert float(error) < 3e-5, error
    target, drafter, *_ = of.joined
    for joined, own in zip((target, drafter), (of.target, of.drafter), strict=True):
        scales = sum(p.numel() for n, p in own.named_parameters() if "layernorm" in n)
        kept, whole = (sum(p.numel() for p in part.parameters()) for part in (joined, own))
        assert kept == whole - scales


@pytest.mark.parametrize("product", SUPPORTED)
@pytest.mark.parametrize("model", ["llamagen", "no bias", "feature layers"])
def test_drafters_with_every_exact_kind_of_product(model: str, product: str) -> None:
    of = model_of("llamagen" if model == "no bias" else model)
    drafter = stored(networks(TEXT, bias=False)[1] if model == "no bias" else deepcopy(of.drafter))
    fused = LeanDrafter(drafter, product)
    found, wanted = outputs(fused, of.condition), outputs(drafter, of.condition)
    torch.testing.assert_close(found[0], wanted[0], atol=1e-4, rtol=1e-4)
    # the weight of a node's own output is a sum of two, which float16 rounds
    near = 0.02 if model == "feature layers" and product == "half" else 1e-4
    torch.testing.assert_close(found[1], wanted[1], atol=near, rtol=near)


def test_float16_is_taken_where_it_holds_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lantern_demo.models.cpu.supported", lambda product: True)
    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(0))
    assert exact_product([weight.half().float()]) == "half"
    assert exact_product([weight.half().float(), weight]) == "packed"
    assert exact_product([torch.tensor([1e6])]) == "packed"  # beyond what float16 reaches
    monkeypatch.setattr("lantern_demo.models.cpu.supported", lambda product: product == "plain")
    assert exact_product([torch.zeros(1)]) == "plain"


@pytest.mark.parametrize(
    "product", [lambda weight: lambda x: 0.5 * x @ weight.t(), lambda _: torch.ops.quantized.none]
)
def test_a_wrong_or_absent_kind_is_not_used(product: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lantern_demo.models.cpu._half", product)
    assert supported("plain") and not supported("half")


def test_states_carry_the_outputs_of_feature_layers() -> None:
    target, _ = networks(TEXT)
    condition, tokens = small.condition_of(target, small.PADDED), torch.tensor([3, 9, 11])
    seen: dict[int, list[Tensor]] = {1: [], 3: []}
    for layer, outputs in seen.items():
        keep = lambda *given, to=outputs: to.append(given[-1].clone())  # noqa: E731
        target.layers[layer - 1].register_forward_hook(keep)

    def states() -> Tensor:
        cache = target.new_cache(2, 8)
        return torch.cat((target.prefill(condition, cache), chain_pass(target, tokens, cache)), 1)

    plain = states()
    for outputs in seen.values():
        outputs.clear()
    target.feature_layers = (1, 3)
    wide = states()
    outputs = [torch.cat(of_layer, 1) for of_layer in seen.values()]
    assert torch.equal(wide, torch.cat((plain, *outputs), -1))
    # a drafter's outputs are as wide as final states
    assert torch.equal(target.head(wide), target.head(plain))


def test_a_stable_slot_reads_feature_layers_and_a_node_its_parents_output() -> None:
    _, drafter = networks(TEXT, feature_layers=FEATURE_LAYERS)
    embedded, before = torch.randn(2, 3, 128), 3 * torch.randn(2, 3, WIDTH)
    state, features = before.split((128, WIDTH - 128), -1)
    joined = drafter.fc(torch.cat((embedded, state), -1))
    normed = features.unflatten(-1, (2, 128))
    normed = normed / normed.square().mean(-1, keepdim=True).add(1e-6).sqrt()
    taps = drafter.fc_taps(normed.flatten(-2))
    for read, own in ((before, taps), (state, drafter.fc_own(state))):
        found = drafter.fuse(embedded, read)
        torch.testing.assert_close(found, joined + own, atol=1e-5, rtol=1e-5)


def test_a_target_that_was_not_told_is_refused() -> None:
    target, drafter = networks(TEXT, feature_layers=FEATURE_LAYERS)
    target.feature_layers = ()
    knobs = {"num_tokens": 4, "sampling": Sampling(cfg_scale=2.0), **small.settings("eagle1")}
    condition = small.condition_of(target, small.PADDED)
    for fused in ((LeanTarget(target), LeanDrafter(drafter)), (target, drafter)):
        with pytest.raises(ValueError, match=r"128 wide; a drafter with feature layers \[1, 3\]"):
            list(decode(*fused, condition, **knobs))
