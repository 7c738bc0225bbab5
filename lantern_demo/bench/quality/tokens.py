"""What tokens alone tell: how likely the target finds a picture, which codes are used, and which lie side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from lantern_demo.decoding.sampling import Sampling, probabilities
from lantern_demo.models.llamagen.target import LlamaGen
from lantern_demo.models.text import PromptEncoder
from lantern_demo.training.sample import encode_prompts

FLOOR = 1e-9  # the least probability a token counts with, 20.7 nats: one impossible token must not make a picture's mean infinite
POSITIONS = 2048  # rows of logits that are held at once
CLUSTERS = 32
ROUNDS = 100  # of Lloyd's algorithm, which stands still long before


@torch.inference_mode()
def teacher_forced(
    target: LlamaGen, encoder: PromptEncoder, prompts: list[str], tokens: Tensor, cfg_scale: float, batch: int = 16
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Guided logits of token ids [B, N] of pictures of B prompts, each token given those before it, a block at a time.

    A block is the rows b and columns n that it is of, and its logits [b, n, V] float32 on the target's device.
    Raises ValueError for another number of prompts than pictures, or pictures of another length than the model's.
    """
    config = target.config
    if tokens.shape != (len(prompts), config.tokens):
        raise ValueError(f"tokens must be [{len(prompts)} prompts, {config.tokens}], got the shape {tuple(tokens.shape)}")
    device, guided = target.rope.device, cfg_scale != 1
    for start in range(0, len(prompts), batch):
        rows = slice(start, min(start + batch, len(prompts)))
        condition = target.condition(*encode_prompts(encoder, prompts[rows], device), guided)
        features = condition.features if config.classes else condition.features.to(target.output.weight.dtype)
        # The last token predicts nothing.
        before = tokens[rows, :-1].to(device).long().repeat(2 if guided else 1, 1)
        hidden = target.train_hidden(before, features, condition.mask)[:, config.prefix - 1 :]
        step = max(1, POSITIONS // len(hidden))
        for first in range(0, config.tokens, step):
            columns = slice(first, min(first + step, config.tokens))
            logits = target.head(hidden[:, columns])
            if guided:
                cond, uncond = logits.chunk(2)
                logits = torch.add(uncond, cond - uncond, alpha=cfg_scale)
            yield rows, columns, logits


@torch.inference_mode()
def nll(
    target: LlamaGen, encoder: PromptEncoder, prompts: list[str], tokens: Tensor, sampling: Sampling, batch: int = 16
) -> Tensor:
    """Mean -log p of a token of pictures of B prompts with token ids [B, N] -> [B] float64 on the CPU, in nats.

    The law p is the very one that they were to be drawn from: the guided one after temperature, top-k and top-p; a greedy `sampling`
    reads the plain softmax. A token of less than FLOOR counts as FLOOR. Raises ValueError as `teacher_forced`.
    """
    p = torch.zeros(tokens.shape, dtype=torch.float64)
    for rows, columns, logits in teacher_forced(target, encoder, prompts, tokens, sampling.cfg_scale, batch):
        there = tokens[rows, columns, None].to(logits.device).long()
        p[rows, columns] = probabilities(logits, sampling).gather(2, there)[..., 0].double().cpu()
    return -p.clamp(min=FLOOR).log().mean(1)


class Usage(NamedTuple):
    """Which codes a set of pictures uses."""

    histogram: NDArray[numpy.float64]  # share of each code [V]
    used: float  # share of the codebook that occurs at all; it grows with the number of pictures
    perplexity: float  # exp of the histogram's entropy: as many codes as this, used evenly


def usage(tokens: Any, vocab: int) -> Usage:
    """Token ids [B, N], or any shape, of a codebook of `vocab` -> their use. Raises ValueError for none, or ids beyond it."""
    shares = _shares(numpy.asarray(tokens), vocab)
    there = shares[shares > 0]
    return Usage(shares, len(there) / vocab, math.exp(-(there * numpy.log(there)).sum()))


def total_variation(a: Any, b: Any) -> float:
    """Half the sum of |a - b| of two histograms of shares: 0 for equal ones, 1 for ones that share nothing."""
    return float(numpy.abs(numpy.asarray(a) - numpy.asarray(b)).sum() / 2)


def usage_distance(a: Usage, b: Usage) -> float:
    """The total variation between two sets' histograms. It is above 0 for equal laws too, the more the fewer pictures."""
    return total_variation(a.histogram, b.histogram)


@torch.inference_mode()
def clusters(codebook: Tensor, count: int = CLUSTERS, seed: int = 0) -> NDArray[numpy.int64]:
    """Codebook vectors [V, e] -> the cluster of each code [V], by k-means (Lloyd's algorithm from a k-means++ start).

    The same for the same codebook and seed on one machine. Raises ValueError for more clusters than codes.
    """
    if not 0 < count <= len(codebook):
        raise ValueError(f"count must be between 1 and {len(codebook)} (the codebook's size), got {count}")
    x = codebook.detach().double().cpu()
    g = torch.Generator().manual_seed(seed)
    centres = x[torch.randint(len(x), (1,), generator=g)]
    while len(centres) < count:
        nearest = torch.cdist(x, centres).amin(1).square()
        # Codes that lie on centres already are drawn only when no other is left.
        centres = torch.cat((centres, x[torch.multinomial(nearest + 1e-300, 1, generator=g)]))
    labels = torch.cdist(x, centres).argmin(1)
    for _ in range(ROUNDS):
        size = torch.bincount(labels, minlength=count)[:, None]
        mean = torch.zeros_like(centres).index_add_(0, labels, x) / size.clamp(min=1)
        centres = torch.where(size > 0, mean, centres)
        before, labels = labels, torch.cdist(x, centres).argmin(1)
        if bool((before == labels).all()):
            break
    return labels.numpy()


def neighbour_pairs(tokens: Any, labels: Any, grid: int) -> NDArray[numpy.float64]:
    """Token ids [B, grid * grid], row by row, and the cluster of each code [V] -> shares of pairs of clusters [2, C, C].

    First the pairs (token, its right neighbour), then (token, the one below it); each of the two histograms sums to 1.
    Raises ValueError for pictures of another size.
    """
    ids, cluster = numpy.asarray(tokens), numpy.asarray(labels)
    if ids.ndim != 2 or ids.shape[1] != grid * grid:
        raise ValueError(f"tokens must be [B, {grid * grid}], got the shape {ids.shape}")
    count = int(cluster.max()) + 1
    seen = cluster[ids].reshape(-1, grid, grid)
    pairs = ((seen[:, :, :-1], seen[:, :, 1:]), (seen[:, :-1], seen[:, 1:]))
    return numpy.stack([_shares(a * count + b, count * count).reshape(count, count) for a, b in pairs])


def pairs_distance(a: NDArray[numpy.float64], b: NDArray[numpy.float64]) -> float:
    """The total variation between two sets' `neighbour_pairs`, the mean of both directions."""
    return total_variation(a, b) / len(a)


def _shares(ids: NDArray[Any], size: int) -> NDArray[numpy.float64]:
    if not ids.size or ids.min() < 0 or ids.max() >= size:
        raise ValueError(f"there must be ids, all from 0 to {size - 1}")
    return numpy.bincount(ids.reshape(-1), minlength=size) / ids.size
