"""The same request gives the same tokens: in another process, after and beside others, in any
order.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import ran

from lantern_demo import load
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.result import Result
from lantern_demo.torch_defaults import own_defaults
from lantern_demo.ui.service import Service

PROMPT = "two red box lanterns over a lake"
SETTINGS: list[dict[str, Any]] = [
    {"seed": 7, "tree": "small", "lantern_k": 10},
    {"seed": 7, "tree": "0 1 00", "temperature": 0.8, "top_k": 20, "top_p": 0.9, "cfg_scale": 1.0},
]

PROGRAM = """
import json, sys
from lantern_demo import load
from lantern_demo.runs.result import Result
folder, prompt, settings = json.loads(sys.argv[1])
pipe = load(folder, device="cpu")
pipe.generate("another lantern", seed=1, tree="small")
found = []
for knobs in reversed(settings):
    done = {}
    for method in ("lantern++", "vanilla", "lantern", "eagle2", "eagle1"):
        done[method] = pipe.generate(prompt, method, **knobs).tokens
    found.insert(0, done)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def right(pipe: Pipeline) -> list[dict[str, list[int]]]:
    """All methods together, in the table's order, in this process."""
    return [
        {m: e.tokens for m, e in pipe.compare(PROMPT, **knobs) if isinstance(e, Result)}
        for knobs in SETTINGS
    ]


@pytest.mark.slow
def test_across_processes(folder: Path, right: list[dict[str, list[int]]]) -> None:
    """The other process runs other things before, each method by itself, and backwards."""
    request, root = json.dumps([str(folder), PROMPT, SETTINGS]), Path(__file__).parent.parent
    environment = os.environ | {"PYTHONHASHSEED": "random"}
    done = ran(sys.executable, "-c", PROGRAM, request, cwd=root, env=environment, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == right


# What a notebook's process has before and after each public call.
LEFT = """
import json, os, random, sys, threading, warnings
import torch
import lantern_demo

def state():
    return {
        "threads": torch.get_num_threads(),
        "variables": sorted(os.environ.items()),
        "filters": [str(one) for one in warnings.filters],
        "numbers": [str(torch.get_default_dtype()), torch.get_float32_matmul_precision()],
        "modes": [torch.is_grad_enabled(), torch.is_inference_mode_enabled()],
        "random": [hash(str(torch.get_rng_state().tolist())), hash(str(random.getstate()))],
        "running": sorted(thread.name for thread in threading.enumerate()),
        "folder": os.getcwd(),
    }

torch.set_num_threads(2)
found = {"before": state()}
load, asked = lantern_demo.load, {"method": "lantern++", "seed": 1}
found["import"] = state()
pipe = load(sys.argv[1], device="cpu")
found["load"] = state()
pipe.generate("two red lanterns", **asked)
found["draw"] = state()
steps = pipe.stream("two red lanterns", **asked)
next(steps), next(steps)
found["between two steps"] = state()
steps.close()
found["a closed stream"] = state()
pipe.target.head = None
try:
    pipe.generate("two red lanterns", **asked)
except RuntimeError:
    found["a failed draw"] = state()
try:
    load("no such model")
except ValueError:
    found["a failed load"] = state()
print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_callers_process_stays_as_it_was(folder: Path) -> None:
    root, compilers = Path(__file__).parent.parent, "TORCHINDUCTOR_CACHE_DIR"
    environment = {name: value for name, value in os.environ.items() if name != compilers}
    done = ran(sys.executable, "-c", LEFT, folder, cwd=root, env=environment, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    before = found.pop("before")
    assert len(found) == 7
    for moment, state in found.items():
        assert state == before, moment


@pytest.mark.slow
def test_after_requests_that_were_refused_left_or_broken(
    folder: Path, right: list[dict[str, list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(folder, "cpu")
    with pytest.raises(ValueError, match="seed"):
        service.request(PROMPT, None, {"seed": -1})
    left = service.frames(service.request("a lantern", None, SETTINGS[1]))
    while not next(left).steps:
        pass
    left.close()
    pipe = service.wait()
    head = pipe.target.head
    with monkeypatch.context() as patch:
        patch.setattr(pipe.target, "head", lambda hidden: head(hidden) * float("nan"))
        frames = service.frames(service.request(PROMPT, None, SETTINGS[0]))
        assert not any(isinstance(item, Result) for item in frames)
    request = service.request(PROMPT, ["eagle2", "lantern++"], SETTINGS[0])
    found = {
        item.method: item.tokens for item in service.frames(request) if isinstance(item, Result)
    }
    assert found == {method: right[0][method] for method in ("eagle2", "lantern++")}


@pytest.mark.slow
def test_a_run_neither_reads_nor_moves_the_callers_random_numbers(
    pipe: Pipeline, right: list[dict[str, list[int]]]
) -> None:
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.random.get_rng_state()
        assert pipe.generate(PROMPT, "lantern++", **SETTINGS[0]).tokens == right[0]["lantern++"]
        assert torch.equal(torch.random.get_rng_state(), before)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def precision(name: str) -> Iterator[None]:
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


# What a notebook may have set before, or another library left behind.
STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "float64": partial(default_dtype, torch.float64),
    "bfloat16": partial(default_dtype, torch.bfloat16),
    "float16": partial(default_dtype, torch.float16),
    "meta": partial(torch.device, "meta"),  # stands for a GPU
    "autocast": partial(torch.autocast, "cpu", torch.bfloat16),
    "precision": partial(precision, "medium"),
}


@pytest.mark.parametrize("state", STATES)
def test_whatever_defaults_of_pytorch_the_caller_has_set(
    folder: Path, pipe: Pipeline, state: str
) -> None:
    """Around a load, around runs and around both; and the caller finds its own afterwards."""
    methods = ["vanilla", "eagle2", "lantern++"]

    def drawn(by: Pipeline) -> dict[str, tuple[list[int], bytes]]:
        done = by.compare(PROMPT, methods, seed=7, tree="small")
        return {m: (e.tokens, e.image.tobytes()) for m, e in done if isinstance(e, Result)}

    right = drawn(pipe)
    with STATES[state]():
        theirs = (
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.is_autocast_enabled("cpu"),
        )
        loaded = load(folder, device="cpu")
        assert drawn(loaded) == right
        for _ in loaded.stream(PROMPT, "eagle1"):
            assert theirs == (
                torch.get_default_dtype(),
                torch.get_default_device(),
                torch.is_autocast_enabled("cpu"),
            )
    assert drawn(loaded) == right


def test_two_threads_restore_the_callers_defaults_once() -> None:
    with default_dtype(torch.bfloat16):
        first, second = ExitStack(), ExitStack()
        first.enter_context(own_defaults())
        second.enter_context(own_defaults())
        first.close()
        assert torch.get_default_dtype() == torch.float32
        second.close()
        assert torch.get_default_dtype() == torch.bfloat16
