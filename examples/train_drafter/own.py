"""Pictures that a target draws: batches by vanilla decoding, and shards for training its drafter,
drawn at first use and kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from lantern_demo.decoding.interfaces import Pass
from lantern_demo.decoding.sampling import Sampling, draw, guide, probabilities
from lantern_demo.disk_cache import replacing
from lantern_demo.models.llamagen import LlamaGen
from lantern_demo.models.text import PromptEncoder, TextEncoder

PART = 8  # pictures whose states are computed at a time

# token ids [B, N], prompts, and kept states [rows * B, S, W] of the target
Batch = tuple[Tensor, list[str], Tensor | None]


@dataclass
class OwnPictures:
    """Shards of `size` pictures in a folder, as many as `pictures` fill; a restarted run finds the
    existing ones.

    Training may begin with the first shard: `available` is the number that a step may use. Once
    `states` is set, the target's hidden states are kept with the pictures, in 16 bits. A training
    that reads its pictures many times then runs the target once for each.
    """

    folder: Path
    rank: int
    target: LlamaGen
    encoder: PromptEncoder
    prompts: Callable[[int, random.Random], list[str]]  # words so many prompts
    pictures: int
    size: int
    sampling: Sampling
    # of n pictures and prompts, [rows * n, S, W]
    states: Callable[[Tensor, list[str]], Tensor] | None = None
    key: str = ""  # everything else that `states` depend on
    _read: dict[str, tuple[Tensor, list[str]]] = field(default_factory=dict)
    _kept: dict[int, Tensor] = field(default_factory=dict)

    @property
    def shards(self) -> int:
        return self.pictures // self.size

    @property
    def rows(self) -> int:
        return rows_of(self.sampling)

    def available(self, step: int, steps: int) -> int:
        """Return how many shards step number `step` of `steps` draws from: all from the middle of
        the training on, or at once if their states are kept.
        """
        if self.states:
            return self.shards
        return min(self.shards, 1 + 2 * self.shards * step // max(1, steps))

    def shard(self, number: int | str) -> tuple[Tensor, list[str]]:
        """Return token ids [size, N] int16 and their prompts; draw them now if they do not exist.

        A name instead of a number is one more shard.
        """
        name = f"own{self.rank}-{number}"
        if name not in self._read:
            path = self.folder / f"{name}.pt"
            if not path.exists():
                seed = random.Random(name).randrange(2**31)
                prompts = self.prompts(self.size, random.Random(seed))
                features, mask = encode_prompts(self.encoder, prompts, self.target.rope.device)
                ids = sample_batch(self.target, features, mask, self.sampling, seed).to(torch.int16)
                with replacing(path) as part:
                    torch.save((ids, prompts), part)
            self._read[name] = torch.load(path, weights_only=True)
        return self._read[name]

    def kept(self, number: int) -> Tensor:
        """Return the kept states [rows, size, S, W] bfloat16 of a shard, conditional ones first;
        compute them now if they do not exist.
        """
        assert self.states is not None
        if number not in self._kept:
            path = self.folder / f"states{self.rank}-{number}-{self.key}.pt"
            if not path.exists():
                ids, prompts = self.shard(number)
                made = []
                for i in range(0, self.size, PART):
                    both = self.states(ids[i : i + PART], prompts[i : i + PART])
                    made.append(both.bfloat16().cpu().unflatten(0, (self.rows, -1)))
                with replacing(path) as part:
                    torch.save(torch.cat(made, 1), part)
            # read when needed
            self._kept[number] = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
        return self._kept[number]

    def batch(self, count: int, step: int, steps: int, rng: random.Random) -> Batch:
        """Return `count` pictures of a step's shards, with their prompts and, if they are kept,
        their states.
        """
        chosen = [
            (rng.randrange(self.available(step, steps)), rng.randrange(self.size))
            for _ in range(count)
        ]
        rows = [(self.shard(number), row) for number, row in chosen]
        tokens = torch.stack([ids[row] for (ids, _), row in rows])
        said = [prompts[row] for (_, prompts), row in rows]
        if not self.states:
            return tokens, said, None
        states = torch.stack([self.kept(number)[:, row] for number, row in chosen], 1)
        return tokens, said, states.flatten(0, 1)


def rows_of(sampling: Sampling) -> int:
    """Return the target's rows of a picture: two with guidance."""
    return 2 if sampling.cfg_scale != 1 else 1


def encode_prompts(
    encoder: PromptEncoder, prompts: list[str], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Encode prompts as conditions of a target: features [B, T, C] and their mask [B, T] bool."""
    if isinstance(encoder, TextEncoder):
        ids, mask = encoder.ids(prompts)
        return encoder(ids.to(device), mask.to(device))
    encoded = [encoder.encode(prompt) for prompt in prompts]
    features = torch.cat([e.features for e in encoded]).to(device)
    masks = [e.mask for e in encoded if e.mask is not None]
    return features, torch.cat(masks).to(device) if masks else None


@torch.inference_mode()
def sample_batch(
    target: LlamaGen, features: Tensor, mask: Tensor | None, sampling: Sampling, seed: int
) -> Tensor:
    """Draw one picture per prompt. Return token ids [B, N] int64 on the CPU.

    features and mask come from `encode_prompts`. The distribution is that of decoding each alone;
    guidance doubles the batch, conditional rows first.
    """
    device, count, b = target.rope.device, target.config.tokens, len(features)
    rows = rows_of(sampling)
    cache = target.new_cache(rows * b, count)
    hidden = target.prefill(target.condition(features, mask, rows == 2), cache)
    g = torch.Generator(device).manual_seed(seed)
    tokens: list[Tensor] = []
    for j in range(count):
        logits = target.head(hidden[:, -1:])[:, 0]
        guided = guide(logits.unflatten(0, (rows, b)), sampling.cfg_scale)
        p = probabilities(guided, sampling)
        tokens.append(draw(p, torch.rand(b, generator=g, device=device)))
        if j + 1 < count:
            at = torch.tensor([cache.length + j], device=device)
            hidden = target.forward(Pass(tokens[-1].repeat(rows)[:, None], at, at, None), cache)
    return torch.stack(tokens, 1).cpu()
