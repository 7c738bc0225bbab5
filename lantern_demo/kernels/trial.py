"""The trial of Triton kernels at load: on this very card they compute what modules do.

A kernel that a compiler, a driver or a card gets wrong raises nothing: it draws wrong pictures. So
before any picture the first and the last layer read some nodes, by kernels and by modules. The
judge is the layer in float32, since modules round too. On a GPU all layers are also replayed as a
captured graph, which must give the same bits. Operations of the law are compared with PyTorch's.

The kernels of these sizes are those of the usual steps, so that little is compiled in vain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lantern_demo.decoding.accept import Children, Verdict
from lantern_demo.decoding.cache import ALIGNED, KVCache
from lantern_demo.decoding.ops import PYTORCH
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule
from lantern_demo.decoding.sampling import TINY, Sampling, scores
from lantern_demo.kernels.launch import INTERPRETED
from lantern_demo.kernels.layer import FusedLayer, fused, starts_early
from lantern_demo.kernels.selection import WIDEST, Fused

# In Triton's interpreter a trial takes minutes.
LEFT_OUT = INTERPRETED
# Rows, nodes, and the share of a picture's tokens before them: every kernel of layers, and every
# block of `attend`.
CASES = ((1, 1, 0.0), (2, 1, 1.0), (1, 5, 0.3), (2, 6, 0.6), (2, 16, 1.0), (2, 37, 0.9))
REPLAYED = CASES[1], CASES[4]
REPLAYS = 3  # of the captured layers; a start that is too early shows in few
SLOTS = 64  # a step's slots are a multiple of these
# Kernels may be this many times as far from float32 as modules, which count as off by a rounding at
# least. Float32 itself is computed by three of TF32.
WORSE = 4.0
ROUNDING = {torch.float32: 2.0**-14, torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
DRAWN, FIXED = 4, 10  # children of a node of the usual static and dynamic trees


class WrongNumbers(RuntimeError):
    """Kernels compute something else than modules."""


class Nodes(NamedTuple):
    """The inputs of a layer, without its cache."""

    x: Tensor  # [R, n, H]
    rotation: Tensor  # [1, n, 3, 1, d / 2]
    bias: Tensor  # [R, 1, n, S]
    slots: Tensor  # [n]


def passed(device: torch.device, vocabulary: int, networks: Sequence[Any]) -> Fused:
    """Return operations that have passed on rows of a vocabulary, and give networks their layers.

    Raises as `layers_of`.
    """
    layers = [layers_of(network) for network in networks]
    if not LEFT_OUT and vocabulary <= WIDEST:
        check_operations(vocabulary, device)
    for network, own in zip(networks, layers, strict=True):
        network.fused = own
    return Fused(networks)


# -- layers


def layers_of(network: Any) -> list[FusedLayer]:
    """Return the layers of a prepared `llama.Decoder` in kernels; none if one does not fit.

    Kernels start early where the card can and that passes. Raises WrongNumbers, and whatever a
    launch raises.
    """
    device = network.rope.device
    if starts_early(device):
        try:
            return _checked(network, early=True)
        except Exception:  # such as a capture that refuses early starts
            torch.cuda.synchronize(device)  # raises a fault of the device itself
    return _checked(network, early=False)


def _checked(network: Any, early: bool) -> list[FusedLayer]:
    layers = fused(network.layers, early)
    if layers and not LEFT_OUT:
        check_layers(network, layers)
    return layers


def check_layers(network: Any, layers: Sequence[Any]) -> None:
    """Raise WrongNumbers if layers in kernels differ from a network's modules."""
    for at in sorted({0, len(layers) - 1}):
        for case in CASES:
            _check_layer(network, layers[at], at, case)
    if network.rope.is_cuda:
        for case in REPLAYED:
            _check_replays(layers, *_nodes(network, *case), _in_words(case))


def _in_words(case: tuple[int, int, float]) -> str:
    return f"(rows {case[0]}, nodes {case[1]})"


def _check_layer(network: Any, kernel: Any, at: int, case: tuple[int, int, float]) -> None:
    layer, dtype = network.layers[at], network.embed_tokens.weight.dtype
    nodes, old = _nodes(network, *case)
    sound = old.nan_to_num()  # modules give slots that they do not see a weight of 0
    exact, written = _by(
        [layer if dtype == torch.float32 else deepcopy(layer).float()],
        nodes._replace(x=nodes.x.float(), bias=nodes.bias.float()),
        sound.float(),
    )
    wanted, _ = _by([layer], nodes, sound)
    found, cache = _by([kernel], nodes, old)
    # large numbers of a few channels must not hide errors of others
    spread = nodes.x.float().abs() + exact.abs() + (exact - nodes.x).abs().mean()
    least = ROUNDING[dtype]
    off, allowed = _off(found, exact, spread), WORSE * max(least, _off(wanted, exact, spread))
    if not off <= allowed:  # also NaN
        told = f"layer {at + 1} is off by {off:.1e}, {allowed:.1e} allowed"
        raise WrongNumbers(f"{told} {_in_words(case)}")
    written = written[..., nodes.slots, :]
    spread = written.abs() + written.abs().mean()
    if not _off(cache[..., nodes.slots, :], written, spread) <= WORSE * least:
        raise WrongNumbers(f"layer {at + 1} writes other keys or values {_in_words(case)}")
    kept, before = (_bits(x.index_fill(3, nodes.slots, 0.0)) for x in (cache, old))
    if not torch.equal(kept, before):
        raise WrongNumbers(f"layer {at + 1} writes to other slots {_in_words(case)}")


def _nodes(network: Any, rows: int, count: int, share: float) -> tuple[Nodes, Tensor]:
    """Return random nodes, and a cache [1, R, 2 heads, slots, d] of random slots before them.

    The slots after these, which no pass has written, are NaN.
    """
    c, weight = network.config, network.embed_tokens.weight
    device = weight.device
    here: Any = {"device": device, "generator": torch.Generator(device).manual_seed(count)}
    first = c.prefix + int(share * c.tokens)
    end = -(-(first + count) // SLOTS) * SLOTS
    x = network.embed(torch.randint(c.vocab, (rows, count), **here)).clone()
    places = torch.randint(len(network.turns), (1, count), **here)
    slots = torch.arange(first, first + count, device=device)
    # few slots, so that each of them matters; the first and the last of them always
    visible = torch.rand(count, end, **here) < 6 / first
    visible[:, [0, first - 1]] = True
    visible[:, first:] = False
    tree = torch.rand(count, count, **here).tril() > 0.5
    visible[:, slots] = tree | (slots == slots.unsqueeze(1))
    bias = torch.zeros(rows, 1, count, end, dtype=weight.dtype, device=device)
    bias.masked_fill_(~visible, -torch.inf)
    bias[1:, ..., :3] = -torch.inf  # padding of a prompt
    sizes = 1, rows, 2 * c.heads, end + ALIGNED, c.head_dim
    old = torch.randn(sizes, **here).to(weight.dtype)
    old[..., first:, :] = torch.nan
    return Nodes(x, network.turns[places], bias, slots), old


def _by(layers: Sequence[Any], nodes: Nodes, old: Tensor) -> tuple[Tensor, Tensor]:
    """Return what layers, one after another, make of nodes, and the cache that they share."""
    _, rows, both, slots, d = old.shape
    cache = KVCache(1, rows, both // 2, slots, d, dtype=old.dtype, device=old.device)
    cache.storage.copy_(old)
    (store,) = cache.stores(nodes.slots, nodes.bias.shape[-1])
    x = nodes.x.clone()  # kernels overwrite it
    for layer in layers:
        x = layer(x, nodes.rotation, nodes.bias, store, len(nodes.slots))
    return x.float(), cache.storage


def _off(found: Tensor, exact: Tensor, spread: Tensor) -> float:
    return float(((found.float() - exact) / spread).abs().max())


def _bits(x: Tensor) -> Tensor:
    return x.view(torch.int32 if x.element_size() == 4 else torch.int16)


def _check_replays(layers: Sequence[Any], nodes: Nodes, old: Tensor, words: str) -> None:
    """Raise WrongNumbers unless captured layers give the bits of eager ones."""
    wanted, here = _by(layers, nodes, old)[0], torch.cuda.current_stream(old.device)
    # torch's own stream would be that of the card that captured first
    stream, graph = torch.cuda.Stream(old.device), torch.cuda.CUDAGraph()
    stream.wait_stream(here)
    try:
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            found = _by(layers, nodes, old)[0]
    finally:  # a failed end of a capture raises before torch restores the stream
        torch.cuda.set_stream(here)
    for _ in range(REPLAYS):
        graph.replay()
        if not torch.equal(found, wanted):
            raise WrongNumbers(f"replayed layers differ from eager ones {words}")


# -- the operations of the law


def check_operations(vocabulary: int, device: torch.device) -> None:
    """Raise WrongNumbers if an operation on rows of a vocabulary differs from PyTorch's."""
    here: Any = {"device": device, "generator": torch.Generator(device).manual_seed(0)}
    for told, alike in (*_selections(vocabulary, here), *_decisions(vocabulary, here)):
        if not alike:
            raise WrongNumbers(f"{told} of {vocabulary} tokens differs from PyTorch's")


def _selections(vocabulary: int, here: Any) -> Iterator[tuple[str, bool]]:
    """Yield the name of each selection, and whether it is right."""
    ops, x = Fused(), 3 * torch.randn(5, vocabulary, **here)
    x[1] = x[1].round()  # ties
    x[2, ::2] = -torch.inf
    x[3] *= 1e30
    for k in sorted({1, vocabulary // 16 + 1, vocabulary - 1}):
        found, wanted = (scores(x, Sampling(top_k=k), False, by.cut) for by in (ops, PYTORCH))
        yield "a cut", torch.equal(found, wanted)
    best, tokens = ops.top(x, DRAWN)
    wanted = x.topk(DRAWN).values
    yield "the top", torch.equal(best, wanted[:, 0]) and torch.equal(x.gather(1, tokens), wanted)
    q = x[:3].softmax(-1)
    u = torch.rand(3, DRAWN, **here).clamp(min=TINY)
    yield "a draw", _drawn(q, u[:, :1], ops.draw(q, u[:, 0]).unsqueeze(1))
    yield "a draw", _drawn(q, u, ops.draw_in_turn(q, u))


def _drawn(q: Tensor, u: Tensor, tokens: Tensor) -> bool:
    """Return whether tokens [P, C] are drawn in turn from q [P, V] at uniforms u [P, C].

    Where nothing is left to draw, any token is.
    """
    if int(tokens.min()) < 0 or int(tokens.max()) >= q.shape[1]:
        return False
    left = q.double()
    for token, height in zip(tokens.split(1, 1), u.double().split(1, 1), strict=True):
        sums = left.cumsum(1)
        mass, here, upto = sums[:, -1:], left.gather(1, token), sums.gather(1, token)
        at, slack = height * mass, 1e-9 * mass
        near = (upto >= at - slack) & (upto - here <= at + slack) & (here > 0)
        if not bool((near | (mass == 0)).all()):
            return False
        left = left.scatter(1, token, 0.0)
    return True


def _decisions(vocabulary: int, here: Any) -> Iterator[tuple[str, bool]]:
    device, nodes = here["device"], 5
    p, q = (3 * torch.randn(2, nodes, vocabulary, **here)).softmax(-1)
    width, few, many = (min(count, vocabulary // 2) for count in (FIXED, 10, 1000))
    each = torch.arange(vocabulary, device=device)
    table = ((each.unsqueeze(1) + each[1 : many + 1]) % vocabulary).int()
    u = torch.rand(nodes, max(DRAWN, width) + 1, **here).clamp(min=TINY)
    drawn = PYTORCH.draw_in_turn(q, u[:, :DRAWN])
    drawn[0, 2:] = -1
    fixed = p.topk(width).indices
    fixed[1:, width // 2 :] = -1
    for rule, tokens, of in (
        (Rule(), drawn, q),
        (Rule(), fixed, None),
        (Lantern(many, 0.2), fixed, None),
        (LanternPlusPlus(few, 3.0), drawn, q),
    ):
        children = Children(tokens, of, table, torch.zeros(nodes, 1, device=device))
        found, wanted = (ops.decide(rule, p, children, u) for ops in (Fused(), PYTORCH))
        yield f"a decision by {type(rule).__name__}", _alike(found, wanted)


def _alike(found: Verdict, wanted: Verdict) -> bool:
    """Return whether two verdicts agree, except where rounding decides."""
    tried, pairs = wanted.tried, [(found.residual, wanted.residual)]
    for name in ("mass", "score", "threshold"):
        pairs.append((getattr(found, name)[tried], getattr(wanted, name)[tried]))
    # NaN: a rule has left nothing to the drafts after one
    same = all(torch.allclose(*pair, rtol=1e-3, atol=1e-6, equal_nan=True) for pair in pairs)
    sure = tried & ((wanted.score - wanted.threshold).abs() > 1e-5)
    same = same and torch.equal(found.accepted & sure, wanted.accepted & sure)
    if found.relaxed is not None and wanted.relaxed is not None:
        sure = tried & ((wanted.mass - wanted.threshold).abs() > 1e-5)
        same = same and torch.equal(found.relaxed & sure, wanted.relaxed & sure)
    return same and torch.equal(found.tried, tried)
