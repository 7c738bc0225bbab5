"""Sentences for downloads that failed: the cause, and the remedy."""

from __future__ import annotations

import errno
import json

from huggingface_hub import constants
from huggingface_hub.errors import (
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from lantern_demo.models.registry import Source

REVISIONS = "LANTERN_REVISIONS"  # an environment variable: "repo=revision", several with commas
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# The library raises these when an answer lacks what every answer of a Hub has.
UNREADABLE = (FileMetadataError, json.JSONDecodeError, LookupError, TypeError, AssertionError)
QUOTED = 300  # characters, at most


def disk_full(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is a full disk or a used-up quota."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            return True
        if "No space left on device" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def why_failed(error: Exception, source: Source, revision: str) -> str:
    """Return a sentence that explains a failed download, and the remedy."""
    what, repo, cache = f"{source.weights} of {source.repo}", source.repo, constants.HF_HUB_CACHE
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
    what, repo, answer = f"{source.weights} of {source.repo}", source.repo, error.response
    status, with_token = answer.status_code, "authorization" in answer.request.headers
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
