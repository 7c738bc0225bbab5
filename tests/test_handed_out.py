"""The server hands out what runs have made and the parts of its own page, nothing else of its machine, and fetches nothing."""

from __future__ import annotations

import http.client
import json
import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import httpx
import pytest

from lantern_demo.ui import page as served
from lantern_demo.ui import texts

ROOT = Path(__file__).parent.parent
NAMES = ["README.md", "LICENSE", "requirements.txt", "docs/api.md", "lantern_demo/ui/page.py", "lantern_demo/ui/web/stage.js"]
OUTSIDE = [f"{up}{file}" for up in ("../", "../../../../../..", "..%2f", "%2e%2e/") for file in ("etc/passwd", "README.md")]
PATHS = [
    "files",
    *(f"{place}{name}" for place in ("", "files/", "docs/", "static/", "assets/", "extras/") for name in NAMES),
    *(f"{place}{name}" for place in ("gradio_api/file=", "gradio_api/file/") for name in NAMES),
    *(f"gradio_api/file={ROOT / name}" for name in NAMES),
    *(f"{place}{name}" for place in ("", "static/", "assets/", "svelte/", "gradio_api/file=", "recorded/") for name in OUTSIDE),
    "gradio_api/file=/etc/passwd",
    f"gradio_api/file={os.path.relpath('/etc/passwd', ROOT)}",
    "gradio_api/file=file:///etc/passwd",
    "recorded/../../page.py/sweeps",
    "lantern_demo/bundled/lantern-scenes/config.json",
]
ADDRESSES = ["http://1.1.1.1/run.json", "https://example.com/run.json"]


@pytest.mark.parametrize("path", PATHS)
def test_no_file_of_the_machine_is_handed_out(server: str, path: str) -> None:
    """The path is sent as it stands: httpx would tidy it."""
    connection = http.client.HTTPConnection(urlparse(server).netloc, timeout=60)
    connection.putrequest("GET", f"/{path}", skip_accept_encoding=True)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert answer.status in (403, 404), body[:200]
    assert b"import annotations" not in body and b"root:" not in body and b"# LANTERN" not in body


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the server tries to reach, as a list that grows; nothing is reached."""
    tried, resolve = list[str](), socket.getaddrinfo

    async def connect(_: Any, request: httpx.Request) -> httpx.Response:
        tried.append(str(request.url))
        raise httpx.ConnectError("there is no network")

    def look_up(host: Any, *arguments: Any, **options: Any) -> Any:
        if host not in ("127.0.0.1", "1.1.1.1"):
            tried.append(str(host))
            raise socket.gaierror("there is no network")
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", connect)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return tried


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_event_fetches_a_file(server: str, connections: list[str], address: str) -> None:
    """Of every event every input is tried, also those that take no file, and the events that pass the queue by."""
    config = httpx.get(f"{server}config").json()
    kinds = {component["id"]: component["type"] for component in config["components"]}
    file = {"path": address, "url": address, "meta": {"_type": "gradio.FileData"}}
    uploads = tried = 0
    for event in config["dependencies"]:
        taken = [kinds[number] for number in event["inputs"]]
        if not event["backend_fn"] or not set(taken) - {"state"}:
            continue
        uploads, tried = uploads + ("uploadbutton" in taken), tried + 1
        session = f"files-{event['id']}"
        body = {"fn_index": event["id"], "data": [None if kind == "state" else file for kind in taken], "session_hash": session}
        if event["queue"]:
            joined = httpx.post(f"{server}gradio_api/queue/join", json=body)
            if joined.status_code == 400:  # of a public one
                assert "must not be a file" in joined.json()["detail"]
                continue
            stream = httpx.get(f"{server}gradio_api/queue/data", params={"session_hash": session}, timeout=60).text
            told = [json.loads(line.removeprefix("data: ")) for line in stream.strip().split("\n\n")]
            (answer,) = [message["output"] for message in told if message["msg"] == "process_completed"]
        else:
            answer = httpx.post(f"{server}gradio_api/run/predict", json=body, timeout=60).json()
        assert answer["error"] == texts.NO_ADDRESS, event
    assert connections == [] and uploads == 1 and tried > uploads


@pytest.mark.parametrize("meta", [None, 5, [], {}, {"_type": "gradio.FileData"}])
def test_no_endpoint_takes_a_file_of_any_form(server: str, meta: Any) -> None:
    answer = httpx.post(f"{server}gradio_api/call/v2/draw", json={"prompt": {"path": "run.json", "meta": meta}})
    assert answer.status_code == 400 and answer.json()["error"].startswith("prompt must not be a file")


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("place", ["file=", "file/"])
def test_no_path_leads_to_another_host(server: str, connections: list[str], place: str, address: str) -> None:
    answer = httpx.get(f"{server}gradio_api/{place}{address}")
    assert answer.status_code == 403 and answer.json() == {"detail": texts.NO_ADDRESS}
    assert httpx.get(f"{server}gradio_api/proxy={address}").status_code == 400
    assert connections == []


def test_the_foot_links_the_papers_and_a_spaces_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPACE_ID", raising=False)
    foot = served._foot()
    assert all(f'href="{address}" target="_blank"' in foot for address in texts.PAPERS.values()) and foot.count("<a ") == 2
    monkeypatch.setenv("SPACE_ID", "someone/lanterns")
    assert 'href="https://huggingface.co/spaces/someone/lanterns/tree/main" target="_blank"' in served._foot()
