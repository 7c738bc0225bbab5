"""Locate the files of a published part, on the Hub or in a folder on this machine."""

from __future__ import annotations

import atexit
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name

from lantern_demo.faults import disk_full
from lantern_demo.models.registry import Part, Published, Source
from lantern_demo.models.tensors import CheckpointError, one_line


def why_failed(error: Exception, source: Source) -> str:
    """Return what failed, the library's own words on one line, and the remedy."""
    absent = isinstance(error, LocalEntryNotFoundError)
    cause = error.__cause__ if absent and error.__cause__ else error
    said = one_line(f"{type(cause).__name__}: {cause}")
    what = f"{source.weights} of {source.repo} could not be downloaded"
    return f"{what} ({said}); {_remedy(cause)}; finished files are kept"


def _remedy(cause: BaseException) -> str:
    """Return what to do about a failed download, by the class of its cause."""
    status = cause.response.status_code if isinstance(cause, HfHubHTTPError) else 0
    if disk_full(cause):
        return f"the disk of {constants.HF_HUB_CACHE} is full: set HF_HOME to a larger one"
    if isinstance(cause, GatedRepoError):
        return "ask for access on the repository's page, and set HF_TOKEN to that account's token"
    if isinstance(cause, RepositoryNotFoundError):
        return "if it is private, set HF_TOKEN to a token of an account with access"
    if status == 404:
        return "give a folder that holds the files"
    if status in (401, 403):
        return "renew the token in HF_TOKEN or unset it, and check the proxy"
    if status == 429:
        return "wait some minutes, or set HF_TOKEN to a token of your account"
    if status >= 500:
        return "try again later"
    if isinstance(cause, (LocalEntryNotFoundError, OfflineModeIsEnabled)):
        return "unset HF_HUB_OFFLINE, or give a folder that holds the files"
    if isinstance(cause, OSError) and cause.filename:
        return f"{cause.filename} cannot be written: set HF_HOME to another folder"
    return (
        "check the network, the proxy and HF_ENDPOINT, and open a page in a browser, since the "
        "network may ask for a login"
    )


OPEN_FILES = Path("/proc/self/fd")  # a link to each file that this process has open, on Linux


@dataclass(frozen=True)
class Located:
    """A published part on this machine: its weight files, and facts of their origin."""

    source: Source
    weights: tuple[Path, ...]
    facts: dict[str, str | int]

    def beside(self, name: str) -> Path:
        return self.weights[0].parent / name


def download(source: Source) -> Located:
    """Fetch a part's files into the Hub's cache, or find them there.

    Finished files are kept. Within a call a broken connection is resumed. After a failed or stopped
    call the file in flight begins again. HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE and HF_TOKEN count.
    The facts hold the commit. Raise CheckpointError.
    """
    # Existing files are kept: a model must not change because its branch on the Hub moved on.
    weights = cached(source)
    if not weights:
        try:
            wanted = [source.weights, *source.beside]
            folder = Path(snapshot_download(source.repo, allow_patterns=wanted))
            weights = tuple(sorted(folder.glob(source.weights)))
        # the download library raises many errors, and each becomes a sentence
        except Exception as error:
            raise CheckpointError(why_failed(error, source)) from error
    if not whole(weights):
        raise CheckpointError(
            f"{source.repo} lacks files {source.weights}; give a folder that holds them"
        )
    facts: dict[str, str | int] = {
        "repo": source.repo,
        "file": source.weights,
        "commit": weights[0].parent.name,
        "bytes": _bytes(weights),
    }
    return Located(source, weights, facts)


def cached(source: Source) -> tuple[Path, ...]:
    """Return a part's weight files in the Hub's cache, or none if some of its files are missing.

    Of several weight files all that their names count must be there. The commit that the Hub's
    branch had last comes first. Another program may have seen a new one, and fetched other files.
    """
    name = repo_folder_name(repo_id=source.repo, repo_type="model")
    repository = Path(constants.HF_HUB_CACHE, name)
    main = repository / "refs" / "main"
    last = main.read_text(encoding="utf-8") if main.is_file() else ""
    for folder in sorted(repository.glob("snapshots/*"), key=lambda one: one.name != last):
        weights = tuple(sorted(folder.glob(source.weights)))
        if whole(weights) and all(weights[0].with_name(n).exists() for n in source.beside):
            return weights
    return ()


def whole(paths: tuple[Path, ...]) -> bool:
    """Return whether files named NAME-00001-of-00003 and so on are all there.

    A file without a count is complete.
    """
    counts = {int(found[1]) for path in paths if (found := re.search(r"-of-(\d+)\.", path.name))}
    return bool(paths) and counts <= {len(paths)}


@atexit.register
def delete_part_files() -> None:
    """Delete the part files of this process's unfinished downloads, which nothing reads again.

    The library does so itself where a download ends by an error. But the end of the program does
    not wait for the threads that download. Their part files are found among the open files: no
    other process is disturbed. Only Linux lists those.
    """
    for link in OPEN_FILES.glob("*"):
        with suppress(OSError):  # closed meanwhile
            file = link.readlink()
            if file.suffix == ".incomplete":
                file.unlink()


def find(published: Published, part: Part, folder: Path) -> Located | None:
    """Return a part's files in a local folder, from the first source there, or None.

    They may lie in `places`. Raise CheckpointError when some of several files are missing.
    """
    for source in _in_a_folder(published, part):
        for place in places(source, part):
            found = sorted(p for p in folder.glob(f"{place}/{source.weights}") if p.is_file())
            weights = tuple(path for path in found if path.parent == found[0].parent)
            if not weights:
                continue
            here = weights[0].parents[source.weights.count("/")]
            if not whole(weights):
                names = ", ".join(path.name for path in weights)
                raise CheckpointError(f"{here} must hold all files, and has only {names}")
            # only the last folder's name, since a run's record has these facts
            facts: dict[str, str | int] = {
                "local": here.resolve().name,
                "file": source.weights,
                "bytes": _bytes(weights),
            }
            return Located(source, weights, facts)
    return None


def _in_a_folder(published: Published, part: Part) -> list[Source]:
    """Return a part's sources in the order in which a folder is searched.

    Its own files come before those that it shares with another part. So Chameleon's image
    tokenizer comes before a whole model, whose conversion may lack it.
    """
    others = [of for other, of in published.sources.items() if other != part]
    shared = {(source.repo, source.weights) for of in others for source in of}
    return sorted(published.sources[part], key=lambda one: (one.repo, one.weights) in shared)


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


def _bytes(paths: tuple[Path, ...]) -> int:
    return sum(p.stat().st_size for p in paths)
