"""Models to time steps on: the bundled one, and published sizes with random weights.

Random weights accept nothing that means anything. The cost of a step of fixed shapes depends
neither on the weights nor on the accepted tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lantern_demo.decoding import interfaces
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import DraftConfig
from lantern_demo.decoding.loop import Decoded, Step, decode
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models import bundled
from lantern_demo.models.families import blank_network, drafter_for, for_accelerator
from lantern_demo.models.registry import (
    AnoleConfig,
    JanusConfig,
    LlamaGenConfig,
    TargetSizes,
    model_info,
)
from lantern_demo.models.tensors import fill
from lantern_demo.models.tokenizer import neighbour_table
from lantern_demo.settings.knobs import MAX_LANTERN_K
from lantern_demo.settings.settings import Settings, choice_of

PROMPT = "three red round lanterns over a lake at dusk"
BLOCK = 2**22  # random numbers that all weights are built from
WORDS = 64  # tokens of a prompt that is part of the sequence, its marks included
# to try the program
SMALL: dict[str, Any] = {"dim": 64, "heads": 2, "ffn": 64, "vocab": 1024, "grid": 6, "layers": 2}
# Anole's marks keep their ids.
SMALL_OF: dict[type, dict[str, int]] = {
    AnoleConfig: {"embeddings": 8730},
    JanusConfig: {"embeddings": 64, "pad": 2},
    LlamaGenConfig: {"caption_dim": 32},
}


@dataclass(frozen=True)
class TimedModel:
    """A model on a device with its encoded prompt."""

    id: str
    target: interfaces.Target
    drafter: interfaces.Drafter
    condition: Any
    knobs: Settings
    neighbours: Tensor
    tokens: int  # of a picture
    device: torch.device
    weights: int  # numbers that a forward pass of the target reads

    def run(
        self, method: str, tree: DraftConfig | None = None, tokens: int | None = None, seed: int = 0
    ) -> Iterator[Step | Decoded]:
        """Decode this many tokens, or a picture, with a draft tree or that of the settings."""
        chosen = METHODS[method]
        config = Config(
            chosen,
            tokens or self.tokens,
            self.knobs.sampling(),
            self.knobs.rule(chosen),
            tree or choice_of(chosen.drafts, self.knobs).policy,
            self.neighbours,
            seed,
            self.device,
            noise=self.knobs.noise,
        )
        return decode(self.target, self.drafter, self.condition, config)

    def decoded(self, *given: Any, **options: Any) -> Decoded:
        """Return the outcome of `run`, with the same arguments."""
        *_, last = self.run(*given, **options)
        assert isinstance(last, Decoded)
        return last


@torch.inference_mode()
def timed_model(
    model: str,
    device: torch.device,
    small: bool = False,
    dtype: torch.dtype = torch.float32,
    join: bool = True,
) -> TimedModel:
    """Load a model of the registry.

    The bundled one keeps its weights. Another has random weights in `dtype`, and `small` shrinks
    it. Without a published drafter, its sizes are the target's. `join` makes one matmul of those
    that read the same rows, as a GPU run does.
    """
    target: Any
    drafter: Any
    info = model_info(model)
    knobs = Settings(**info.preset)
    if info.folder is not None:
        networks = bundled.load(info.folder, device)
        target = networks.target
        drafter = networks.drafter
        encoded = networks.text.encode(PROMPT)
        features, mask = encoded.features, encoded.mask
        book = networks.tokenizer.codebook
        table = neighbour_table(book, min(MAX_LANTERN_K, len(book) - 1)).to(device)
    else:
        assert info.published is not None
        torch.manual_seed(0)
        sizes = info.published.target
        own = info.published.drafter
        if small:
            shrunk = SMALL | {"prefix": min(sizes.prefix, 24)} | SMALL_OF[type(sizes)]
            sizes = replace(sizes, **shrunk)
            own = None
        target = random_network(sizes, device, dtype)
        drafter = random_network(own or drafter_for(sizes, ffn=sizes.ffn), device, dtype)
        features, mask = prompt_of(sizes, device, dtype)
        # A table of the right shape: every token's neighbours are those that follow it.
        columns = torch.arange(1, min(MAX_LANTERN_K, sizes.vocab - 1) + 1, device=device)
        table = ((torch.arange(sizes.vocab, device=device)[:, None] + columns) % sizes.vocab).int()
    condition = target.condition(features, mask, knobs.cfg_scale != 1)
    weights = sum(w.numel() for block in target.blocks for w in block.parameters())
    weights += target.config.dim * target.vocab_size
    if join:
        for_accelerator(target)
        for_accelerator(drafter)
    tokens = target.config.tokens
    return TimedModel(model, target, drafter, condition, knobs, table, tokens, device, weights)


def random_network(sizes: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Return a network of random weights within float16 range.

    They are scaled so that states neither vanish nor blow up.
    """
    network: nn.Module = blank_network(sizes)
    # billions of numbers would take long to draw
    block = torch.randn(BLOCK, generator=torch.Generator().manual_seed(0))

    def weight(name: str, shape: torch.Size) -> Tensor:
        if "norm" in name or len(shape) == 1:
            return torch.full(shape, float(name.endswith("weight")), dtype=dtype, device=device)
        scaled = (block * shape[1] ** -0.5).half().to(device, dtype)
        return scaled.repeat(-(-shape.numel() // BLOCK))[: shape.numel()].view(shape)

    weights = {name: weight(name, w.shape) for name, w in network.state_dict().items()}
    return fill(network, weights, device, dtype)


def prompt_of(
    sizes: TargetSizes, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Return features and mask of a random prompt, or its ids, or a class."""
    if isinstance(sizes, (AnoleConfig, JanusConfig)):
        # word ids follow Anole's image token ids
        first = 8712 if isinstance(sizes, AnoleConfig) else 0
        shape = (1, min(WORDS, sizes.prefix))
        return torch.randint(first, sizes.embeddings, shape, device=device), None
    assert isinstance(sizes, LlamaGenConfig)
    if sizes.classes:
        return torch.zeros(1, dtype=torch.int64, device=device), None
    mask = torch.ones(1, sizes.prefix, dtype=torch.bool, device=device)
    return torch.randn(1, sizes.prefix, sizes.caption_dim, device=device).to(dtype), mask
