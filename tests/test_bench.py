"""The benchmark: its statistics on made-up rounds, and the whole of it on a small random model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from lantern_demo.bench import __main__ as command
from lantern_demo.bench import peers, resume, speed
from lantern_demo.bench.speed_report import markdown
from lantern_demo.bench.summary import FEWEST, interval, summarise
from lantern_demo.runs.pipeline import Pipeline

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))

TOKENS = 16
ROWS = {"vanilla": "vanilla", "lantern++": "lantern++"}
PEER = f'''"""A made-up peer, timed without its set-up."""

class Peer:
    prepared = []

    def prepare(self, prompt):
        self.prepared.append(prompt)

    def __call__(self, prompt, seed):
        assert self.prepared[-1] == prompt
        return [seed % 7] * {TOKENS}

def load(pipe):
    return {{"made up": Peer()}}
'''


@pytest.fixture
def peer_file(tmp_path: Path) -> Path:
    path = tmp_path / "peer.py"
    path.write_text(PEER)
    return path


def made_run(method: str, seconds: float, steps: int) -> dict[str, Any]:
    """A run of `steps` steps of equal length after a prefill that takes a tenth of its seconds."""
    each = 0.9 * seconds / steps
    return {
        "method": method,
        "peer": False,
        "tokens": TOKENS,
        "steps": steps,
        "decode_seconds": seconds,
        "prefill_seconds": 0.1 * seconds,
        "draft_seconds": 0.2 * each * steps,
        "verify_seconds": 0.7 * each * steps,
        "commit_seconds": 0.1 * each * steps,
        "wall_seconds": 1.1 * seconds,
        "nodes": 4,
        "tree": "made up",
        "mean_accepted_length": (TOKENS - 1) / steps,
        "tokens_per_second": TOKENS / seconds,
        "changed": 0.25,
        "peak_bytes": None,
    }


def made_rounds(vanilla: list[float], other: list[float], peer: list[float] | None = None) -> list[dict[str, Any]]:
    rounds = []
    for i, (v, o) in enumerate(zip(vanilla, other, strict=True)):
        runs = {"vanilla": made_run("vanilla", v, 15), "lantern++": made_run("lantern++", o, 5)}
        if peer is not None:
            runs["peer"] = {"peer": True, "wall_seconds": peer[i], "tokens_per_second": TOKENS / peer[i], "peak_bytes": None}
        rounds.append({"number": i, "order": list(runs), "runs": runs, "process_peak_bytes": 2**20})
    return rounds


def test_speedups_are_ratios_within_a_round() -> None:
    vanilla, other = [1.0, 10.0, 2.0], [2.0, 5.0, 1.9]  # over the medians vanilla would be 2.0 / 2.0
    row = summarise(made_rounds(vanilla, other), ROWS)["rows"]["lantern++"]
    assert row["speedup"]["median"] == pytest.approx(2.0 / 1.9)
    assert row["c"] == pytest.approx(median((o / 5) / (v / 15) for v, o in zip(vanilla, other, strict=True)))
    assert row["ms_per_step"]["median"] == pytest.approx(1000 * 0.9 * 2.0 / 5)
    assert row["ms_draft"] + row["ms_verify"] + row["ms_commit"] == pytest.approx(row["ms_per_step"]["median"])
    assert row["tokens_per_second"]["median"] == pytest.approx(TOKENS / 2)
    assert row["mean_accepted_length"] == 3.0
    alone = summarise(made_rounds(vanilla, other), {"lantern++": "lantern++"})["rows"]["lantern++"]
    assert "speedup" not in alone and "c" not in alone


def test_an_interval_needs_rounds_and_holds_the_median() -> None:
    assert interval([1.0] * (FEWEST - 1)) is None
    values = [1.0, 1.2, 0.8, 1.1, 0.9, 1.05, 0.95, 5.0]
    found = interval(values)
    assert found is not None
    assert min(values) <= found[0] < median(values) < found[1] < max(values)
    assert interval(values) == found


def test_a_peer_is_compared_by_the_walls_clock() -> None:
    told = summarise(made_rounds([1.0, 2.0], [0.5, 1.0], [2.2, 4.4]), ROWS, ["peer"])["peers"]["peer"]
    assert told["speedup"]["median"] == pytest.approx(0.5)
    assert told["ours_over_it"]["lantern++"]["median"] == pytest.approx(4.0)


def test_rows_are_methods_under_the_settings_that_they_read() -> None:
    rows = speed.rows_of(["vanilla", "eagle1", "lantern++"], {"tree": ["small", "paper"], "lanternpp_lambda": [2.0]})
    trees = [f"{method} tree {tree}" for method in ("eagle1", "lantern++") for tree in ("small", "paper")]
    assert [row.name for row in rows] == ["vanilla", *trees]
    assert rows[0].settings == {}
    assert rows[1].settings == {"tree": "small"}
    assert rows[3].settings == {"tree": "small", "lanternpp_lambda": 2.0}
    assert rows[3].label == "LANTERN++ tree small"


def test_a_round_runs_all_in_turn_after_a_warm_up() -> None:
    calls: list[tuple[str, int]] = []
    contestants: dict[str, speed.Contestant] = {
        name: lambda prompt, seed, name=name: calls.append((name, seed)) or {}
        for name in ("a", "b")  # type: ignore[misc]
    }
    journal = resume.Journal(None, {})
    journal.add("round", {"number": 0})
    records = speed.measure(contestants, speed.jobs_of(["p", "q", "r"], 1), journal)
    assert [r["number"] for r in records] == [0, 1, 2]
    assert [r["order"] for r in records[1:]] == [["b", "a"], ["a", "b"]]
    assert calls == [("a", 1), ("b", 1), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]


def arguments(folder: Path, out: Path, *more: str) -> list[str]:
    return ["--model", str(folder), "--device", "cpu", "--out", str(out), "--methods", "vanilla", "lantern++", *more]


def test_the_command_writes_its_report(folder: Path, tmp_path: Path, peer_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "bench.json"
    given = arguments(folder, out, "--prompts", "1", "--seeds", "2", "--against", str(peer_file), "--set", "temperature=0.9")
    command.main(given)
    printed = capsys.readouterr().out
    report = json.loads(out.read_text())
    assert [r["order"] for r in report["rounds"]] == [["vanilla", "lantern++", "made up"], ["made up", "lantern++", "vanilla"]]
    assert [r["seed"] for r in report["rounds"]] == [0, 1]
    assert report["settings"]["temperature"] == 0.9
    run = report["rounds"][0]["runs"]["lantern++"]
    assert run["events"]["committed"][-1] == len(run["token_ids"]) == TOKENS
    assert run["events"]["milliseconds"][-1] == pytest.approx(1000 * run["decode_seconds"], abs=0.01)
    assert run["wall_seconds"] > run["decode_seconds"]
    assert report["rounds"][1]["runs"]["made up"]["token_ids"] == [1] * TOKENS
    text = out.with_suffix(".md").read_text()
    assert text == markdown(report)
    assert text in printed
    assert "| LANTERN++ | 8 |" in text
    assert "A made-up peer, timed without its set-up." in text


@pytest.mark.parametrize(
    ("tokens", "says"),
    [
        ([1] * (TOKENS - 1), "must return a list of 16 token ids, got 15"),
        ("tokens", "got str"),
        ([64] * TOKENS, "from 0 to 63, got 64"),
        ([True] * TOKENS, "got True"),
        ([1.0] * TOKENS, "got 1.0"),
    ],
)
def test_what_a_peer_returns_is_checked(pipe: Pipeline, tokens: Any, says: str) -> None:
    with pytest.raises(RuntimeError, match=says):
        peers.play_peer(pipe, "liar", lambda prompt, seed: tokens, "a lantern", 0)


def test_a_file_that_is_no_adapter_is_refused(pipe: Pipeline, tmp_path: Path) -> None:
    file = tmp_path / "peer.py"
    for text in ("", "def load(pipe):\n    return {}\n", "def load(pipe):\n    return {'a': 3}\n"):
        file.write_text(text)
        with pytest.raises(ValueError, match="must define load"):
            peers.load_peers(file, pipe)


def test_transformers_generate_draws_vanillas_greedy_picture(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    import peer_transformers

    monkeypatch.setattr(pipe, "defaults", pipe.settings(temperature=0))
    prompt = "three red round lanterns over a lake at dusk"
    (generate,) = peer_transformers.load(pipe).values()
    tokens = generate(prompt, 0)
    peers.check_tokens("transformers", tokens, pipe.info.tokens, pipe.target.vocab_size)
    assert tokens == pipe.generate(prompt).tokens
