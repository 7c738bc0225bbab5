"""Steps of fixed shapes against the plain loop: the same runs, token for token, from steps that never wait and never change
shape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import published
import pytest
import torch
from runs import ON_BOTH, decode, judged, small
from test_lean import CLASS, FEATURE_LAYERS, FULL, PADDED, STATIC, TEXT, condition_of, networks
from tiny import write_tiny_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lantern_demo import load
from lantern_demo.decoding import loop
from lantern_demo.decoding.drafting import DynamicTree, StaticTree
from lantern_demo.decoding.engines import graphs, pool
from lantern_demo.decoding.engines.fixed import Fixed
from lantern_demo.decoding.loop import Decoded, Step
from lantern_demo.decoding.rules import Rule
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.timing import DECODE_PARTS
from lantern_demo.decoding.verify import goes
from lantern_demo.models import families
from lantern_demo.models.llamagen.cuda import FusedDrafter, FusedTarget
from lantern_demo.models.llamagen.target import LlamaGenConfig
from lantern_demo.models.neighbours import neighbour_table
from lantern_demo.runs.pipeline import Pipeline

VECTORS = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))
DYNAMIC = DynamicTree(3, 2, 9)
GAPS = [(0,), (2,), (4,), (0, 1), (0, 3), (2, 0), (2, 0, 2)]


def settings(method: str, static: Any = STATIC, vocab: int = 60) -> dict[str, Any]:
    table = neighbour_table(VECTORS[:vocab], 7)
    return {**small(method, **StaticTree(static).asking()), "neighbours": table}


def summary(events: list[Step | Decoded]) -> tuple[Any, ...]:
    """All that both engines must agree on: everything but times and the engine's name."""
    *steps, last = events
    assert isinstance(last, Decoded)
    fields = ("index", "tokens", "places", "accepted_length", "committed", "kinds", "tree_tokens", "parents", "path")
    rows = [[getattr(step, name) for name in fields] for step in steps]
    return rows, last.tokens, last.steps, last.accepted_lengths, last.mean_accepted_length, last.nodes


def assert_same(plain: list[Step | Decoded], fixed: list[Step | Decoded], why: str = "") -> None:
    assert summary(fixed) == summary(plain), why
    a, b = plain[-1], fixed[-1]
    assert isinstance(a, Decoded) and isinstance(b, Decoded)
    assert (a.engine, b.engine) == ("plain", "fixed")


Both = Callable[..., tuple[list[Any], list[Any]]]


def both(
    config: LlamaGenConfig = TEXT,
    guided: bool = False,
    mask: Tensor = PADDED,
    guidance: bool = True,
    feature_layers: tuple[int, ...] = (),
) -> Both:
    """Runs of the plain loop and of the fixed engine on one random model."""
    target, drafter = networks(config, guided, feature_layers=feature_layers)
    with torch.inference_mode():
        condition = condition_of(target, mask)
    if not guidance:
        condition.features, condition.mask = condition.features[:1], condition.mask[:1]
    fused = FusedTarget(target), FusedDrafter(drafter)

    def run(method: str, num_tokens: int = 16, seed: int = 5, **changes: Any) -> tuple[list[Any], list[Any]]:
        static = changes.pop("static", STATIC)
        knobs = {"sampling": Sampling(cfg_scale=2.0), **settings(method, static), **changes}
        return tuple(
            list(decode(*models, condition, num_tokens=num_tokens, seed=seed, engine=engine, **knobs))
            for models, engine in (((target, drafter), "plain"), (fused, "fixed"))
        )

    return run


# -- the same runs


MODELS: dict[str, dict[str, Any]] = {
    "padded prompt": {},
    "full prompt": {"mask": FULL},
    "guided drafter": {"guided": True},
    "no guidance": {"guidance": False},
    "drafter of some blocks": {"feature_layers": FEATURE_LAYERS},
    "guided drafter of some blocks": {"guided": True, "feature_layers": FEATURE_LAYERS},
    "classes": {"config": CLASS},
}
RUNS: dict[str, dict[str, Any]] = {
    "sampled": {},
    "greedy": {"temperature": 0.0},
    "filtered": {"temperature": 0.9, "top_k": 20, "top_p": 0.9},
    "with shared noise": {"dice": "same"},
    "draws that are no nodes": {"static": GAPS},
    **{f"{count} tokens": {"num_tokens": count, "seed": count} for count in (2, 3, 4)},
}


@pytest.mark.parametrize(
    "model", [pytest.param(how, id=name, marks=[pytest.mark.slow] * ("guided" in name)) for name, how in MODELS.items()]
)
@pytest.mark.parametrize("method", ON_BOTH)
def test_same_runs(method: str, model: dict[str, Any]) -> None:
    run, scale = both(**model), 2.0 if model.get("guidance", True) else 1.0
    for name, how in RUNS.items():
        changes = dict(how)
        filters = [changes.pop(key, default) for key, default in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0))]
        plain, fixed = run(method, sampling=Sampling(*filters, scale), **changes)
        assert_same(plain, fixed, name)
    plain, fixed = run(method, 1, sampling=Sampling(cfg_scale=scale))
    assert summary(fixed) == summary(plain)


@pytest.mark.parametrize("method", ["vanilla", "lantern"])
def test_released_padding_and_long_prefix(method: str) -> None:
    """The published model's shape: 120 prefix positions, padded rows that look at others than themselves."""
    target, drafter, _ = published.networks()
    features = torch.randn(1, 120, published.WIDTH, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        condition = target.condition(features, torch.arange(120)[None] >= 90, True)
    knobs = {"num_tokens": 16, "sampling": Sampling(cfg_scale=2.0), **settings(method, vocab=published.VOCAB)}
    plain = list(decode(target, drafter, condition, **knobs))
    assert_same(plain, list(decode(FusedTarget(target), FusedDrafter(drafter), condition, engine="fixed", **knobs)))


@pytest.mark.parametrize("method", ON_BOTH)
def test_launching_ahead_changes_nothing(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs.Steps, "ahead", 4)
    run = both()
    for changes in ({}, {"num_tokens": 3}):
        assert_same(*run(method, **changes))


def as_fixed(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a pipeline on a CPU decode as one on a GPU does, short of the capture."""
    from lantern_demo.runs import pipeline

    fused = families.fused_runners(pipe.networks)
    pipe.target, pipe.drafter = fused.target, fused.drafter
    monkeypatch.setattr(
        pipeline, "decode", lambda a, b, c, config, *rest: loop.decode(a, b, c, replace(config, engine="fixed"), *rest)
    )


def test_a_tiny_model_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = load(write_tiny_model(tmp_path / "tiny"), device="cpu")
    knobs: dict[str, Any] = {"lantern_k": 20, "lanternpp_k": 20, "tree": "small", "method": "lantern"}
    # Without the fused one's products, which may be rounded ones here and so draft differently.
    pipe.target, pipe.drafter = pipe.networks.target, pipe.networks.drafter
    plain = pipe.generate("two red lanterns over a lake", **knobs)
    as_fixed(pipe, monkeypatch)
    fixed = pipe.generate("two red lanterns over a lake", **knobs)
    assert fixed.tokens == plain.tokens
    stats = fixed.stats
    assert stats.draft_seconds > 0 and stats.verify_seconds > 0 and stats.commit_seconds > 0 and stats.capture_seconds == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    """Close to the modules; not the same tokens, since sums are rounded elsewhere."""
    target, drafter = networks(TEXT)
    with torch.inference_mode():
        condition = condition_of(target, PADDED)
    for part in (target, drafter):
        rope = part.rope
        part.to(dtype)
        part.rope = rope
    knobs = {"num_tokens": 16, "sampling": Sampling(cfg_scale=2.0), **settings("lantern")}
    fused = FusedTarget(target), FusedDrafter(drafter)
    *_, result = decode(*fused, condition, engine="fixed", **knobs)
    assert len(result.tokens) == 16
    with torch.inference_mode():
        cache = target.new_cache(1, 8)
        target.prefill(target.condition(torch.randn(1, 7, 32), None, False), cache)
        tokens, place = torch.tensor([3, 4]), torch.arange(2)
        plain = target.forward(tokens, place, torch.ones(2, 2).tril().bool(), cache)
        bias = torch.full((1, 1, 2, 16), -torch.inf, dtype=dtype)
        bias[..., :8], bias[..., 1, 8] = 0, 0
        fixed = fused[0].forward_at(tokens, place + 7, place + 7, bias[..., : cache.slots], cache)
    torch.testing.assert_close(fixed, plain, atol=0.15, rtol=0.05)


# -- stopping and refusing


def start(method: str = "lantern++", feature_layers: tuple[int, ...] = (), **changes: Any) -> Iterator[Step | Decoded]:
    target, drafter = networks(TEXT, feature_layers=feature_layers)
    with torch.inference_mode():
        condition = condition_of(target, PADDED)
    knobs = {"num_tokens": 16, "sampling": Sampling(cfg_scale=2.0), "engine": "fixed", **settings(method), **changes}
    return decode(FusedTarget(target), FusedDrafter(drafter), condition, **knobs)


def close_early() -> None:
    events = start()
    for _ in range(3):
        next(events)
        assert not torch.is_inference_mode_enabled()
    events.close()
    assert list(events) == []


def test_closing_early() -> None:
    close_early()


def test_which_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    *_, last = start(engine="auto")
    assert isinstance(last, Decoded) and last.engine == "plain", "a CPU takes the plain loop unless asked"
    with pytest.raises(ValueError, match="engine is 'quick'; allowed are auto, plain, fixed"):
        start(engine="quick")
    target, drafter = networks(TEXT)
    with pytest.raises(ValueError, match="must implement FixedTarget and FixedDrafter"):
        decode(target, drafter, None, num_tokens=4, sampling=Sampling(), engine="fixed", **settings("eagle1"))


# -- weights


def test_fused_weights_are_the_modules_own() -> None:
    target, drafter = networks(TEXT)
    before = {name: value.clone() for name, value in target.state_dict().items()}
    fused, small = FusedTarget(target), FusedDrafter(drafter)
    for block, layer in zip(target.blocks, fused.layers, strict=True):
        storage = layer.weights.gate_up.untyped_storage().data_ptr()
        assert block.feed_forward.w1.weight.untyped_storage().data_ptr() == storage
        assert block.feed_forward.w3.weight.untyped_storage().data_ptr() == storage
        assert layer.weights.qkv is block.attention.wqkv.weight
    attention = drafter.layer.self_attn
    assert attention.v_proj.weight.untyped_storage().data_ptr() == small.layer.weights.qkv.untyped_storage().data_ptr()
    assert all(bool((value == before[name]).all()) for name, value in target.state_dict().items())


# -- what a step is made of: `test_launches` says the same of published sizes, on a device that has no values to read

# Copy first and then write: two kernels.
TWICE = {"aten.masked_fill", "aten.scatter", "aten.scatter_add", "aten.index_copy", "aten.index_put"}
READS = ("_local_scalar_dense", "nonzero", "item", "is_nonzero", "equal", "_to_copy", "masked_select", "unique")
EMPTY = ("aten.empty", "aten.new_empty", "aten.empty_like", "aten.empty_strided")  # they launch nothing


class Kernels(TorchDispatchMode):
    """Lists what is launched, with shapes: calls that only look at memory in another way are left out."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = str(func.overloadpacket)
        assert not any(word in name.split(".")[-1] for word in READS), f"{name} reads back to the host"
        given = [x for a in (*args, *kwargs.values()) for x in (a if isinstance(a, (list, tuple)) else [a])]
        tensors = [x for x in given if isinstance(x, Tensor)]
        same = isinstance(out, Tensor) and any(
            out.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for t in tensors
        )
        if not (same and not func._schema.is_mutable) and name not in EMPTY:
            # a number in `where` is filled into a tensor of its own first
            numbers = sum(not isinstance(x, Tensor) for x in args) if name == "aten.where" else 0
            times = 1 + numbers + (name in TWICE)
            self.calls += [(name, tuple(tuple(x.shape) for x in tensors))] * times
        return out


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[Any]]]:
    """What was launched in each part of each step of the runs of a test."""
    found: dict[str, list[list[Any]]] = {}

    def watch(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def watched(self: Any, *args: Any) -> Any:
            with Kernels() as kernels:
                out = real(self, *args)
            found.setdefault(name, []).append(kernels.calls)
            return out

        monkeypatch.setattr(owner, name, watched)

    for name in ("draft", "verify", "commit"):
        watch(Fixed, name)
    return found


EVERY = [pytest.param(method, (), id=method) for method in ON_BOTH]  # and blocks that drafters read
EVERY += [pytest.param(method, FEATURE_LAYERS, id=f"{method} with feature layers") for method in ("eagle1", "eagle2")]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("method", "feature_layers"), EVERY)
def test_steps_never_wait_and_never_change(
    method: str, feature_layers: tuple[int, ...], temperature: float, parts: dict[str, list[list[Any]]]
) -> None:
    """One bucket: every step but the last, which may be bare, launches the same on the same shapes."""
    *_, last = start(method, feature_layers, sampling=Sampling(temperature, cfg_scale=2.0))
    assert isinstance(last, Decoded)
    for name, steps in parts.items():
        assert len(steps) == last.steps > 3
        assert all(step == steps[0] for step in steps[:-1]), name


# -- the pieces


def test_buckets() -> None:
    target, drafter = networks(replace(TEXT, grid=16))
    with torch.inference_mode():
        condition = condition_of(target, PADDED)
    sizes: Counter[int] = Counter()
    real = Fixed.bucket

    def watched(self: Fixed, committed: int) -> int:
        found = real(self, committed)
        needed = self.prefix + committed + max(self.config.tree.nodes, self.config.tree.expanded)
        assert needed <= found <= self.slots and found % 8 == 0
        sizes[found] += 1
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fixed, "bucket", watched)
        knobs = {"num_tokens": 256, "sampling": Sampling(0, cfg_scale=2.0)}
        list(decode(FusedTarget(target), FusedDrafter(drafter), condition, engine="fixed", **knobs, **settings("eagle1")))
    assert 3 <= len(sizes) <= 5


class FakeGraph:
    """A graph on a CPU: what was captured is run again."""

    again: Callable[[], Any]

    def replay(self) -> None:
        self.again()

    def pool(self) -> str:
        return "pool"


class FakeEvent:
    """A timing event: every record is a millisecond after the one before."""

    now = 0.0

    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        FakeEvent.now += 1
        self.at = FakeEvent.now

    def synchronize(self) -> None:
        assert self.at, "nothing was recorded"

    def elapsed_time(self, behind: FakeEvent) -> float:
        return behind.at - self.at


class FakeStream:
    def __init__(self, *_: Any) -> None: ...

    def wait_stream(self, other: Any) -> None: ...


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """CUDA's streams, events and graphs faked on a CPU; returns the buckets and kinds that are captured."""
    captured: list[tuple[int, bool]] = []
    for name, fake in (
        ("Stream", FakeStream),
        ("Event", FakeEvent),
        ("CUDAGraph", FakeGraph),
        ("current_stream", FakeStream),
        ("stream", lambda _: nullcontext()),
        ("graph", lambda *_, **__: nullcontext()),
        ("set_stream", lambda _: None),
    ):
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(graphs, "_STREAMS", {})
    monkeypatch.setattr(pool, "Steps", graphs.Graphs)
    real = graphs.Graphs._capture

    def capture(self: graphs.Graphs, slots: int, no_draft: bool) -> Any:
        captured.append((slots, no_draft))
        found = real(self, slots, no_draft)
        found.graph.again = lambda: self.fixed.step(slots, no_draft)
        return found

    monkeypatch.setattr(graphs.Graphs, "_capture", capture)
    return captured


@pytest.mark.parametrize("method", ON_BOTH)
def test_replayed_graphs(method: str, faked: list[tuple[int, bool]]) -> None:
    """The host's side of graphs: captured once per bucket and kind, launched ahead, read in order, timed by events."""
    plain, replayed = both()(method)
    assert summary(replayed) == summary(plain) and replayed[-1].engine == "graphs"
    assert len(set(faked)) == len(faked) <= 2
    seconds = replayed[-1].seconds
    assert seconds["capture"] > 0 and replayed[-1].decode_seconds == pytest.approx(sum(seconds[part] for part in DECODE_PARTS))
    stepping = seconds["verify"] + seconds["commit"] + (seconds["draft"] if method == "vanilla" else 0.0)
    assert stepping > 0 and seconds["commit"] > 0, "the parts are told apart at the end"


def test_a_failed_capture_is_kept_for_the_record(faked: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("operation not permitted\nwhen stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refuse)
    plain, fixed = both()("lantern++")
    assert summary(fixed) == summary(plain)
    assert (fixed[-1].engine, fixed[-1].engine_reason) == ("fixed", "without graphs: operation not permitted") and len(faked) == 1


def test_closing_waits_for_what_is_in_flight(faked: list[tuple[int, bool]]) -> None:
    close_early()
    assert faked


class Mark:
    """An event inside a graph, at a time in milliseconds, or one that raises."""

    def __init__(self, at: float | Exception) -> None:
        self.at = at

    def elapsed_time(self, behind: Any) -> float:
        if isinstance(self.at, Exception):
            raise self.at
        return behind.at - self.at


def test_shares_of_a_step() -> None:
    assert graphs.shares([Mark(1), Mark(2), Mark(5), Mark(6)]) == [0.2, 0.6, 0.2]
    for broken in (Mark(RuntimeError("no such event")), Mark(ValueError("must be recorded")), Mark(3)):
        assert graphs.shares([broken] * 4) == [0.0, 1.0, 0.0]


def test_state_can_be_restored() -> None:
    """A warm-up step before a capture leaves the run where it was."""
    seen: list[Fixed] = []
    real = Fixed.__init__

    def pool(self: Fixed, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        seen.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Fixed, "__init__", pool)
        events = start("lantern")
        first = [next(events), next(events)]
        with torch.inference_mode():
            copies = [part.clone() for part in seen[0].state()]
            for _ in range(2):
                seen[0].step(seen[0].slots, False)
            seen[0].restore(copies)
        rest = list(events)
    assert summary([*first, *rest]) == summary(list(start("lantern")))


def test_judging_what_is_left_of_nothing() -> None:
    """Distributions of a single token: it is accepted where it was drawn, everything else is refused, and the bonus is that
    token."""
    from lantern_demo.decoding.trees import Draft, static_tree

    tree = static_tree([(0,), (1,), (2,)])
    p, q = torch.eye(6)[[2, 5, 5, 5]], torch.eye(6)[[2]]
    for drawn, path, bonus in (([2, -1, -1], [0, 1], 5), ([4, 2, -1], [0, 2], 5), ([4, 3, -1], [0, 0], 2)):
        probs = torch.full((1, 6), 0.25).index_fill_(1, torch.tensor([0, 1]), 0.0) if drawn[0] == 4 else q
        draft = Draft(tree, torch.tensor([0, *(max(x, 0) for x in drawn)]), torch.tensor([drawn]), probs)
        for u in (0.0, 1 - 2**-24):
            found = judged(Rule(), draft, p, Sampling(), None, torch.full((4, 4), u))[1]
            assert [part.tolist() for part in goes(draft, found)] == [path, [path[1] > 0], [bonus]]
