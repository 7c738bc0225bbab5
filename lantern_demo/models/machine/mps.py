"""Apple's GPU by way of PyTorch's MPS: the networks lie on it, and everything that decides lies on the processor.

MPS has no float64, which running sums and measured prices need, and lacks some operations. So a model is handed over with its
inputs and outputs on the processor: drafts, noise, judging and drawing there are what they are on a machine without a GPU, with
the same random numbers, and only the networks' own float32 or float16 operations run on the GPU. Every call waits for its result,
so the clock counts what it should. Nobody has tried it on a Mac yet: tests hold the operations against the list of those that
PyTorch has for MPS.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lantern_demo.models.common import Condition

UNTRIED = "On Apple's MPS nothing has been tried on a Mac yet; what decides runs on the processor."


class HostedCache:
    """A cache on the device, as a decoding loop on the processor sees it."""

    def __init__(self, cache: Any) -> None:
        self.cache, self.device = cache, cache.k.device
        # nobody reads the keys here, only their shape and number format
        self.k = torch.zeros((), dtype=cache.k.dtype).expand(cache.k.shape)

    @property
    def length(self) -> int:
        return self.cache.length

    @property
    def slots(self) -> int:
        return self.cache.slots

    def advance(self, count: int) -> None:
        self.cache.advance(count)

    def commit(self, nodes: Tensor) -> None:
        self.cache.commit(nodes.to(self.device))

    def hide_padding(self, bias: Tensor) -> None:
        """As `KVCache.hide_padding`."""
        there = bias.to(self.device)
        self.cache.hide_padding(there)
        bias.copy_(there)


class Hosted:
    """A network on a device, called with what lies on the processor."""

    def __init__(self, network: Any, device: torch.device) -> None:
        self.network, self.device = network, device

    def new_cache(self, rows: int, length: int) -> Any:
        return HostedCache(self.network.new_cache(rows, length))

    def call(self, name: str, *given: Any) -> Tensor:
        """The result of one of the network's methods, on the processor."""
        return getattr(self.network, name)(*map(self._there, given)).cpu()

    def _there(self, given: Any) -> Any:
        if isinstance(given, Tensor):
            return given.to(self.device)
        if isinstance(given, HostedCache):
            return given.cache
        if isinstance(given, Condition):
            mask = None if given.mask is None else given.mask.to(self.device)
            return replace(given, features=given.features.to(self.device), mask=mask)
        return given


class HostedTarget(Hosted):
    """Implements `decoding.protocols.FixedTarget`."""

    def __init__(self, network: Any, device: torch.device) -> None:
        super().__init__(network, device)
        self.vocab_size: int = network.vocab_size

    def head(self, hidden: Tensor) -> Tensor:
        return self.call("head", hidden)

    def prefill(self, condition: Any, cache: HostedCache) -> Tensor:
        return self.call("prefill", condition, cache)

    def forward(self, tokens: Tensor, depths: Tensor, mask: Tensor, cache: HostedCache) -> Tensor:
        return self.call("forward", tokens, depths, mask, cache)

    def forward_at(self, tokens: Tensor, positions: Tensor, slots: Tensor, bias: Tensor, cache: HostedCache) -> Tensor:
        return self.call("forward_at", tokens, positions, slots, bias, cache)


class HostedDrafter(Hosted):
    """Implements `decoding.protocols.Drafter`."""

    def __init__(self, network: Any, device: torch.device) -> None:
        super().__init__(network, device)
        self.guided: bool = network.guided

    def start(self, hidden: Tensor, token: Tensor, cache: HostedCache, condition: Any) -> Tensor:
        return self.call("start", hidden, token, cache, condition)

    def extend(self, tokens: Tensor, hidden: Tensor, cache: HostedCache) -> Tensor:
        return self.call("extend", tokens, hidden, cache)

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor, cache: HostedCache) -> Tensor:
        return self.call("expand", tokens, hidden, depth, mask, cache)
