"""LANTERN's premise on a tokenizer of our own: may a token be replaced by its neighbour in the codebook without harm?

Of true scenes as the tokenizer sees them a share of the tokens is replaced by the j-th neighbour, by the j-th most probable other
token, which a drafter may well have proposed, or by any token. What that does to pixels and to attributes is measured.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from lantern_demo.bench.quality.scenes import ALL, drawn, read, true_tokens, truth
from lantern_demo.bench.quality.statistics import wilson
from lantern_demo.bench.quality.tokens import teacher_forced
from lantern_demo.models.tokenizer import neighbour_table
from lantern_demo.pipeline import Pipeline
from lantern_demo.training.classifier import AttributeClassifier
from lantern_demo.training.tokenizer import psnr

SHARES = (0.1, 0.25, 0.5, 1.0)
RANKS = (1, 3, 10, 30, 100, 300)
ALIKE = 100.0  # dB, of pictures that are equal; so little noise is far below what 8 bits show


@torch.inference_mode()
def premise(
    pipe: Pipeline, classifier: AttributeClassifier, pictures: int = 200, seed: int = 0,
    shares: tuple[float, ...] = SHARES, ranks: tuple[int, ...] = RANKS,
) -> list[dict[str, Any]]:  # fmt: skip
    """One row per kind of replacement ("neighbour", "probable", "random"), rank j (None for random) and share of tokens.

    A row holds `kind`, `j`, `share`, `pictures`, `psnr` (dB to the picture before, the mean over pictures, each at most ALIKE),
    `right` (the share of pictures on which each attribute is read as asked for, by its name), `all` (all of them together) and
    `interval` (Wilson's, of `all`). Every row replaces at the same places, those of a smaller share among those of a larger one.
    Ranks that the codebook does not have are left out.
    """
    scenes = truth(pictures, 1)
    codes = pipe.networks.tokenizer.codebook_size
    tokens = true_tokens(pipe.networks, scenes)
    before = drawn(pipe.networks, tokens)
    ranks = tuple(j for j in ranks if j < codes)
    others = {"neighbour": _neighbours(pipe, tokens, ranks), "probable": _probable(pipe, scenes.prompts, tokens, ranks)}
    g = torch.Generator().manual_seed(seed)
    # Another token than the one that is there, all equally likely.
    shift = torch.randint(1, codes, tokens.shape, generator=g).to(tokens.device)
    places = torch.rand(tokens.shape, generator=g).argsort(1).argsort(1).to(tokens.device)
    kinds = [(kind, j, by[:, :, i]) for kind, by in others.items() for i, j in enumerate(ranks)]
    rows = []
    for kind, j, other in tqdm([*kinds, ("random", None, (tokens + shift) % codes)], desc="premise"):
        for share in shares:
            after = drawn(pipe.networks, torch.where(places < round(share * tokens.shape[1]), other, tokens))
            right = read(classifier, after, scenes.wanted).right
            low, high = wilson(int(right[ALL].sum()), pictures)
            rows.append({
                "kind": kind, "j": j, "share": share, "pictures": pictures,
                "psnr": psnr(after, before).clamp(max=ALIKE).mean().item(),
                "right": {name: float(values.mean()) for name, values in right.items() if name != ALL},
                "all": float(right[ALL].mean()), "interval": [low, high],
            })  # fmt: skip
    return rows


def _neighbours(pipe: Pipeline, tokens: Tensor, ranks: tuple[int, ...]) -> Tensor:
    """The neighbours of these ranks of every token -> [B, N, ranks]; the nearest other code has rank 1."""
    table = neighbour_table(pipe.networks.tokenizer.codebook, max(ranks)).long()
    return table[:, [j - 1 for j in ranks]][tokens]


def _probable(pipe: Pipeline, prompts: list[str], tokens: Tensor, ranks: tuple[int, ...]) -> Tensor:
    """The tokens of these ranks in the guided law at every place, the one that is there left out -> [B, N, ranks].

    Temperature does not move an order, and what top-k or top-p leave out is ranked here as well.
    """
    found = torch.empty(*tokens.shape, len(ranks), dtype=torch.int64, device=tokens.device)
    guided = teacher_forced(pipe.networks.target, pipe.networks.text, prompts, tokens, pipe.defaults.cfg_scale)
    for rows, columns, logits in guided:
        there = tokens[rows, columns, None]
        order = logits.scatter(2, there, -torch.inf).topk(max(ranks)).indices
        found[rows, columns] = order[:, :, [j - 1 for j in ranks]]
    return found
