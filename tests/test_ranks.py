"""Evaluations under torchrun: the numbers of one process, and a second start that goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import ran

from examples import ranks
from examples.quality import drawing
from examples.quality import run as quality

TIMED = {"c", "gain", "speedup"}  # the numbers of a row that a clock gives
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
# The command, whose second process ends without a word before its fourth picture.
ENDS_EARLY = """
import os, runpy, sys
sys.path.insert(0, {root!r})
from examples.quality import drawing
whole, left = drawing.picture_of, [1, 2, 3]
def picture_of(pipe, job):
    if os.environ["RANK"] == "1":
        left.pop() if left else os._exit(1)
    return whole(pipe, job)
drawing.picture_of = picture_of
runpy.run_path({command!r}, run_name="__main__")
"""


def rows_of(out: Path) -> list[dict[str, Any]]:
    """The rows of a folder's report, without times."""
    rows = json.loads((out / "front.json").read_text(encoding="utf-8"))["rows"]
    for row in rows:
        for name in TIMED:
            row.get("speed", {}).pop(name, None)
    return rows


def mark(part: Path) -> int:
    """Mark the whole pictures of a part, and return their number."""
    records = [json.loads(line) | {"marked": True} for line in drawing.lines_of(part)]
    part.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return len(records)


@pytest.mark.long
@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one_and_resume(
    judged_folder: Path, sprites: Path, tmp_path: Path
) -> None:
    words = ["--model", judged_folder, "--device", "cpu", "--methods", "eagle1"]
    words += ["--pictures", 4, "--sweep-pictures", 0, "--rounds", 1, "--tree", "small"]
    words += ["--sprites", sprites]
    one, two = tmp_path / "one", tmp_path / "two"
    quality.main([*map(str, words), "--out", str(one)])
    (whole,) = one.glob("drawn-*.jsonl")

    early = tmp_path / "early.py"
    root, command = Path(__file__).parents[1], quality.__file__
    early.write_text(ENDS_EARLY.format(root=str(root), command=command), encoding="utf-8")
    ended = ran(sys.executable, *TORCHRUN, early, *words, "--out", two)
    assert ended.returncode and not {*two.glob("*.md")}, ended.stderr[-3000:]
    kept = {part.stem: mark(part) for part in drawing.parts_of(two / whole.name)}
    assert kept[f"{whole.stem}-1"] == 3 and sum(kept.values()) <= 9

    done = ran(sys.executable, *TORCHRUN, command, *words, "--out", two)
    assert done.returncode == 0, done.stderr[-3000:]
    assert drawing.parts_of(two / whole.name) == [two / whole.name]
    lines = [json.loads(line) for line in drawing.lines_of(two / whole.name)]
    assert len(lines) == 12 and sum("marked" in line for line in lines) == sum(kept.values())
    assert rows_of(two) == rows_of(one)


def test_every_process_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ranks.place_of("cpu") == (0, 1, torch.device("cpu"))
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert ranks.place_of("auto") == (0, 1, torch.device("cuda:0"))
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "6"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert ranks.place_of("auto") == (5, 6, torch.device("cuda:1"))
    assert ranks.place_of("cuda:0") == (5, 6, torch.device("cuda:0"))
    assert [device.index for device in current] == [0, 1, 0]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="--nproc-per-node must be at most 2 here"):
        ranks.place_of("auto")
