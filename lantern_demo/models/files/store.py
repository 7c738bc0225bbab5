"""Converted checkpoints on disk: each part is converted once, and later starts read what was written then.

They lie in `disk_cache.root()`:
  converted/<repository>/<revision>/<file>/   a part from the Hub
  converted/local/<file>-<hash>/              a part from a local folder, by its path
  drafters/<model id>/                        a drafter that was trained here (see `checkpoints.save_drafter`)
A converted part is its manifest.json, which says what it was made from, its weights as .safetensors under this project's
names, and, for an image tokenizer, its neighbour tables.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lantern_demo.models.files.convert import CheckpointError
from lantern_demo.models.files.disk_cache import locked as locked
from lantern_demo.models.files.disk_cache import put as put
from lantern_demo.models.files.disk_cache import root as root
from lantern_demo.models.files.hub import Located, disk_full, revision_of
from lantern_demo.models.registry import Source

VERSION = 1  # of the converter; a part that another version wrote is converted anew
MANIFEST = "manifest.json"


def hub_folder(source: Source) -> Path:
    """Where a part from the Hub is kept."""
    name = source.weights.replace("/", "--").replace("*", "all")
    return root() / "converted" / source.repo.replace("/", "--") / revision_of(source).replace("/", "--") / name


def local_folder(located: Located) -> Path:
    """Where a part from a local folder is kept."""
    name = located.weights[0].name
    digest = hashlib.sha256(str(located.weights[0].resolve()).encode()).hexdigest()[:12]
    return root() / "converted" / "local" / f"{name}-{digest}"


def manifest(folder: Path, facts: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """The manifest of a converted part, or None when there is none that can be used.

    It can be used when this version of the converter wrote it, from the file that `facts` describes (None for any), and all that
    it lists is there in its size.
    """
    try:
        found = json.loads((folder / MANIFEST).read_text())
        usable = found["converter"] == VERSION and (facts is None or found["source"] == facts)
        whole = all((folder / name).stat().st_size == size for name, size in found["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if usable and whole else None


def write(folder: Path, located: Located, config: dict[str, Any], convert: Callable[[Path], list[Path]]) -> dict[str, Any]:
    """Convert a part into its place in one go -> its manifest: what is not finished is not there, and what another process has
    finished meanwhile is taken as it is.

    Raises CheckpointError when the disk is full or `convert` does.
    """
    with locked(folder):
        return manifest(folder, located.facts) or _write(folder, located, config, convert)


def _write(folder: Path, located: Located, config: dict[str, Any], convert: Callable[[Path], list[Path]]) -> dict[str, Any]:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".unfinished-") as scratch:
            unfinished = Path(scratch) / folder.name
            unfinished.mkdir()
            files = convert(unfinished)
            made = {
                "converter": VERSION,
                "source": located.facts,
                "config": config,
                "files": {path.name: path.stat().st_size for path in files},
            }
            (unfinished / MANIFEST).write_text(json.dumps(made, indent=1) + "\n")
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
    except OSError as error:
        if disk_full(error):
            raise CheckpointError(
                f"The disk of {folder.parent} is full: the converted {located.source.weights} does not fit; free some space, "
                "or set LANTERN_CACHE to a larger disk"
            ) from error
        raise CheckpointError(f"{folder} cannot be written ({error}); set LANTERN_CACHE to a folder that can") from error
    return made


def weights(folder: Path, files: dict[str, int]) -> dict[str, Tensor]:
    """The weights of a converted part, memory-mapped. Raises CheckpointError when a file is damaged."""
    found: dict[str, Tensor] = {}
    for name in files:
        try:
            found.update(load_file(folder / name))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{folder / name} is damaged ({error}); delete {folder}, and it is made anew") from error
    return found


def table(folder: Path | None, name: str, shape: tuple[int, int], make: Callable[[], Tensor]) -> Tensor:
    """A table [rows, columns] int32 kept in a part's folder, or made and put there. Without a folder it is only made."""
    if folder is None:
        return make()
    path = folder / f"{name}.safetensors"
    try:
        kept = load_file(path)[name]
        if tuple(kept.shape) == shape and kept.dtype == torch.int32:
            return kept
    except (SafetensorError, OSError, KeyError):
        pass  # not there yet, or damaged: made anew
    made = make()
    unfinished = path.with_suffix(f".{os.getpid()}.part")
    try:
        save_file({name: made.cpu().contiguous()}, unfinished)
        unfinished.replace(path)
    except (SafetensorError, OSError):
        unfinished.unlink(missing_ok=True)  # it can be made again; a full disk must not stop a run
    return made
