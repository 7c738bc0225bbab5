"""pip resolves what a Space installs, for every Python of README: what `pre-requirements.txt` says, then the one command of the
Spaces' builder, then what ZeroGPU adds; and what README's own command installs.

pip reads metadata from within wheels that stay in the registry (`fast-deps`): PyTorch and its CUDA libraries, gigabytes in all,
are resolved like the rest, and nothing of them is fetched. The two lines for a Space without a GPU name PyTorch's own registry,
and are not asked for here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from test_package import ROOT, front_matter, pins

pytestmark = [pytest.mark.registry, pytest.mark.slow]

PIP = "pip==26.3"  # older ones fetch all wheels, also for a dry run
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
ZERO_GPU_SPACES = ("0.48.3", "0.50.4")  # versions of `spaces` that ZeroGPU might choose beside the newest

Versions = dict[str, str]  # by name
Resolve = Callable[..., Versions]


@pytest.fixture(scope="module")
def resolve(tmp_path_factory: pytest.TempPathFactory) -> Resolve:
    """Asks pip what it would install for a Python; fails with pip's words."""
    folder = tmp_path_factory.mktemp("pip")
    # Where pip caps PyTorch by a file of its own, a Space has no such cap.
    environment = os.environ | {"PYTHONPATH": str(folder), "PIP_CONSTRAINT": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def pip(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pip", "install", "--retries", "1", *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=600)

    fetched = pip("--quiet", "--target", str(folder), PIP)
    if fetched.returncode:
        pytest.skip(f"no package registry answers, or pip is missing: {fetched.stderr.strip()[-200:]}")

    def resolved(python: str, *wanted: str) -> Versions:
        report = tmp_path_factory.mktemp("report") / "report.json"
        aim = ("--python-version", python, "--only-binary=:all:", "--target", str(folder / "none"))
        options = ("--dry-run", "--ignore-installed", "--use-feature=fast-deps", "--report", str(report))
        done = pip(*options, *aim, *wanted, env=environment)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        found = [item["metadata"] for item in json.loads(report.read_text())["install"]]
        return {item["name"].lower().replace("_", "-"): item["version"] for item in found}

    return resolved


@pytest.fixture(scope="module")
def found(resolve: Resolve, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, str], Future[Versions]]]:
    """What is installed by setting and Python, asked for at once: pip mostly waits for the registry."""
    version = front_matter()["sdk_version"]
    added = (f"gradio[oauth,mcp]=={version}", "uvicorn>=0.14.0", "websockets>=10.4")
    alone = ("-r", str(ROOT / "requirements.txt"))

    def builder(python: str, spaces: str) -> Versions:
        torch = asked["before", python].result()["torch"]
        kept = tmp_path_factory.mktemp("kept") / "kept.txt"
        kept.write_text(f"torch=={torch}\n")  # pip keeps what is there, where that suffices
        return resolve(python, "-c", str(kept), *alone, *added, spaces)

    with ThreadPoolExecutor(4) as at_once:
        asked: dict[tuple[str, str], Future[Versions]] = {}
        for python in PYTHONS:  # first of all, since others wait for it
            asked["before", python] = at_once.submit(resolve, python, "-r", str(ROOT / "pre-requirements.txt"))
        for python in PYTHONS:
            asked["space", python] = at_once.submit(builder, python, "spaces")
            asked["alone", python] = at_once.submit(resolve, python, *alone)
        for spaces in ZERO_GPU_SPACES:
            python = str(front_matter()["python_version"])
            asked[f"spaces {spaces}", python] = at_once.submit(builder, python, f"spaces=={spaces}")
        yield asked


@pytest.mark.parametrize("python", PYTHONS)
def test_what_a_space_installs_resolves(found: dict[tuple[str, str], Future[Versions]], python: str) -> None:
    torch = found["before", python].result()["torch"]
    assert re.fullmatch(r"2\.(8|9|10|11)\.\d", torch), "one of those that ZeroGPU has"
    space = found["space", python].result()
    assert (space["torch"], space["gradio"]) == (torch, front_matter()["sdk_version"]) and "mcp" in space


@pytest.mark.parametrize("spaces", ZERO_GPU_SPACES)
def test_zero_gpu_adds_a_version_of_its_own_choice(found: dict[tuple[str, str], Future[Versions]], spaces: str) -> None:
    assert found[f"spaces {spaces}", str(front_matter()["python_version"])].result()["spaces"] == spaces


@pytest.mark.parametrize("python", PYTHONS)
def test_the_requirements_alone_resolve(found: dict[tuple[str, str], Future[Versions]], python: str) -> None:
    assert set(found["alone", python].result()) >= set(pins())
