"""What tokens alone tell: how likely the target finds a picture, which codes are used, and which lie side by side."""

from __future__ import annotations

from typing import Any

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
def nll(
    target: LlamaGen, encoder: PromptEncoder, prompts: list[str], tokens: Tensor, sampling: Sampling, batch: int = 16
) -> Tensor:
    """Mean -log p of a token of pictures of B prompts with token ids [B, N] -> [B] float64 on the CPU, in nats.

    The law p is the very one that they were to be drawn from: the guided one after temperature, top-k and top-p; a greedy `sampling`
    reads the plain softmax. A token of less than FLOOR counts as FLOOR.
    Raises ValueError for another number of prompts than pictures, or pictures of another length than the model's.
    """
    config = target.config
    if tokens.shape != (len(prompts), config.tokens):
        raise ValueError(f"tokens must be [{len(prompts)} prompts, {config.tokens}], got the shape {tuple(tokens.shape)}")
    device, guided = target.rope.device, sampling.cfg_scale != 1
    p = torch.zeros(tokens.shape, dtype=torch.float64)
    for rows in torch.arange(len(prompts)).split(batch):
        condition = target.condition(*encode_prompts(encoder, [prompts[i] for i in rows], device), guided)
        features = condition.features if config.classes else condition.features.to(target.output.weight.dtype)
        ids = tokens[rows].to(device).long()
        # The last token predicts nothing.
        hidden = target.train_hidden(ids[:, :-1].repeat(2 if guided else 1, 1), features, condition.mask)[:, config.prefix - 1 :]
        for columns in torch.arange(config.tokens).split(max(1, POSITIONS // len(hidden))):
            logits = target.head(hidden[:, columns])
            if guided:
                cond, uncond = logits.chunk(2)
                logits = torch.add(uncond, cond - uncond, alpha=sampling.cfg_scale)
            law = probabilities(logits, sampling)
            p[rows[:, None], columns] = law.gather(2, ids[:, columns, None])[..., 0].double().cpu()
    return -p.clamp(min=FLOOR).log().mean(1)


def usage(tokens: Any, vocab: int) -> NDArray[numpy.float64]:
    """Token ids [B, N], or any shape, of a codebook of `vocab` -> the share of each code [V]. Raises ValueError for none, or ids beyond it."""
    ids = numpy.asarray(tokens)
    if not ids.size or ids.min() < 0 or ids.max() >= vocab:
        raise ValueError(f"there must be ids, all from 0 to {vocab - 1}")
    return numpy.bincount(ids.reshape(-1), minlength=vocab) / ids.size


def total_variation(a: Any, b: Any) -> float:
    """Half the sum of |a - b| of two histograms of shares, their mean where they are several [n, ...]: 0 for equal ones, 1 for ones that
    share nothing. It is above 0 for samples of equal laws too, the more the fewer pictures."""
    apart = numpy.abs(numpy.asarray(a) - numpy.asarray(b))
    return float(apart.sum() / 2 / (1 if apart.ndim == 1 else len(apart)))


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
    """Token ids [B, grid * grid], row by row, and the cluster of each code [V] -> shares of pairs of clusters [2, C * C].

    First the pairs (token, its right neighbour), then (token, the one below it); each of the two histograms sums to 1.
    """
    count = int(numpy.max(labels)) + 1
    seen = numpy.asarray(labels)[numpy.asarray(tokens)].reshape(-1, grid, grid)
    pairs = ((seen[:, :, :-1], seen[:, :, 1:]), (seen[:, :-1], seen[:, 1:]))
    return numpy.stack([usage(a * count + b, count * count) for a, b in pairs])
