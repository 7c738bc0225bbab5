"""The disk cache: files kept between starts.

They lie under $LANTERN_CACHE, or in lantern-demo under the Hub's HF_HOME:

tables/   neighbours and colours of published codebooks, which take seconds to minutes to compute.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from huggingface_hub.constants import HF_HOME
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor


def root() -> Path:
    """Return the folder of the disk cache. Raise ValueError if it is in the home of no user."""
    named = os.environ.get("LANTERN_CACHE") or Path(HF_HOME) / "lantern-demo"
    try:
        return Path(named).expanduser()
    except RuntimeError:
        reason = f"{named} is in no home"
        raise ValueError(f"LANTERN_CACHE must be a folder's whole path here: {reason}") from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a file that replaces `path` once it is written, so that no reader ever sees half of it.

    Raise OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        yield unfinished
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def put(path: Path, text: str) -> None:
    """Write a text file as in `replacing`. Raise OSError."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


def table(name: str, codebook: Tensor, make: Callable[[], Tensor]) -> Tensor:
    """Return the table int32 of a codebook [V, e] from disk, or else make it and write it there."""
    digest = hashlib.sha256(codebook.detach().cpu().contiguous().numpy().tobytes()).hexdigest()[:12]
    path = root() / "tables" / f"{name}-{digest}.safetensors"
    with suppress(SafetensorError, OSError, KeyError):  # not there yet, or damaged
        return load_file(path)[name]
    made = make()
    # a full disk must not stop a run
    with suppress(SafetensorError, OSError), replacing(path) as unfinished:
        save_file({name: made.cpu().contiguous()}, unfinished)
    return made
