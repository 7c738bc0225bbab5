"""The command that measures models of every size on a processor, in its small form."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lantern_demo.bench import sizes
from lantern_demo.bench.__main__ import main
from lantern_demo.decoding.drafting import DynamicTree, StaticTree
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.window import Window
from lantern_demo.models.llamagen.cpu import LeanTarget
from lantern_demo.models.machine.device import pick_threads
from lantern_demo.models.machine.matmul import OF_FORMAT, ROW_EXACT, supported
from lantern_demo.models.machine.sixteen import sixteen_bits
from lantern_demo.models.registry import BUNDLED
from lantern_demo.runs.fitting import read_calibration


@pytest.mark.parametrize("model", ["llamagen-c2i-b-256", "llamagen-t2i-256", "janus-pro-1b", "anole-7b"])
def test_the_report(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "sizes.json"
    kinds = ["packed"] if supported("packed") else ["plain"]
    asked = ["--small", "--models", model, "--kinds", "modules", "library", *kinds, "--nodes", "3", "5"]
    main(["sizes", *asked, "--out", str(out)])
    told = json.loads(out.read_text())
    report = told["models"][model]
    assert report["threads"] == pick_threads(None, sizes.CPU, small=False).count
    default = OF_FORMAT[sixteen_bits()]
    assert report["default_kind"] == default and report["random_weights"]
    assert set(report["kinds"]) == {"modules", *kinds, default}
    assert all(set(times) == {"1", "3", "5"} and min(times.values()) > 0 for times in report["kinds"].values())
    assert report["modules_format"] == "float32" and set(report["draft_ms"]) == {"1", "2", "4"}
    if model == "janus-pro-1b":
        assert set(report["library"]["ms_per_token"]) == {"float32", "bfloat16"} and "transformers" in report["library"]["name"]
        assert min(report["library"]["ms_per_token"].values()) > 0
    else:
        assert "library" not in report
    assert report["modules_ms_per_token"] == report["kinds"]["modules"]["1"]
    assert all(said["row_exact"] == (kind in ROW_EXACT) for kind, said in report["exact"].items())
    assert report["row_exact"] and report["vanilla_price"] == 0
    vanilla = report["methods"]["vanilla"]
    assert (vanilla["tokens_per_step"], vanilla["speedup"], vanilla["nodes"]) == (1, 1, 1)
    assert {"eagle1", "lantern++", "eagle2", "lantern", "sjd"} < set(report["methods"])
    for name, row in report["methods"].items():
        assert row["speedup"] == pytest.approx(vanilla["ms_per_token"] / row["ms_per_token"])
        assert row["picture_seconds"] == pytest.approx(row["ms_per_token"] * report["tokens"] / 1000)
        assert name == "vanilla" or (row["acceptance"] == "borrowed from lantern-scenes" and row["tokens_per_step"] > 1)
    printed = capsys.readouterr().out
    assert ("generate" in printed) == (model == "janus-pro-1b")
    assert f"| {model} | lantern++ |" in printed and f"| {model} | modules |" in printed


def test_it_goes_on_from_what_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, first, second = tmp_path / "sizes.json", "llamagen-c2i-b-256", "janus-pro-1b"
    monkeypatch.setattr(sizes, "FIT_ROUNDS", 1)
    asked = ["--small", "--kinds", "modules", "--nodes", "2", "--out", str(out), "--models", first]
    assert sizes.main(asked) == 0
    before = json.loads(out.read_text())["models"][first]
    done: list[str] = []
    measured = sizes.measured
    monkeypatch.setattr(sizes, "measured", lambda model, *rest: [done.append(model), measured(model, *rest)][1])
    assert sizes.main([*asked, second]) == 0
    assert set(done) == {second} and json.loads(out.read_text())["models"][first] == before
    with pytest.raises(ValueError, match="holds another command's results"):
        sizes.main([*asked, "--nodes", "3"])
    assert sizes.main([*asked, "--nodes", "3", "--fresh"]) == 0
    assert done[-1] == first


@pytest.mark.parametrize(
    ("model", "kind", "said"),
    [
        ("llamagen-t2i-256", "bfloat16", "llamagen-t2i-256 with bfloat16 takes about 1.4 GiB"),
        ("janus-pro-1b", "modules", "janus-pro-1b with modules takes about 2.8 GiB"),  # they would be in bfloat16
        ("janus-pro-1b", "library", "janus-pro-1b by JanusForConditionalGeneration.generate of transformers"),
        ("anole-7b", "int8", "anole-7b with int8 takes about 12.6 GiB"),
        ("anole-7b", "packed", "anole-7b with packed takes about 25.3 GiB"),
    ],
)
def test_what_memory_does_not_hold_is_refused(
    model: str, kind: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything of it is made, and with what it takes."""
    monkeypatch.setattr(sizes, "free_memory", lambda device: 2**20)
    monkeypatch.setattr(sizes, "default_kind", lambda model: kind)
    with pytest.raises(SystemExit) as ended:
        main(["sizes", "--models", model, "--kinds", kind])
    told = capsys.readouterr().err
    assert ended.value.code == 2 and said in told and "of memory, and 1 MiB are free" in told


@torch.inference_mode()
def test_what_is_not_row_exact_is_seen() -> None:
    """A target that adds up another way when it is asked for several nodes."""

    class Drifts(LeanTarget):
        def forward(self, tokens, depths, mask, cache):  # type: ignore[no-untyped-def]
            return super().forward(tokens, depths, mask, cache) * (1 + 1e-3 * (len(tokens) > 1))

    size = sizes.size_of("llamagen-c2i-b-256", "packed", small=True)
    assert sizes.exactness(size, (1, 4)) == (True, 0.0)
    network = sizes.size_of("llamagen-c2i-b-256", sizes.MODULES, small=True).target
    same, price = sizes.exactness(replace(size, target=Drifts(network, "packed")), (1, 4))
    assert not same and price > 0


def test_a_drafter_that_reads_blocks_of_its_target_is_timed() -> None:
    size = sizes.size_of("lantern-scenes", sizes.default_kind("lantern-scenes"), small=True, drafts=True)
    assert size.drafter.config.feature_layers and set(sizes.drafts(size)) == {"1", "2", "4"}


def test_tokens_a_step_are_those_of_the_calibration() -> None:
    calibration = read_calibration(BUNDLED / "lantern-scenes")
    assert calibration is not None
    first = calibration.static["lantern++"][0][0]
    assert sizes.given_by(calibration, METHODS["lantern++"], StaticTree([(0,)])) == 1 + first
    top_k, depth, nodes, tokens = calibration.dynamic["eagle2"][2]
    assert sizes.given_by(calibration, METHODS["eagle2"], DynamicTree(top_k, depth, nodes)) == tokens
    assert sizes.given_by(calibration, METHODS["sjd"], Window(8)) == dict(calibration.windows["sjd"])[8]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--models", "anole-8b"], "--models: invalid choice: 'anole-8b'"),
        (["--nodes", "0"], "--nodes must be between 1 and 58, got 0"),
        (["--nodes", "59"], "--nodes must be between 1 and 58, got 59"),
        (["--threads", "0"], "sizes: threads must be a whole number between 1 and 1024, got 0"),
        (["--kinds", "int4"], "--kinds: invalid choice: 'int4'"),
    ],
)
def test_bad_command_lines(asked: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sizes", "--small", *asked])
    assert ended.value.code == 2 and said in capsys.readouterr().err
