"""Pictures that a target draws by itself, for training its drafter: drawn in shards when first asked for, and kept."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from lantern_demo.decoding.sampling import Sampling
from lantern_demo.models.text import PromptEncoder
from lantern_demo.training.sample import encode_prompts, sample_batch
from lantern_demo.training.teaching import Teacher


class OwnPictures:
    """Shards of pictures in a folder, as many as `pictures` fill; a stopped run finds those that are there.

    `prompts(count, rng)` words the prompts. Training may begin with the first shard: `available` says how many a step may use.
    """

    def __init__(
        self, folder: Path, rank: int, target: Teacher, encoder: PromptEncoder,
        prompts: Callable[[int, random.Random], list[str]], pictures: int, size: int, sampling: Sampling,
    ) -> None:  # fmt: skip
        self.folder, self.rank, self.target, self.encoder = folder, rank, target, encoder
        self.prompts, self.size, self.sampling = prompts, size, sampling
        self.shards = pictures // size
        self._read: dict[str, tuple[Tensor, list[str]]] = {}

    def available(self, step: int, steps: int) -> int:
        """How many shards step number `step` of `steps` draws from: all from the middle of the training on."""
        return min(self.shards, 1 + 2 * self.shards * step // max(1, steps))

    def shard(self, number: int | str) -> tuple[Tensor, list[str]]:
        """Token ids [size, N] int16 and their prompts; drawn now if they are not there. A name instead of a number is one more shard."""
        name = f"own{self.rank}-{number}"
        if name not in self._read:
            path = self.folder / f"{name}.pt"
            if not path.exists():
                seed = random.Random(name).randrange(2**31)
                prompts = self.prompts(self.size, random.Random(seed))
                features, mask = encode_prompts(self.encoder, prompts, self.target.rope.device)
                ids = sample_batch(self.target, features, mask, self.sampling, seed).to(torch.int16)
                part = path.with_suffix(".part")
                torch.save((ids, prompts), part)
                part.replace(path)
            self._read[name] = torch.load(path, weights_only=True)
        return self._read[name]

    def batch(self, count: int, step: int, steps: int, rng: random.Random) -> tuple[Tensor, list[str]]:
        """`count` pictures of the shards of a step, with their prompts."""
        chosen = [(rng.randrange(self.available(step, steps)), rng.randrange(self.size)) for _ in range(count)]
        rows = [(self.shard(number), row) for number, row in chosen]
        return torch.stack([ids[row] for (ids, _), row in rows]), [prompts[row] for (_, prompts), row in rows]
