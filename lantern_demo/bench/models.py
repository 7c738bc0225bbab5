"""Models to time steps on. Where a published model's files are not at hand, random weights of its sizes do: what a step of fixed
shapes costs depends neither on the weights nor on what is accepted. What is accepted does depend on them, and means nothing
then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from math import isqrt
from typing import Any, TypeVar

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
from lantern_demo.models.registry import REGISTRY
from lantern_demo.settings.knobs import MAX_LANTERN_K
from lantern_demo.settings.settings import Settings

Network = TypeVar("Network", bound=nn.Module)

PROMPT = "three red round lanterns over a lake at dusk"
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
    """A model of the registry to time: the bundled one as it ships, the others with random weights of their sizes, in bfloat16 on
    a GPU.

    `small` shrinks the others. Raises ValueError for a model without a drafter.
    """
    info = REGISTRY[model]
    knobs = Settings(**info.preset)
    if info.folder is not None:
        return _bundled(model, device, knobs)
    published = info.published
    if published is None or published.drafter is None:
        raise ValueError(f"{model} has no drafter")
    sizes = shrunk(published.target) if small else published.target
    dtype = DTYPES["bfloat16" if device.type == "cuda" else "float32"]
    torch.manual_seed(0)
    target = _random(blank_network(sizes), device, dtype)
    drafter = _random(blank_network(drafter_of(sizes) if small else published.drafter), device, dtype)
    with torch.inference_mode():
        condition = target.condition(*prompt_of(sizes, device), knobs.cfg_scale != 1)
    return TimedModel(
        model, True, *_fused(target, drafter), condition, knobs, _some_neighbours(sizes.vocab, device), sizes.tokens, device
    )


def _bundled(model: str, device: torch.device, knobs: Settings) -> TimedModel:
    folder = REGISTRY[model].folder
    assert folder is not None
    networks = bundled.load(folder, device)
    assert networks.drafter is not None
    with torch.inference_mode():
        encoded = networks.text.encode(PROMPT)
        condition = networks.target.condition(encoded.features, encoded.mask, knobs.cfg_scale != 1)
        book = networks.tokenizer.codebook
        table = neighbour_table(book, min(MAX_LANTERN_K + 1, len(book) - 1)).to(device)
    fused = _fused(networks.target, networks.drafter)
    return TimedModel(model, False, *fused, condition, knobs, table, networks.target.config.tokens, device)


def _fused(target: Any, drafter: Any) -> tuple[protocols.Target, protocols.Drafter]:
    """What decodes on a GPU: the fused models of the model's family."""
    family = family_of(target.config)
    return family.cuda_target(target), family.cuda_drafter(drafter)


def _random(network: Network, device: torch.device, dtype: torch.dtype) -> Network:
    """Random weights at which states neither vanish nor blow up: norms near 1, the rest by their inputs."""

    def weight(name: str, shape: torch.Size) -> Tensor:
        values = torch.randn(shape, device=device, dtype=dtype)
        if "norm" in name and len(shape) == 1:
            return values.mul_(0.1).add_(1.0 if name.endswith("weight") else 0.0)
        return values.mul_(1.0 if "embed" in name else shape[1] ** -0.5 if len(shape) > 1 else 0.1)

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


def _some_neighbours(vocab: int, device: torch.device) -> Tensor:
    """A table of the right shape: every token's neighbours are those that follow it."""
    columns = min(MAX_LANTERN_K + 1, vocab - 1)
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
