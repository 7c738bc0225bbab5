"""pip resolves what a Space installs: what `pre-requirements.txt` says, then the one command of the
Spaces' builder with what ZeroGPU adds; and what README's command installs, for every Python of it.

pip reads metadata from within wheels that stay in the registry (`fast-deps`), so that gigabytes of
PyTorch are resolved and not fetched. The lines for a Space without a GPU, which name PyTorch's own
registry, are not asked for.
"""

import json
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_package import ROOT, front_matter, pins
from tiny import ran

pytestmark = [pytest.mark.registry, pytest.mark.slow]

PIP = "pip==26.3"  # older ones fetch all wheels, also for a dry run
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
# the newest, and two more that ZeroGPU might choose
ZERO_GPU_SPACES = ("spaces", "spaces==0.48.3", "spaces==0.50.4")
ALONE = ("-r", str(ROOT / "requirements.txt"))

Resolve = Callable[..., dict[str, str]]  # a Python and what is wanted -> versions by name


@pytest.fixture(scope="module")
def resolve(tmp_path_factory: pytest.TempPathFactory) -> Resolve:
    """Asks pip what it would install for a Python; fails with pip's words."""
    folder = tmp_path_factory.mktemp("pip")
    # Where pip caps PyTorch by a file of its own, a Space has no such cap.
    environment = os.environ | {"PYTHONPATH": str(folder), "PIP_CONSTRAINT": os.devnull}
    pip = partial(ran, sys.executable, "-m", "pip", "install", "--retries", "1", timeout=600)
    fetched = pip("--quiet", "--target", folder, PIP)
    if fetched.returncode:
        pytest.skip(f"no registry answers, or pip is missing: {fetched.stderr.strip()[-200:]}")

    def resolved(python: str, *wanted: str) -> dict[str, str]:
        report = folder / "report.json"
        options: list[Any] = ["--dry-run", "--ignore-installed", "--use-feature=fast-deps"]
        options += ["--python-version", python, "--only-binary=:all:"]
        options += ["--target", folder / "none", "--report", report]
        done = pip(*options, *wanted, env=environment)
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        install = json.loads(report.read_text(encoding="utf-8"))["install"]
        found = [item["metadata"] for item in install]
        return {item["name"].lower().replace("_", "-"): item["version"] for item in found}

    return resolved


@pytest.mark.parametrize("spaces", ZERO_GPU_SPACES)
def test_what_a_space_installs_resolves(resolve: Resolve, spaces: str, tmp_path: Path) -> None:
    """With the Python of its front matter, and each version of `spaces`."""
    python, gradio = front_matter()["python_version"], front_matter()["sdk_version"]
    torch = resolve(python, "-r", str(ROOT / "pre-requirements.txt"))["torch"]
    assert re.fullmatch(r"2\.(8|9|10|11)\.\d", torch), "one of those that ZeroGPU has"
    kept = tmp_path / "kept.txt"
    # pip keeps what is there, where that suffices
    kept.write_text(f"torch=={torch}\n", encoding="utf-8")
    builder = (f"gradio[oauth,mcp]=={gradio}", "uvicorn>=0.14.0", "websockets>=10.4")
    space = resolve(python, "-c", str(kept), *ALONE, *builder, spaces)
    assert (space["torch"], space["gradio"]) == (torch, gradio) and "mcp" in space
    assert space["spaces"] == (spaces.partition("==")[2] or space["spaces"])


@pytest.mark.parametrize("python", PYTHONS)
def test_what_readmes_command_installs_resolves(resolve: Resolve, python: str) -> None:
    assert set(resolve(python, *ALONE)) >= set(pins())
