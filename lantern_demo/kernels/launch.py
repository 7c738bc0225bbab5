"""How Triton kernels are launched, and what their errors become."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from subprocess import CalledProcessError
from typing import Any, TypeVar

import torch

from lantern_demo.decoding.ops import KernelError

# Triton's own variable: kernels run on a processor, slowly, to be tested.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# An option of every launch: a product and a sum are one operation, whatever Triton's default.
LAUNCH = {"enable_fp_fusion": True}

Result = TypeVar("Result")


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


def why_off(error: Exception) -> str:
    """Return why PyTorch's operations draw after an error, in a record's words."""
    first = next(iter(str(error).splitlines()), "")
    if isinstance(error.__cause__ or error, CalledProcessError):  # its text is a long command
        first = "the C compiler failed; it needs Python's headers"
    return f"without kernels: {first or type(error).__name__}"
