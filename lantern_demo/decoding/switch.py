"""The switch of the Triton kernels: they run on an NVIDIA GPU of compute capability 8.0 or newer.

The variable LANTERN_KERNELS turns them off with 0. Any error of a kernel turns all of them off
until the process ends. PyTorch's operations take over, and `reason` states the error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import torch

VARIABLE = "LANTERN_KERNELS"
# Triton's own variable: kernels run on a processor, slowly, to be tested.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
OLDEST = (8, 0)  # compute capability
# A GPU that is lent for a run alone: kernels would be compiled in the time of its visitors.
LENT = os.environ.get("SPACES_ZERO_GPU") == "true"

# An option of every launch: a product and a sum are one operation, whatever Triton's default.
LAUNCH = {"enable_fp_fusion": True}

Result = TypeVar("Result")

reason = ""  # why kernels that are wanted are off; empty: they are on, or not wanted


class KernelError(RuntimeError):
    """An error of a Triton kernel, or of Triton itself."""


@cache
def wanted() -> bool:
    """Return whether the variable leaves kernels on. Raises ValueError for another value."""
    value = os.environ.get(VARIABLE, "1")
    if value not in ("0", "1"):
        raise ValueError(f"{VARIABLE} is {value!r}; allowed are 0 (off) and 1 (on)")
    return value == "1"


def on(device: torch.device) -> bool:
    """Return whether kernels run on a device."""
    if reason or device.type != ("cpu" if INTERPRETED else "cuda"):
        return False
    return wanted() and _able(device)


@cache
def _able(device: torch.device) -> bool:
    """Return whether a device can run kernels. If it could but for Triton, refuse them."""
    if not INTERPRETED and (LENT or torch.cuda.get_device_capability(device) < OLDEST):
        return False
    try:
        import triton  # noqa: F401
    except Exception as error:  # a broken installation raises anything
        refuse(error)
    return not reason


def refuse(error: Exception) -> None:
    """Turn all kernels off, because of an error."""
    global reason
    first = next(iter(str(error).splitlines()), "")
    reason = f"without kernels: {first or type(error).__name__}"


def guarded(kernel: Callable[..., Result]) -> Callable[..., Result]:
    """Make a function that launches kernels raise KernelError; out of memory stays itself."""

    @wraps(kernel)
    def launch(*given: Any, **named: Any) -> Result:
        try:
            return kernel(*given, **named)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # Triton's have no common type
            raise KernelError(f"{type(error).__name__}: {error}") from error

    return launch


def tried(call: Callable[[], Result]) -> Result:
    """Return the result of a call. After a KernelError call again, without kernels."""
    try:
        return call()
    except KernelError as error:
        refuse(error)
    return call()
