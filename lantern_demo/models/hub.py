"""Locate the files of a published part, on the Hub or in a folder on this machine."""

from __future__ import annotations

import atexit
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import constants, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lantern_demo.faults import disk_full
from lantern_demo.models.registry import Part, Published, Source
from lantern_demo.models.tensors import CheckpointError

REVISIONS = "LANTERN_REVISIONS"  # an environment variable: "repo=revision", several with commas
# The library raises these when an answer lacks what every answer of a Hub has.
UNREADABLE = (FileMetadataError, json.JSONDecodeError, LookupError, TypeError, AssertionError)
QUOTED = 300  # characters, at most


def why_failed(error: Exception, source: Source, revision: str) -> str:
    """Return a sentence that explains a failed download, and the remedy."""
    what = f"{source.weights} of {source.repo}"
    repo = source.repo
    cache = constants.HF_HUB_CACHE
    absent = isinstance(error, LocalEntryNotFoundError)
    cause = error.__cause__ if absent and error.__cause__ else error
    if disk_full(error):
        remedy = "free some space, or set HF_HOME to a larger disk"
        return f"The disk of {cache} is full: {what} does not fit; {remedy}"
    if isinstance(cause, GatedRepoError):
        remedy = "ask for access on its page on the Hub, and set HF_TOKEN to that account's token"
        return f"{repo} is gated: {remedy}"
    if isinstance(cause, RevisionNotFoundError):
        return f"{repo} has no revision {revision!r}; correct it in {REVISIONS}"
    if isinstance(cause, HfHubHTTPError):
        return _why_refused(cause, source, revision)
    if isinstance(cause, UNREADABLE):
        return _not_the_hub(what, "it lacks what each answer of the Hub has")
    if "CERTIFICATE" in str(cause):
        return _not_the_hub(what, _line(cause))
    if absent:
        return (
            f"{what} is not on this machine and the Hub was not reached: check the network and "
            "the proxy, and unset HF_HUB_OFFLINE, or give a folder that holds the files"
        )
    if isinstance(cause, OSError) and cause.errno and not isinstance(cause, ConnectionError):
        remedy = "set HF_HOME to a folder that can be written, on a disk that takes large files"
        return f"{what} cannot be stored in {cause.filename or cache} ({cause.strerror}): {remedy}"
    return (
        f"{what} could not be downloaded ({type(cause).__name__}: {_line(cause)}); "
        "try again: finished files are kept, and the file in flight begins again; "
        "if it fails once more, check HF_ENDPOINT and the proxy"
    )


def _why_refused(error: HfHubHTTPError, source: Source, revision: str) -> str:
    """Return the sentence for an error status, of the Hub or of what answers in its place."""
    what = f"{source.weights} of {source.repo}"
    repo = source.repo
    answer = error.response
    status = answer.status_code
    with_token = "authorization" in answer.request.headers
    own = f": {error.server_message}" if error.server_message else ""
    said = _line(f"{status} {answer.reason_phrase}{own}")
    if status == 401 and with_token:
        remedy = "renew it, or unset HF_TOKEN and run hf auth logout; public files need no token"
        return f"The Hub does not accept the token ({said}): {remedy}"
    if status == 401 or isinstance(error, RepositoryNotFoundError):
        remedy = "if you have access, set HF_TOKEN to a token of your account"
        return f"{repo} is not on the Hub, or it is private: {remedy}"
    if isinstance(error, EntryNotFoundError):
        remedy = f"pin a revision that has it in {REVISIONS}"
        return f"{repo} at revision {revision} lacks a file ({_line(error)}); {remedy}"
    if status == 403:
        remedy = "check the rights of the token in HF_TOKEN, or unset it; with no token the proxy"
        return f"The Hub, or a proxy before it, refuses {what} ({said}): {remedy}"
    if status == 429:
        remedy = "wait some minutes, or set HF_TOKEN to a token of your account"
        return f"The Hub limits the requests of this address or account ({said}): {remedy}"
    if status >= 500:
        remedy = "try later; finished files are kept"
        return f"The Hub, or a proxy before it, has a fault ({said}): {remedy}"
    return _not_the_hub(what, said)


def _not_the_hub(what: str, said: str) -> str:
    return (
        f"The answer for {what} is not the Hub's ({said}): check HF_ENDPOINT and the proxy, "
        "and open a page in a browser, since the network may ask for a login"
    )


def _line(text: object) -> str:
    """Return a text from outside as one line of printable characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())[:QUOTED]


OPEN_FILES = Path("/proc/self/fd")  # a link to each file that this process has open, on Linux


@dataclass(frozen=True)
class Located:
    """A published part on this machine: its weight files, and facts of their origin."""

    source: Source
    weights: tuple[Path, ...]
    facts: dict[str, str | int]

    def beside(self, name: str) -> Path:
        return self.weights[0].parent / name


def revision_of(source: Source) -> str:
    """Return the revision: LANTERN_REVISIONS's, else the registry's.

    Raise ValueError for a malformed variable.
    """
    pins: dict[str, str] = {}
    for entry in filter(None, (e.strip() for e in os.environ.get(REVISIONS, "").split(","))):
        repo, found, revision = entry.partition("=")
        if not found or not revision:
            raise ValueError(
                f'{REVISIONS} must be "repository=revision", several with commas between, '
                f"got {entry!r}"
            )
        pins[repo.strip()] = revision.strip()
    return pins.get(source.repo, source.revision)


def download(source: Source) -> Located:
    """Fetch a part's files into the Hub's cache, or find them there.

    Finished files are kept. Within a call a broken connection is resumed. After a failed or stopped
    call the file in flight begins again. HF_HOME, HF_ENDPOINT, HF_HUB_OFFLINE and HF_TOKEN count.
    The facts hold the commit that the revision resolved to. Raise CheckpointError.
    """
    revision = revision_of(source)
    try:
        # Existing files are kept: a model must not change because its branch on the Hub moved on.
        here = bool(cached(source))
        if "*" in source.weights:
            wanted = [source.weights, *source.beside]
            folder = Path(
                snapshot_download(
                    source.repo, revision=revision, allow_patterns=wanted, local_files_only=here
                )
            )
            weights = tuple(sorted(folder.glob(source.weights)))
        else:
            files = [
                hf_hub_download(source.repo, name, revision=revision, local_files_only=here)
                for name in (*source.beside, source.weights)
            ]
            weights = (Path(files[-1]),)
    # the download library raises many errors, and each becomes a sentence
    except Exception as error:
        raise CheckpointError(why_failed(error, source, revision)) from error
    if not weights:
        raise CheckpointError(
            f"{source.repo} at {revision} has no files {source.weights}; what it holds has changed"
        )
    _check_count(weights)
    facts: dict[str, str | int] = {
        "repo": source.repo,
        "file": source.weights,
        "revision": revision,
        "commit": _commit(weights[0]),
        "bytes": _bytes(weights),
    }
    return Located(source, weights, facts)


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

    `places` says where they may lie. Raise CheckpointError when some of several files are missing.
    """
    for source in _in_a_folder(published, part):
        for place in places(source, part):
            for here in [folder] if place == "." else sorted(folder.glob(place)):
                weights = tuple(sorted(p for p in here.glob(source.weights) if p.is_file()))
                if weights:
                    _check_count(weights)
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

    Files of its own come before those that it shares with another part. So Chameleon's image
    tokenizer comes before a whole model, whose conversion may lack it.
    """
    others = [of for other, of in published.sources.items() if other != part]
    shared = {(source.repo, source.weights) for of in others for source in of}
    return sorted(published.sources[part], key=lambda one: (one.repo, one.weights) in shared)


def _check_count(weights: tuple[Path, ...]) -> None:
    if not whole(weights):
        names = ", ".join(path.name for path in weights)
        raise CheckpointError(
            f"{weights[0].parent} holds only {names}, which are not all of them; "
            "fetch the others too"
        )


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


def cached(source: Source) -> tuple[Path, ...]:
    """Return a part's weight files in the Hub's cache, or none if some of its files are missing.

    Of several weight files all that their names count must be there.
    """
    revision = revision_of(source)
    several = "*" in source.weights
    names = source.beside if several else (source.weights, *source.beside)
    places = [
        try_to_load_from_cache(source.repo, name, constants.HF_HUB_CACHE, revision=revision)
        for name in names
    ]
    found = [Path(place) for place in places if isinstance(place, str)]
    if len(found) < len(names):
        return ()
    if not several:
        return (found[0],)
    weights = tuple(found[0].parent.glob(source.weights))
    return weights if whole(weights) else ()


def whole(paths: tuple[Path, ...]) -> bool:
    """Return whether files named NAME-00001-of-00003 and so on are all there.

    A file without a count is complete.
    """
    counts = {int(found[1]) for path in paths if (found := re.search(r"-of-(\d+)\.", path.name))}
    return bool(paths) and counts <= {len(paths)}


def _commit(path: Path) -> str:
    """Return the commit in the path of a file of the Hub's cache, .../snapshots/<commit>/<file>."""
    found = re.fullmatch(r".*/snapshots/([^/]+)/.*", path.as_posix())
    return found[1] if found else "unknown"


def _bytes(paths: tuple[Path, ...]) -> int:
    return sum(p.stat().st_size for p in paths)
