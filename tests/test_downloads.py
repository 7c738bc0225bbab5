"""Downloads from a small Hub on this machine: what is kept, and what a failure is said to be."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hub_server import COMMIT, Server, hub_server
from huggingface_hub import close_session, constants, errors
from tiny import wait_for

from lantern_demo.models import hub
from lantern_demo.models.hub import why_failed
from lantern_demo.models.registry import REGISTRY, Source
from lantern_demo.models.tensors import CheckpointError

ROOT = Path(__file__).resolve().parent.parent
SOURCE = Source("owner/many", "model-*.safetensors", "t5", ("config.json",))
FILES = {f"owner/many/model-0000{i}-of-00002.safetensors": bytes([i]) * 2000 for i in (1, 2)}
FILES["owner/many/config.json"] = b"{}"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A Hub that the library asks, as if HF_ENDPOINT named it, without waits between its tries."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    close_session()
    with hub_server(FILES) as server:
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield server
    close_session()


def parts(cache: Path) -> list[Path]:
    return list(cache.rglob("*.incomplete"))


def test_finished_files_are_kept_and_broken_ones_resumed(server: Server, tmp_path: Path) -> None:
    """But after a call that failed the file in flight begins again."""
    server.breaks, server.only = 100, "model-00002"
    with pytest.raises(CheckpointError, match=r"^[^\n]*finished files are kept$"):
        hub.download(SOURCE)
    assert not parts(tmp_path)
    server.breaks = 3
    server.requests.clear()
    located = hub.download(SOURCE)
    names, ranges = zip(*server.fetched(), strict=True)
    assert {name.rpartition("/")[2] for name in names} == {"model-00002-of-00002.safetensors"}
    assert [part is None for part in ranges] == [True, False, False, False]
    for path in located.weights:
        assert path.read_bytes() == FILES[f"{SOURCE.repo}/{path.name}"]
    assert located.facts["commit"] == COMMIT
    server.requests.clear()
    assert hub.download(SOURCE) == located and not server.requests
    # another program saw a new commit, and fetched one other file
    repository = located.weights[0].parents[2]
    (repository / "refs" / "main").write_text("new", encoding="utf-8")
    (repository / "snapshots" / "new").mkdir()
    (repository / "snapshots" / "new" / "config.json").touch()
    assert hub.download(SOURCE) == located and not server.requests


def hub_error(status: int, kind: Any = errors.HfHubHTTPError) -> Exception:
    request = httpx.Request("GET", "https://hub.example/x")
    return kind("its own\nwords", response=httpx.Response(status, request=request))


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


# An error -> what the remedy names.
REMEDIES: list[tuple[Exception, str]] = [
    (hub_error(403, errors.GatedRepoError), "ask for access"),
    (hub_error(404, errors.RepositoryNotFoundError), "if it is private, set HF_TOKEN"),
    (hub_error(404, errors.RevisionNotFoundError), "give a folder"),
    (hub_error(401), "renew the token in HF_TOKEN"),
    (hub_error(429), "wait some minutes"),
    (caused(errors.LocalEntryNotFoundError("no"), hub_error(503)), "try again later"),
    (errors.OfflineModeIsEnabled("no"), "unset HF_HUB_OFFLINE"),
    (errors.LocalEntryNotFoundError("no"), "unset HF_HUB_OFFLINE"),
    (ValueError("a login page"), "check the network, the proxy and HF_ENDPOINT"),
    (PermissionError(errno.EACCES, "no", "/hub"), "/hub cannot be written: set HF_HOME"),
    (caused(RuntimeError("no"), OSError(errno.EDQUOT, "no")), "is full: set HF_HOME"),
]


@pytest.mark.parametrize(("error", "remedy"), REMEDIES, ids=str)
def test_a_failure_has_a_remedy(error: Exception, remedy: str) -> None:
    said = why_failed(error, SOURCE)
    assert said.startswith("model-*.safetensors of owner/many could not be downloaded (")
    assert said.isprintable() and remedy in said.partition("); ")[2]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the open files")
def test_a_stopped_program_leaves_no_part_files(tmp_path: Path) -> None:
    """It ends at once, though threads still download. Part files of other processes stay."""
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment |= dict.fromkeys(("HF_HOME", "LANTERN_CACHE"), str(tmp_path))
    target = REGISTRY["llamagen-t2i-256"].published.sources["target"][0]
    names = target.weights, *target.beside
    with hub_server({f"{target.repo}/{name}": bytes(3000) for name in names}) as server:
        server.stalls = True
        running = subprocess.Popen(
            [sys.executable, "-m", "lantern_demo.models.checkpoints", "--model=llamagen-t2i-256"],
            cwd=ROOT,
            env=environment | {"NO_PROXY": "127.0.0.1", "HF_ENDPOINT": server.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            # background commands of a script begin with it ignored
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        try:
            wait_for(lambda: parts(tmp_path) or running.poll(), "parts", seconds=120)
            other = parts(tmp_path)[0].with_name("another.incomplete")
            other.touch()
            running.send_signal(signal.SIGINT)
            told, _ = running.communicate(timeout=20)
        finally:
            running.kill()
    assert running.returncode == 130, told
    # a thread of the Hub's library may still write a line
    assert "Stopped.\n" in told and "Traceback" not in told
    assert parts(tmp_path) == [other]
