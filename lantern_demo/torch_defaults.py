"""Compute with PyTorch's own defaults, whatever the caller has set."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

# Default dtype and precision belong to the process: the first thread that comes keeps the caller's,
# and the last one that goes restores them.
_LOCK = threading.Lock()
# Of matmuls, by the older name; or of each part of PyTorch, where the caller has set one of these:
# from 2.9 on PyTorch then has no older name.
Precision = str | tuple[str, ...]
_CALLERS: list[tuple[torch.dtype, Precision]] = []  # an equal one for each thread that computes


@contextmanager
def own_defaults() -> Iterator[None]:
    """Create float32 tensors on the CPU, without autocast, where no dtype and device are named.

    Matmuls of float32 have full precision. A notebook may have set others, or a failed load may
    have left them: tokens and pictures would differ. The caller's come back afterwards. A device is
    set only where it is another, since such a mode costs time at every operation.
    """
    cpu = torch.device("cpu")
    with _LOCK:
        found = torch.get_default_dtype(), _precision()
        _CALLERS.append(_CALLERS[0] if _CALLERS else found)
        full = "highest" if isinstance(found[1], str) else ("ieee",) * len(found[1])
        _set(torch.float32, full)
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


def _parts() -> list[Any]:
    backends: Any = torch.backends
    return [backends, backends.cuda.matmul, backends.mkldnn.matmul]


def _precision() -> Precision:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return tuple(part.fp32_precision for part in _parts())


def _set(dtype: torch.dtype, precision: Precision) -> None:
    if torch.get_default_dtype() != dtype:
        torch.set_default_dtype(dtype)
    if _precision() == precision:
        return
    if isinstance(precision, str):
        torch.set_float32_matmul_precision(precision)
    else:
        for part, value in zip(_parts(), precision, strict=True):
            part.fp32_precision = value
