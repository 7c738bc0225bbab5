"""What strangers cannot do: read files, write outside the cache, bring markup or code along, or reach what is switched off."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gradio_client import Client

from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.files.disk_cache import root
from lantern_demo.settings.knobs import KNOBS as KNOBS_BY_NAME
from lantern_demo.settings.knobs import MAX_LANTERN_K
from lantern_demo.ui.record_reader import read_record
from lantern_demo.ui.service import Service

KNOBS = {"tree": "small", "lantern_k": 10}


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "app.py",
        "README.md",
        "../etc/passwd",
        "lantern_demo/ui/page.py",
        ".ci/run",
        ".git/HEAD",
        "requirements.txt",
        "//etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "http://127.0.0.1:1/",
        "https://example.invalid/x.png",
        "\\\\host\\share",
    ],
)
def test_only_the_runs_own_files_are_served(server: str, path: str) -> None:
    for place in ("gradio_api/file=", "gradio_api/file/", "file=", "static/", "assets/", "gradio_api/proxy="):
        response = httpx.get(f"{server}{place}{path}", follow_redirects=False)
        assert response.status_code in (307, 308, 400, 403, 404, 405) or "root:" not in response.text
        assert b"def main" not in response.content and b"root:x" not in response.content and b"gradio==" not in response.content
    absolute = Path(__file__).resolve().parent.parent / "app.py"
    assert httpx.get(f"{server}gradio_api/file={absolute}").status_code in (403, 404)


def test_what_is_not_needed_is_off(server: str) -> None:
    for path in ("monitoring", "monitoring/summary", "monitoring/x"):
        assert httpx.get(f"{server}{path}").status_code in (403, 404)
    assert httpx.get(f"{server}gradio_api/runs").status_code == 404
    assert httpx.get(f"{server}gradio_api/mcp/").status_code == 404, "only with GRADIO_MCP_SERVER=True"
    assert httpx.get(f"{server}docs").status_code == 404 or "swagger" not in httpx.get(f"{server}docs").text.lower()
    for name in ("again", "explore", "load_record", "choose", "first", "arrive"):
        response = httpx.post(f"{server}gradio_api/call/v2/{name}", json={})
        assert response.status_code == 404


@pytest.fixture
def written() -> Iterator[list[str]]:
    """The files that this process opens for writing, makes, renames or takes away."""
    paths: list[str] = []
    listening = [True]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not listening:
            return
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            path, mode, flags = arguments
            if (isinstance(mode, str) and set(mode) & set("wax+")) or (
                isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            ):
                paths.append(os.fsdecode(path))
        elif event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "shutil.copyfile"):
            paths.extend(os.fsdecode(a) for a in arguments[:2] if isinstance(a, (str, bytes)))

    sys.addaudithook(hook)  # there is no way to take it off again
    yield paths
    listening.clear()


@pytest.mark.slow
def test_nothing_is_written_outside_the_cache(server: str, written: list[str]) -> None:
    client = Client(server, verbose=False, download_files=False)
    client.predict("../../etc/x\u2028 <b>", methods=["vanilla", "lantern"], seed=1, **KNOBS, api_name="/compare")
    allowed = [Path(tempfile.gettempdir()).resolve(), root().resolve(), Path("/dev"), Path("/proc/self")]
    outside = [p for p in written if Path(p).is_absolute() and not any(Path(p).resolve().is_relative_to(a) for a in allowed)]
    assert [p for p in outside if "__pycache__" not in p] == []
    assert any("vanilla.png" in p for p in written), "the run's own files were seen"
    assert not any("etc" in Path(p).parts for p in written)


class Evil:
    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["EVIL"],)


def test_uploads_are_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVIL", str(tmp_path / "ran"))
    import torch

    saved = io.BytesIO()
    torch.save({"a": Evil()}, saved)
    for data in (pickle.dumps(Evil()), saved.getvalue()):
        with pytest.raises(ValueError, match="not a JSON file"):
            read_record(data)
    assert not (tmp_path / "ran").exists()


def test_models_come_from_the_registry_or_the_folder_named_at_start(
    server: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lantern_demo.ui.service.load", lambda *_, **__: pytest.fail("something was loaded"))
    client = Client(server, verbose=False)
    for model in (
        str(tiny_model),
        "../tiny",
        "someone/model",
        "https://example.invalid/m",
        "",
        "lantern_scenes",
        "tiny/",
        {"id": "tiny"},
    ):
        with pytest.raises(Exception, match="model must be one of tiny, lantern-scenes"):
            client.predict("a lantern", model=model, api_name="/draw")


def test_markup_stays_text(tiny_model: Path) -> None:
    """What a visitor types reaches no template: the page's HTML is made of escaped texts, and its scripts only make text of
    it."""
    from lantern_demo.ui.components import SCRIPTS, status_html

    evil = "<img src=x onerror=alert(1)>${alert(1)}{{7*7}}"
    html = status_html(evil, "error", [evil])
    assert "<img" not in html and "&lt;img" in html
    for script in SCRIPTS.rglob("*.js"):
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", script.read_text()), script.name
    service = Service(tiny_model, "cpu")
    with pytest.raises(ValueError, match="tree must be one of"):
        service.request("a lantern", None, None, {"tree": evil})


def test_limits(server: str) -> None:
    """On the prompt, the pictures of a run, and what a tree may hold."""
    offer = Client(server, verbose=False).predict(api_name="/models")
    assert offer["models"][0]["max_prompt"] == 200
    assert all(model["max_prompt"] <= 1000 for model in offer["models"])
    assert len(offer["methods"]) == len(METHODS), "a run draws a picture per method and no more"
    limits = {name: KNOBS_BY_NAME[name].limit for name in ("draft_nodes", "lantern_k")}
    assert [limit.high for limit in limits.values() if limit] == [128, MAX_LANTERN_K]
    with pytest.raises(Exception, match="method must be one of"):
        Client(server, verbose=False).predict("a lantern", methods=["vanilla", "vanilla2"], api_name="/compare")


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("prompt",), "a \ud800", "prompt: must be text without control characters"),
        (("device",), "a\x1b[31m", "device: must be text without control characters"),
        (("unknown_words",), ["\x00"], "unknown_words.0: must be text without control characters"),
        (
            ("model", "trained"),
            {"a": {"b": {"c": {"d": {}}}}},
            "model.trained: must be an object of at most 20000 characters, 4 levels",
        ),
        (("model", "sources"), {"a": "x" * 30_000}, "model.sources: must be an object of at most"),
        (("versions",), {}, "versions.python: must be given"),
    ],
)
def test_a_record_brings_nothing_along(path: tuple[str, ...], value: Any, sentence: str) -> None:
    from lantern_demo.ui.recorded import recorded_runs

    record = json.loads(json.dumps(recorded_runs()[0].record))
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(ValueError, match=sentence):
        read_record(json.dumps(record).encode())
