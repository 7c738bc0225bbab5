"""The CPU's lean fused models of target and drafter against the modules: the same states. `test_runners` has the same runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from passes import begin, commit, node_pass, stable_pass, tree_pass
from small_models import (
    CLASS,
    FEATURE_LAYERS,
    FULL,
    PADDED,
    STATIC,
    TEXT,
    condition_of,
    networks,
    prompt_of,
    sequence_networks,
    stored,
)
from torch import Tensor

from lantern_demo.decoding.trees import static_tree
from lantern_demo.models.anole.cpu import LeanAnole
from lantern_demo.models.janus.cpu import LeanJanus
from lantern_demo.models.lean import fastest_drafter_kind, fastest_kind, packed
from lantern_demo.models.llamagen.cpu import LeanDrafter, LeanTarget
from lantern_demo.models.llamagen.target import LlamaGenConfig
from lantern_demo.models.machine.matmul import KINDS, exact_kinds, matmul, supported

SUPPORTED = [kind for kind in KINDS if supported(kind)]
EXACT = [kind for kind in SUPPORTED if kind != "bfloat16"]
LEAN = {"anole": LeanAnole, "janus": LeanJanus}


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def states(target: Any, condition: Any) -> list[Tensor]:
    """Prefill, a tree, its path moved up, single tokens, trees of other sizes, one over the end of the picture."""
    cache = target.new_cache(len(condition.features), 40)
    found = [target.prefill(condition, cache)]

    def forward(paths: Any) -> None:
        tree = static_tree(paths)
        tokens = (torch.arange(tree.size) * 7 + cache.length) % 60
        hidden = tree_pass(target, tokens, tree.depths, tree.mask, cache)
        found.extend((hidden, target.head(hidden)))

    forward(STATIC)
    commit(cache, torch.tensor([0, 2, 6]))
    for _ in range(2):
        forward(())
        cache.length += 1
    forward([(0,), (0, 0), (0, 0, 0)])
    commit(cache, torch.tensor([0, 1]))
    forward(STATIC)
    commit(cache, torch.tensor([0]))
    for _ in range(6):
        forward(())
        cache.length += 1
    forward(STATIC)
    return found


def same_states(fused: Any, target: Any, condition: Any) -> None:
    for ours, theirs in zip(states(fused, condition), states(target, condition), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


TARGETS = {"self": replace(TEXT, padding="self"), "released": replace(TEXT, padding="released"), "class": CLASS}


@pytest.mark.parametrize("feature_layers", [(), FEATURE_LAYERS], ids=["published", "feature_layers"])
@pytest.mark.parametrize("mask", [PADDED, FULL], ids=["padded", "full"])
@pytest.mark.parametrize("config", TARGETS.values(), ids=list(TARGETS))
def test_target_of_llamagen(config: LlamaGenConfig, mask: Tensor, feature_layers: tuple[int, ...]) -> None:
    target, _ = networks(config, feature_layers=feature_layers)
    same_states(LeanTarget(target), target, condition_of(target, mask))


def outputs(of: Any, condition: Any, width: int = 128) -> tuple[list[Tensor], list[Tensor]]:
    """A drafter's, of stable slots and of nodes."""
    g = torch.Generator().manual_seed(2)
    cache = of.new_cache(2, 30)
    stable, nodes = [begin(of, torch.randn(2, 7, width, generator=g), torch.tensor([5]), cache, condition)], list[Tensor]()
    for m in (1, 3, 2):
        stable.append(stable_pass(of, torch.arange(m) + 9, torch.randn(2, m, width, generator=g), cache))
        first = node_pass(of, torch.tensor([1, 2]), stable[-1].expand(-1, 2, -1), 1, torch.eye(2, dtype=torch.bool), cache)
        mask = torch.tensor([[1, 0, 1, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]).bool()
        nodes += [first, node_pass(of, torch.tensor([3, 4, 5]), first[:, [0, 0, 1]], 2, mask, cache)]
    nodes.append(node_pass(of, torch.tensor([8]), nodes[-1][:, :1], 3, torch.tensor([[1, 0, 1, 0, 0, 1]]).bool(), cache))
    return stable, nodes


@pytest.mark.parametrize("feature_layers", [(), FEATURE_LAYERS], ids=["published", "feature_layers"])
@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("bias", [False, True])
def test_drafter_of_llamagen(bias: bool, kind: str, feature_layers: tuple[int, ...]) -> None:
    drafter = stored(networks(TEXT, bias=bias, feature_layers=feature_layers)[1])
    width = 128 * (1 + len(feature_layers))
    ours, theirs = outputs(LeanDrafter(drafter, kind), None, width), outputs(drafter, None, width)
    torch.testing.assert_close(ours[0], theirs[0], atol=1e-4, rtol=1e-4)
    near = 0.02 if feature_layers and kind == "half" else 1e-4  # the weight of a node's own output is a sum of two, and rounded
    torch.testing.assert_close(ours[1], theirs[1], atol=near, rtol=near)


@pytest.mark.parametrize("guided", [False, True], ids=["one row", "two rows"])
@pytest.mark.parametrize(("family", "padded"), [("anole", 0), ("janus", 0), ("janus", 3)])
def test_target_with_the_prompt_in_its_sequence(family: str, padded: int, guided: bool) -> None:
    """Anole's unconditional row is padded, and the module counts its positions from there."""
    (target, _), fused = sequence_networks(family), LEAN[family]
    condition = prompt_of(target, padded, guided)
    assert (condition.mask is None) == (family == "janus" or not guided) or padded
    same_states(fused(target), target, condition)


@pytest.mark.parametrize("family", ["anole", "janus"])
def test_a_cache_serves_the_next_prompt_too(family: str) -> None:
    """Whether that one has padding or not."""
    (target, _), fused = sequence_networks(family), LEAN[family]
    lean = fused(target)
    kept = lean.new_cache(2, 8)
    for padded in (3, 0, 2):
        condition = prompt_of(target, padded)
        assert torch.equal(lean.prefill(condition, kept), lean.prefill(condition, lean.new_cache(2, 8)))


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("family", ["anole", "janus"])
def test_drafter_with_the_prompt_in_its_sequence(family: str, kind: str) -> None:
    target, drafter = sequence_networks(family)
    drafter, condition = stored(drafter), prompt_of(target, 0)

    fused = packed(drafter, kind)
    torch.testing.assert_close(outputs(fused, condition), outputs(drafter, condition), atol=1e-4, rtol=1e-4)
    kept = {name for name, _ in fused.named_parameters()}
    assert kept and all("norm" in name or "embed_tokens" in name or "codes" in name for name in kept), "the rest is packed"


@pytest.mark.parametrize("family", ["anole", "janus"])
def test_a_drafter_in_16_bits_stays_what_it_is(family: str) -> None:
    """Its fused model computes in float32 beside it, with the same numbers."""
    drafter = sequence_networks(family)[1].bfloat16()
    before = {name: weight.clone() for name, weight in drafter.state_dict().items()}
    fused = packed(drafter, "plain")
    cache, condition = fused.new_cache(2, 4), prompt_of(sequence_networks(family)[0], 0)
    hidden = torch.randn(2, 7, 128)
    found = begin(fused, hidden, torch.tensor([5]), cache, condition)
    assert found.dtype == cache.k.dtype == torch.float32
    assert all(torch.equal(weight, before[name]) for name, weight in drafter.state_dict().items())
    wide = drafter.float()
    wanted = begin(wide, hidden, torch.tensor([5]), wide.new_cache(2, 4), condition)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_kinds_are_there_where_their_libraries_are() -> None:
    if "fbgemm" in torch.backends.quantized.supported_engines:
        assert supported("half")
    if torch.backends.mkldnn.is_available():
        assert supported("packed")


@pytest.mark.parametrize("kind", SUPPORTED)
def test_kinds_of_products(kind: str) -> None:
    torch.manual_seed(0)
    weight = torch.randn(48, 64).half().float()
    for rows in (1, 2, 9, 40):
        x = torch.randn(rows, 64)
        wanted = x @ weight.t()
        error = ((matmul(weight, kind)(x) - wanted).norm() / wanted.norm()).item()
        if kind == "bfloat16":
            assert 1e-5 < error < 0.02  # it is what it says
        else:
            assert error < 1e-6


def test_float16_weights_are_exact_where_they_hold_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lantern_demo.models.machine.matmul.supported", lambda kind: True)
    weight = torch.randn(48, 64, generator=torch.Generator().manual_seed(0))
    assert exact_kinds([weight.half().float()]) == ("packed", "half")
    assert exact_kinds([weight.half().float(), weight]) == ("packed",)
    assert exact_kinds([torch.tensor([1e6])]) == ("packed",)  # beyond what float16 reaches


def test_plain_products_stand_in_where_there_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lantern_demo.models.machine.matmul.supported", lambda kind: kind == "plain")
    assert exact_kinds([torch.zeros(1)]) == ("plain",)


def test_a_kind_that_pytorch_lacks_or_gets_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert supported("plain")
    monkeypatch.setattr("lantern_demo.models.machine.matmul._half", lambda weight: lambda x: 0.5 * x @ weight.t())
    assert not supported("half")
    monkeypatch.setattr("lantern_demo.models.machine.matmul._half", lambda weight: torch.ops.quantized.no_such_thing)
    assert not supported("half")


@pytest.mark.parametrize("kind", EXACT)
def test_exact_kinds_draw_the_same_pictures(kind: str) -> None:
    target, drafter = networks(TEXT)
    assert fastest_kind(LeanTarget, target) == exact_kinds(target.parameters())[0]
    assert fastest_drafter_kind(LeanDrafter, drafter) in KINDS
    target = stored(target)
    assert fastest_kind(LeanTarget, target) != "bfloat16"
    outputs = []
    for of in (target, LeanTarget(target, kind)):
        cache = of.new_cache(2, 16)
        outputs.append(of.head(of.prefill(condition_of(target, PADDED), cache)))
    torch.testing.assert_close(outputs[0], outputs[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["anole", "janus"])
def test_the_fastest_kinds_of_large_models(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which a few layers are looked at."""
    monkeypatch.setattr("lantern_demo.models.lean.PROBED_BYTES", 1)
    (target, drafter), fused = sequence_networks(family), LEAN[family]
    made: list[Any] = []

    def watched(*args: Any, **named: Any) -> Any:
        made.append(fused(*args, **named))
        return made[-1]

    assert fastest_kind(watched, stored(target)) in exact_kinds(target.parameters())
    assert all(len(of.layers) == 1 for of in made) and (made or len(exact_kinds(target.parameters())) == 1)
    assert fastest_drafter_kind(packed, drafter) in KINDS
