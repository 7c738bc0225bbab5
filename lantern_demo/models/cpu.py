"""LLaMA layers on a CPU: few, large operations, and the same bits for a node in any pass.

One matmul computes queries, keys and values, another gate and up; the rotation is one complex multiplication. All numbers are
float32, except in the matmuls of some `matmul.KINDS`.

Rows are exact: a node's numbers depend neither on the number of nodes in the pass, nor on the slots of its ancestors. Library
matmuls and attention do not offer that, because they split a sum by the shape of the whole call. So both halves of attention
are weighted sums of a table's rows. PyTorch computes each sum separately, row after row. The rows that a node sees stand in the
order of positions, its ancestors last. Hidden rows follow with the weight 0, and adding 0 changes no sum. `matmul.ROW_EXACT`
lists the kinds of matmul that are exact in this sense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_demo.decoding.cache import KVCache, check_sizes, end_of
from lantern_demo.models.llama import LlamaLayer
from lantern_demo.models.machine.matmul import Matmul, filled

WIDENED = 64  # slots by which the table of keys grows, LEAST or more
LEAST = 64  # fewest positions of a softmax: below a vector register's width it sums in another order
ALONE = 2**22  # multiplications up to which one thread attends faster than several that must wake up first
SERIAL = 2**15  # numbers of one elementwise operation that PyTorch never splits among threads


def complex_rope(rope: Tensor, heads: int) -> Tensor:
    """Convert a rotary table [S, d / 2, 2] (cos, sin) to [S, 3 heads * d / 2] complex64 for queries, keys and values.

    Queries are scaled for attention as they turn; values do not turn.
    """
    rotation = torch.view_as_complex(rope.float().contiguous()).unsqueeze(1).expand(-1, heads, -1)
    return torch.cat((rotation * (2 * rotation.shape[-1]) ** -0.5, rotation, torch.ones_like(rotation)), 1).flatten(1)


def paired(rows: Tensor, heads: int) -> Tensor:
    """Order the rows [heads * d, ...] of queries or keys so that pairs (i, i + d / 2) of each head are adjacent.

    `complex_rope` turns adjacent pairs. Scores sum over a whole head, so they do not depend on the order.
    """
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(rows.shape)


def by_rows(function: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """Make an elementwise function of tensors [..., M, W] take so few rows at once that one thread computes them all.

    When PyTorch splits an operation among threads, other instructions compute numbers at the seams, and the last bit may
    differ.
    """
    first = operands[0]
    if first.numel() <= SERIAL:
        return function(*operands)
    fit = max(1, SERIAL * first.shape[-2] // first.numel())
    return torch.cat([function(*some) for some in zip(*(o.split(fit, -2) for o in operands), strict=True)], -2)


def weighted_rows(table: Tensor, rows: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    """Return sums [B, W] of weighted rows of a table [N, W]. Sum b takes rows[starts[b] : starts[b + 1]] in this order, each
    times its weight: rows and weights [I], starts [B], int32."""
    return torch.embedding_bag(table, rows, starts, False, 0, False, weights, False)[0]


class Norm:
    """RMSNorm: x [M, D] -> x / sqrt(mean(x^2) + eps) times a weight [D]. Its small operations are rounded correctly, so that
    all instruction sets give the same result."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        dim = weight.shape[0]
        self.weight, self.floor = weight.float() * dim**0.5, torch.tensor(dim * eps)

    def __call__(self, x: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().add_(self.floor).sqrt_()
        return (x / length).mul_(self.weight)


class Tables(NamedTuple):
    """The tensors to which a layer writes, and the tables that it reads."""

    new_keys: Tensor  # [R, heads, d, n], or all slots if the pass names its slots
    new_values: Tensor  # [R, heads, n, d], or all slots
    keys: Tensor  # [R * heads * d, width]
    values: Tensor  # [R * heads * slots, d]


class Sight(NamedTuple):
    """The slots that the nodes of a pass see, shared by all layers.

    Rows and starts are those of `weighted_rows`, for R * n * heads sums. Empty sums, which are 0, follow for rows of padding.
    """

    key_rows: Tensor
    key_starts: Tensor
    value_rows: Tensor
    value_starts: Tensor
    positions: int  # P, positions in each softmax
    slots: Tensor | None  # [n, P] int64, the slots of the positions; None: the first P
    bias: Tensor | None  # [R or 1, n, 1, P] float32, 0 for visible slots, -inf for others; None: all are visible
    filled: int  # rows of x: R * n, and those that pad the matmuls


Where = tuple[Sight, Tables, Tensor | None]  # and the slots [n] of the tables to write to, if the tables are whole


class LeanCache(KVCache):
    """A cache whose keys and values are tables for weighted sums of their rows.

    `keys` [layers, R, heads, d, width] have the slots last, and `values` are [layers, R, heads, slots, d]. The width of `keys`
    grows with the slots in use, since a sum is as wide as its table.
    """

    def __init__(self, layers: int, rows: int, heads: int, slots: int, head_dim: int) -> None:
        check_sizes(layers, rows, heads, slots, head_dim)
        self.values = torch.zeros(layers, rows, heads, slots, head_dim)
        self._keep(self.values.new_zeros(layers, rows, heads, head_dim, 0))
        self.padding = self.values.new_zeros(rows, 1, 1, slots)
        self.seen, self.hidden = torch.tensor(0.0), torch.tensor(-torch.inf)
        self.key_sums: dict[int, tuple[Tensor, Tensor]] = {}  # rows and starts by the number of nodes
        heads_of = torch.arange(rows * heads, dtype=torch.int32).view(rows, 1, heads, 1)
        self.first_keys, self.first_values = heads_of * head_dim, heads_of * slots  # each head's first row in its table

    def _keep(self, keys: Tensor) -> None:
        self.keys, self.k, self.v = keys, keys.transpose(3, 4), self.values

    @property
    def slots(self) -> int:
        """The number of slots."""
        return self.values.shape[3]

    def wipe(self) -> None:
        self.start(0)
        self.keys.zero_()
        self.values.zero_()

    def move(self, source: Tensor, slots: Tensor) -> None:
        self.keys.index_copy_(4, slots, self.keys.index_select(4, source))
        self.values.index_copy_(3, slots, self.values.index_select(3, source))

    def tables(self, first: int, count: int) -> Iterator[Tables]:
        """Return by layer where to write `count` slots from `first` on, and the tables."""
        self._widen(first + count)
        layers, head_dim, width = len(self.keys), *self.keys.shape[3:]
        whole = self.keys.view(layers, -1, width), self.values.view(layers, -1, head_dim)
        new = self.keys.narrow(4, first, count), self.values.narrow(3, first, count)
        return map(Tables, *(part.unbind(0) for part in (*new, *whole)))

    def _widen(self, slots: int) -> None:
        """Make room for the keys of the first `slots` slots."""
        *sizes, width = self.keys.shape
        if slots > width:
            wider = self.keys.new_zeros(*sizes, -(-slots // WIDENED) * WIDENED)
            wider[..., :width] = self.keys
            self._keep(wider)

    def plan(
        self, positions: Tensor, slots: Tensor, visible: Tensor | None, kind: str
    ) -> tuple[Sight, Iterator[Tables], Tensor | None]:
        """Return the slots that a pass's nodes see, the tables by layer, and the slots that they write (None: all).

        positions, slots and visible are as in `interfaces.Target.forward`; kind is one of `matmul.KINDS`.
        """
        at, places = slots.tolist(), positions.tolist()
        if at == list(range(at[0], at[0] + len(at))):
            tables, into = self.tables(at[0], len(at)), None
        else:
            tables, into = self.tables(0, end_of(slots, visible)), slots
        if visible is None:
            end = at[-1] + 1
            return self.sight(1, end, kind, self.padding[..., :end] if self.padded else None), tables, into
        order = None
        if at != places:  # a tree that branches: its nodes follow the committed slots, level by level
            end = self._least(places[-1] + 1)
            order = torch.arange(end).repeat(len(at), 1)
            node, ancestor = visible[:, at[0] :].nonzero().unbind(1)
            order[node, positions[ancestor]] = ancestor + at[0]
            visible = torch.arange(end) <= positions.unsqueeze(1)
        bias = torch.where(visible, self.seen, self.hidden)[None, :, None]
        if self.padded:
            bias = bias + self.padding[..., : bias.shape[-1]]
        return self.sight(len(at), bias.shape[-1], kind, bias, order), tables, into

    def sight(self, nodes: int, positions: int, kind: str, bias: Tensor | None, slots: Tensor | None = None) -> Sight:
        """Return the sight of `nodes` nodes over `positions` positions, at least LEAST; slots and bias are as in `Sight`, kind
        is the kind of matmul."""
        rows, _, heads, _ = self.first_values.shape
        if nodes not in self.key_sums:
            head_dim = self.keys.shape[3]
            key_rows = self.first_keys + torch.arange(head_dim, dtype=torch.int32)
            key_rows = key_rows.expand(-1, nodes, -1, -1).reshape(-1)
            self.key_sums[nodes] = key_rows, torch.arange(0, len(key_rows), head_dim, dtype=torch.int32)
        if positions < (least := self._least(positions)):
            bias = F.pad(torch.zeros(1, nodes, 1, positions) if bias is None else bias, (0, least - positions), value=-torch.inf)
            positions = least
        columns = torch.arange(positions, dtype=torch.int32) if slots is None else slots.int().unsqueeze(1)
        value_rows = (self.first_values + columns).expand(-1, nodes, heads, -1).reshape(-1)
        count = filled(rows * nodes, kind)
        value_starts = torch.arange(0, count * heads * positions, positions, dtype=torch.int32)
        if count > rows * nodes:
            value_starts.clamp_(max=len(value_rows))
        return Sight(*self.key_sums[nodes], value_rows, value_starts, positions, slots, bias, count)

    def _least(self, positions: int) -> int:
        """Return the number of positions in a softmax that needs `positions`."""
        return max(positions, min(LEAST, self.slots))


def bias_of(mask: Tensor) -> Tensor:
    """Turn a mask [R or 1, 1, n, S] bool, True for visible slots, into the bias of a `Sight`."""
    return torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf).transpose(1, 2)


def sums_seen(q: Tensor, sight: Sight, tables: Tables) -> Tensor:
    """Attend with queries [R, n, heads, d], scaled for attention -> [R * n * heads, d]."""
    rows, n, heads, _ = q.shape
    threads = torch.get_num_threads()
    if q.numel() * sight.positions <= ALONE:
        torch.set_num_threads(1)  # for this thread of the program alone; takes a fraction of a microsecond
    try:
        scores = weighted_rows(tables.keys, sight.key_rows, sight.key_starts, q.reshape(-1)).view(rows, n, heads, -1)
        if sight.slots is None:
            scores = scores[..., : sight.positions]
        else:
            scores = scores.gather(3, sight.slots.unsqueeze(1).expand(rows, n, heads, -1))
        if sight.bias is not None:
            scores = scores + sight.bias
        return weighted_rows(tables.values, sight.value_rows, sight.value_starts, scores.softmax(-1).view(-1))
    finally:
        torch.set_num_threads(threads)


class LeanLayer(LlamaLayer[Where]):
    """A layer of fused matmuls over nodes x [M, D], M of all rows together; `before` is None for a layer without a norm before
    attention."""

    def __init__(
        self, before: Matmul | None, qkv: Matmul, out: Matmul, after: Matmul, gate_up: Matmul, down: Matmul, heads: int
    ) -> None:
        self.norm_before, self.norm_after = before or (lambda x: x), after
        self.qkv, self.heads = qkv, heads
        self.gate_up = lambda x: gate_up(x).chunk(2, 1)
        self.add_out = lambda x, attended: out(attended).add_(x)
        self.add_down = lambda x, gated: down(gated).add_(x)

    def attend(self, x: Tensor, rope: Tensor, where: Where) -> Tensor:
        """Write the keys and values of x [R * n, D], and attend with its queries -> [R * n, D]."""
        sight, tables, slots = where
        q, k, v = self.rotated(x, rope, tables.new_keys.shape[0]).unbind(2)
        if slots is None:
            tables.new_keys.copy_(k.permute(0, 2, 3, 1))
            tables.new_values.copy_(v.transpose(1, 2))
        else:
            tables.new_keys.index_copy_(3, slots, k.permute(0, 2, 3, 1))
            tables.new_values.index_copy_(2, slots, v.transpose(1, 2))
        return sums_seen(q, sight, tables).view(x.shape)

    def rotated(self, x: Tensor, rope: Tensor, rows: int) -> Tensor:
        """Queries, scaled for attention, keys and values [R, n, 3, heads, d] of x [R * n, D]."""
        qkv, nodes = self.qkv(x), rope.shape[0]  # len() of a tensor is Python code in PyTorch
        qkv = qkv if qkv.shape[0] == rows * nodes else qkv[: rows * nodes]
        rotated = by_rows(torch.mul, qkv.view(torch.complex64).view(rows, nodes, -1), rope)
        return rotated.view(torch.float32).view(rows, nodes, 3, self.heads, -1)

    def gated(self, gate: Tensor, up: Tensor) -> Tensor:
        return by_rows(F.silu, gate).mul_(up)
