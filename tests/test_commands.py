"""The commands of lantern_demo.bench: stopped, they go on where they were; what cannot be run is refused by a sentence; and those
that time models of published sizes, in their small forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lantern_demo.bench import gpu, models, sizes
from lantern_demo.bench.__main__ import main
from lantern_demo.bench.resume import Journal
from lantern_demo.models.machine.device import pick_threads
from lantern_demo.models.machine.matmul import OF_FORMAT
from lantern_demo.models.machine.sixteen import sixteen_bits


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    ("command", "changed"),
    [
        (["--device", "cpu", "--methods", "vanilla", "lantern++", "--prompts", "3"], ["--seeds", "3"]),
        (["audit", "--runs", "30", "--cases", "cold", "top-p", "--processes", "1", "--methods", "vanilla"], ["--runs", "31"]),
    ],
    ids=["speed", "audit"],
)
def test_an_interrupted_command_goes_on(
    command: list[str],
    changed: list[str],
    judged_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, journal, add, written = tmp_path / "out.json", tmp_path / "out.jsonl", Journal.add, list[str]()
    model = [] if command[0] == "audit" else ["--model", str(judged_folder)]
    given = [*command, *model, "--out", str(out)]

    def interrupted(self: Journal, kind: str, record: dict[str, Any]) -> None:
        written.append(kind)
        if len(written) > 2:
            raise KeyboardInterrupt
        add(self, kind, record)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            main(given)
    before = lines_of(journal)
    assert len(before) == 3 and not out.exists()
    main(given)
    whole, report = lines_of(journal), json.loads(out.read_text())
    assert whole[:3] == before and len(whole) > 4
    measured = [json.dumps({key: line.get(key) for key in ("number", "method", "noise", "case")}) for line in whole]
    alone = [name for name, line in zip(measured, whole, strict=True) if line.get("kind") in ("round", "row")]
    assert len(set(alone)) == len(alone)
    main(given)  # nothing is left to do
    again = json.loads(out.read_text())
    assert lines_of(journal) == whole and {**again, "created": ""} == {**report, "created": ""}
    with pytest.raises(SystemExit):
        main([*given, *changed])
    assert "holds another command's results" in capsys.readouterr().err


OUT = ["--out", "out.json", "--device", "cpu"]
MODEL = ["--model", "tiny", *OUT, "--methods", "vanilla", "lantern++"]
QUALITY = ["quality", "--model", "tiny", "--out", "out", "--device", "cpu"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ([*MODEL, "--prompts", "0"], "--prompts: must be at least 1, got 0"),
        ([*MODEL, "--out", "bench.txt"], "must end in .json"),
        ([*MODEL, "--set", "lanterns=3"], "unknown setting 'lanterns'"),
        ([*MODEL, "--lanternpp-lambda", "0.5"], "lanternpp_lambda must be"),
        ([*MODEL, "--against", "nowhere.py"], "--against must name a Python file"),
        (["audit", "--runs", "0"], "--runs"),
        (["audit", "--processes", "0"], "--processes"),
        (["audit", "--out", "audit.txt"], "--out"),
        (["sizes", "--models", "anole-8b"], "anole-8b"),
        (["sizes", "--nodes", "0"], "--nodes: must be at least 1, got 0"),
        (["sizes", "--threads", "0"], "sizes: threads must be a whole number between 1 and 1024, got 0"),
        (["sizes", "--kinds", "int4"], "--kinds: invalid choice: 'int4'"),
        (["sizes", "--models", "llamagen-t2i-256", "--kinds"], "of memory, and 1 MiB are free"),
        (["gpu", "--out", "out"], "not available here"),
        ([*QUALITY, "--pictures", "0"], "--pictures"),
        ([*QUALITY, "--pictures", "9"], "--seeds"),
        ([*QUALITY, "--sweep-pictures", "4"], "--sweep-pictures"),
        ([*QUALITY, "--rounds", "0"], "--rounds"),
        ([*QUALITY, "--candidates", "lantern"], "--candidates must name points among lantern delta 0, "),
        ([*QUALITY, "--model", "nothing"], "nothing"),
        ([*QUALITY, "--tree", "no tree"], "tree"),
    ],
    ids=lambda value: "" if isinstance(value, list) else value,
)
def test_what_cannot_be_run_is_refused_in_a_sentence(
    command: list[str], says: str, judged_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(judged_folder.parent)
    monkeypatch.setattr(sizes, "free_memory", lambda device: 2**20)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2 and says in capsys.readouterr().err
    assert not list(judged_folder.parent.glob("*.json*")), "nothing is written"


def test_a_journal_goes_on_after_a_line_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "bench.jsonl"
    Journal(file, {"prompts": 1}).add("round", {"number": 0})
    with file.open("a") as f:
        f.write('{"kind": "round", "num')
    again = Journal(file, {"prompts": 1})
    assert [r["number"] for r in again.of("round")] == [0]
    again.add("round", {"number": 1})
    assert [r["number"] for r in Journal(file, {"prompts": 1}).of("round")] == [0, 1]
    with pytest.raises(ValueError, match=r"another command's results \(prompts was 1, now 2\)"):
        Journal(file, {"prompts": 2})
    assert Journal(file, {"prompts": 2}, fresh=True).lines == []
    file.write_text("not one\n")
    with pytest.raises(ValueError, match="not a journal"):
        Journal(file, {})


# -- models of published sizes


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lantern-scenes", "janus-pro-1b"])
def test_the_report_of_sizes(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "FIT_ROUNDS", 1)
    out = tmp_path / "sizes.json"
    main(["sizes", "--small", "--models", model, "--kinds", "modules", "packed", "--nodes", "3", "--out", str(out)])
    report = json.loads(out.read_text())["models"][model]
    bundled = model == "lantern-scenes"
    assert report["threads"] == pick_threads(None, sizes.CPU, small=bundled).count and report["random_weights"] != bundled
    default = report["default_kind"]
    assert bundled or default == OF_FORMAT[sixteen_bits()]
    assert set(report["kinds"]) == {"modules", "packed", default}
    assert all(set(times) == {"1", "3"} and min(times.values()) > 0 for times in report["kinds"].values())
    vanilla = report["methods"]["vanilla"]
    assert (vanilla["tokens_per_step"], vanilla["speedup"], vanilla["nodes"]) == (1, 1, 1)
    assert list(report["methods"]) == ["vanilla", "eagle1", "lantern++"]
    for name, row in report["methods"].items():
        assert row["speedup"] == pytest.approx(vanilla["ms_per_token"] / row["ms_per_token"])
        assert row["picture_seconds"] == pytest.approx(row["ms_per_token"] * report["tokens"] / 1000)
        assert name == "vanilla" or (row["tokens_per_step"] > 1 and row["nodes"] > 1)
    printed = capsys.readouterr().out
    assert f"| {model} | lantern++ |" in printed and f"| {model} | modules |" in printed


@pytest.mark.slow
def test_the_small_form_of_gpu(tmp_path: Path) -> None:
    assert gpu.main(["--device", "cpu", "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert {row["model"] for row in report["identity"]} == {gpu.BUNDLED, gpu.XL}
    for row in report["identity"]:
        assert row["ok"] and row["same tokens"] == "10 of 10" and row["ran as"] == "fixed"
    for model in (gpu.BUNDLED, gpu.XL, gpu.ANOLE):
        rows = [row for row in report["speed"] if row["model"] == model]
        assert [row["method"] for row in rows] == gpu.FIXED and rows[0]["nodes"] == 1 and rows[1]["nodes"] == 8
        assert all(("gain" in row) == (model == gpu.BUNDLED) for row in rows)  # random weights accept nothing that means anything
    told = (tmp_path / "gpu.md").read_text()
    assert "these numbers say nothing about a GPU" in told and "| lantern-scenes | eagle1 | 8 |" in told


def test_tokens_that_differ_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = models.timed_model("llamagen-t2i-256", torch.device("cpu"), small=True)
    monkeypatch.setattr(gpu, "FIXED", ["vanilla"])
    seeds = iter((2, 3))
    decoded = models.TimedModel.decoded
    monkeypatch.setattr(
        models.TimedModel, "decoded", lambda self, method, **more: decoded(self, method, **more | {"seed": next(seeds)})
    )
    (row,) = gpu.identity(timed, torch.float32, 8)
    assert not row["ok"] and row["same tokens"] != "8 of 8"
