"""The program as a Space starts it: `python app.py` with a Space's variables and without root's
rights, in a home that cannot be written to but for the cache, asked under the Space's public
address as the Hub's proxy asks.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from space import HOST, PROXY, free_port, variables
from tiny import program, without_roots_rights

from lantern_demo.ui import texts

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 300  # of patience: a test machine may be busy, and trees are measured at the first start
DEAD = "http://127.0.0.1:9"  # no proxy listens there


def lay_out(folder: Path) -> None:
    """Lay out a Space's folders: the program, a home with a cache alone, temporary files beside a
    folder of another user, and a program in the place of Node that notes that it is asked.
    """
    for part in ("home/.cache", "tmp"):
        (folder / part).mkdir(parents=True)
    (folder / "tmp" / "gradio").mkdir(mode=0o555)
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "lantern_demo", folder / "app" / "lantern_demo", ignore=without_caches)
    shutil.copy(ROOT / "app.py", folder / "app")
    (folder / "home").chmod(0o555)
    node = folder / "node"
    node.write_text(f"#!/bin/sh\ntouch {folder}/tmp/node-asked\nexit 1\n", encoding="utf-8")
    node.chmod(0o755)


@pytest.mark.slow  # a program of its own
def test_a_visitor_draws_under_the_public_address(tmp_path: Path) -> None:
    """A Space asks Gradio for pages made by Node; this page was tested without, and is served
    without. It starts behind a proxy that does not answer, too.
    """
    lay_out(tmp_path)
    port, temporary = free_port(), tmp_path / "tmp"
    here = f"http://127.0.0.1:{port}"
    own = {"HOME": f"{tmp_path}/home", "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
    own |= {"GRADIO_NODE_PATH": f"{tmp_path}/node"}
    odd = {"HTTP_PROXY": DEAD, "all_proxy": DEAD, "GRADIO_DEBUG": "yes", "LC_ALL": "xx"}
    others = re.compile("LANTERN_|HF_HOME|GRADIO_TEMP|XDG_")
    env = {key: value for key, value in os.environ.items() if not others.match(key)}
    env |= own | odd | variables(port)
    command, log = [*without_roots_rights(), sys.executable, "app.py"], tmp_path / "log"
    with (
        program(*command, port=port, log=log, cwd=tmp_path / "app", env=env) as running,
        httpx.Client(base_url=here, headers=PROXY, timeout=SECONDS, trust_env=False) as http,
    ):
        asked = http.post("/gradio_api/call/v2/draw", json={"prompt": "two red lanterns"})
        event = asked.raise_for_status().json()["event_id"]
        answer = http.get(f"/gradio_api/call/draw/{event}").text
        picture, numbers = json.loads(answer.rpartition("event: complete\ndata: ")[2])
        assert numbers["model"] == "lantern-scenes", answer
        address = urlsplit(picture["url"])
        assert (address.scheme, address.netloc) == ("https", HOST)
        assert http.get(address.path).raise_for_status().content.startswith(b"\x89PNG")

        assert texts.TITLE in http.get("/").raise_for_status().text

        said = log.read_text(encoding="utf-8")
        assert f"http://0.0.0.0:{port}" in said, "all interfaces are listened to"
        assert not (temporary / "node-asked").exists() and "SSR" not in said
        assert [*(tmp_path / "home").iterdir()] == [tmp_path / "home" / ".cache"]
        assert list(temporary.glob("lantern-page-*"))
        running.terminate()
        assert running.wait(SECONDS) == 0
    assert not list(temporary.glob("lantern-page-*")), "the folder is gone with the program"
