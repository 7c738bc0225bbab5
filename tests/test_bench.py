"""The programs that measure: statistics on made-up rounds, reports of small models, refusals."""

import json
import shutil
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest
import torch
from tiny import command, ran

from examples import gpu
from examples.paper_evaluation import run as paper
from examples.quality import run as quality
from lantern_demo.bench import __main__ as bench
from lantern_demo.bench import nodes, report, speed
from lantern_demo.bench.summary import FEWEST, by_kind, interval, markdown, summarise
from lantern_demo.decoding.methods import METHODS
from lantern_demo.kernels import switch
from lantern_demo.settings.named_trees import DEFAULTS, drafts_by_device, read_paths
from lantern_demo.settings.settings import Settings, planned

TOKENS = 16
BUNDLED = Path(speed.__file__).parents[1] / "bundled" / "lantern-scenes"


def made_run(method: str, seconds: float, steps: int) -> dict[str, Any]:
    """A run of steps of equal length after a prefill that takes a tenth of its seconds."""
    parts = {"prefill": 0.1, "draft": 0.18, "verify": 0.63, "commit": 0.09, "decode": 1.0}
    run = {f"{name}_seconds": share * seconds for name, share in parts.items()}
    run |= {"method": method, "steps": steps, "nodes": 4, "tree": "made up", "changed": 0.25}
    run |= {"mean_accepted_length": 15 / steps, "tokens_per_second": 16 / seconds}
    return run | {"depths": [[4, 3, 2]], "sizes": [1, steps - 1]}


def test_gains_are_ratios_within_a_round() -> None:
    # over the medians vanilla would be 2.0 / 2.0
    seconds = [(1.0, 2.0), (10.0, 5.0), (2.0, 1.9)]
    runs = [
        {"vanilla": made_run("vanilla", v, 15), "lantern++": made_run("lantern++", o, 5)}
        for v, o in seconds
    ]
    runs[0]["lantern++"]["sizes"] = [5]  # none took two tokens at once
    kinds = "animals", "objects", "animals"
    rounds = [{"kind": kind, "runs": run} for kind, run in zip(kinds, runs, strict=True)]
    rows = {name: name for name in runs[0]}
    row = summarise(rounds, rows)["lantern++"]
    assert row["gain"]["median"] == pytest.approx(2.0 / 1.9)
    assert row["c"] == pytest.approx(median((o / 5) / (v / 15) for v, o in seconds))
    step = row["ms_per_step"]["median"]
    assert step == pytest.approx(1000 * 0.9 * 2.0 / 5)
    assert row["ms_draft"] + row["ms_verify"] + row["ms_commit"] == pytest.approx(step)
    means = row["seconds"]["median"], row["steps"], row["mean_accepted_length"], row["changed"]
    assert means == (2.0, 5, 3.0, 0.25)
    assert row["depths"] == [(12, 9, 6)] and row["sizes"] == [7, 8], "counts add up"
    found = by_kind(rounds, rows)
    assert {kind: of["rounds"] for kind, of in found.items()} == {"animals": 2, "objects": 1}
    assert found["objects"]["methods"]["lantern++"] == {"gain": 2.0, "mean_accepted_length": 3.0}
    alone = summarise(rounds, {"lantern++": "lantern++"})["lantern++"]
    assert "gain" not in alone and "c" not in alone


def test_an_interval_needs_rounds_and_holds_the_median() -> None:
    assert interval([1.0] * (FEWEST - 1)) is None
    values = [1.0, 1.2, 0.8, 1.1, 0.9, 1.05, 0.95, 5.0]
    found = interval(values)
    assert min(values) <= found[0] < median(values) < found[1] < max(values)
    assert interval(values) == found


def test_a_round_runs_all_in_turn_after_a_warm_up() -> None:
    calls: list[tuple[str, int]] = []
    contestants: Any = {of: lambda _, seed, of=of: calls.append((of, seed)) or {} for of in "ab"}
    prompts = speed.prompts_for(8)
    rounds = speed.measure(contestants, prompts)
    assert [(r["prompt"], r["seed"]) for r in rounds] == list(zip(prompts, range(8), strict=True))
    assert "".join(name for name, _ in calls) == "ab" + "abba" * 2 + "baab" * 2
    assert [seed for _, seed in calls] == [0, 0, *(number // 2 for number in range(16))]


def test_report_of_speed(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "speed.json"
    chosen = "--device cpu --methods vanilla lantern++ --prompts 2 --depths --set temperature=0.9"
    chosen += " --tree small chain --noise shared"
    command(bench, "speed", "--model", folder, "--out", out, *chosen.split())
    found = json.loads(out.read_text(encoding="utf-8"))
    names = ["vanilla", "lantern++ tree small", "lantern++ tree chain"]
    assert list(found["methods"]) == names, "a method is run with the settings that it reads"
    assert {"created", "version", "commit", "machine", "threads"} <= set(found)
    assert found["settings"]["temperature"] == 0.9
    vanilla, row = (found["methods"][name] for name in names[:2])
    assert row["settings"] == {"tree": "small", "noise": "shared"}
    assert vanilla["gain"]["median"] == 1 and vanilla["changed"] == 0
    runs = [one["runs"][names[1]] for one in found["rounds"]]
    assert len(runs[0]["token_ids"]) == TOKENS
    drawn = sum(size * count for size, count in enumerate(row["sizes"], 1))
    assert sum(row["sizes"]) == sum(run["steps"] for run in runs) and drawn == 2 * (TOKENS - 1)
    text = out.with_suffix(".md").read_text(encoding="utf-8")
    assert text == markdown(found, depths=True) and text in capsys.readouterr().out
    tried, _, kept = row["depths"][0]
    of_kind = found["kinds"]["animals"]["methods"][names[1]]
    cell = f"{of_kind['gain']:.2f}x ({of_kind['mean_accepted_length']:.2f})"
    assert f"| LANTERN++ tree small | {kept / tried:.0%}" in text
    assert f"| animals | 1 | 1.00x (1.00) | {cell} |" in text
    assert f"It breaks even at {row['c']:.2f} tokens a step." in text


@pytest.mark.skipif(not shutil.which("git"), reason="there is no git here")
def test_a_report_names_its_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> str:
        identity = ("-c", "user.name=A", "-c", "user.email=a@example.org")
        return ran("git", *identity, *words, cwd=tmp_path, check=True).stdout.strip()

    monkeypatch.setattr(report, "__file__", str(tmp_path / "lantern_demo" / "bench" / "report.py"))
    assert report.commit() is None
    git("init")
    file = tmp_path / "file"
    file.write_text("before", encoding="utf-8")
    git("add", "file")
    git("commit", "--message", "One.")
    commit = git("rev-parse", "--short=8", "HEAD")
    assert report.commit() == commit
    file.write_text("after", encoding="utf-8")
    assert report.commit() == f"{commit}+"


def test_each_tree_has_its_number_of_nodes() -> None:
    """The default trees are among them, or no ring would mark those."""
    points = nodes.points_of(["eagle1", "eagle2", "sjd"])
    for point in points:
        drafts = planned(METHODS[point.method], Settings(**point.settings)).drafts
        assert drafts.nodes == point.nodes, point.name
        deep = drafts.deepest == drafts.nodes - 1
        assert (point.shape in ("chain", "window")) == deep or point.nodes < 4
    assert len({point.name for point in points}) == len(points)
    assert read_paths(nodes.TREES[16]) == DEFAULTS["cuda"].static
    config = json.loads((BUNDLED / "config.json").read_text(encoding="utf-8"))
    own = drafts_by_device(config["trees"])["cpu"]
    for method, shape in (("eagle1", "chain"), ("eagle2", "dynamic"), ("sjd", "window")):
        usual = planned(METHODS[method], Settings(), own).drafts
        settings = Settings(**nodes.shapes_of(METHODS[method])[shape][usual.nodes])
        assert planned(METHODS[method], settings, own).drafts == usual


def test_report_of_nodes(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "nodes.json"
    chosen = "--device cpu --methods eagle1 lantern --prompts 1 --nodes 2 4"
    command(bench, "nodes", "--model", folder, "--out", out, *chosen.split())
    found = json.loads(out.read_text(encoding="utf-8"))
    names = ("temperature", "method", "shape", "nodes")
    rows = {tuple(row[name] for name in names): row for row in found["rows"]}
    wanted = [("vanilla", "", 1), ("eagle1", "chain", 2), ("eagle1", "chain", 4)]
    wanted += [("eagle1", "tree", 4), ("lantern", "dynamic", 2), ("lantern", "dynamic", 4)]
    assert list(rows) == [(temperature, *one) for temperature in (1.0, 0.7) for one in wanted]
    text = out.with_suffix(".md").read_text(encoding="utf-8")
    assert text == nodes.markdown(found) and text in capsys.readouterr().out
    for temperature in (1.0, 0.7):
        vanilla, chain = (rows[(temperature, *wanted[number])] for number in (0, 2))
        assert vanilla["speedup"] == vanilla["c"] == 1 and chain["default"]
        cell = f"{chain['speedup']:.2f}x** ({chain['mean_accepted_length']:.2f} / {chain['c']:.2f})"
        assert f"| 4 | **{cell} | " in text
    assert found["rounds"][0]["runs"]["vanilla, 1 at 1.0"]["steps"] == TOKENS - 1


MODEL = "--model tiny --device cpu --out"
SPEED = f"{MODEL} out.json --methods vanilla lantern++"
QUALITY = f"--sprites sprites.npz {MODEL} out"
PAPER = f"coco5k --captions captions.txt {MODEL} out"
REFUSED = [
    (bench, f"{SPEED} --prompts 0", "--prompts: must be at least 1, got 0"),
    (bench, f"{SPEED} --out bench.txt", "must end in .json"),
    (bench, f"{SPEED} --set lanterns=3", "unknown setting 'lanterns'"),
    (bench, f"nodes {MODEL} out.json --methods vanilla", "invalid choice: 'vanilla'"),
    (gpu, "--out out", "device 'cuda' is not available here"),
    (quality, f"{QUALITY} --pictures 9", "--pictures must be a multiple of 2"),
    (quality, f"{QUALITY} --sprites no", "no does not exist: run examples/make_bun"),
    (paper, f"{PAPER} --pictures 3 --seeds 4", "--pictures 3 is too few: a caption has 4"),
]


@pytest.mark.parametrize(("program", "words", "says"), REFUSED, ids=[says for *_, says in REFUSED])
def test_what_cannot_be_run_is_refused_in_a_sentence(
    program: ModuleType,
    words: str,
    says: str,
    judged_folder: Path,
    sprites: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in (judged_folder, sprites):
        Path(file.name).symlink_to(file)
    Path("captions.txt").write_text("a lantern\n", encoding="utf-8")
    before = set(tmp_path.iterdir())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        command(program, *words.split())
    assert ended.value.code == 2 and says in capsys.readouterr().err
    assert set(tmp_path.iterdir()) == before, "nothing is written"


@pytest.mark.slow
def test_steps_and_tokens_of_tiny_models(tmp_path: Path) -> None:
    models = gpu.BUNDLED, gpu.ANOLE  # the test below has LlamaGen
    assert gpu.main(["--device", "cpu", "--out", str(tmp_path), "--models", *models]) == 0
    report = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))
    for same, row in zip(report["identity"], report["speed"], strict=True):
        assert (same["model"], same["method"]) == (row["model"], row["method"])
        assert same["ok"] and same["same as eager"] == "10 of 10"
        assert ("same as vanilla" in same) == METHODS[same["method"]].lossless
        assert row["ms a step"] > row["verify ms"] > 0
        # random weights accept nothing that means anything
        assert ("gain" in row) == (row["model"] == gpu.BUNDLED)
    assert len(report["speed"]) == len(models) * len(METHODS)
    told = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert "these numbers say nothing about a GPU" in told


def test_tokens_that_differ_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    timed = gpu.timed_model("llamagen-t2i-256", torch.device("cpu"), small=True)
    monkeypatch.setattr(gpu, "METHODS", {"vanilla": METHODS["vanilla"]})
    monkeypatch.setattr(switch, "on", lambda device: True)
    seeds: list[int] = []
    decoded = gpu.TimedModel.decoded
    monkeypatch.setattr(
        gpu.TimedModel,
        "decoded",
        lambda self, method, **more: decoded(self, method, **more | {"seed": seeds.pop(0)}),
    )
    # seeds of vanilla, of eager steps, of replayed ones and of modules
    other = {"eager": [2, 3, 2, 2], "modules": [2, 2, 2, 3], "vanilla": [3, 2, 2, 2]}
    for name, drawn_with in other.items():
        seeds[:] = drawn_with
        (row,) = gpu.identity(timed, "float32", 8)
        assert not row["ok"]
        differ = [key for key in row if "same" in key and row[key] != "8 of 8"]
        assert differ == [f"same as {name}"]
