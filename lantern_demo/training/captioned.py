"""Lantern scenes as a model is trained on them: drawn and tokenised once and kept in the run's folder, their captions worded
again every time they are read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from lantern_demo.models.text import TextEncoder, small_t5, word_tokenizer
from lantern_demo.models.tokenizer import ImageTokenizer
from lantern_demo.scenes import ATTRIBUTES, Scenes, caption, render, sample_scenes, vocabulary
from lantern_demo.training import run

CHUNK = 50  # scenes drawn and encoded at a time


def scene_reader(width: int, prefix: int, vocabulary_of: Sequence[str] | None = None) -> TextEncoder:
    """A new text encoder for captions of scenes: at most `prefix` words as features of `width` numbers."""
    words = word_tokenizer(list(vocabulary_of or vocabulary()))
    return TextEncoder(words, small_t5(words.get_vocab_size(), width), prefix)


def scene_tokens(
    tokenizer: ImageTokenizer, count: int, seed: int, device: torch.device, compiled: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Draw and tokenise `count` scenes -> ids [count, N] int16 and their attributes, on the CPU."""
    draw = torch.compile(render) if compiled else render
    ids, attributes = [], []
    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
        for part in tqdm(range(count // CHUNK), desc="scenes", mininterval=5):
            scenes = sample_scenes(CHUNK, seed + part)
            image = draw(scenes.to(device)).contiguous(memory_format=torch.channels_last)
            ids.append(tokenizer.encode(image).to(torch.int16).cpu())
            attributes.append(scenes.attributes())
    return torch.cat(ids), {k: torch.cat([a[k] for a in attributes]) for k in ATTRIBUTES}


def training_scenes(folder: Path, tokenizer: ImageTokenizer, count: int, opts: run.Options) -> tuple[Tensor, dict[str, Tensor]]:
    """This process's tokenised scenes, kept in `folder` and made when they are not there yet; as `scene_tokens`."""
    store = folder / f"scenes{opts.rank}.pt"
    if not store.exists():
        seed = 10_000_019 + opts.rank * count
        torch.save(scene_tokens(tokenizer, count, seed, opts.device, opts.compile), store)
    ids, attributes = torch.load(store, weights_only=True)
    return ids, attributes


class Captions:
    """Wordings for scenes of which only the attributes are kept."""

    def __init__(self, attributes: dict[str, Tensor]) -> None:
        self.attributes = attributes

    def __call__(self, rows: Tensor, rng: random.Random) -> list[str]:
        chosen = {k: v[rows] for k, v in self.attributes.items()}
        scenes = Scenes(**chosen, **dict.fromkeys(("centre", "radius", "horizon", "moon_at", "phase", "stars"), torch.empty(0)))
        return [caption(scenes, i, rng, omit=0.06) for i in range(len(rows))]
