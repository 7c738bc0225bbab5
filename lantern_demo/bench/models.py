"""Models to time steps on. Where a published model's files are not at hand, random weights of its sizes do: what a step of fixed
shapes costs depends neither on the weights nor on what is accepted. What is accepted does depend on them, and means nothing
then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import isqrt
from typing import Any

import torch
from torch import Tensor, nn

from lantern_demo.decoding import protocols
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import Drafts
from lantern_demo.decoding.loop import Decoded, Step, decode
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models import bundled
from lantern_demo.models.anole.target import AnoleConfig
from lantern_demo.models.common import DrafterSizes, TargetSizes
from lantern_demo.models.families import family_of
from lantern_demo.models.files.blank import blank_network, fill
from lantern_demo.models.janus.target import JanusConfig
from lantern_demo.models.llamagen.target import LlamaGenConfig
from lantern_demo.models.machine.device import DTYPES
from lantern_demo.models.neighbours import neighbour_table
from lantern_demo.models.registry import REGISTRY, ModelInfo
from lantern_demo.settings.knobs import MAX_LANTERN_K
from lantern_demo.settings.settings import Settings

PROMPT = "three red round lanterns over a lake at dusk"
BLOCK = 2**22  # random numbers that all weights are made of
WORDS = 64  # tokens of a prompt that is read in the sequence, its marks included
SMALL: dict[str, Any] = {"dim": 64, "heads": 2, "ffn": 64, "vocab": 1024, "grid": 6}  # for a look at the program, not at a GPU


@dataclass(frozen=True)
class TimedModel:
    """A model on a device, its prompt read."""

    id: str
    random: bool  # whether its weights are
    target: protocols.Target
    drafter: protocols.Drafter
    condition: Any
    knobs: Settings
    neighbours: Tensor
    tokens: int  # of a picture
    device: torch.device

    def run(
        self, method: str, tree: Drafts | None = None, tokens: int | None = None, seed: int = 0, plain: bool = False
    ) -> Iterator[Step | Decoded]:
        """Decode so many tokens (by default a picture) with a draft tree (by default that of the settings) on the engine of
        GPUs."""
        chosen = METHODS[method]
        config = Config(
            chosen,
            tokens or self.tokens,
            self.knobs.sampling(),
            self.knobs.rule(chosen),
            tree or chosen.drafts.of(self.knobs),
            self.neighbours,
            seed,
            self.device,
            engine="plain" if plain else "fixed",
            row=isqrt(self.tokens),
            dice=self.knobs.dice,
        )
        return decode(self.target, self.drafter, self.condition, config)

    def decoded(
        self, method: str, tree: Drafts | None = None, tokens: int | None = None, seed: int = 0, plain: bool = False
    ) -> Decoded:
        """The outcome of `run`."""
        *_, last = self.run(method, tree, tokens, seed, plain)
        assert isinstance(last, Decoded)
        return last


@contextmanager
def without_graphs() -> Iterator[None]:
    """While no graph can be captured, so that steps run one by one."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("switched off for a comparison")

    graph, torch.cuda.CUDAGraph = torch.cuda.CUDAGraph, refuse  # type: ignore[misc,assignment]
    try:
        yield
    finally:
        torch.cuda.CUDAGraph = graph  # type: ignore[misc]


def timed_model(model: str, device: torch.device, small: bool = False) -> TimedModel:
    """A model of the registry to time on the engine of GPUs, with its family's fused networks: the bundled one as it ships, the
    others with random weights of their sizes, in bfloat16 on a GPU. `small` shrinks the others."""
    info, knobs = REGISTRY[model], Settings(**REGISTRY[model].preset)
    guided = knobs.cfg_scale != 1
    with torch.inference_mode():
        if info.folder is not None:
            networks = bundled.load(info.folder, device)
            target, drafter, encoded = networks.target, networks.drafter, networks.text.encode(PROMPT)
            condition = target.condition(encoded.features, encoded.mask, guided)
            book = networks.tokenizer.codebook
            table = neighbour_table(book, min(MAX_LANTERN_K, len(book) - 1)).to(device)
        else:
            torch.manual_seed(0)
            target, drafter = random_networks(info, device, DTYPES["bfloat16" if device.type == "cuda" else "float32"], small)
            condition = target.condition(*prompt_of(target.config, device), guided)
            table = some_neighbours(target.config.vocab, device)
    family, tokens = family_of(target.config), target.config.tokens
    fused = family.cuda_target(target), family.cuda_drafter(drafter)
    return TimedModel(model, info.folder is None, *fused, condition, knobs, table, tokens, device)


def sizes_of(info: ModelInfo, small: bool) -> TargetSizes[Any]:
    """The sizes of a published model's target, or these in small."""
    assert info.published is not None
    return shrunk(info.published.target) if small else info.published.target


def random_networks(
    info: ModelInfo, device: torch.device, dtype: torch.dtype, small: bool, drafts: bool = True
) -> tuple[Any, Any]:
    """Target and drafter of a published model's sizes with random weights. The drafter has its target's sizes where none is
    published, and is None without `drafts`."""
    assert info.published is not None
    sizes = sizes_of(info, small)
    target = random_network(sizes, device, dtype)
    if not drafts:
        return target, None
    return target, random_network((not small and info.published.drafter) or drafter_of(sizes), device, dtype)


@lru_cache(maxsize=1)
def block() -> Tensor:
    """Numbers that all random weights are made of, so that billions of them take no time to draw."""
    return torch.randn(BLOCK, generator=torch.Generator().manual_seed(0))


def random_network(sizes: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """A network of random weights that float16 holds, at which states neither vanish nor blow up."""
    network: nn.Module = blank_network(sizes)

    def weight(name: str, shape: torch.Size) -> Tensor:
        if "norm" in name or len(shape) == 1:
            return torch.full(shape, float(name.endswith("weight")), dtype=dtype, device=device)
        scaled = (block() * shape[1] ** -0.5).half().to(device, dtype)
        return scaled.repeat(-(-shape.numel() // BLOCK))[: shape.numel()].view(shape)

    return fill(network, {name: weight(name, w.shape) for name, w in network.state_dict().items()}, device, dtype)


def prompt_of(config: TargetSizes[Any], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The features and mask of a prompt of random numbers, or its ids, or a class."""
    if isinstance(config, AnoleConfig):
        return torch.randint(8712, config.embeddings, (1, min(WORDS, config.prefix)), device=device), None
    if isinstance(config, JanusConfig):
        return torch.randint(config.embeddings, (1, min(WORDS, config.prefix)), device=device), None
    assert isinstance(config, LlamaGenConfig)
    if config.classes:
        return torch.zeros(1, dtype=torch.int64, device=device), None
    mask = torch.ones(1, config.prefix, dtype=torch.bool, device=device)
    return torch.randn(1, config.prefix, config.caption_dim, device=device), mask


def some_neighbours(vocab: int, device: torch.device) -> Tensor:
    """A table of the right shape: every token's neighbours are those that follow it."""
    columns = min(MAX_LANTERN_K, vocab - 1)
    return ((torch.arange(vocab, device=device)[:, None] + torch.arange(1, columns + 1, device=device)) % vocab).int()


def shrunk(sizes: TargetSizes[Any]) -> TargetSizes[Any]:
    """A target's sizes in small."""
    if isinstance(sizes, AnoleConfig):
        return replace(sizes, **SMALL, embeddings=8730, prefix=24, layers=2)  # its marks have the ids they have
    if isinstance(sizes, JanusConfig):
        return replace(sizes, **SMALL, prefix=24, layers=2, embeddings=64, pad=2)
    assert isinstance(sizes, LlamaGenConfig)
    return replace(sizes, **SMALL, prefix=min(sizes.prefix, 24), layers=2, caption_dim=32)


def drafter_of(target: TargetSizes[Any]) -> DrafterSizes[Any]:
    """A drafter's sizes for a target: what they have in common."""
    family = family_of(target)
    own = {field.name for field in fields(family.drafter)} - {"eps"}
    return family.drafter(**{field.name: getattr(target, field.name) for field in fields(target) if field.name in own})
