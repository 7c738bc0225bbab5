"""The same request gives the same tokens: in another process, beside others, in any order."""

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

ROOT = Path(__file__).parent.parent
PROMPT = "two red box lanterns over a lake"
SETTINGS: list[dict[str, Any]] = [
    {"seed": 7, "tree": "small", "lantern_k": 10},
    {"seed": 7, "tree": "0 1 00", "temperature": 0.8, "top_k": 20, "top_p": 0.9, "cfg_scale": 1.0},
]

# Another process: what it draws, and what it has before and after each public call.
PROGRAM = """
import json, os, random, sys, threading, warnings
import torch
import lantern_demo

def state():
    return [
        torch.get_num_threads(), str(torch.get_default_dtype()), sorted(os.environ.items()),
        torch.get_float32_matmul_precision(), torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(), str(torch.get_rng_state().tolist()),
        str(random.getstate()), [str(one) for one in warnings.filters], os.getcwd(),
        sorted(thread.name for thread in threading.enumerate()),
    ]

def after(call):
    try:
        made = call()
    except Exception:
        made = None
    states.append(state())
    return made

def draw(knobs):
    methods = ("lantern++", "vanilla", "lantern", "eagle2", "eagle1")
    return {method: pipe.generate(prompt, method, **knobs).tokens for method in methods}

folder, prompt, settings = json.loads(sys.argv[1])
torch.set_num_threads(2)
states = [state()]
load = after(lambda: lantern_demo.load)
pipe = after(lambda: load(folder, device="cpu"))
pipe.generate("another lantern", seed=1, tree="small")
drawn = [draw(knobs) for knobs in reversed(settings)]
steps = pipe.stream(prompt)
after(lambda: [next(steps), next(steps)])
after(steps.close)
pipe.target.head = None
assert after(lambda: pipe.generate(prompt)) is None
assert after(lambda: load("no such model")) is None
print(json.dumps([drawn, states]))
"""


@pytest.mark.slow
def test_another_process_draws_the_same_and_stays_as_it_was(folder: Path, pipe: Pipeline) -> None:
    """Which runs other things before, then each method alone, backwards; this one races them."""
    right = [
        {m: e.tokens for m, e in pipe.compare(PROMPT, **knobs) if isinstance(e, Result)}
        for knobs in SETTINGS
    ]
    request = json.dumps([str(folder), PROMPT, SETTINGS])
    compilers = "TORCHINDUCTOR_CACHE_DIR"
    environment = {name: value for name, value in os.environ.items() if name != compilers}
    environment["PYTHONHASHSEED"] = "random"
    done = ran(sys.executable, "-c", PROGRAM, request, cwd=ROOT, env=environment, check=True)
    drawn, (before, *states) = json.loads(done.stdout.splitlines()[-1])
    assert drawn == right[::-1]
    assert states == [before] * 6


@contextmanager
def chosen(choose: Callable[[Any], None], usual: Any, other: Any) -> Iterator[None]:
    """Another default inside."""
    choose(other)
    try:
        yield
    finally:
        choose(usual)


dtype = partial(chosen, torch.set_default_dtype, torch.float32)
# What a notebook may have set before, or another library left behind.
STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "float64": partial(dtype, torch.float64),
    "bfloat16": partial(dtype, torch.bfloat16),
    "meta": partial(torch.device, "meta"),  # stands for a GPU
    "autocast": partial(torch.autocast, "cpu", torch.bfloat16),
    "precision": partial(chosen, torch.set_float32_matmul_precision, "highest", "medium"),
}


@pytest.mark.parametrize("state", STATES)
def test_whatever_defaults_the_caller_has_set(folder: Path, pipe: Pipeline, state: str) -> None:
    """Around a load, around runs and around both; and the caller finds its own afterwards."""

    def drawn(by: Pipeline) -> dict[str, tuple[list[int], bytes]]:
        done = by.compare(PROMPT, ["vanilla", "eagle2", "lantern++"], seed=7, tree="small")
        return {m: (e.tokens, e.image.tobytes()) for m, e in done if isinstance(e, Result)}

    def defaults() -> tuple[Any, ...]:
        here = torch.get_default_dtype(), torch.get_default_device()
        return *here, torch.is_autocast_enabled("cpu"), torch.get_float32_matmul_precision()

    right = drawn(pipe)
    with STATES[state]():
        theirs = defaults()
        loaded = load(folder, device="cpu")
        assert drawn(loaded) == right
        for _ in loaded.stream(PROMPT, "eagle1"):
            assert theirs == defaults()
    assert drawn(loaded) == right


def test_precision_may_be_set_by_pytorchs_newer_names() -> None:
    """In a process of its own: PyTorch then refuses the older one for good."""
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this PyTorch has the older name alone")
    program = """
import torch
from lantern_demo.torch_defaults import own_defaults
torch.backends.cuda.matmul.fp32_precision = torch.backends.fp32_precision = "tf32"
with own_defaults():
    print(torch.backends.fp32_precision, torch.backends.cuda.matmul.fp32_precision)
print(torch.backends.fp32_precision, torch.backends.cuda.matmul.fp32_precision)
"""
    done = ran(sys.executable, "-c", program, cwd=ROOT, check=True)
    assert done.stdout.split() == ["ieee", "ieee", "tf32", "tf32"]


def test_two_threads_restore_the_callers_defaults_once() -> None:
    with dtype(torch.bfloat16):
        first, second = ExitStack(), ExitStack()
        first.enter_context(own_defaults())
        second.enter_context(own_defaults())
        first.close()
        assert torch.get_default_dtype() == torch.float32
        second.close()
        assert torch.get_default_dtype() == torch.bfloat16
