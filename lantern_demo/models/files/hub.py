"""Locate the files of a published part: on the Hub, from which they are downloaded, or in a folder on this machine."""

from __future__ import annotations

import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lantern_demo.models.files.tensors import CheckpointError
from lantern_demo.models.registry import Part, Published, Source

REVISIONS = "LANTERN_REVISIONS"  # an environment variable: "repo=revision", several with commas


@dataclass(frozen=True)
class Located:
    """A published part on this machine: its weight files, and facts of their origin."""

    source: Source
    weights: tuple[Path, ...]
    facts: dict[str, str | int]

    def beside(self, name: str) -> Path:
        return self.weights[0].parent / name


def revision_of(source: Source) -> str:
    """Return the revision: LANTERN_REVISIONS's, else the registry's. Raise ValueError for a malformed variable."""
    pins: dict[str, str] = {}
    for entry in filter(None, (e.strip() for e in os.environ.get(REVISIONS, "").split(","))):
        repo, found, revision = entry.partition("=")
        if not found or not revision:
            raise ValueError(f'{REVISIONS} must be "repository=revision", several with commas between, got {entry!r}')
        pins[repo.strip()] = revision.strip()
    return pins.get(source.repo, source.revision)


def download(source: Source) -> Located:
    """Fetch a part's files into the Hub's cache, or find them there; an interrupted download continues.

    Honours HF_HOME, HF_HUB_OFFLINE and HF_TOKEN. The facts hold the commit that the revision resolved to. Raise
    CheckpointError.
    """
    revision = revision_of(source)
    try:
        # Existing files are kept: a model must not change because its branch on the Hub moved on.
        here = downloaded(source)
        if "*" in source.weights:
            wanted = [source.weights, *source.beside]
            folder = Path(snapshot_download(source.repo, revision=revision, allow_patterns=wanted, local_files_only=here))
            weights = tuple(sorted(folder.glob(source.weights)))
        else:
            for name in source.beside:
                hf_hub_download(source.repo, name, revision=revision, local_files_only=here)
            weights = (Path(hf_hub_download(source.repo, source.weights, revision=revision, local_files_only=here)),)
    except Exception as error:  # the download library raises many errors, and each becomes a sentence
        raise CheckpointError(_sentence(error, source, revision)) from error
    if not weights:
        raise CheckpointError(f"{source.repo} at {revision} has no files {source.weights}; what it holds has changed")
    _check_count(weights)
    facts: dict[str, str | int] = {"repo": source.repo, "file": source.weights, "revision": revision}
    return Located(source, weights, facts | {"commit": _commit(weights[0]), "bytes": _bytes(weights)})


def find(published: Published, part: Part, folder: Path) -> Located | None:
    """Return a part's files in a folder on this machine, from the first source that lies there, or
    None.

    `places` says where they may lie. Raise CheckpointError when some of several files are missing.
    """
    for source in _in_a_folder(published, part):
        for place in places(source, part):
            for here in [folder] if place == "." else sorted(folder.glob(place)):
                weights = tuple(sorted(p for p in here.glob(source.weights) if p.is_file()))
                if weights:
                    _check_count(weights)
                    # only the last folder's name, since a run's record has these facts
                    facts: dict[str, str | int] = {"local": here.resolve().name, "file": source.weights}
                    return Located(source, weights, facts | {"bytes": _bytes(weights)})
    return None


def _in_a_folder(published: Published, part: Part) -> list[Source]:
    """Return a part's sources in the order in which a folder is searched.

    Files of its own come before those that it shares with another part. So Chameleon's image
    tokenizer comes before a whole model, whose conversion may lack it.
    """
    others = [of for other, of in published.sources.items() if other != part]
    shared = {(source.repo, source.weights) for of in others for source in of}
    return sorted(published.sources[part], key=lambda one: (one.repo, one.weights) in shared)


def _check_count(weights: tuple[Path, ...]) -> None:
    if not whole(weights):
        names = ", ".join(path.name for path in weights)
        raise CheckpointError(f"{weights[0].parent} holds only {names}, which are not all of them; fetch the others too")


def places(source: Source, part: Part) -> list[str]:
    """Return where a part may lie in a local folder, as patterns.

    It lies under the part's name, or under its repository's in the folder or in one of its
    sub-folders. A file whose name identifies it may lie in the folder itself.
    """
    repository = source.repo.split("/")[1]
    itself = [] if source.weights.endswith((".safetensors", ".bin")) else ["."]
    return [part, repository, f"*/{repository}", *itself]


def looked_for(published: Published, part: Part) -> str:
    """Return in words where in a local folder the files of a part were looked for."""
    sources = _in_a_folder(published, part)
    files = [str(Path(place) / one.weights) for one in sources for place in places(one, part)]
    return f"none of {', '.join(dict.fromkeys(files))}"


def downloaded(source: Source) -> bool:
    """Return whether a part's files are in the Hub's cache; of several weight files all that their names count."""
    revision = revision_of(source)
    names = (*source.beside, source.weights) if "*" not in source.weights else source.beside
    found = [try_to_load_from_cache(source.repo, name, HF_HUB_CACHE, revision=revision) for name in names]
    if not all(isinstance(path, str) for path in found):
        return False
    return "*" not in source.weights or whole(tuple(Path(str(found[0])).parent.glob(source.weights)))


def whole(paths: tuple[Path, ...]) -> bool:
    """Return whether files named NAME-00001-of-00003 and so on are all there; a file without a count is complete."""
    counts = {int(found[1]) for path in paths if (found := re.search(r"-of-(\d+)\.", path.name))}
    return bool(paths) and counts <= {len(paths)}


def disk_full(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is a full disk."""
    while error is not None:
        if (isinstance(error, OSError) and error.errno == errno.ENOSPC) or "No space left on device" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def _sentence(error: Exception, source: Source, revision: str) -> str:
    """Return a sentence that explains a failed download, and the remedy."""
    what = f"{source.weights} of {source.repo}"
    if disk_full(error):
        return f"The disk of {HF_HUB_CACHE} is full: {what} does not fit; free some space, or set HF_HOME to a larger disk"
    if isinstance(error, GatedRepoError):
        return f"{source.repo} is gated: ask for access on its page on the Hub, and set HF_TOKEN to a token of that account"
    if isinstance(error, RevisionNotFoundError):
        return f"{source.repo} has no revision {revision!r}; correct it in {REVISIONS}"
    if isinstance(error, RepositoryNotFoundError):
        return f"{source.repo} is not on the Hub, or it is private: if you have access, set HF_TOKEN to a token of your account"
    if isinstance(error, LocalEntryNotFoundError):
        return (
            f"{what} is not on this machine and the Hub was not reached: connect to the network and unset HF_HUB_OFFLINE, or "
            "give a folder that holds the files"
        )
    if isinstance(error, EntryNotFoundError):
        return f"{source.repo} at revision {revision} lacks a file ({error}); pin a revision that has it in {REVISIONS}"
    return f"{what} could not be downloaded ({type(error).__name__}: {error}); try again, which goes on where it stopped"


def _commit(path: Path) -> str:
    """Return the commit in the path of a file of the Hub's cache, .../snapshots/<commit>/<file>."""
    parts = path.parts
    return parts[len(parts) - 1 - parts[::-1].index("snapshots") + 1] if "snapshots" in parts else "unknown"


def _bytes(paths: tuple[Path, ...]) -> int:
    return sum(p.stat().st_size for p in paths)
