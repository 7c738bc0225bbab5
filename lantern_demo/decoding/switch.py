"""The switch of the Triton kernels: the variable LANTERN_KERNELS turns them on with 1.

They run on an NVIDIA GPU of compute capability 8.0 or newer. They are off by default, since no card
has run them in this form. Any error of a kernel turns all of them off until the process ends.
PyTorch's operations take over, and `reason` states the error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, wraps
from subprocess import CalledProcessError
from typing import Any, TypeVar

import torch

VARIABLE = "LANTERN_KERNELS"
# Triton's own variable: kernels run on a processor, slowly, to be tested.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
OLDEST = (8, 0)  # compute capability
TRITON = (3, 5)  # 3.4 has neither dots of 8 columns nor the waits of early starts
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
    """Return whether the variable turns kernels on. Raises ValueError for another value."""
    value = os.environ.get(VARIABLE, "0")
    if value not in ("0", "1"):
        raise ValueError(f"{VARIABLE} is {value!r}; allowed are 0 (off) and 1 (on)")
    return value == "1"


def on(device: torch.device) -> bool:
    """Return whether kernels run on a device."""
    return not reason and _could(device) and wanted() and _installed()


def why_off(device: torch.device) -> str:
    """Return why kernels are off on a device that could run them; empty: they are on, or it could
    not."""
    if not reason and _could(device) and not wanted():
        return f"without kernels: {VARIABLE}=1 turns them on"
    return reason


def _could(device: torch.device) -> bool:
    """Return whether kernels are made for a device."""
    return device.type == "cpu" if INTERPRETED else device.type == "cuda" and _new_enough(device)


@cache
def _new_enough(device: torch.device) -> bool:
    """Return whether a GPU is NVIDIA's, of `OLDEST` or newer, and this process's own."""
    lacking = LENT or torch.version.hip is not None  # AMD's numbers look like NVIDIA's
    return not lacking and torch.cuda.get_device_capability(device) >= OLDEST


@cache
def _installed() -> bool:
    """Return whether Triton is there, and new enough. Refuse kernels otherwise."""
    try:
        import triton

        if tuple(map(int, triton.__version__.split(".")[:2])) < TRITON:
            raise ImportError(f"Triton {triton.__version__} is older than 3.5")
    except Exception as error:  # a broken installation raises anything
        refuse(error)
    return not reason


def refuse(error: Exception) -> None:
    """Turn all kernels off, because of an error."""
    global reason
    first = next(iter(str(error).splitlines()), "")
    if isinstance(error.__cause__ or error, CalledProcessError):  # its text is a long command
        first = "the C compiler failed; it needs Python's headers"
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
