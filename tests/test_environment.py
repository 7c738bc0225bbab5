"""The page starts in any environment, or one sentence names the variable that is in the way."""

import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock, patch

import httpx
import pytest
from hub_server import Server, hub_server
from space import free_port
from tiny import ran

from lantern_demo.disk_cache import root
from lantern_demo.ui import environment

ROOT = Path(__file__).resolve().parent.parent
ELSEWHERE = "http://elsewhere.invalid/file"
DEAD = "http://127.0.0.1:9"  # no proxy listens there


@pytest.fixture(autouse=True)
def environment_restored() -> Iterator[None]:
    """The environment comes back behind a test; within it no variable in question is set."""
    with patch.dict(os.environ):
        for name in list(os.environ):
            if name.startswith("GRADIO_") or name.lower() in environment.CONNECTIONS:
                del os.environ[name]
        yield


@pytest.fixture
def server() -> Iterator[Server]:
    """A server, or proxy, that notes what it is asked for."""
    with hub_server({}) as server:
        yield server


def reached(server: Server, url: str) -> bool:
    """Whether this server is asked for an address, as it stands in its list."""
    server.requests.clear()
    httpx.get(url)
    return server.requests == [(f"GET {url.removeprefix(server.url)}", None)]


@pytest.mark.parametrize(("name", "exempt"), [("HTTP_PROXY", ""), ("all_proxy", "example.com")])
def test_only_others_are_reached_through_a_proxy(name: str, exempt: str, server: Server) -> None:
    os.environ.update({name: server.url, "no_proxy": exempt})
    environment.prepare(None)
    assert reached(server, f"{server.url}/own")
    assert reached(server, ELSEWHERE), "the proxy is asked"
    told = {"127.0.0.1", "localhost", *exempt.split()}
    assert told <= set(os.environ["NO_PROXY"].split(","))


def test_a_proxy_of_the_system_stays(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows and macOS, where a variable would hide it."""
    monkeypatch.setattr(environment, "getproxies", lambda: {"http": server.url, "ftp": DEAD})
    environment.prepare(None)
    assert reached(server, ELSEWHERE)


REFUSED = [
    ("ALL_PROXY", "ftp://proxy:1", "an address"),
    ("http_proxy", "http://h:port", "an address"),
    ("NO_PROXY", "a:b:c", "hosts"),
    ("SSL_CERT_FILE", "/nowhere.pem", "a file of certificates"),
    ("GRADIO_SERVER_PORT", "web", "a whole number"),
    ("GRADIO_ROOT_PATH", "demo", "a path"),
    ("GRADIO_SERVER_NAME", "192.0.2.1", "an IPv4 address"),
    ("GRADIO_TEMP_DIR", __file__, "a folder"),
    ("LANTERN_CACHE", "~nobodyatall/cache", "a folder"),
]


@pytest.mark.parametrize(("name", "value", "allowed"), REFUSED)
def test_a_variable_that_is_in_the_way_is_named(name: str, value: str, allowed: str) -> None:
    os.environ.update({"https_proxy": DEAD, name: value})
    with pytest.raises(ValueError, match=f"^{name} must be {allowed}"):
        root() if name == "LANTERN_CACHE" else environment.prepare(None)


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken, port = other.getsockname()[1], free_port()
        os.environ["GRADIO_SERVER_PORT"] = str(taken)
        for asked, named in ((taken, "--port"), (None, "GRADIO_SERVER_PORT")):
            with pytest.raises(ValueError, match=f"^port {taken} .* with {named}"):
                environment.prepare(asked)
        assert environment.prepare(port) == port, "the option counts"


def test_other_variables_of_gradio_are_not_read(tmp_path: Path) -> None:
    given = {"GRADIO_DEBUG": "yes", "GRADIO_NUM_PORTS": "many", "GRADIO_ALLOWED_PATHS": "/"}
    kept = {"GRADIO_ROOT_PATH": "/lantern", "GRADIO_TEMP_DIR": str(tmp_path / "kept")}
    os.environ.update(given | kept, GRADIO_SERVER_PORT="")
    assert environment.prepare(None) is None
    assert {name: value for name, value in os.environ.items() if name.startswith("GRADIO_")} == kept


def test_a_user_without_a_home_and_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As containers run with --user: `spaces` asks for the home while it is imported."""
    pwd = pytest.importorskip("pwd")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError("no such user")))
    with pytest.raises(RuntimeError, match="home"):
        Path.home()
    environment.prepare(None)
    assert Path.home() == Path(os.environ["GRADIO_TEMP_DIR"])


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("-S app.py", "'httpx'; .*requirements.txt"),  # without the installed packages
        ("-OO -m lantern_demo.bench speed", "start without -OO"),
    ],
)
def test_python_that_cannot_run_it_is_refused_in_one_sentence(program: str, says: str) -> None:
    """Transformers reads docstrings while it is imported, and says so in many lines of its own."""
    done = ran(sys.executable, *program.split(), cwd=ROOT)
    (told,) = done.stderr.strip().splitlines()
    assert done.returncode == 2 and re.search(f"{says}$", told)
