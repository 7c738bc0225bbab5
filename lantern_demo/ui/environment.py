"""Make the environment harmless before Gradio and the Hub's client, which read it, are imported.

This module imports the standard library alone.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile
from pathlib import Path
from urllib.request import getproxies

HOST, PORT, TEMPORARY = "GRADIO_SERVER_NAME", "GRADIO_SERVER_PORT", "GRADIO_TEMP_DIR"
PATH = "GRADIO_ROOT_PATH"
LOOPBACK = "127.0.0.1"
# Of Gradio's variables the page reads these. Others start a debugger, for instance, or serve
# more files.
READ = {HOST, PORT, TEMPORARY, PATH, "GRADIO_MCP_SERVER", "GRADIO_SHARE"}
READ |= {"GRADIO_ANALYTICS_ENABLED"}
TIMEOUTS = ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT")  # which the Hub's client reads
# Variables that HTTP clients read, in small or large letters, and their values.
PROXY = "an address such as http://proxy:8080"
CONNECTIONS = {
    "http_proxy": PROXY,
    "https_proxy": PROXY,
    "all_proxy": PROXY,
    "no_proxy": "hosts with commas between",
    "ssl_cert_file": "a file of certificates",
}


def prepare(port: int | None) -> int | None:
    """Prepare the environment. Return the port to listen on, or None for the first free one.

    `port` is the command line's. Raise ValueError with the variable and its allowed values.
    """
    for name, value in list(os.environ.items()):
        if name.startswith("GRADIO_") and (name not in READ or not value):
            del os.environ[name]
    for name in TIMEOUTS:
        value = os.environ.get(name) or "0"
        if not value.isdecimal():
            raise ValueError(f"{name} must be a whole number of seconds, got {value!r}")
    host = os.environ.get(HOST, LOOPBACK)
    check_host(host)
    named, given = (PORT, os.environ.get(PORT)) if port is None else ("--port", port)
    chosen = None if given is None else checked_port(named, given, host)
    path = os.environ.get(PATH, "/")
    if not path.startswith(("/", "http://", "https://")):
        raise ValueError(f"{PATH} must be a path such as /demo or a whole address, got {path!r}")
    check_connections()
    reach_itself(host)
    set_temporary_folder()
    set_home()
    return chosen


def check_host(host: str) -> None:
    """Raise ValueError for a host that is not this machine, or that Gradio cannot listen to."""
    try:
        socket.create_server((host, 0)).close()
    except (OSError, UnicodeError):
        allowed = "an IPv4 address or a name of this machine, such as 127.0.0.1, or 0.0.0.0 for all"
        raise ValueError(f"{HOST} must be {allowed}, got {host!r}") from None


def checked_port(named: str, given: int | str, host: str) -> int:
    """Return the port of an option or variable. Raise ValueError if it cannot be listened to."""
    try:
        port = int(given)
    except ValueError:
        port = 0
    if not 1 <= port <= 65535:
        raise ValueError(f"{named} must be a whole number between 1 and 65535, got {given!r}")
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        forbidden = isinstance(error, PermissionError)
        why = "this user may not listen to it" if forbidden else "it is taken"
        remedy = f"choose another one with {named}"
        raise ValueError(f"port {port} cannot be used, since {why}; {remedy}") from None
    return port


def check_connections() -> None:
    """Raise ValueError for proxies and certificates that no HTTP client takes.

    Gradio makes such a client while it is imported.
    """
    error = refusal()
    if error is None:
        return
    for name in [name for name in os.environ if name.lower() in CONNECTIONS]:
        del os.environ[name]
        if refusal() is None:  # so this is the faulty one
            raise ValueError(f"{name} must be {CONNECTIONS[name.lower()]}, or unset ({error})")
    remedy = "correct it, or set NO_PROXY to *"
    raise ValueError(f"the system's proxy cannot be used ({error}); {remedy}")


def refusal() -> Exception | None:
    """Return why Gradio's HTTP client refuses the proxies and certificates, or None."""
    import httpx  # not above: `app` reports a missing package

    try:
        httpx.Client().close()
    except Exception as error:  # of many kinds
        return error
    return None


def reach_itself(host: str) -> None:
    """Exempt this machine from the proxies. At its launch Gradio asks its own server for a page."""
    proxies = getproxies()  # of the environment or, without any there, of the system
    for scheme in proxies.keys() & {"http", "https", "all"}:
        # NO_PROXY in the environment would hide the system's proxies from downloads.
        os.environ[f"{scheme}_proxy"] = proxies[scheme]
    direct = ",".join(filter(None, [proxies.get("no"), LOOPBACK, "localhost", "::1", host]))
    os.environ.update(no_proxy=direct, NO_PROXY=direct)


def set_temporary_folder() -> None:
    """Give Gradio a temporary folder of this process. Raise ValueError if it cannot be written.

    Gradio's own default is one for all users, and belongs to whoever came first.
    """
    variable = "TMPDIR"
    try:
        own = tempfile.mkdtemp(prefix="lantern-page-")
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        variable = TEMPORARY
        folder = Path(os.environ.setdefault(TEMPORARY, own))
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        given = f"{os.environ.get(variable)!r} ({error.strerror})"
        allowed = "a folder that this user can write to"
        raise ValueError(f"{variable} must be {allowed}, got {given}") from None


def set_home() -> None:
    """Make the temporary folder the home of a user without one, as in some containers.

    `spaces` looks for it while it is imported.
    """
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = os.environ[TEMPORARY]
