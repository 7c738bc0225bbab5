"""Turn runtime errors into sentences that name the fault and a remedy."""

from __future__ import annotations

import gc
import logging
import unicodedata

import torch

from lantern_demo.models.files.failures import disk_full

_LOG = logging.getLogger(__name__)


def out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, on a GPU or on the machine, for which PyTorch raises a plain
    RuntimeError.
    """
    return isinstance(
        error, (torch.OutOfMemoryError, MemoryError)
    ) or "can't allocate memory" in str(error)


def release_memory() -> None:
    """Free the memory that a failed run still holds."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def sentence(error: BaseException) -> str:
    """Return a sentence that names the error and a remedy."""
    if out_of_memory(error):
        return (
            "The device ran out of memory; choose a smaller draft tree, a smaller model or another "
            "device."
        )
    if isinstance(error, FloatingPointError):
        return f"Numbers went wrong: {error}. Try float32, or load the model anew."
    if disk_full(error):
        return "The disk of the machine that runs this is full; free some space."
    first = (str(error).splitlines() or [""])[0]
    if "CUDA error" in first or "CUDNN" in first:
        return (
            f"The GPU reported a fault ({first}). Try again; if it fails once more, start the "
            "program anew."
        )
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def in_words(error: Exception, method: str) -> str:
    """Return the sentence for a method that failed, and log the traceback."""
    _LOG.warning("%s failed", method, exc_info=error)
    return sentence(error)


def unreadable(text: str) -> str | None:
    """Return the first control character or half surrogate pair of a text, such as U+0000, or None
    without one.

    Text files cannot hold these characters."""
    bad = next((c for c in text if unicodedata.category(c) in ("Cc", "Cs")), None)
    return None if bad is None else f"U+{ord(bad):04X}"


def writable(text: str) -> str:
    """Replace half surrogates, which a sentence may repeat from a request, by question marks, so
    that the text can be sent.
    """
    return text.encode("utf-8", "replace").decode()
