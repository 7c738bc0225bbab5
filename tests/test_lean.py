"""The CPU's lean fused models of target and drafter against the modules: the same states, and the same pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import torch
from runs import OF_EACH_KIND, decode, small
from torch import Tensor

from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.trees import static_tree
from lantern_demo.models.anole.cpu import LeanAnole
from lantern_demo.models.anole.drafter import AnoleDrafter, AnoleDrafterConfig
from lantern_demo.models.anole.target import Anole, AnoleConfig
from lantern_demo.models.janus.cpu import LeanJanus
from lantern_demo.models.janus.drafter import JanusDrafter, JanusDrafterConfig
from lantern_demo.models.janus.target import Janus, JanusConfig
from lantern_demo.models.lean import fastest_drafter_kind, fastest_kind, packed
from lantern_demo.models.llamagen.cpu import LeanDrafter, LeanTarget
from lantern_demo.models.llamagen.drafter import Drafter, DrafterConfig
from lantern_demo.models.llamagen.target import LlamaGen, LlamaGenConfig
from lantern_demo.models.machine.matmul import KINDS, exact_kinds, matmul, supported
from lantern_demo.models.neighbours import neighbour_table

Network = TypeVar("Network", bound=torch.nn.Module)

TEXT = LlamaGenConfig(dim=128, layers=3, heads=2, ffn=160, vocab=60, grid=4, prefix=7, caption_dim=32)
CLASS = replace(TEXT, prefix=1, classes=10, heads=4)
SEQUENCE: dict[str, Any] = {"dim": 128, "heads": 2, "vocab": 60, "grid": 4, "prefix": 7}
ANOLE = AnoleConfig(**SEQUENCE, layers=3, ffn=160, embeddings=70)
JANUS = JanusConfig(**SEQUENCE, layers=3, ffn=160, embeddings=30, pad=2)
ANOLE_DRAFTER = AnoleDrafterConfig(**SEQUENCE, ffn=96, embeddings=70)
JANUS_DRAFTER = JanusDrafterConfig(**SEQUENCE, ffn=96)
STATIC = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]
SUPPORTED = [kind for kind in KINDS if supported(kind)]
EXACT = [kind for kind in SUPPORTED if kind != "bfloat16"]
PADDED, FULL = torch.arange(7)[None] >= 3, torch.ones(1, 7, dtype=torch.bool)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def strong(module: torch.nn.Module) -> Any:
    """Random weights large enough that every part matters."""
    for name, weight in module.named_parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(weight, std=0.5 if "embed" in name else 1.0 * weight.shape[1] ** -0.5)
        else:
            torch.nn.init.normal_(weight, mean=1.0, std=0.2)
    return module.requires_grad_(False).eval()


def sequence_networks(family: str) -> tuple[Any, Any, Any]:
    """A target with the prompt in its sequence, its drafter, and the class of the target's fused models."""
    torch.manual_seed(0)
    if family == "anole":
        return strong(Anole(ANOLE)), strong(AnoleDrafter(ANOLE_DRAFTER)), LeanAnole
    return strong(Janus(JANUS)), strong(JanusDrafter(JANUS_DRAFTER)), LeanJanus


def prompt_of(target: Any, padded: int, guided: bool = True) -> Any:
    """The rows of a prompt of 7 ids, of which so many are padding. Anole pads its unconditional row alone, whatever is asked
    for."""
    ids = torch.tensor([[0, 11, 7, 23, 5, 19, 9]])
    return target.condition(ids, torch.arange(7)[None] >= padded if padded else None, guided)


FEATURE_LAYERS = (1, 3)  # of three blocks


def networks(
    config: LlamaGenConfig, guided: bool = False, bias: bool = True, feature_layers: tuple[int, ...] = ()
) -> tuple[LlamaGen, Drafter]:
    torch.manual_seed(0)
    sizes = DrafterConfig(
        dim=config.dim,
        heads=config.heads,
        ffn=96,
        vocab=config.vocab,
        grid=config.grid,
        prefix=config.prefix,
        guided=guided,
        bias=bias,
        feature_layers=feature_layers,
    )
    target, drafter = strong(LlamaGen(config)), strong(Drafter(sizes))
    target.feature_layers = feature_layers
    if feature_layers:  # beside fc's: a chain of nodes would grow until rounding shows
        drafter.fc_own.weight.mul_(0.3)
    return target, drafter


def stored(of: Network) -> Network:
    """With weights that float16 holds, as in a model folder."""
    for weight in of.parameters():
        weight.copy_(weight.half().float())
    return of


def condition_of(target: LlamaGen, mask: Tensor) -> Any:
    c = target.config
    if c.classes:
        return target.condition(torch.tensor([4]), None, True)
    return target.condition(torch.randn(1, 7, c.caption_dim, generator=torch.Generator().manual_seed(1)), mask, True)


def states(target: Any, condition: Any) -> list[Tensor]:
    """Prefill, a tree, its path moved up, single tokens, trees of other sizes, one over the end of the picture."""
    cache = target.new_cache(len(condition.features), 40)
    found = [target.prefill(condition, cache)]

    def forward(paths: Any) -> None:
        tree = static_tree(paths)
        tokens = (torch.arange(tree.size) * 7 + cache.length) % 60
        hidden = target.forward(tokens, tree.depths, tree.mask, cache)
        found.extend((hidden, target.head(hidden)))

    forward(STATIC)
    cache.commit(torch.tensor([0, 2, 6]))
    for _ in range(2):
        forward(())
        cache.advance(1)
    forward([(0,), (0, 0), (0, 0, 0)])
    cache.commit(torch.tensor([0, 1]))
    forward(STATIC)
    cache.commit(torch.tensor([0]))
    for _ in range(6):
        forward(())
        cache.advance(1)
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
    stable, nodes = [of.start(torch.randn(2, 7, width, generator=g), torch.tensor([5]), cache, condition)], list[Tensor]()
    for m in (1, 3, 2):
        stable.append(of.extend(torch.arange(m) + 9, torch.randn(2, m, width, generator=g), cache))
        first = of.expand(torch.tensor([1, 2]), stable[-1].expand(-1, 2, -1), 1, torch.eye(2, dtype=torch.bool), cache)
        mask = torch.tensor([[1, 0, 1, 0, 0], [1, 0, 0, 1, 0], [0, 1, 0, 0, 1]]).bool()
        nodes += [first, of.expand(torch.tensor([3, 4, 5]), first[:, [0, 0, 1]], 2, mask, cache)]
    nodes.append(of.expand(torch.tensor([8]), nodes[-1][:, :1], 3, torch.tensor([[1, 0, 1, 0, 0, 1]]).bool(), cache))
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
    target, _, fused = sequence_networks(family)
    condition = prompt_of(target, padded, guided)
    assert (condition.mask is None) == (family == "janus" or not guided) or padded
    same_states(fused(target), target, condition)


@pytest.mark.parametrize("family", ["anole", "janus"])
def test_a_cache_serves_the_next_prompt_too(family: str) -> None:
    """Whether that one has padding or not."""
    target, _, fused = sequence_networks(family)
    lean = fused(target)
    kept = lean.new_cache(2, 8)
    for padded in (3, 0, 2):
        condition = prompt_of(target, padded)
        kept.reset()
        assert torch.equal(lean.prefill(condition, kept), lean.prefill(condition, lean.new_cache(2, 8)))


@pytest.mark.parametrize("kind", EXACT)
@pytest.mark.parametrize("family", ["anole", "janus"])
def test_drafter_with_the_prompt_in_its_sequence(family: str, kind: str) -> None:
    target, drafter, _ = sequence_networks(family)
    drafter, condition = stored(drafter), prompt_of(target, 0)

    fused = packed(drafter, kind)
    torch.testing.assert_close(outputs(fused, condition), outputs(drafter, condition), atol=1e-4, rtol=1e-4)
    kept = {name for name, _ in fused.named_parameters()}
    assert kept and all("norm" in name or "embed_tokens" in name or "codes" in name for name in kept), "the rest is packed"


@pytest.mark.parametrize("family", ["anole", "janus"])
def test_a_drafter_in_16_bits_stays_what_it_is(family: str) -> None:
    """Its fused model computes in float32 beside it, with the same numbers."""
    _, drafter, _ = sequence_networks(family)
    drafter = drafter.bfloat16()
    before = {name: weight.clone() for name, weight in drafter.state_dict().items()}
    fused = packed(drafter, "plain")
    cache, condition = fused.new_cache(2, 4), prompt_of(sequence_networks(family)[0], 0)
    hidden = torch.randn(2, 7, 128)
    found = fused.start(hidden, torch.tensor([5]), cache, condition)
    assert found.dtype == cache.k.dtype == torch.float32
    assert all(torch.equal(weight, before[name]) for name, weight in drafter.state_dict().items())
    wide = drafter.float()
    wanted = wide.start(hidden, torch.tensor([5]), wide.new_cache(2, 4), condition)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


LLAMAGEN: dict[str, dict[str, Any]] = {
    "llamagen": {},
    "llamagen, guided drafter": {"guided": True},
    "llamagen with feature layers": {"feature_layers": FEATURE_LAYERS},
    "llamagen, guided drafter with feature layers": {"guided": True, "feature_layers": FEATURE_LAYERS},
}


@pytest.mark.parametrize("method", OF_EACH_KIND)
@pytest.mark.parametrize("model", [*LLAMAGEN, "anole", "janus"])
def test_same_pictures(model: str, method: str) -> None:
    if model in LLAMAGEN:
        target, drafter = networks(TEXT, **LLAMAGEN[model])
        condition, fused = condition_of(target, PADDED), (LeanTarget(target), LeanDrafter(drafter))
    else:
        target, drafter, fused = sequence_networks(model)
        condition, fused = prompt_of(target, 0), (fused(target), packed(drafter, "plain"))
    for temperature in (0.0, 1.0):
        wanted = pictures_of(target, drafter, condition, method, temperature)
        assert pictures_of(*fused, condition, method, temperature) == wanted


def pictures_of(target: Any, drafter: Any, condition: Any, method: str, temperature: float) -> list[int]:
    """The tokens of a picture."""
    table = neighbour_table(torch.randn(60, 8, generator=torch.Generator().manual_seed(3)), 5)
    *_, last = decode(
        target,
        drafter,
        condition,
        num_tokens=16,
        **small(method),
        sampling=Sampling(temperature=temperature, cfg_scale=2.0),
        neighbours=table,
        seed=5,
    )
    return last.tokens


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
    target, drafter, fused = sequence_networks(family)
    made: list[Any] = []

    def watched(*args: Any, **named: Any) -> Any:
        made.append(fused(*args, **named))
        return made[-1]

    assert fastest_kind(watched, stored(target)) in exact_kinds(target.parameters())
    assert all(len(of.layers) == 1 for of in made) and (made or len(exact_kinds(target.parameters())) == 1)
    assert fastest_drafter_kind(packed, drafter) in KINDS


@pytest.mark.parametrize("kind", EXACT)
def test_a_distribution_does_not_depend_on_what_else_is_in_the_pass(kind: str) -> None:
    target = stored(networks(TEXT)[0])
    fused = LeanTarget(target, kind)
    cache = fused.new_cache(2, 40)
    fused.prefill(condition_of(target, PADDED), cache)
    tokens = torch.arange(8) * 7 % 60
    at_once = torch.zeros(8, dtype=torch.int64), torch.eye(8, dtype=torch.bool)
    together = fused.head(fused.forward(tokens, *at_once, cache)).softmax(-1)
    for i in range(8):
        alone = static_tree(())
        probs = fused.head(fused.forward(tokens[i : i + 1], alone.depths, alone.mask, cache)).softmax(-1)
        assert float((together[:, i] - probs[:, 0]).abs().sum(-1).max()) / 2 < 1e-5
