"""All runners make one run: modules, joined and fused models, kept runners and new ones."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache
from itertools import zip_longest
from types import SimpleNamespace
from typing import Any

import pytest
import small_models as models
import torch
from runs import OF_EACH_KIND, Kernels, decode
from small_models import MODELS, TEXT, condition_of, model_of, summary

from lantern_demo.decoding import graphs, loop
from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.graphs import Runners
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.ops import KernelError, Ops
from lantern_demo.decoding.rules import Lantern
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.step import Shape, Steps
from lantern_demo.decoding.timing import Clock
from lantern_demo.models.llamagen import Drafter

WAYS: dict[str, dict[str, Any]] = {
    "shared noise": {"filters": (0.9, 20, 0.9), "noise": "shared"},
    "independent": {},
    "greedy": {"filters": (0.0, 0, 1.0)},
}
# Of one model and one method for a static and a dynamic tree: they are the loop's.
MORE = {f"{n} tokens": {"num_tokens": n, "seed": seed} for n, seed in ((1, 1), (3, 3), (14, 5))}
LOOPED = ("lantern++", "eagle2")
CASES = [("llamagen", method) for method in METHODS]
CASES += [(model, method) for model in MODELS if model != "llamagen" for method in LOOPED]


@pytest.mark.parametrize(
    ("model", "method"),
    [pytest.param(*case, marks=[pytest.mark.slow] * ("guided" in case[0])) for case in CASES],
)
def test_runners_make_the_same_run(model: str, method: str) -> None:
    """On which exact methods draw vanilla's tokens."""
    of = model_of(model)
    runners, looped = of.runners, model == "llamagen" and method in LOOPED
    for name, how in (WAYS | MORE if looped else WAYS).items():
        found = [of.run(runner, method, **how) for runner in runners]
        assert all(summary(events) == summary(found[0]) for events in found), name
        if METHODS[method].lossless and ("noise" in how or name == "greedy"):
            assert found[0][-1].tokens == of.run(of.modules, "vanilla", **how)[-1].tokens, name


# -- kept runners, as on a GPU


class Model:
    def __init__(self) -> None:
        self.models = target, drafter = models.networks(TEXT)
        with torch.inference_mode():
            padded, full = (condition_of(target, mask) for mask in (models.PADDED, models.FULL))
        one_row = replace(full, features=full.features[:1], mask=None)
        self.conditions = {"padded": padded, "full": full, "one row": one_row}
        self.other = models.strong(Drafter(drafter.config))
        # with the same tables in every run
        self.rules = {name: models.settings(name) for name in METHODS}

    def run(
        self, method: str = "lantern++", prompt: str = "padded", **changes: Any
    ) -> Iterator[Any]:
        """The events of a run of the sizes that a GPU captures."""
        target, drafter = self.models
        about = {"drafter": drafter, "condition": self.conditions[prompt], "padded": True}
        sizes = {"num_tokens": 16, "room": 16, "sampling": Sampling(cfg_scale=2.0)}
        return decode(target, **about | sizes | self.rules[method] | changes)

    def drawn(self, *given: Any, **named: Any) -> tuple[Any, ...]:
        return summary(list(self.run(*given, **named)))


@cache
def one_model() -> Model:
    return Model()


@pytest.mark.parametrize("drafts", ["0 00 000", "0 1 00 10 000", "0 1 00 10 100", "0 00 01 010"])
@pytest.mark.parametrize("method", ["eagle1", "lantern++"])
def test_a_lone_node_sees_what_a_mask_would_show(method: str, drafts: str) -> None:
    """In a chain all slots, without a mask; beside or below siblings its ancestors."""
    model, tree = one_model(), StaticTree(tuple(map(int, path)) for path in drafts.split())
    for seed in range(4):
        about = {"seed": seed, "drafts": tree}
        assert model.drawn(method, **about, padded=False) == model.drawn(method, **about)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Steps]:
    """The steps of a test's runs, as they begin. Runners are kept as on a GPU, without graphs."""
    seen: list[Steps] = []
    kept = type("Kept", (graphs.Runner,), {"name": graphs.GraphRunner.name})
    monkeypatch.setattr(loop, "captures", lambda _: True)
    monkeypatch.setattr(loop, "GraphRunner", lambda steps, free: seen.append(steps) or kept(steps))
    return seen


@pytest.fixture
def model(made: list[Steps]) -> Model:
    return one_model()


def test_a_step_before_a_capture_leaves_the_run_as_it_was(model: Model, made: list[Steps]) -> None:
    wanted, events = model.drawn("lantern"), model.run("lantern")
    first = [next(events), next(events)]
    with torch.inference_mode():
        copies = [part.clone() for part in made[-1].state()]
        for _ in range(2):
            made[-1].step(Shape(made[-1].slots, made[-1].depth + 1, True))
        graphs.restore(made[-1], copies)
    assert summary([*first, *events]) == wanted


def test_captured_steps_have_room_for_all_that_they_write(model: Model, made: list[Steps]) -> None:
    model.drawn("lantern", room=300)
    (steps,) = made
    for committed in range(1, 300):
        assert steps.bucket(committed) >= steps.prefix + committed + steps.ahead
    assert len(steps.shapes()) < 7


@pytest.mark.parametrize("method", OF_EACH_KIND)
def test_what_a_run_of_kept_rows_captures_has_room_for_them(
    method: str, model: Model, made: list[Steps], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU an index beyond a tensor's end is the end of all runs."""
    monkeypatch.setattr(Steps, "exact", False)  # as there
    about = {"room": 75, "num_tokens": 70, "keep": (7, 3, 5, 1) * 15}
    with closing(model.run(method, **about)) as events, torch.inference_mode():
        next(events)
        for shape in made[-1].shapes():
            made[-1].step(shape)


@pytest.mark.parametrize("method", OF_EACH_KIND)
def test_runs_on_a_kept_runner_are_those_on_a_new_one(method: str, model: Model) -> None:
    """Whatever the run before was: of another prompt or seed, cut, shorter, or one of kept rows."""
    runners, shared = Runners(), {"noise": "shared"}
    first: dict[str, Any] = {"seed": 1}
    for changes in (
        first,
        {"seed": 2, "prompt": "full"},
        {"seed": 3, "num_tokens": 5},
        {"seed": 4, "keep": (7, 3, 5, 1)},
        {"seed": 4, "keep": (7, 3, 5, 1) * 3, "prompt": "full"},
        first,
    ):
        knobs = shared | changes
        assert model.drawn(method, runners=runners, **knobs) == model.drawn(method, **knobs)
        cut = model.run(method, runners=runners, seed=9, **shared)
        for _ in range(2):
            next(cut)
        cut.close()
        assert len(runners) == 1


@pytest.mark.parametrize("method", ["eagle1", "lantern"])
def test_kept_runners_are_those_of_a_runs_own_settings(method: str, model: Model) -> None:
    """Each change draws another picture, on kept runners the one that a new runner draws."""
    changes: list[dict[str, Any]] = [{}, {"prompt": "full"}]
    changes += [{"sampling": Sampling(0.3, cfg_scale=2.0)}]
    changes += [{"sampling": Sampling(), "prompt": "one row"}]
    if method == "lantern":
        table = model.rules["lantern"]["neighbours"]
        changes += [{"neighbours": table.flip(0)}, {"neighbours": table.flip(1).contiguous()}]
        changes += [{"rule": Lantern(5, 0.2)}]
    else:
        chain = StaticTree([(0,), (0, 0), (0, 0, 0)])
        changes += [{"noise": "shared"}, {"drafts": chain}, {"drafter": model.other}]

    def drawn(**more: Any) -> list[Any]:
        loose = {"rule": Lantern(5, 0.6)} if method == "lantern" else {}
        knobs = {"noise": "independent", **loose, **more}
        return [model.drawn(method, **{**knobs, **change}) for change in changes]

    wanted, runners = drawn(), Runners()
    assert len({str(events) for events in wanted}) == len(changes)
    assert [drawn(runners=runners) for _ in range(2)] == [wanted, wanted]


@pytest.mark.parametrize("method", ["eagle1", "lantern"])
def test_what_a_closed_run_left_does_not_reach_the_next(
    method: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps in flight are never read, and may have left numbers that are not finite. A masked slot
    weighs 0, and 0 times such a number is not finite."""
    monkeypatch.setattr(graphs.Runner, "ahead", 3)
    runners, target = Runners(), model.models[0]
    wanted, real = model.drawn(method), target.forward
    cut = model.run(method, runners=runners)
    next(cut)
    calls: list[None] = []

    def spoilt(*given: Any) -> Any:
        calls.append(None)
        return real(*given) * (torch.nan if len(calls) > 1 else 1.0)

    monkeypatch.setattr(target, "forward", spoilt)
    next(cut)
    cut.close()
    assert len(calls) == 3 and len(runners) == 1
    monkeypatch.setattr(target, "forward", real)
    assert model.drawn(method, runners=runners) == wanted


def test_live_runs_of_one_shape_do_not_disturb_each_other(model: Model) -> None:
    runners = Runners()
    alone = [model.drawn(seed=seed) for seed in range(3)]
    for _ in range(2):  # the second time on kept runners
        live = [model.run(seed=seed, runners=runners) for seed in range(3)]
        turns = zip_longest(*live)  # an event of each in turn
        found = zip(*turns, strict=True)
        assert [summary([e for e in events if e is not None]) for events in found] == alone
        assert len(runners) == 3


def test_a_faulty_run_keeps_its_runner(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    runners = Runners()
    broken = model.run("vanilla", runners=runners)
    next(broken)
    monkeypatch.setattr(model.models[0], "forward", None)
    with pytest.raises(TypeError):
        list(broken)
    assert len(runners) == 0


def test_few_are_kept_and_the_longest_unused_goes(model: Model, made: list[Steps]) -> None:
    runners, counts = Runners(most=2), list[int]()
    for name in ("vanilla", "eagle1", "vanilla", "eagle2", "vanilla", "eagle1"):
        model.drawn(name, runners=runners)
        counts.append(len(made))
    assert counts == [1, 2, 2, 3, 3, 4], "eagle1's went when eagle2's came"
    assert len(runners) == 2
    assert runners.clear() and not runners.clear() and len(runners) == 0


def test_after_an_error_no_kept_runner_replays_kernels(model: Model, made: list[Steps]) -> None:
    runners, ops = Runners(), Kernels()
    for count in (1, 2):
        for _ in range(2):
            model.drawn("vanilla", runners=runners, ops=ops)
        assert len(made) == count
        if not ops.reason:
            ops.refuse(KernelError("no"))
    model.drawn("vanilla", runners=runners, ops=Ops())
    assert len(made) == 3, "nor those of another's operations"


@pytest.mark.parametrize("draws", [0, 1, 4])
def test_after_an_error_of_a_kernel_a_run_begins_anew(draws: int, model: Model) -> None:
    """Of the prefill or of a step, whose tensors may be half written."""
    wanted, runners, ops = model.drawn(), Runners(), Kernels(draws)
    events = list(model.run(runners=runners, ops=ops, clock=Clock("cpu")))
    starts = [at for at, event in enumerate(events) if getattr(event, "index", None) == 0]
    assert starts == [0, draws][: 1 + (draws > 0)]
    anew = events[starts[-1] :]
    assert summary(anew) == wanted
    assert events[-1].runner_reason == ops.reason == "without kernels: no kernel"
    seconds = [event.seconds for event in anew[:-1]]
    assert seconds == sorted(seconds), "none of the first attempt are left"
    assert len(runners) == 1
    assert model.drawn(runners=runners, ops=ops) == wanted


def test_idle_runners_go_for_memory(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    runners, target = Runners(), model.models[0]
    model.drawn("vanilla", runners=runners)
    real = target.new_cache

    def scarce(*given: Any) -> Any:
        if len(runners):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(*given)

    monkeypatch.setattr(target, "new_cache", scarce)
    model.drawn("eagle1", runners=runners)
    with pytest.raises(torch.OutOfMemoryError):
        model.drawn("lantern", runners=Runners())  # which has none that it could let go


def test_a_replays_seconds_are_split_as_its_events_tell() -> None:
    """Those of a graph without events stay with verify, and nothing is split twice."""

    class Event(float):
        def elapsed_time(self, other: float) -> float:
            return other - self

    config = SimpleNamespace(torch_device=torch.device("cpu"))
    steps: Any = SimpleNamespace(results=torch.zeros(1), config=config)
    runner = graphs.GraphRunner(steps)
    runner.clock = Clock("cpu")
    runner.clock.seconds["verify"] = 5.0
    events: Any = [Event(at) for at in (0, 1, 3, 4)]
    runner.graphs = {
        Shape(64, 4, True): graphs._Captured(None, events, 4.0),
        Shape(64, 4, False): graphs._Captured(None, [], 1.0),
    }
    for _ in range(2):
        runner.close()
        parts = [runner.clock.seconds[part] for part in ("draft", "verify", "commit")]
        assert parts == [1.0, 3.0, 1.0]
