"""What strangers cannot do: read files, write outside the cache, or bring markup or code along."""

import http.client
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import httpx
import pytest
from gradio_client import Client

from lantern_demo.disk_cache import root
from lantern_demo.ui.components import SCRIPTS, status_html

ROOT = Path(__file__).parent.parent
NAMES = ["README.md", "docs/api.md", "lantern_demo/ui/page.py", "lantern_demo/ui/web/stage.js"]
OUTSIDE = [
    f"{up}{file}"
    for up in ("../", "../../../../../..", "..%2f", "%2e%2e/")
    for file in ("etc/passwd", "README.md")
]
FOLDERS = ("", "files/", "static/", "assets/", "svelte/", "gradio_api/file=", "gradio_api/file/")
ABSOLUTE = ("/etc/passwd", "//etc/passwd", "\\\\host\\share", "file:///etc/passwd")
ABSOLUTE += (os.path.relpath("/etc/passwd", ROOT), *(f"{ROOT}/{name}" for name in NAMES))
PATHS = [f"{folder}{name}" for folder in FOLDERS for name in (*NAMES, *OUTSIDE)]
PATHS += [f"gradio_api/file={path}" for path in (*ABSOLUTE, f"{ROOT}/.git/HEAD", f"{ROOT}/app.py")]
OF_FILES = b"import annotations", b"root:", b"# LANTERN", b"def main"


def test_no_file_of_the_machine_is_handed_out(server: str) -> None:
    """The path is sent as it stands: httpx would tidy it."""
    for path in PATHS:
        connection = http.client.HTTPConnection(urlparse(server).netloc, timeout=60)
        connection.putrequest("GET", f"/{path}", skip_accept_encoding=True)
        connection.endheaders()
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        assert answer.status in (403, 404), (path, body[:200])
        assert not any(text in body for text in OF_FILES), path


def test_what_is_not_needed_is_off(server: str) -> None:
    """So is every way to the device beside the queue."""
    answer = httpx.post(f"{server}gradio_api/run/compare", json={"data": ["a lantern"]})
    assert answer.status_code == 404
    for path in ("monitoring", "monitoring/summary", "monitoring/x"):
        assert httpx.get(f"{server}{path}").status_code in (403, 404)
    for path in ("runs", "mcp/"):  # the second only with GRADIO_MCP_SERVER=True
        assert httpx.get(f"{server}gradio_api/{path}").status_code == 404
    assert httpx.post(f"{server}gradio_api/mcp/", json={}).status_code in (404, 405)
    assert "swagger" not in httpx.get(f"{server}docs").text.lower()


WRITES = "os.mkdir os.rename os.remove os.rmdir os.link os.symlink shutil.copyfile"


@pytest.mark.slow
def test_nothing_is_written_outside_the_cache(server: str) -> None:
    """No file is opened for writing there, made, renamed or taken away."""
    written, listening = list[str](), [True]

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not listening:
            return
        if event == "open" and isinstance(arguments[0], (str, bytes)):
            path, mode, flags = arguments
            by_flags = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
            if by_flags or (isinstance(mode, str) and set(mode) & set("wax+")):
                written.append(os.fsdecode(path))
        elif event in WRITES.split():
            written.extend(os.fsdecode(a) for a in arguments[:2] if isinstance(a, (str, bytes)))

    sys.addaudithook(hook)  # there is no way to take it off again
    client = Client(server, verbose=False, download_files=False)
    asked = {"methods": ["vanilla"], "settings": {"tree": "small"}, "api_name": "/compare"}
    client.predict("a lantern ../../etc/x\u2028 <b>", **asked)
    listening.clear()
    places = tempfile.gettempdir(), root(), "/dev", "/proc/self"
    allowed = [Path(place).resolve() for place in places]
    for path in map(Path, written):
        inside = any(path.resolve().is_relative_to(place) for place in allowed)
        assert inside or not path.is_absolute() or "__pycache__" in str(path), path
        assert "etc" not in path.parts
    assert any("vanilla.png" in path for path in written), "the run's own files were seen"


def test_markup_stays_text() -> None:
    """HTML is made of escaped texts, and scripts only make text of what a visitor types."""
    evil = "<img src=x onerror=alert(1)>${alert(1)}{{7*7}}"
    html = status_html(evil, "error", struck=[evil])
    assert "<img" not in html and "&lt;img" in html
    markup = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b")
    for script in SCRIPTS.rglob("*.js"):
        assert not markup.search(script.read_text(encoding="utf-8")), script.name
