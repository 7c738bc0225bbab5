"""The program as a Space starts it: `python app.py` with a Space's variables and without root's
rights, in a home that cannot be written to but for the cache, asked under the Space's public
address as the Hub's proxy asks.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from space import HOST, PROXY, free_port, variables
from tiny import program, without_roots_rights

from lantern_demo.ui import texts

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 300  # of patience: a test machine may be busy, and trees are measured at the first start


@contextlib.contextmanager
def running() -> Iterator[tuple[httpx.Client, int, Path]]:
    """The program -> a client that asks as the Hub's proxy does, the port, and the folder with all
    that it writes.
    """
    with tempfile.TemporaryDirectory(prefix="lantern-space-") as name:
        folder, port = Path(name), free_port()
        for part in ("home/.cache", "tmp"):
            (folder / part).mkdir(parents=True)
        without_caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(
            ROOT / "lantern_demo", folder / "app" / "lantern_demo", ignore=without_caches
        )
        shutil.copy(ROOT / "app.py", folder / "app")
        (folder / "home").chmod(0o555)
        node = folder / "node"
        node.write_text(
            f"#!/bin/sh\necho asked >> {folder / 'tmp' / 'node-asked'}\nexit 1\n", encoding="utf-8"
        )
        node.chmod(0o755)
        own = {
            "HOME": f"{folder}/home",
            "TMPDIR": f"{folder}/tmp",
            "GRADIO_NODE_PATH": str(node),
            "PYTHONUNBUFFERED": "1",
        }
        kept = {
            key: value
            for key, value in os.environ.items()
            if not re.match("LANTERN_|HF_HOME|GRADIO_TEMP|XDG_", key)
        }
        command = [*without_roots_rights(), sys.executable, "app.py"]
        how = {"cwd": folder / "app", "env": kept | own | variables(port)}
        address = f"http://127.0.0.1:{port}"
        with (
            program(*command, port=port, log=folder / "log", **how),
            httpx.Client(base_url=address, headers=PROXY, timeout=SECONDS) as http,
        ):
            yield http, port, folder


@pytest.mark.slow  # a program of its own
def test_a_visitor_draws_under_the_public_address() -> None:
    """A Space asks Gradio for pages made by Node; this page was tested without, and is served
    without.
    """
    with running() as (http, port, folder):
        told = http.get("/healthz").json()
        assert told["ready"] and told["model"] == "lantern-scenes"

        drawing = (
            http.post("/gradio_api/call/v2/draw", json={"prompt": "two red lanterns"})
            .raise_for_status()
            .json()
        )
        answer = http.get(f"/gradio_api/call/draw/{drawing['event_id']}").text
        picture, numbers = json.loads(answer.rpartition("event: complete\ndata: ")[2])
        assert numbers["model"] == "lantern-scenes", answer
        address = urlsplit(picture["url"])
        assert (address.scheme, address.netloc) == ("https", HOST)
        assert http.get(address.path).raise_for_status().content.startswith(b"\x89PNG")

        assert texts.TITLE in http.get("/").raise_for_status().text

        log = (folder / "log").read_text(encoding="utf-8")
        assert f"http://0.0.0.0:{port}" in log, "all interfaces are listened to"
        assert not (folder / "tmp" / "node-asked").exists() and "SSR" not in log
        assert [path.name for path in (folder / "home").iterdir()] == [".cache"], (
            "the home holds the cache alone"
        )
