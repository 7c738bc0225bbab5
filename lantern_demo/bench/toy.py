"""Toy models with an exactly known distribution of sequences: tables of logits by prefix.

A sequence has `LENGTH` tokens out of `VOCAB`, few enough to list all sequences. A prefix is a node
of the tree of all prefixes, numbered level by level: the empty one is 0, and s followed by token t
is s * VOCAB + t + 1. The lookup uses only the tokens in the cache that the mask shows. A wrong
mask, depth or commit finds another row, and the sequences follow another distribution.

The models read nothing back, so that a GPU captures their steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding

from lantern_demo.decoding.cache import KVCache
from lantern_demo.decoding.interfaces import Pass
from lantern_demo.decoding.sampling import Sampling

VOCAB = 5
LENGTH = 5
# All prefixes that a token of the picture may follow; one more row stands for the states after its
# end.
PREFIXES = (VOCAB**LENGTH - 1) // (VOCAB - 1)
SEQUENCES = VOCAB**LENGTH
Array = NDArray[numpy.float64]


@dataclass(frozen=True)
class ToyCase:
    """How the tables are made and sampled.

    `runs` is how many runs find a distance of 0.05 from the exact distribution nine times in ten,
    by simulation (tests/test_audit.py). `spread` is the standard deviation of the target's logits.
    If `sharp`, one token has probability 1 - 1e-6 after a third of the prefixes. The drafter's
    third is drawn independently.
    """

    label: str
    runs: int
    sampling: Sampling
    spread: float = 1.2
    sharp: bool = False


CASES = {
    "flat": ToyCase("temperature 1, flat", 14_600, Sampling(), spread=0.5),
    "cold": ToyCase("temperature 0.5", 4_800, Sampling(temperature=0.5)),
    "top-k": ToyCase("top-k 3", 7_500, Sampling(top_k=3)),
    "top-p": ToyCase("top-p 0.8", 6_000, Sampling(top_p=0.8)),
    "sharp": ToyCase("one token has 1 - 1e-6", 9_300, Sampling(), sharp=True),
    "guided": ToyCase("CFG 3", 7_500, Sampling(cfg_scale=3.0), spread=0.6),
}


class Tables:
    """The logits of a case, drawn from a fixed seed.

    `target` and `drafter` are [2, PREFIXES + 1, VOCAB] float32, the conditional row first. The
    drafter's logits are 0.7 times the target's plus noise of deviation `spread`.
    """

    def __init__(self, case: ToyCase) -> None:
        generator = torch.Generator().manual_seed(2410_03355)
        shape = (2, PREFIXES + 1, VOCAB)
        self.case = case
        self.target = case.spread * torch.randn(shape, generator=generator)
        self.drafter = 0.7 * self.target + case.spread * torch.randn(shape, generator=generator)
        if case.sharp:
            for table in (self.target, self.drafter):
                behind = torch.rand(shape[:2], generator=generator) < 1 / 3
                # the first token is never sharp, or most prefixes would be rare
                behind[:, 0] = False
                token = torch.randint(VOCAB, (*shape[:2], 1), generator=generator)
                height = math.log((VOCAB - 1) * (1 - 1e-6) / 1e-6)
                table[behind] = torch.zeros(shape).scatter_(-1, token, height)[behind]

    def conditionals(self) -> Array:
        """Compute the target's probabilities [PREFIXES, VOCAB] float64 after every prefix.

        They follow the definitions and do not use `decoding.sampling`.
        """
        sampling = self.case.sampling
        cond, uncond = self.target[:, :PREFIXES].double().numpy()
        guided = uncond + sampling.cfg_scale * (cond - uncond)
        p = numpy.exp((guided - guided.max(1, keepdims=True)) / sampling.temperature)
        for row in p:
            order = (-row).argsort()
            row[order[sampling.top_k or VOCAB :]] = 0.0
            row /= row.sum()
            before = 0.0
            for token in order:
                share = row[token]
                if before > sampling.top_p:
                    row[token] = 0.0
                before += share
            row /= row.sum()
        return p

    def sequences(self) -> Array:
        """Compute the exact distribution [SEQUENCES] of whole sequences in lexicographic order."""
        return joint(self.conditionals())


def joint(conditionals: Array) -> Array:
    """Compute the distribution [SEQUENCES] of sequences from conditionals [PREFIXES, VOCAB]."""
    probs = numpy.ones(1)
    first = 0
    while len(probs) < SEQUENCES:
        last = first + len(probs)
        probs = (probs[:, None] * conditionals[first:last]).ravel()
        first = last
    return probs


def index_of(tokens: list[int]) -> int:
    """Return the index of a sequence in lexicographic order."""
    return int(numpy.ravel_multi_index(tokens, (VOCAB,) * LENGTH))


class _Cache(KVCache):
    """Stores each token plus 1, so that 0 stands for the slots before the picture."""

    def __init__(self, rows: int, slots: int, device: torch.device) -> None:
        super().__init__(1, rows, 1, slots, 1, device=device)
        self.digits = self.k[0, :, 0, :, 0]  # [R, slots], a view


class _Network:
    """The common part: a state indexes a row of the 2 (rows R) x 2 (target, drafter) tables."""

    def __init__(self, tables: Tables, device: torch.device) -> None:
        self.device = device
        self.rows = torch.stack([tables.target, tables.drafter], 1).flatten(0, 2).to(device)
        # states past the end share one
        self.first = 2 * (PREFIXES + 1) * torch.arange(2, device=device).unsqueeze(1)
        self.powers = float(VOCAB) ** torch.arange(64, dtype=torch.float64, device=device)
        self.caches: dict[tuple[int, int], _Cache] = {}

    def new_cache(self, rows: int, length: int) -> KVCache:
        """Return the cache of the previous run, emptied. Only one run at a time may use it."""
        cache = self.caches.get((rows, length))
        if cache is None:
            cache = self.caches[rows, length] = _Cache(rows, length + 1, self.device)
        cache.start(0)
        return cache

    def head(self, hidden: Tensor) -> Tensor:
        """Return the rows of logits [R, n, V] that the states [R, n, 1] name."""
        return embedding(hidden[..., 0].long(), self.rows)


class ToyTarget(_Network):
    """The target of a case's tables; one slot stands for the prompt. See `interfaces.Target`."""

    vocab_size = VOCAB

    def prefill(self, condition: Any, cache: _Cache) -> Tensor:
        cache.digits[:, 0] = 0
        cache.start(1)
        return self._states(cache.digits[:, :1])

    def forward(self, nodes: Pass, cache: _Cache) -> Tensor:
        """A position that a node does not see counts as before the picture."""
        cache.digits.index_copy_(1, nodes.slots, (nodes.tokens + 1.0).expand(cache.rows, -1))
        slots = torch.arange(nodes.end, device=self.device)
        visible = slots <= nodes.slots.unsqueeze(1) if nodes.visible is None else nodes.visible
        # of the slots' tokens
        positions = slots.index_copy(0, nodes.slots, nodes.positions)
        behind = (nodes.positions.unsqueeze(1) - positions).clamp(min=0)
        weights = torch.where(visible, self.powers[behind], 0.0)
        return self._states(cache.digits[:, : nodes.end].double() @ weights.t())

    def _states(self, prefix: Tensor) -> Tensor:
        """Return states [R, n, 1] of the target after prefixes [R, n]."""
        return (prefix.clamp(max=PREFIXES) + self.first[: len(prefix)]).float().unsqueeze(-1)


class ToyDrafter(_Network):
    """The drafter of a case's tables: an input state and the token after it identify the prefix.

    See `interfaces.Drafter`.
    """

    guided = False

    def __init__(self, tables: Tables, device: torch.device) -> None:
        super().__init__(tables, device)
        behind = torch.arange(PREFIXES + 1).unsqueeze(1) * VOCAB + torch.arange(VOCAB) + 1
        prefix = behind.clamp(max=PREFIXES)
        # any state is followed by a state of the drafter's
        states = [prefix + (2 * row + 1) * (PREFIXES + 1) for row in (0, 0, 1, 1)]
        self.behind = torch.cat(states).float().to(device)

    def prefill(self, hidden: Tensor, token: Tensor, cache: KVCache, condition: Any) -> None:
        cache.start(hidden.shape[1])

    def forward(self, nodes: Pass, hidden: Tensor, cache: KVCache) -> Tensor:
        states = hidden[:, -nodes.outputs :, 0].long()
        return self.behind[states, nodes.tokens[-nodes.outputs :]].unsqueeze(-1)


def neighbours() -> Tensor:
    """Return [VOCAB, VOCAB - 1] int64: each token's others, the nearest numbers first."""
    token = torch.arange(VOCAB)
    return (token - token.unsqueeze(1)).abs().argsort(stable=True, dim=1)[:, 1:]
