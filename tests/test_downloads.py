"""Downloads from a small Hub on this machine: what is kept, what begins again, and what a failure
is said to be.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import COMMIT, Answer, Server, hub_server
from huggingface_hub import close_session, constants
from space import free_port
from tiny import wait_for

from lantern_demo.models import hub
from lantern_demo.models.hub import why_failed
from lantern_demo.models.registry import Source
from lantern_demo.models.tensors import CheckpointError

ROOT = Path(__file__).resolve().parent.parent
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the open files")
ONE = Source("owner/one", "model.pt", "vq")
MANY = Source("owner/many", "model-*.safetensors", "t5", ("config.json",))
FILES = {"owner/one/model.pt": bytes(range(250)) * 8, "owner/many/config.json": b"{}"}
FILES |= {f"owner/many/model-0000{i}-of-00002.safetensors": bytes([i]) * 2000 for i in (1, 2)}
SAID = "X-Error-Message"
SCOPE = "enable access to public gated repositories in your fine-grained token settings"


@pytest.fixture(scope="module")
def no_proxy() -> Iterator[None]:
    """Connections to this machine, made anew, without a proxy that the environment names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        close_session()
        yield
    close_session()


@pytest.fixture
def server(no_proxy: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A Hub that the library asks, its cache, and no waits between its tries."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with hub_server(FILES) as server:
        move(monkeypatch, server.url)
        yield server


def move(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Let the library ask a Hub at this address, as HF_ENDPOINT does before it is imported."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    template = url + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


def failure(source: Source) -> str:
    """The sentence for a download that fails."""
    with pytest.raises(CheckpointError) as raised:
        hub.download(source)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def parts(cache: Path) -> list[Path]:
    return list(cache.rglob("*.incomplete"))


# -- what is kept


@pytest.mark.parametrize("source", [ONE, MANY], ids=lambda source: source.weights)
def test_a_broken_connection_is_resumed(source: Source, server: Server) -> None:
    server.breaks = 3
    located = hub.download(source)
    for path in located.weights:
        assert path.read_bytes() == FILES[f"{source.repo}/{path.name}"]
    assert located.facts["commit"] == COMMIT
    assert len([part for _, part in server.fetched() if part]) == 3
    server.asked.clear()
    assert hub.download(source) == located and not server.asked


def test_a_file_in_flight_begins_again_and_finished_ones_are_kept(
    server: Server, tmp_path: Path
) -> None:
    server.breaks = 100
    assert "finished files are kept" in failure(ONE) and not parts(tmp_path)
    server.breaks = 0
    server.asked.clear()
    hub.download(ONE)
    assert [part for _, part in server.fetched()] == [None]
    server.fault, server.only = Answer(503), f"GET /owner/many/resolve/{COMMIT}/model-00002"
    assert "finished files are kept" in failure(MANY)
    server.fault = None
    server.asked.clear()
    hub.download(MANY)
    assert [name.rpartition("/")[2] for name, _ in server.fetched()] == [
        "model-00002-of-00002.safetensors"
    ]


@LINUX
def test_the_end_of_the_program_deletes_its_own_part_files(server: Server, tmp_path: Path) -> None:
    """Not those of other processes, in the same folder."""
    server.stalls = True
    thread = threading.Thread(target=failure, args=(ONE,))
    thread.start()
    wait_for(lambda: parts(tmp_path))
    (mine,) = parts(tmp_path)
    other = mine.with_name("another.incomplete")
    other.touch()
    hub.delete_part_files()
    assert parts(tmp_path) == [other]
    server.stalls = False
    server.closed.set()
    thread.join()


# -- what a failure is said to be

NETWORK = "check the network, the proxy and HF_ENDPOINT, .* login"
TOKEN = "renew the token in HF_TOKEN or unset it, and check the proxy"
PRIVATE = "if it is private, set HF_TOKEN to a token of an account with access"
FOLDER = "give a folder that holds the files"
# An answer of the Hub, or of what stands before it -> words of the sentence.
ANSWERS = {
    "rate limit": (Answer(429, {"Retry-After": "0"}), "wait some minutes, or set HF_TOKEN"),
    "rights": (Answer(403, {SAID: SCOPE}), f"403 Forbidden: {SCOPE}.*; {TOKEN}"),
    "invalid token": (Answer(401, {SAID: "Invalid credentials"}), f"Invalid credentials.*{TOKEN}"),
    "gated": (Answer(403, {"X-Error-Code": "GatedRepo"}), "ask for access on the repository's"),
    "unknown": (Answer(404, {"X-Error-Code": "RepoNotFound"}), PRIVATE),
    "no revision": (Answer(404, {"X-Error-Code": "RevisionNotFound"}), FOLDER),
    "login page": (
        Answer(200, {"Content-Type": "text/html", "ETag": '"x"'}, "<html>Welcome to our hotel"),
        NETWORK,
    ),
    "fault": (Answer(500), "500 Internal Server Error.*; try again later"),
    "a long body": (Answer(403, {}, "\x1b[2J\r\nline\n" * 999), TOKEN),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_is_told_by_its_cause(
    answer: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's own words, in one short line, and the remedy."""
    server.fault, says = ANSWERS[answer]
    monkeypatch.setenv("HF_TOKEN", "hf_0123")
    for source in (ONE, MANY):
        said = failure(source)
        assert said.startswith(f"{source.weights} of {source.repo} could not be")
        assert re.search(says, said), said
        assert "hf_0123" not in said and said.isprintable() and len(said) < 700


def test_an_answer_in_the_middle_is_told_too(server: Server) -> None:
    """Where the Hub has told of the file and then refuses it."""
    server.only = "GET /owner"
    for answer in ("rate limit", "gated", "fault"):
        server.fault, says = ANSWERS[answer]
        assert re.search(says, failure(ONE)), answer


def test_no_connection(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    move(monkeypatch, f"http://127.0.0.1:{free_port()}")
    assert re.search(NETWORK, failure(ONE)) and re.search(NETWORK, failure(MANY))
    move(monkeypatch, "mirror.example")
    assert re.search(NETWORK, failure(ONE))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "unset HF_HUB_OFFLINE, or give a folder that holds the files" in failure(MANY)


def test_a_cache_that_cannot_be_written(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    assert re.search("/file.* cannot be written: set HF_HOME to another folder", failure(ONE))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_and_a_full_quota(number: int) -> None:
    """Also behind another error."""
    error = OSError(number, os.strerror(number))
    behind = RuntimeError("it failed")
    behind.__cause__ = error
    for one in (error, behind):
        assert "is full: set HF_HOME to a larger one" in why_failed(one, ONE)


# -- Ctrl-C

FETCH, PAGE = ["-m", "lantern_demo.models.checkpoints"], ["app.py"]
SINGLE, SHARDS = "llamagen-t2i-256", "anole-7b"
PUBLISHED = {
    "jadohu/LlamaGen-T2I/model.safetensors": bytes(3000),
    "jadohu/LlamaGen-T2I/config.json": b"{}",
    "leloy/Anole-7b-v0.1-hf/config.json": b"{}",
}
PUBLISHED |= {
    f"leloy/Anole-7b-v0.1-hf/model-0000{i}-of-00002.safetensors": bytes([i]) * 3000 for i in (1, 2)
}


@LINUX
@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "model", "number", "code"),
    [(FETCH, SHARDS, signal.SIGINT, 130), (PAGE, SINGLE, signal.SIGTERM, 0)],
)
def test_a_stopped_program_leaves_no_part_files(
    program: list[str], model: str, number: int, code: int, tmp_path: Path
) -> None:
    """Nor a traceback, and it ends at once, though threads still download."""
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    environment |= dict.fromkeys(("HF_HOME", "LANTERN_CACHE", "GRADIO_TEMP_DIR"), str(tmp_path))
    environment |= {"NO_PROXY": "127.0.0.1", "GRADIO_SERVER_PORT": str(free_port())}
    files = 2 if model == SHARDS else 1
    with hub_server(PUBLISHED) as server:
        server.stalls = True
        running = subprocess.Popen(
            [sys.executable, *program, "--model", model],
            cwd=ROOT,
            env=environment | {"HF_ENDPOINT": server.url},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            # background commands of a script begin with it ignored
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        try:
            wait_for(lambda: len(parts(tmp_path)) == files or running.poll(), "parts", seconds=120)
            running.send_signal(number)
            told, _ = running.communicate(timeout=20)
        finally:
            running.kill()
    assert running.returncode == code, told
    # a thread of the Hub's library may still write a line
    assert "Stopped.\n" in told and "Traceback" not in told
    assert not parts(tmp_path)
