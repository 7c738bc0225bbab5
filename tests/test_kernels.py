"""Triton's kernels against the modules, in Triton's interpreter, which runs them on a processor.

The variables that switch them on are read once, so that a program of its own runs each check.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
from tiny import ran

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="Triton is not installed"
    ),
]

LAYERS = """
import torch
from copy import deepcopy
from lantern_demo.decoding import switch
from lantern_demo.decoding.cache import KVCache
from lantern_demo.models import kernels
from lantern_demo.models.llama import Layer, Stored, angles, rotations

@torch.inference_mode()
def difference(dtype, nodes, norm_before, rows=2, shared=False):
    torch.manual_seed(nodes)
    layer = Layer(64, 2, 96, 0.1, norm_before).to(dtype)
    layer.join()
    slots = torch.randperm(40)[:nodes] + 5
    places = torch.randint(0, 50, (1 if shared else rows, nodes))
    rotation = rotations(angles(50, 32, 100.0)[places])
    visible = torch.rand(nodes, 72) < 0.5
    visible[:, 8] = True
    padding = torch.zeros(rows, 1, 1, 72, dtype=dtype)
    padding[1:, ..., :3] = -torch.inf
    bias = torch.where(visible[None, None], padding, torch.tensor(-torch.inf, dtype=dtype))
    x = torch.randn(rows, nodes, 64, dtype=dtype)
    caches = [KVCache(2, rows, 2, 80, 32, dtype=dtype) for _ in range(2)]
    torch.manual_seed(1)
    for cache in caches:
        cache.both.copy_(torch.randn(cache.both.shape, generator=torch.Generator().manual_seed(1)))
    stores = [Stored(cache, 1, slots, 72) for cache in caches]
    wanted = layer(x.clone(), rotation, bias, stores[0], nodes)
    found = kernels.FusedLayer(layer)(x.clone(), rotation, bias, stores[1], nodes)
    pairs = [(found, wanted), (caches[1].both, caches[0].both)]
    return max(float((a - b).float().norm() / b.float().norm()) for a, b in pairs)

assert switch.on(torch.device("cpu"))
for nodes in (1, 5, 37):
    for norm_before in (True, False):
        exact = difference(torch.float32, nodes, norm_before)
        half = difference(torch.float16, nodes, norm_before, shared=True)
        assert exact < 2e-6 and half < 2e-3, (nodes, norm_before, exact, half)
print("alike")
"""

SELECTIONS = """
import torch
from lantern_demo.decoding import sampling, selection, switch
from lantern_demo.decoding.sampling import Sampling, draw_in_turn, scores, top

sampling.kernels = selection

def both(call):
    found = []
    for switch.INTERPRETED in (True, False):
        assert switch.on(torch.device("cpu")) == switch.INTERPRETED
        found.append(call())
    return found

for rows in (1, 3):
    for width in (64, 1000):
        torch.manual_seed(rows)
        x = torch.randn(rows, width)
        ties = x.mul(2).round().div(2)
        ties[:, ::7] = -0.0
        ties[:, 5] = torch.inf
        for logits in (x, ties, -x.abs()):
            for k in (1, 17, width - 1):
                kernel, wanted = both(lambda: scores(logits, Sampling(top_k=k)))
                assert torch.equal(kernel, wanted), (rows, width, k)
        out = torch.zeros(3, max(2, rows), dtype=torch.int64)
        (best, tokens), wanted = both(lambda: (top(x, 3, out), out[:, :rows].clone()))
        assert torch.equal(best, wanted[0]) and torch.equal(tokens, wanted[1])
        switch.INTERPRETED = True
        x[0, 3] = torch.nan
        assert top(x, 1, out)[0].isnan()
        q = torch.randn(rows, width).mul(4).softmax(-1)
        q[:, 10:40] = 0.0
        u = torch.rand(rows, 3).clamp(min=2.0**-100)
        u[0, 0] = 2.0**-100
        (sums, tokens), wanted = both(lambda: (draw_in_turn(q, u, out), out.clone()))
        assert torch.equal(tokens, wanted[1]) and (q.gather(1, tokens.t()[:rows]) > 0).all()
        torch.testing.assert_close(torch.stack(sums), torch.stack(wanted[0]))
print("alike")
"""

RUNS = """
import sys
import torch
from small_models import model_of
from lantern_demo.decoding import switch
model = model_of(sys.argv[1])
joined = model.joined
assert joined[0].fused and joined[1].fused
for method in sys.argv[2:]:
    switch.INTERPRETED = True
    noise = "shared" if method == "eagle1" else "independent"
    kernels = model.run(joined, method, (1.0, 20, 1.0), num_tokens=4, noise=noise)[-1]
    assert switch.on(torch.device("cpu")) and kernels.runner_reason == "", kernels.runner_reason
    switch.INTERPRETED = False
    modules = model.run(joined, method, (1.0, 20, 1.0), num_tokens=4, noise=noise)[-1]
    assert (kernels.tokens, kernels.accepted_lengths) == (modules.tokens, modules.accepted_lengths)
print("alike")
"""

FAULT = """
import torch
from small_models import model_of
from lantern_demo.decoding import switch
from lantern_demo.models import kernels

def broken(*_, **__):
    raise RuntimeError("no C compiler\\nand more")

kernels.attend = broken
model = model_of("llamagen")
faulty = model.run(model.joined, "eagle1")[-1]
assert faulty.runner_reason == "without kernels: RuntimeError: no C compiler", faulty.runner_reason
assert not switch.on(torch.device("cpu"))
assert faulty.tokens == model.run(model.joined, "eagle1")[-1].tokens
print("alike")
"""


def prints(program: str, *words: str, **variables: str) -> str:
    """What a program of this project prints in Triton's interpreter, with kernels on."""
    here = Path(__file__).parent
    settings = {"TRITON_INTERPRET": "1", "LANTERN_KERNELS": "1", **variables}
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (here, here.parent)))}
    done = ran(sys.executable, "-c", program, *words, env={**os.environ, **paths, **settings})
    return done.stdout if done.returncode == 0 else done.stderr


def test_a_layer_in_kernels_computes_what_its_modules_do() -> None:
    assert prints(LAYERS) == "alike\n"


@pytest.mark.parametrize(
    ("model", "methods"),
    [
        ("llamagen", ("vanilla", "eagle1", "eagle2", "lantern", "lantern++")),
    ],
)
def test_runs_through_kernels_draw_the_same_tokens(model: str, methods: tuple[str, ...]) -> None:
    assert prints(RUNS, model, *methods) == "alike\n"


def test_selections_in_kernels_are_those_of_sampling() -> None:
    assert prints(SELECTIONS) == "alike\n"


def test_an_error_of_a_kernel_turns_all_off_and_is_stated() -> None:
    assert prints(FAULT) == "alike\n"


def test_the_variable_is_checked() -> None:
    told = prints(RUNS, "llamagen", LANTERN_KERNELS="yes")
    assert "LANTERN_KERNELS is 'yes'; allowed are 0 (off) and 1 (on)" in told
