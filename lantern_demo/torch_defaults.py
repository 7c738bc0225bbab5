"""Compute with PyTorch's own defaults, whatever the caller has set."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

# Default dtype and precision belong to the process: the first thread that comes keeps the caller's,
# and the last one that goes restores them.
_LOCK = threading.Lock()
_CALLERS: list[tuple[torch.dtype, str]] = []  # an equal one for each thread that computes


@contextmanager
def own_defaults() -> Iterator[None]:
    """Create float32 tensors on the CPU, without autocast, where no dtype and device are named.

    Matmuls of float32 have full precision. A notebook may have set others, or a failed load may
    have left them: tokens and pictures would differ. The caller's come back afterwards. A device is
    set only where it is another, since such a mode costs time at every operation.
    """
    cpu = torch.device("cpu")
    with _LOCK:
        found = torch.get_default_dtype(), torch.get_float32_matmul_precision()
        _CALLERS.append(_CALLERS[0] if _CALLERS else found)
        _set(torch.float32, "highest")
    with ExitStack() as stack:
        stack.callback(_give_back)
        if torch.get_default_device() != cpu:
            stack.enter_context(cpu)
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _give_back() -> None:
    with _LOCK:
        callers = _CALLERS.pop()
        if not _CALLERS:
            _set(*callers)


def _set(dtype: torch.dtype, precision: str) -> None:
    if torch.get_default_dtype() != dtype:
        torch.set_default_dtype(dtype)
    if torch.get_float32_matmul_precision() != precision:
        torch.set_float32_matmul_precision(precision)
