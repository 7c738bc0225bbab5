"""The error of a value that is not allowed, and sentences for all others: fault and remedy."""

from __future__ import annotations

import errno
import logging

import torch

_LOG = logging.getLogger(__name__)


class NotAllowed(ValueError):
    """A value of a request is not allowed. `rest` is the reason, after the parameter's name."""

    def __init__(self, name: str, rest: str) -> None:
        super().__init__(f"{name} {rest}")
        self.name, self.rest = name, rest


def out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, on a GPU or on the machine."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return "can't allocate memory" in str(error)  # on the machine PyTorch raises a RuntimeError


def disk_full(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is a full disk or a used-up quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if "No space left on device" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def sentence(error: BaseException) -> str:
    """Return a sentence that names the error and a remedy."""
    if out_of_memory(error):
        return (
            "The device ran out of memory; "
            "choose a smaller draft tree, a smaller model or another device."
        )
    if isinstance(error, FloatingPointError):
        return f"Numbers went wrong: {error}. Try float32, or load the model anew."
    if disk_full(error):
        return "The disk of the machine that runs this is full; free some space."
    first = (str(error).splitlines() or [""])[0]
    if "CUDA error" in first or "CUDNN" in first:
        remedy = "Try again; if it fails once more, start the program anew."
        return f"The GPU reported a fault ({first}). {remedy}"
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def in_words(error: Exception, method: str) -> str:
    """Return the sentence for a method that failed, and log the traceback."""
    _LOG.warning("%s failed", method, exc_info=error)
    return sentence(error)
