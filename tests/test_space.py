"""The program as a Space starts it: without root's rights, in a home of which only the cache can be
written to, asked as the Hub's proxy asks. And a Space on ZeroGPU, without a GPU.
"""

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
from tiny import program, ran, without_roots_rights

from lantern_demo.ui import texts
from lantern_demo.ui.recorded import recorded_runs

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 300  # of patience: a test machine may be busy, and trees are measured at the first start
DEAD = "http://127.0.0.1:9"  # no proxy listens there


def lay_out(folder: Path) -> None:
    """The program, a home with a cache alone, temporary files beside another user's folder, and a
    program in the place of Node that notes that it is asked.
    """
    (folder / "home" / ".cache").mkdir(parents=True)
    (folder / "home").chmod(0o555)
    (folder / "tmp").mkdir()
    (folder / "tmp" / "gradio").mkdir(mode=0o555)
    without_caches = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "lantern_demo", folder / "app" / "lantern_demo", ignore=without_caches)
    shutil.copy(ROOT / "app.py", folder / "app")
    node, asked = folder / "node", folder / "tmp" / "node-asked"
    node.write_text(f"#!/bin/sh\ntouch {asked}\nexit 1\n", encoding="utf-8")
    node.chmod(0o755)


@pytest.mark.slow  # a program of its own
def test_a_visitor_draws_under_the_public_address(tmp_path: Path) -> None:
    """Without Node, for which a Space asks; and behind a proxy that does not answer, too."""
    lay_out(tmp_path)
    port, temporary = free_port(), tmp_path / "tmp"
    here = f"http://127.0.0.1:{port}"
    others = re.compile("LANTERN_|HF_HOME|GRADIO_TEMP|XDG_")
    env = {key: value for key, value in os.environ.items() if not others.match(key)}
    env |= {"HOME": f"{tmp_path}/home", "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
    env |= {"GRADIO_NODE_PATH": f"{tmp_path}/node", "GRADIO_DEBUG": "yes", "LC_ALL": "xx"}
    env |= {"HTTP_PROXY": DEAD, "all_proxy": DEAD} | variables(port)
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


# seconds that a first click may cost a visitor, of the 120 that one without an account has in a day
MOST = 25
DEAREST = 1.5  # so many times what is asked for has to be left


@pytest.mark.slow  # a program of its own
def test_a_zero_gpu_space_and_its_visitors(tiny_model: Path, tmp_path: Path) -> None:
    """The page opens on recorded runs, without a GPU."""
    program = ROOT / "tests" / "helpers" / "zero_gpu.py"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = ran(sys.executable, program, tiny_model, tmp_path, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    space = json.loads(done.stdout.splitlines()[-1])
    assert space["state"] == "ready" and space["device"] == "cuda", "before the page is launched"
    assert recorded_runs()[0].record["prompt"] in space["opened"]
    visitors = [asked["visitor"] for asked in space["asked"]]
    assert visitors == ["one", "two"], "nobody else asks, and the lender is told who does"
    assert all("quota" in answer for answer in space["answers"]), space["answers"]
    five, one = (asked["seconds"] / space["factor"] for asked in space["asked"])
    assert 5 < one < five and five * DEAREST <= MOST, "a first click leaves a visitor most of a day"
