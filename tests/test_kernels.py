"""Triton's kernels against the modules, in Triton's interpreter, which runs them on a processor.

Triton reads its variable when it is imported. So each check runs in a process of its own: a fork of
one that has imported what all need. The checks of `ALIKE` also run on a GPU (`tests/cuda`), that of
the law with many more random numbers. Others compile all that a step launches, which needs no GPU.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from lantern_demo.decoding.graphs import GraphRunner
from lantern_demo.decoding.ops import KernelError, Ops
from lantern_demo.decoding.timing import Clock
from lantern_demo.kernels import switch
from lantern_demo.kernels.launch import guarded, why_off

pytestmark = [
    pytest.mark.slow(9),  # none takes longer, so that none may come last
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"),
]
triton_alone = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)

DEVICE = """
import sys
import torch
torch.set_default_device(sys.argv[1])
torch.backends.cuda.matmul.allow_tf32 = False
here = torch.empty(0).device
half = torch.bfloat16 if here.type == "cuda" else torch.float16  # the interpreter has no bfloat16
LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""

MATMULS = """
import torch.nn.functional as F
from lantern_demo.kernels.layer import FEW, SOME, linear

def compare(rows, outputs, k, dtype):
    torch.manual_seed(rows)
    x = torch.randn(rows, k).to(dtype)
    weight = (torch.randn(2 * outputs, k) * k**-0.5).to(dtype)
    onto = torch.randn(rows, outputs).to(dtype)
    normed = F.rms_norm(x.float(), (k,), None, 0.1)
    gate, up = (normed @ weight.float().t()).chunk(2, -1)
    own = weight[:outputs]
    pairs = [
        (linear(x, own), x.float() @ own.float().t()),
        (linear(x, own, 0.1), normed @ own.float().t()),
        (linear(x, weight, 0.1, gated=True), F.silu(gate) * up),
        (linear(x, own, onto=onto.clone()), onto.float() + x.float() @ own.float().t()),
    ]
    assert pairs[0][0].dtype == torch.float32 and pairs[2][0].dtype == dtype
    for found, wanted in pairs:
        error = float((found.float() - wanted).abs().max() / wanted.abs().max())
        assert error < LIMITS[dtype], (rows, outputs, k, dtype, error)

sizes = [(64, 64), (37, 192)] + [(1280, 3584), (3584, 1280)] * (here.type == "cuda")
every = 1, FEW, FEW + 1, 9, SOME, SOME + 1
for outputs, k in sizes:
    # whole blocks are the simple case
    for rows in every if (outputs, k) != (64, 64) else (1, FEW + 1, SOME + 1):
        compare(rows, outputs, k, torch.float32)
        if rows <= SOME or here.type == "cuda":  # on a processor the library has no wide sums
            compare(rows, outputs, k, half)
print("alike")
"""

LAYERS = """
from lantern_demo.decoding.cache import KVCache
from lantern_demo.kernels import layer as kernels
from lantern_demo.models.llama import Layer, angles, rotations

@torch.inference_mode()
def compare(dtype, nodes, norm_before, rows=2, shared=False, heads=2, gap=0):
    torch.manual_seed(nodes)
    dim = 32 * heads
    layer = Layer(dim, heads, 128, 0.1, norm_before)
    for weight in layer.parameters():
        weight.add_(0.3 * torch.randn(weight.shape) if weight.dim() == 1 else 0)
    layer.to(dtype).join()
    slots = torch.arange(nodes) + 35  # behind more than a block of float32 slots
    slots[1:] += gap
    places = torch.randint(0, 50, (1 if shared else rows, nodes))
    rotation = rotations(angles(50, 32, 100.0)[places])
    visible = torch.rand(nodes, 72) < 0.5
    visible[:, 8] = True
    visible[:, 35 + nodes :] = False
    padding = torch.zeros(rows, 1, 1, 72, dtype=dtype)
    padding[1:, ..., :3] = -torch.inf
    bias = torch.where(visible[None, None], padding, torch.tensor(-torch.inf, dtype=dtype))
    x = torch.randn(rows, nodes, dim, dtype=dtype)
    old = torch.randn(2, rows, 2 * heads, 80, 32)
    caches = [KVCache(2, rows, heads, 80, 32, dtype=dtype, device=here) for _ in range(2)]
    for cache in caches:
        cache.both.copy_(old)
    stores = [cache.stores(slots, 72)[1] for cache in caches]
    wanted = layer(x.clone(), rotation, bias, stores[0], nodes)
    fused = kernels.FusedLayer(layer, kernels.starts_early(here))
    found = fused(x.clone(), rotation, bias, stores[1], nodes)
    if gap:
        assert found.isnan().all(), nodes
        return
    for one, other in ((found, wanted), (caches[1].both, caches[0].both)):
        error = float((one - other).float().norm() / other.float().norm())
        assert error < LIMITS[dtype], (dtype, nodes, rows, error)

for nodes, norm_before in ((1, True), (1, False), (5, True), (16, False), (37, True)):
    compare(torch.float32, nodes, norm_before)
for rows, nodes in ((2, 1), (2, 16), (1, 19)):  # all slots at once, then a block after another
    compare(half, nodes, True, rows, shared=True)
compare(torch.float32, 5, True, gap=1)  # refused: the slot between is not read
narrow = Layer(64, 4, 128, 0.1)
narrow.join()
assert not kernels.fits(narrow)  # half of 16 numbers is no block of a dot
print("alike")
"""

SELECTIONS = """
from lantern_demo.decoding.ops import PYTORCH
from lantern_demo.decoding.sampling import Sampling, scores
from lantern_demo.kernels.selection import Fused

fused = Fused()

def both(call):
    return call(fused), call(PYTORCH)

for rows in (1, 3):
    for width in (64, 1000):
        torch.manual_seed(rows)
        x = torch.randn(rows, width)
        assert fused.fits(x)
        ties = x.mul(2).round().div(2)
        ties[:, ::7] = -0.0
        ties[:, 5] = torch.inf
        far = x * 1e38  # their differences are no float32
        far[:, 9:40] = -torch.inf
        same = torch.ones(rows, width)
        same[:, 8] = 1 - 2.0**-24  # the next number below
        for logits in (x, ties, -x.abs(), far, far.abs(), same):
            for k in (1, 17, width - 1):
                kernel, wanted = both(lambda ops: scores(logits, Sampling(top_k=k), False, ops.cut))
                assert torch.equal(kernel, wanted), (rows, width, k)
        (best, tokens), wanted = both(lambda ops: ops.top(x, 3))
        assert torch.equal(best, wanted[0]) and torch.equal(tokens, wanted[1])
        q = torch.randn(rows, width).mul(4).softmax(-1)
        q[:, 10:40] = 0.0
        u = torch.rand(rows, 3).clamp(min=2.0**-100)
        u[0, 0] = 2.0**-100
        tokens, wanted = both(lambda ops: ops.draw_in_turn(q, u))
        assert torch.equal(tokens, wanted) and (q.gather(1, tokens) > 0).all()
        for heights in (u[:, 0], u[:, 1], torch.full((rows,), 1 - 2.0**-24)):
            kernel, wanted = both(lambda ops: ops.draw(q, heights))
            assert torch.equal(kernel, wanted) and (q.gather(1, kernel[:, None]) > 0).all()
        few = torch.zeros(rows, width)
        few[:, [7, width - 1]] = 0.5
        tokens = fused.draw_in_turn(few, torch.full((rows, 3), 0.3))
        assert set(tokens[0, :2].tolist()) == {7, width - 1} and 0 <= int(tokens[0, 2]) < width
        for fault in (0.0, torch.nan, torch.inf):
            few[:] = fault
            assert fused.draw(few, torch.full((rows,), 0.3)).eq(width).all()
        x[0, 3] = torch.nan
        assert fused.top(x, 1)[0][0].isnan()
        assert scores(x, Sampling(top_k=5), False, fused.cut)[0, 3].isnan()
print("alike")
"""

DECISIONS = """
from itertools import product
from lantern_demo.decoding.accept import Children
from lantern_demo.decoding.ops import PYTORCH
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule
from lantern_demo.kernels import selection

fused = selection.Fused()

def drafts(nodes, width, drawn):
    table = ((torch.arange(width)[:, None] + torch.arange(1, 33)) % width).int()
    depth = torch.zeros(nodes, 1)
    if not drawn:
        tokens = torch.randint(0, width, (nodes, 3))
        tokens[1:, 1:] = -1
        return Children(tokens, None, table, depth)
    q = (torch.randn(nodes, width) * 3).softmax(-1)
    q[-1] = 0.0
    q[-1, [7, width - 1]] = 0.5
    tokens = PYTORCH.draw_in_turn(q, torch.rand(nodes, 3).clamp(min=1e-9))
    tokens[[0, -1], 2] = -1  # no node of the tree, and nothing left
    return Children(tokens, q, table, depth)

seen = 0
rules = Rule(), Lantern(20, 0.3), Lantern(1, 0.0), LanternPlusPlus(10, 3.0)
rules += (Lantern(40, 1.0),)  # more than the table's columns
for rule, drawn, (nodes, width) in product(rules, (True, False), ((1, 64), (4, 1000))):
    torch.manual_seed(nodes)
    p = (torch.randn(nodes, width) * 3).softmax(-1)
    children = drafts(nodes, width, drawn)
    u = torch.rand(nodes, 4)
    wanted = PYTORCH.decide(rule, p, children, u)
    assert fused.fits(p) and selection.judges(rule, children)
    found = fused.decide(rule, p, children, u)
    assert torch.equal(found.accepted, wanted.accepted) and torch.equal(found.tried, wanted.tried)
    torch.testing.assert_close(found.residual, wanted.residual, rtol=1e-4, atol=1e-7)
    for name in ("mass", "score", "threshold"):
        one, other = getattr(found, name), getattr(wanted, name)
        torch.testing.assert_close(one[wanted.tried], other[wanted.tried], rtol=1e-4, atol=1e-7)
    assert (found.relaxed is None) == (wanted.relaxed is None)
    if wanted.relaxed is not None:
        assert torch.equal(found.relaxed & wanted.accepted, wanted.relaxed & wanted.accepted)
    seen += int(wanted.accepted.sum())
    p[0] = torch.nan
    assert not fused.decide(rule, p, children, u).accepted[0].any()
    # a rejection would leave nothing, and rounding lets the score only reach the threshold
    edge = torch.zeros(1, width)
    edge[0, 5] = 1 - 2.0**-24
    alone = children._replace(tokens=torch.tensor([[5, -1, -1]]), q=None)
    assert fused.decide(rule, edge, alone, torch.full((1, 4), 1 - 2.0**-24)).accepted[0, 0]
assert seen > 4
class Own(Rule):
    pass
assert not selection.judges(Own(), children)
print("alike")
"""

# every pair of drafts, and a grid of every uniform: a node's token has the target's distribution
LAW = """
from itertools import permutations
from torch.nn.functional import one_hot
from lantern_demo.decoding.accept import Children
from lantern_demo.decoding.ops import PYTORCH
from lantern_demo.decoding.rules import Lantern, Rule
from lantern_demo.kernels.selection import Fused

V, N = 4, 2**14 if here.type == "cuda" else 20
p, q = torch.tensor([[0.05, 0.15, 0.35, 0.45], [0.5, 0.2, 0.05, 0.25]])
pairs = torch.tensor(list(permutations(range(V), 2)))
table = ((torch.arange(V)[:, None] + torch.arange(1, V)) % V).int()
u = (torch.arange(N) + 0.5) / N

def shares(tokens):  # [..., N] -> [..., V]
    return one_hot(tokens, V).double().mean(-2)

def chances(ops):  # of each pair of drafts
    first = ops.draw_in_turn(q.expand(N, V), u[:, None])[:, 0]
    within = torch.stack([u[first == x].median() for x in range(V)])
    heights = torch.stack([within.repeat_interleave(N), u.repeat(V)], 1)
    both = ops.draw_in_turn(q.expand(V * N, V), heights).view(V, N, 2)
    assert torch.equal(both[..., 0], torch.arange(V)[:, None].expand(V, N))
    return shares(first)[pairs[:, 0]] * shares(both[..., 1])[pairs[:, 0], pairs[:, 1]]

def laws(ops, rule, drawn):  # of a node's token; for each pair if the prefix fixes the drafts
    count = len(pairs) * N
    rows, heights = pairs.repeat_interleave(N, 0), u.repeat(len(pairs))
    children = Children(rows, q.expand(count, V) if drawn else None, table)
    verdict = ops.decide(rule, p.expand(count, V), children, heights[:, None].repeat(1, 3))
    accepted = verdict.accepted.view(-1, N, 2).double().mean(1)
    # where a rejection leaves nothing, no token is drawn, nor is a draft rejected
    bonus = shares(ops.draw(verdict.residual, heights).clamp(0, V - 1).view(-1, N))
    first, second = (one_hot(x, V) for x in pairs.unbind(1))
    one, two = accepted.split(1, 1)
    found = one * first + (1 - one) * (two * second + (1 - two) * bonus)
    return (chances(ops) @ found)[None] if drawn else found

fused = Fused()
assert fused.fits(p[None])
for ops in (PYTORCH, fused):
    for drawn in (True, False):
        off = (laws(ops, Rule(), drawn) - p).abs().max()
        assert off < 1 / N, (ops, drawn, off)
off = (laws(fused, Lantern(2, 0.4), True) - p).abs().max()
assert off > 2 / N, off
print("alike")
"""

RUNS = """
import os
import sys
from dataclasses import replace
from small_models import TEXT, model_of, of_llamagen
shallow = of_llamagen(replace(TEXT, layers=1))  # layers are all alike, and the interpreter is slow
model = shallow if sys.argv[1] == "shallow" else model_of(sys.argv[1])
fused = model.joined
os.environ["LANTERN_KERNELS"] = "0"
joined = model.joined
assert fused[0].fused and fused[1].fused and not joined[0].fused
for method in sys.argv[2:]:
    noise = "shared" if method == "eagle1" else "independent"
    kernels, modules = (
        model.run(one, method, (1.0, 20, 1.0), num_tokens=4, noise=noise)[-1]
        for one in (fused, joined)
    )
    assert fused[0].fused and kernels.runner_reason == "", kernels.runner_reason
    assert (kernels.tokens, kernels.accepted_lengths) == (modules.tokens, modules.accepted_lengths)
print("alike")
"""

FAULT = """
from small_models import model_of
from lantern_demo.kernels import layer

def broken(*_, **__):
    raise RuntimeError("no C compiler\\nand more")

layer.attend = broken
model = model_of("llamagen")
target, drafter, ops, _ = joined = model.joined
assert target.fused and drafter.fused and not ops.reason
for starts in (2, 1):  # then none is tried
    *steps, faulty = model.run(joined, "eagle1")
    assert [step.index for step in steps].count(0) == starts
    assert faulty.runner_reason == "without kernels: RuntimeError: no C compiler", ops.reason
    assert faulty.tokens == model.run(model.modules, "eagle1")[-1].tokens
    assert not target.fused and not drafter.fused
print("alike")
"""

WITHOUT = """
import sys
import types
from small_models import model_of  # before the fault: PyTorch may use Triton too

for name in [name for name in sys.modules if name.partition(".")[0] == "triton"]:
    del sys.modules[name]
sys.modules["triton"] = None if sys.argv[1] == "absent" else types.ModuleType("triton")
if sys.argv[1] == "old":
    sys.modules["triton"].__version__ = "3.4.0"
model = model_of("llamagen")
drawn = model.run(model.joined, "lantern++")[-1]
assert drawn.runner_reason.startswith("without kernels: "), drawn.runner_reason
assert "triton" in drawn.runner_reason.lower(), drawn.runner_reason
assert ("3.4.0 is older than 3.5" in drawn.runner_reason) == (sys.argv[1] == "old")
assert len(drawn.tokens) == 16
print("alike")
"""

OFF = """
import os
import sys
from small_models import model_of

if sys.argv[1:] == ["unset"]:
    del os.environ["LANTERN_KERNELS"]
model = model_of("llamagen")
joined = model.joined
print(bool(joined[0].fused), model.run(joined, "eagle1")[-1].runner_reason)
"""

# what is launched is traced, on the device without values, and compiled
COMPILER = """
import sys
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

capability = int(sys.argv[1])

class Absent:
    '''What compiling asks of a driver.'''

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", capability, 32)

    def get_active_torch_device(self):
        return torch.device("cpu")

launch, compiled = JITFunction.run, {}

def without_a_launch(kernel, *given, warmup, **named):
    made = launch(kernel, *given, warmup=True, **named)
    compiled[made.hash] = made.metadata

driver.set_active(Absent())
JITFunction.run = without_a_launch
"""

# every kernel of whole steps at published sizes
COMPILED = """
from launches import META, step_of
from lantern_demo.kernels import layer as kernels, switch, trial

switch._could = switch._wanted = lambda *_: True
trial.LEFT_OUT = True  # nothing has values
trial.starts_early = lambda device: capability >= 90
runs = [(method, "small", torch.bfloat16) for method in ("vanilla", "eagle1", "eagle2", "sjd")]
runs += [(method, "paper", torch.bfloat16) for method in ("lantern", "lantern++")]
runs += [("lantern++", "small", torch.float32), ("lantern", "paper", torch.float32)]
if capability >= 90:  # the same kernels but for their early launches
    runs = [runs[0], runs[1], runs[4]]
with torch.inference_mode():
    for method, tree, dtype in runs:
        steps = step_of("llamagen-t2i-256", method, dtype, tree=tree)
        assert steps.target.fused
        shapes = steps.shapes()
        for shape in dict.fromkeys((*shapes[:2], *shapes[-2:])):
            steps.step(shape)
    # no model on offer has such wide heads
    qkv, turns = torch.empty(1, 16, 3, 1, 128), torch.empty(1, 16, 3, 1, 64, dtype=torch.complex64)
    bias, cache = torch.empty(1, 1, 16, 512), torch.empty(1, 2, 520, 128)
    given = qkv, turns, torch.arange(16), bias.bfloat16(), cache.bfloat16()
    kernels.attend(*(x.to(META) for x in given), early=capability >= 90)
names = {one.name for one in compiled.values()}
wanted = "_few _some _norm _gated _attend _cut _top _draw _decide"
assert names == set(wanted.split()), names
early = {one.launch_pdl for one in compiled.values() if one.name in ("_few", "_some", "_attend")}
assert early == {capability >= 90}, early
most = max(one.shared for one in compiled.values())
assert most <= 99 * 1024, most
print("compiled")
"""

# whatever a visitor's top-k is divided by, a cut is the same kernel
CUTS = """
from lantern_demo.kernels import selection

for k in (1, 1000, 1008):
    selection.cut(torch.empty(2, 16384, device="meta"), k, True)
print(*(one.name for one in compiled.values()))
"""


# what must print "alike" on a device that is named
ALIKE = [DEVICE + program for program in (MATMULS, LAYERS, SELECTIONS, DECISIONS, LAW)]


# runs each program that it reads in a fork, and writes what that printed
FORKS = """
import json
import os
import sys
import traceback
import small_models

for line in sys.stdin:
    program, words, variables = json.loads(line)
    end, beginning = os.pipe()
    if not os.fork():
        os.dup2(beginning, 1)
        sys.argv[1:] = words
        os.environ.update(variables)
        try:
            exec(program, {})
        except BaseException:
            print(traceback.format_exc())
        sys.stdout.flush()
        os._exit(0)
    os.close(beginning)
    with open(end) as told:
        text = told.read()
    os.wait()
    print(json.dumps(text), flush=True)
"""

# (program, words, variables) -> what the program prints
Prints = Callable[..., str]


@contextmanager
def forks(**variables: str) -> Iterator[Prints]:
    """Give what runs programs of this project under some variables."""
    here = Path(__file__).parent
    paths = {"PYTHONPATH": os.pathsep.join(map(str, (here / "helpers", here, here.parent)))}
    with subprocess.Popen(
        [sys.executable, "-c", FORKS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **paths, **variables},
    ) as running:
        asked, told = running.stdin, running.stdout
        assert asked is not None and told is not None

        def prints(program: str, *words: str, **more: str) -> str:
            asked.write(json.dumps([program, words, more]) + "\n")
            asked.flush()
            return json.loads(told.readline())

        yield prints


@pytest.fixture(scope="module")
def interpreted() -> Iterator[Prints]:
    """What runs programs in Triton's interpreter, with kernels on."""
    with forks(TRITON_INTERPRET="1", LANTERN_KERNELS="1") as prints:
        yield prints


@pytest.fixture(scope="module")
def prints() -> Iterator[Prints]:
    """What runs programs outside it."""
    with forks() as prints:
        yield prints


@triton_alone
@pytest.mark.parametrize("program", ALIKE)
def test_kernels_compute_what_the_modules_do(program: str, interpreted: Prints) -> None:
    assert interpreted(program, "cpu") == "alike\n"


@triton_alone
@pytest.mark.parametrize(
    ("model", "methods"),
    [
        ("shallow", ("eagle1", "lantern", "sjd")),
        ("guided drafter with feature layers", ("lantern++",)),
    ],
)
def test_runs_through_kernels_draw_the_same_tokens(
    model: str, methods: tuple[str, ...], interpreted: Prints
) -> None:
    assert interpreted(RUNS, model, *methods) == "alike\n"


@triton_alone
@pytest.mark.parametrize("capability", ["86", "90"])
def test_all_that_a_step_launches_compiles_and_fits_an_rtx_3090(
    capability: str, tmp_path: Path, prints: Prints
) -> None:
    told = prints(COMPILER + COMPILED, capability, TRITON_CACHE_DIR=str(tmp_path))
    assert told == "compiled\n"


@triton_alone
def test_a_visitors_top_k_compiles_nothing(tmp_path: Path, prints: Prints) -> None:
    assert prints(COMPILER + CUTS, "86", TRITON_CACHE_DIR=str(tmp_path)) == "_cut\n"


@triton_alone
def test_an_error_of_a_kernel_refuses_all_and_is_stated(interpreted: Prints) -> None:
    assert interpreted(FAULT) == "alike\n"


@pytest.mark.parametrize("fault", ["absent", "broken", "old"])
def test_without_triton_modules_draw(fault: str, interpreted: Prints) -> None:
    assert interpreted(WITHOUT, fault) == "alike\n"


@triton_alone
def test_the_variable_is_checked_and_turns_kernels_on(interpreted: Prints) -> None:
    told = interpreted(RUNS, "shallow", LANTERN_KERNELS="yes")
    assert "LANTERN_KERNELS is 'yes'; allowed are 0 (off) and 1 (on)" in told
    off = "False without kernels: LANTERN_KERNELS=1 turns them on\n"
    assert interpreted(OFF, "unset") == interpreted(OFF, LANTERN_KERNELS="0") == off


CUDA = torch.device("cuda", 0)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """What changes a card of 9.0 that no variable mentions."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(switch, "INTERPRETED", False)
    monkeypatch.delenv("LANTERN_KERNELS", raising=False)
    return monkeypatch


def test_by_default_a_card_runs_none(card: pytest.MonkeyPatch) -> None:
    assert not switch.on(CUDA)
    off = switch.ops_of(CUDA, 60)
    assert type(off) is Ops and off.reason == "without kernels: LANTERN_KERNELS=1 turns them on"
    card.setenv("LANTERN_KERNELS", "1")
    assert switch.on(CUDA)


@pytest.mark.parametrize("other", ["older", "AMD", "lent"])
def test_other_cards_run_none_and_the_record_has_no_reason(
    other: str, card: pytest.MonkeyPatch
) -> None:
    if other == "older":
        card.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    if other == "AMD":
        card.setattr(torch.version, "hip", "6.4")
    if other == "lent":
        card.setattr(switch, "LENT", True)
    card.setenv("LANTERN_KERNELS", "1")
    assert not switch.on(CUDA) and switch.ops_of(CUDA, 60).reason == ""


def test_a_compiler_that_fails_is_named_without_its_command() -> None:
    @guarded
    def launch() -> None:
        raise subprocess.CalledProcessError(1, ["/usr/bin/gcc", "/tmp/tmp1/main.c"])

    with pytest.raises(KernelError) as found:
        launch()
    said = "without kernels: the C compiler failed; it needs Python's headers"
    assert why_off(found.value) == said


def test_an_error_of_a_kernel_is_no_refused_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also once memory was freed: the run begins anew, and is captured without kernels."""
    ends = iter([torch.OutOfMemoryError(), KernelError("no")])

    def capture(self: GraphRunner, shape: Any) -> Any:
        raise next(ends)

    monkeypatch.setattr(GraphRunner, "_capture", capture)
    runner = object.__new__(GraphRunner)
    runner.free, runner.graphs, runner.clock = lambda: True, {}, Clock("cpu")
    with pytest.raises(KernelError):
        runner._graph("a shape")  # type: ignore[arg-type]
    assert not runner.reason
