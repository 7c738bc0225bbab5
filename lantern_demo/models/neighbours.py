"""The nearest neighbours of each code of a codebook."""

from __future__ import annotations

import torch
from torch import Tensor


def neighbour_table(vectors: Tensor, k: int) -> Tensor:
    """Return the k nearest codebook entries of every entry by L2 distance, without itself, [V, k]
    int32, nearest first.

    `vectors` [V, e] should be those that the tokenizer's decoder reads: see
    `ImageTokenizer.codebook`. The released table used the raw vectors (jadohu/LANTERN,
    generate_codebook.py).
    """
    if not 0 <= k < vectors.shape[0]:
        raise ValueError(
            f"k must be between 0 and {vectors.shape[0] - 1} (the codebook's size less one), got {k}"
        )
    rows = []
    for part in torch.arange(vectors.shape[0], device=vectors.device).split(1024):
        distance = torch.cdist(vectors[part].float(), vectors.float())
        distance[torch.arange(len(part), device=vectors.device), part] = torch.inf
        rows.append(distance.topk(k, largest=False).indices.to(torch.int32))
    return torch.cat(rows)
