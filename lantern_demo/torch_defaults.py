"""Compute with PyTorch's own defaults, whatever the caller has set."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")


@contextmanager
def own_defaults() -> Iterator[None]:
    """Create float32 tensors on the CPU, without autocast, where no dtype and device are named.

    A notebook may have set others, or a failed load may have left them: tokens would differ. The
    caller's come back afterwards. Whatever is usual is left alone, since a mode costs time at every
    operation.
    """
    dtype, cpu = torch.get_default_dtype(), torch.device("cpu")
    with ExitStack() as stack:
        if dtype != torch.float32:
            torch.set_default_dtype(torch.float32)
            stack.callback(torch.set_default_dtype, dtype)
        if torch.get_default_device() != cpu:
            stack.enter_context(cpu)
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def with_own_defaults(items: Generator[Item, None, None]) -> Generator[Item, None, None]:
    """Yield from a generator, each item computed with own_defaults; the caller keeps its own."""
    with closing(items):
        while True:
            with own_defaults():
                item = next(items, items)
            if item is items:
                return
            yield item  # type: ignore[misc]  # the generator itself is no item
