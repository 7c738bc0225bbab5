"""Kernels compute what modules and PyTorch do, on a GPU or in Triton's interpreter on a CPU."""

from collections.abc import Iterator
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_demo.decoding.accept import Children
from lantern_demo.decoding.cache import KVCache
from lantern_demo.decoding.ops import PYTORCH
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule
from lantern_demo.decoding.sampling import Sampling, scores
from lantern_demo.kernels import layer as kernels
from lantern_demo.kernels import selection
from lantern_demo.kernels.launch import INTERPRETED
from lantern_demo.kernels.layer import FEW, SOME, linear
from lantern_demo.models.llama import Layer, angles, rotations

HERE = torch.device("cpu") if INTERPRETED else torch.device("cuda", 0)
HALF = torch.float16 if INTERPRETED else torch.bfloat16  # the interpreter has no bfloat16
LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
ROWS = [
    (dtype, rows)
    for dtype in (torch.float32, HALF)
    for rows in (1, FEW, FEW + 1, 9, SOME, SOME + 1)
    # on a processor the library has no wide sums
    if rows <= SOME or dtype == torch.float32 or not INTERPRETED
]
FUSED = selection.Fused()
SIZES = [(37, 192)] if INTERPRETED else [(37, 192), (1280, 3584), (3584, 1280)]


@pytest.fixture(autouse=True)
def _here() -> Iterator[None]:
    torch.backends.cuda.matmul.allow_tf32 = False
    with HERE, torch.inference_mode():
        yield


@pytest.mark.parametrize(("dtype", "rows"), ROWS)
@pytest.mark.parametrize(("outputs", "k"), SIZES)
def test_products(outputs: int, k: int, dtype: torch.dtype, rows: int) -> None:
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
        assert (found.float() - wanted).abs().max() / wanted.abs().max() < LIMITS[dtype]


def layers(
    dtype: torch.dtype, rows: int, nodes: int, norm_before: bool = True, gap: int = 0
) -> list[tuple[Tensor, Tensor]]:
    """What kernels and modules make of some nodes, and of the caches. gap: between the slots."""
    torch.manual_seed(nodes)
    heads, dim = 2, 64
    layer = Layer(dim, heads, 128, 0.1, norm_before)
    for weight in layer.parameters():
        weight.add_(0.3 * torch.randn(weight.shape) if weight.dim() == 1 else 0)
    layer.to(dtype).join()
    slots = torch.arange(nodes) + 35  # behind more than a block of float32 slots
    slots[1:] += gap
    places = torch.randint(0, 50, (1 if dtype == HALF else rows, nodes))
    rotation = rotations(angles(50, 32, 100.0)[places])
    visible = torch.rand(nodes, 72) < 0.5
    visible[:, 8] = True
    visible[:, 35 + nodes :] = False
    padding = torch.zeros(rows, 1, 1, 72, dtype=dtype)
    padding[1:, ..., :3] = -torch.inf
    bias = torch.where(visible[None, None], padding, torch.tensor(-torch.inf, dtype=dtype))
    x = torch.randn(rows, nodes, dim, dtype=dtype)
    old = torch.randn(2, rows, 2 * heads, 80, 32)
    found = []
    for by in (kernels.FusedLayer(layer, kernels.starts_early(HERE)), layer):
        cache = KVCache(2, rows, heads, 80, 32, dtype=dtype, device=HERE)
        cache.storage.copy_(old)
        states = by(x.clone(), rotation, bias, cache.stores(slots, 72)[1], nodes)
        found.append((states, cache.storage))
    return list(zip(*found, strict=True))


@pytest.mark.parametrize(
    ("dtype", "rows", "nodes", "norm_before"),
    [
        (torch.float32, 2, 1, True),
        (torch.float32, 2, 5, True),
        (torch.float32, 2, 16, False),
        (torch.float32, 2, 37, True),
        (HALF, 2, 1, True),
        (HALF, 2, 16, True),
        (HALF, 1, 19, True),  # not all slots at once, but a block after another
    ],
)
def test_layers(dtype: torch.dtype, rows: int, nodes: int, norm_before: bool) -> None:
    for one, other in layers(dtype, rows, nodes, norm_before):
        assert (one - other).float().norm() / other.float().norm() < LIMITS[dtype]


def test_slots_with_a_gap_are_refused() -> None:
    (states, _), _ = layers(torch.float32, 2, 5, gap=1)
    assert states.isnan().all()


def test_half_of_16_numbers_is_no_block_of_a_dot() -> None:
    narrow = Layer(64, 4, 128, 0.1)
    narrow.join()
    assert not kernels.fits(narrow)


@pytest.mark.parametrize("width", [64, 1000])
@pytest.mark.parametrize("rows", [1, 3])
def test_selections(rows: int, width: int) -> None:
    torch.manual_seed(rows)
    x = torch.randn(rows, width)
    assert FUSED.fits(x)
    ties = x.mul(2).round().div(2)
    ties[:, ::7] = -0.0
    ties[:, 5] = torch.inf
    far = x * 1e38  # their differences are no float32
    far[:, 9:40] = -torch.inf
    same = torch.ones(rows, width)
    same[:, 8] = 1 - 2.0**-24  # the next number below
    for logits in (x, ties, -x.abs(), far, far.abs(), same):
        for k in (1, 17, width - 1):
            one, other = (
                scores(logits, Sampling(top_k=k), False, by.cut) for by in (FUSED, PYTORCH)
            )
            assert torch.equal(one, other), k
    best, tokens = zip(*(by.top(x, 3) for by in (FUSED, PYTORCH)), strict=True)
    assert torch.equal(*best) and torch.equal(*tokens)
    q = torch.randn(rows, width).mul(4).softmax(-1)
    q[:, 10:40] = 0.0
    u = torch.rand(rows, 3).clamp(min=2.0**-100)
    u[0, 0] = 2.0**-100
    one, other = (by.draw_in_turn(q, u) for by in (FUSED, PYTORCH))
    assert torch.equal(one, other) and (q.gather(1, one) > 0).all()
    for heights in (u[:, 0], u[:, 1], torch.full((rows,), 1 - 2.0**-24)):
        one, other = (by.draw(q, heights) for by in (FUSED, PYTORCH))
        assert torch.equal(one, other) and (q.gather(1, one[:, None]) > 0).all()
    few = torch.zeros(rows, width)
    few[:, [7, width - 1]] = 0.5
    drawn = FUSED.draw_in_turn(few, torch.full((rows, 3), 0.3))
    assert set(drawn[0, :2].tolist()) == {7, width - 1} and 0 <= int(drawn[0, 2]) < width
    for fault in (0.0, torch.nan, torch.inf):
        few[:] = fault
        assert FUSED.draw(few, torch.full((rows,), 0.3)).eq(width).all()
    x[0, 3] = torch.nan
    assert FUSED.top(x, 1)[0][0].isnan()
    assert scores(x, Sampling(top_k=5), False, FUSED.cut)[0, 3].isnan()


def drafts(nodes: int, width: int, drawn: bool) -> Children:
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


def test_decisions() -> None:
    seen = 0
    rules = Rule(), Lantern(20, 0.3), Lantern(1, 0.0), LanternPlusPlus(10, 3.0)
    rules += (Lantern(40, 1.0),)  # more than the table's columns
    for rule, drawn, (nodes, width) in product(rules, (True, False), ((1, 64), (4, 1000))):
        torch.manual_seed(nodes)
        p = (torch.randn(nodes, width) * 3).softmax(-1)
        children = drafts(nodes, width, drawn)
        u = torch.rand(nodes, 4)
        assert FUSED.fits(p) and selection.judges(rule, children)
        found, wanted = (by.decide(rule, p, children, u) for by in (FUSED, PYTORCH))
        tried = wanted.tried
        assert torch.equal(found.accepted, wanted.accepted) and torch.equal(found.tried, tried)
        torch.testing.assert_close(found.residual, wanted.residual, rtol=1e-4, atol=1e-7)
        for name in ("mass", "score", "threshold"):
            one, other = (getattr(verdict, name)[tried] for verdict in (found, wanted))
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-7)
        assert (found.relaxed is None) == (wanted.relaxed is None)
        if wanted.relaxed is not None:
            assert torch.equal(found.relaxed & wanted.accepted, wanted.relaxed & wanted.accepted)
        seen += int(wanted.accepted.sum())
        p[0] = torch.nan
        assert not FUSED.decide(rule, p, children, u).accepted[0].any()
        # a rejection would leave nothing, and rounding lets the score only reach the threshold
        edge = torch.zeros(1, width)
        edge[0, 5] = 1 - 2.0**-24
        alone = children._replace(tokens=torch.tensor([[5, -1, -1]]), q=None)
        assert FUSED.decide(rule, edge, alone, torch.full((1, 4), 1 - 2.0**-24)).accepted[0, 0]
    assert seen > 4
    own = type("Own", (Rule,), {})
    assert not selection.judges(own(), children)
