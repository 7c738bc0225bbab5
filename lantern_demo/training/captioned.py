<<<<<<< HEAD
"""Captions of scenes for training: a text encoder for their words, and wordings of kept attributes."""
=======
"""Lantern scenes as training data: drawn and tokenised once and kept in the run's folder, with captions worded again at every
read."""
>>>>>>> main

from __future__ import annotations

import random
from collections.abc import Mapping

from torch import Tensor

from lantern_demo.models.text import TextEncoder, small_t5, word_tokenizer
from lantern_demo.scenes import caption, vocabulary


def scene_reader(width: int, prefix: int) -> TextEncoder:
<<<<<<< HEAD
    """Return a new text encoder for captions of scenes: at most `prefix` - 1 words as features of `width` numbers."""
    words = word_tokenizer(list(vocabulary()))
    return TextEncoder(words, small_t5(words.get_vocab_size(), width), prefix)


def captions(attributes: Mapping[str, Tensor], rows: Tensor, rng: random.Random, omit: float) -> list[str]:
    """Return a wording of each of the scenes `rows`; `attributes` are the class indices [B] of all scenes by name."""
    return [caption({name: int(values[row]) for name, values in attributes.items()}, rng, omit) for row in rows.tolist()]
=======
    """Return a new text encoder for captions of scenes: at most `prefix` words as features of `width` numbers."""
    words = word_tokenizer(vocabulary())
    return TextEncoder(words, small_t5(words.get_vocab_size(), width), prefix)


def scene_tokens(
    tokenizer: ImageTokenizer, count: int, seed: int, device: torch.device, compiled: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Draw and tokenise `count` scenes. Return ids [count, N] int16 and the scenes' attributes, on the CPU."""
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
    """Return this process's tokenised scenes as `scene_tokens` does; make them if `folder` does not hold them yet."""
    store = folder / f"scenes{opts.rank}.pt"
    if not store.exists():
        seed = 10_000_019 + opts.rank * count
        torch.save(scene_tokens(tokenizer, count, seed, opts.device, opts.compile), store)
    ids, attributes = torch.load(store, weights_only=True)
    return ids, attributes


class Captions:
    """Words captions for scenes that are kept as attributes only."""

    def __init__(self, attributes: dict[str, Tensor]) -> None:
        self.attributes = attributes

    def __call__(self, rows: Tensor, rng: random.Random) -> list[str]:
        chosen = {k: v[rows] for k, v in self.attributes.items()}
        scenes = Scenes(**chosen, **dict.fromkeys(("centre", "radius", "horizon", "moon_at", "phase", "stars"), torch.empty(0)))
        return [caption(scenes, i, rng, omit=0.06) for i in range(len(rows))]
>>>>>>> main
