"""A paper's evaluation as one command: what is drawn, in slices that merge, and what is said of what is missing."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from published import JANUS_ID
from test_quality_published import ColourClip, Means, colour_processor
from tiny import write_tiny_model

from lantern_demo import load
from lantern_demo.bench.__main__ import main
from lantern_demo.bench.quality import protocol, scorers
from lantern_demo.bench.resume import Journal, Slice, slice_of

COLOURS = ("red", "green", "blue", "yellow", "purple", "white", "orange", "cyan")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", grid=4)


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    """Eight images of the official file's form, out of order, two captions each."""
    notes = [
        {"image_id": 90 - 10 * i, "caption": caption}
        for i, word in enumerate(COLOURS)
        for caption in ("a sky", f"a {word} lantern ")
    ]
    file = tmp_path / "captions_val2017.json"
    file.write_text(json.dumps({"annotations": notes}))
    return file


@pytest.fixture
def real(tmp_path: Path) -> Path:
    (tmp_path / "real").mkdir()
    for i in range(6):
        Image.effect_noise((40, 36), 30 + 5 * i).save(tmp_path / "real" / f"{i}.png")
    return tmp_path / "real"


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks in the place of those that would be fetched."""

    def preference(images: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"image_features": torch.ones(len(images), 2) / 2**0.5, "text_features": ids.float()}

    network = torch.nn.Module()
    network.forward = preference  # type: ignore[method-assign]
    prepare = lambda image: torch.from_numpy(numpy.array(image.resize((8, 8))))  # noqa: E731
    monkeypatch.setattr(scorers, "inception", Means)
    monkeypatch.setattr(scorers, "vgg", Means)
    monkeypatch.setattr(scorers, "clip", lambda: (ColourClip(), colour_processor))
    monkeypatch.setattr(scorers, "hps", lambda: (network, prepare, lambda texts: torch.tensor([[0.3, 0.0]] * len(texts))))


def run(folder: Path, out: Path, captions: Path, *more: str, which: str = "coco5k") -> None:
    command = ["quality", "--protocol", which, "--model", str(folder), "--device", "cpu", "--out", str(out)]
    main([*command, "--captions", str(captions), "--methods", "lantern++", *more])


def tokens_of(out: Path) -> dict[tuple[str, int], list[int]]:
    lines = [json.loads(line) for file in out.glob("drawn*.jsonl") for line in file.read_text().splitlines()]
    records = [line for line in lines if line.get("kind") == "picture"]
    found = {(line["point"], line["picture"]): line["tokens"] for line in records}
    assert len(found) == len(records)  # nothing was drawn twice
    return found


@pytest.mark.usefixtures("stand_ins")
def test_slices_draw_and_merge_to_what_one_command_draws(
    folder: Path, tmp_path: Path, captions: Path, real: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, shared = tmp_path / "whole", tmp_path / "shared"
    run(folder, whole, captions, "--pictures", "8", "--real", str(real))
    report = json.loads((whole / "coco5k.json").read_text())
    assert [row["name"] for row in report["rows"]] == ["vanilla", "lantern++"] and report["missing"] == []
    for row in report["rows"]:
        assert set(row["scores"]) == set(scorers.COLUMNS) and row["pictures"] == 8
        assert row["scores"]["hpsv2"] == pytest.approx(0.3 / 2**0.5, rel=1e-3)
    assert report["rows"][0]["tokens_per_step"] == 1 < report["rows"][1]["tokens_per_step"]
    assert "HPSv2" in (whole / "coco5k.md").read_text()
    manifest = json.loads((whole / "manifest.json").read_text())
    assert [p["prompt"] for p in manifest["prompts"]] == [f"a {word} lantern" for word in reversed(COLOURS)]
    assert [p["id"] for p in manifest["prompts"]] == [str(i) for i in range(20, 100, 10)]
    assert json.loads((whole / "captions.json").read_text()) == [p["prompt"] for p in manifest["prompts"]]

    eight = ("--pictures", "8")
    run(folder, shared, captions, *eight, "--slice", "2/3")
    with pytest.raises(SystemExit):
        run(folder, shared, captions, *eight, "--merge")
    assert "10 of 16 pictures are not drawn yet, first number 0 of vanilla" in capsys.readouterr().err
    run(folder, shared, captions, *eight, "--slice", "1/3")
    assert not (shared / "coco5k.json").exists()
    (shared / "lantern++" / "00001.png").unlink()
    run(folder, shared, captions, *eight, "--real", str(real))  # draws what the third slice would have
    again = json.loads((shared / "coco5k.json").read_text())
    assert again["rows"] == report["rows"] and tokens_of(shared) == tokens_of(whole) and len(tokens_of(whole)) == 16
    assert sorted(file.name for file in (shared / "lantern++").iterdir()) == [f"{i:05}.png" for i in range(8)]
    assert (shared / "manifest.json").read_text() == (whole / "manifest.json").read_text()
    assert not list(shared.rglob("*.part"))
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run(folder, shared, captions, *eight, "--seeds", "2", "--merge")
    assert "holds another command's results (command seeds was 1, now 2" in capsys.readouterr().err
    assert (shared / "manifest.json").read_text() == (whole / "manifest.json").read_text()


@pytest.mark.usefixtures("stand_ins")
def test_points_with_a_knob_moved_are_scored_too(folder: Path, tmp_path: Path, captions: Path) -> None:
    run(folder, tmp_path / "out", captions, "--pictures", "8", "--candidates", "lantern++ lambda 2", "vanilla again")
    rows = json.loads((tmp_path / "out" / "coco5k.json").read_text())["rows"]
    assert [row["name"] for row in rows] == ["vanilla", "lantern++", "vanilla again", "lantern++ lambda 2"]
    drawn = tokens_of(tmp_path / "out")
    assert drawn["vanilla", 0] != drawn["vanilla again", 0] and (tmp_path / "out" / "lantern++ lambda 2" / "00007.png").exists()


def test_what_is_missing_is_said_and_nothing_is_fetched(
    folder: Path, tmp_path: Path, captions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: Any, **__: Any) -> None:
        raise AssertionError("asked the network")

    monkeypatch.setattr("socket.create_connection", no_network)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    run(folder, tmp_path / "out", captions, "--pictures", "8")
    missing = json.loads((tmp_path / "out" / "coco5k.json").read_text())["missing"]
    assert [one for one in missing if one.startswith("FID needs torch_fidelity")] and "pip install torch-fidelity" in missing[0]
    assert [one for one in missing if one.startswith("HPSv2 needs hpsv2")]
    assert [one for one in missing if one.startswith("the CLIP score needs openai/clip-vit-base-patch32, which is not in")]
    assert all(one in (tmp_path / "out" / "coco5k.md").read_text() for one in missing)


def test_weights_that_are_not_there_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = SimpleNamespace(
        URL_INCEPTION_V3="https://example.org/inception.pth", FeatureExtractorInceptionV3=lambda *_, **given: given
    )
    monkeypatch.setattr(scorers, "_imported", lambda *_: package)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    found, missing = scorers.at_hand([scorers.of_distances, scorers.of_manifolds], None, torch.device("cpu"))
    assert not found and "inception.pth, which are not there: put there https://example.org" in missing[0]
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "inception.pth").touch()
    assert scorers.inception() == {"feature_extractor_weights_path": str(tmp_path / "checkpoints" / "inception.pth")}  # type: ignore[comparison-overlap]


@pytest.mark.usefixtures("published_cache", "stand_ins")
def test_a_published_model_draws_genevals_layout(janus_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """https://github.com/djghosh13/geneval: a folder a prompt, its line as metadata.jsonl, the pictures numbered under
    samples."""
    monkeypatch.setattr(protocol, "load", lambda _, *given, **more: load(JANUS_ID, *given, folder=janus_model, **more))
    lines = [
        json.dumps({"tag": "single_object", "include": [{"class": word, "count": 1}], "prompt": f"a photo of a {word}"})
        for word in "xy"
    ]
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    draw = partial(run, Path(JANUS_ID), tmp_path / "out", tmp_path / "metadata.jsonl", which="geneval")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        draw()
    monkeypatch.delenv("WORLD_SIZE")
    draw("--merge")
    assert "evaluate_images.py" in (tmp_path / "out" / "geneval.md").read_text()
    found = sorted(str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out" / "vanilla").rglob("*.*"))
    assert found == [
        f"vanilla/0000{i}/{name}" for i in (0, 1) for name in ("metadata.jsonl", *(f"samples/000{k}.png" for k in range(4)))
    ]
    assert (tmp_path / "out" / "vanilla" / "00001" / "metadata.jsonl").read_text() == lines[1] + "\n"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--candidates", "lantern", "--pictures", "8"], "--candidates must name points among lantern++ "),
        (["--slice", "4/3"], "--slice must be i/n"),
        (["--slice", "x"], "--slice must be i/n"),
        (["--slice", "1/2", "--fresh"], "--fresh would throw away"),
        (["--tree", "fit"], "--tree fit"),
        (["--pictures", "9"], "holds 8 captions, 9 were asked for"),
        ([], "holds 8 captions, 5000 were asked for"),
        (["--protocol", "geneval"], "line 1, must be a JSON object with a prompt"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(
    folder: Path, tmp_path: Path, captions: Path, given: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(folder, tmp_path / "out", captions, *given)
    assert stopped.value.code == 2 and says in capsys.readouterr().err


def test_slices_share_the_work() -> None:
    parts = [[i for i in range(5) if Slice(number, 2).holds(i)] for number in (1, 2)]
    assert parts == [[0, 2, 4], [1, 3]]
    assert slice_of("2/4") == Slice(2, 4) and slice_of(None, {}) == Slice()
    assert slice_of(None, {"RANK": "1", "WORLD_SIZE": "4"}) == Slice(2, 4)


def test_a_slice_reads_all_others_and_fresh_removes_them(tmp_path: Path) -> None:
    file = tmp_path / "drawn.jsonl"
    for number in (1, 2):
        Journal(file, {}, part=Slice(number, 2)).add("picture", {"n": number})
    assert [line["n"] for line in Journal(file, {}, part=Slice(2, 3)).of("picture")] == [1, 2]
    assert [line["n"] for line in Journal(file, {}).of("picture")] == [1, 2]
    with pytest.raises(ValueError, match="another command's results"):
        Journal(file, {"other": 1}, part=Slice(1, 2))
    assert Journal(file, {"other": 1}, fresh=True).of("picture") == [] and [f.name for f in tmp_path.iterdir()] == ["drawn.jsonl"]
