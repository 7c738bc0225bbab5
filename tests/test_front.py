"""The front of speed against quality: what is drawn and resumed, also under torchrun."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tiny import ran

from examples import ranks
from examples.quality import drawing, run
from examples.quality.points import points_of
from lantern_demo import Pipeline, load

ALONE = ranks.Place(0, 1, torch.device("cpu"))


def test_an_interrupted_drawing_goes_on(pipe: Pipeline, tmp_path: Path) -> None:
    points = points_of(pipe, ["eagle1"], "small")
    prompts = 2 * ["two red lanterns"] + 2 * ["three red round lanterns over a lake at dusk"]
    jobs = drawing.jobs_of(points, dict.fromkeys((point.name for point in points), 4), prompts)
    firsts = [job.picture for job in jobs]
    assert firsts == sorted(firsts)  # of every point about as many at any time
    whole = drawing.draw(pipe, jobs, tmp_path / "whole.jsonl", ALONE)
    lines = (tmp_path / "whole.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    file, part = tmp_path / "drawn.jsonl", tmp_path / "drawn-3.jsonl"
    file.write_text("".join([*lines[:5], lines[0][:30]]), encoding="utf-8")
    part.write_text(lines[7] + lines[7][:30], encoding="utf-8")
    with patch.object(drawing, "picture_of", wraps=drawing.picture_of) as drawn:
        assert drawing.draw(pipe, jobs, file, ALONE) == whole
    assert [given.args[1] for given in drawn.call_args_list] == [*jobs[5:7], *jobs[8:]]
    assert not part.exists() and len(drawing.lines_of(file)) == len(jobs)


def test_what_is_drawn_depends_on_the_weights(judged_folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(judged_folder, tmp_path / "copy")
    pipe = load(copy, device="cpu")
    before = drawing.file_of(tmp_path, drawing.identity_of(pipe, [], {}))
    for part, redrawn in (("drafter", True), ("classifier", False), ("target", True)):
        (file,) = (copy / part).glob("*.safetensors")
        file.write_bytes(file.read_bytes() + b" ")
        after = drawing.file_of(tmp_path, drawing.identity_of(pipe, [], {}))
        assert (after != before) == redrawn
        before = after


def rows_of(out: Path) -> dict[str, Any]:
    rows = json.loads((out / "front.json").read_text(encoding="utf-8"))["rows"]
    return {row["name"]: row for row in rows}


@pytest.mark.long
@pytest.mark.slow
def test_the_whole_command_on_a_small_model_and_again_by_two_processes(
    judged_folder: Path, sprites: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, two, chosen = tmp_path / "out", tmp_path / "two", ["eagle1", "lantern"]
    asked = "--pictures 8 --sweep-pictures 4 --rounds 1 --tree small --device cpu --methods"
    given = ["--model", judged_folder, "--sprites", sprites, *asked.split(), *chosen, "--out"]
    run.main([*map(str, given), str(out)])
    rows = rows_of(out)
    exact, relaxed = (rows[name]["speed"] for name in chosen)
    assert exact["changed"] == 0 and exact["tvd"] == pytest.approx(0, abs=1e-6)
    assert relaxed["changed"] > 0.01 and relaxed["tvd"] > 0.01
    assert rows["lantern"]["pictures"] == 8 and rows["lantern delta 0"]["pictures"] == 4
    swept = sum(4 for row in rows.values() if row["group"] == "sweep")
    (drawn,) = out.glob("drawn-*.jsonl")
    assert len(drawn.read_text(encoding="utf-8").splitlines()) == (2 + len(chosen)) * 8 + swept
    assert "nats a token" in capsys.readouterr().out
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    done = ran(sys.executable, *torchrun, run.__file__, *given, two, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    again = rows_of(two)
    for row in (*rows.values(), *again.values()):
        for name in ("c", "gain", "speedup"):  # which a clock gives
            row.get("speed", {}).pop(name, None)
    assert again == rows


def test_every_process_of_torchrun_has_its_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "6"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert ranks.place_of("auto") == (5, 6, torch.device("cuda:1"))
    assert current == [torch.device("cuda:1")]
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(ValueError, match="--nproc-per-node must be at most 2 here"):
        ranks.place_of("auto")
