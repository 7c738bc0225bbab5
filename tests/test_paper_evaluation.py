"""examples/paper_evaluation: captions to scores by small networks in the place of fetched ones."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from tiny import command
from torch import Tensor, nn

from examples.paper_evaluation import run, scorers

COLOURS = ("red", "green", "blue", "yellow", "purple", "white", "orange", "cyan")

# Stand-ins for torch-fidelity's functions on features [N, D].
FIDELITY = SimpleNamespace(
    fid_features_to_statistics=lambda features: features.mean(0),
    fid_statistics_to_metric=lambda made, real, verbose: {
        "frechet_inception_distance": float((made - real).square().sum())
    },
    kid_features_to_metric=lambda made, real, kid_subset_size, verbose: {
        "kernel_inception_distance_mean": float(kid_subset_size)
    },
)


class Means(nn.Module):
    """A stand-in for Inception: means of the picture's four quarters."""

    def forward(self, images: Tensor) -> tuple[Tensor]:
        assert images.dtype == torch.uint8
        return (nn.functional.adaptive_avg_pool2d(images.float() / 255, 2).flatten(1),)


def test_captions_get_scores(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is fetched for missing scorers, which are named. A run goes on where it was stopped.
    Captions have the official file's form: images out of order, two captions each.
    """
    monkeypatch.setattr("socket.create_connection", None)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(scorers, "fidelity", lambda *_: FIDELITY)
    monkeypatch.setattr(scorers, "inception", Means)
    monkeypatch.setitem(sys.modules, "hpsv2", None)
    captions, out, real = (tmp_path / name for name in ("captions.json", "out", "real"))
    notes = [
        {"image_id": 90 - 10 * i, "caption": caption}
        for i, word in enumerate(COLOURS)
        for caption in ("a sky", f"a {word} lantern ")
    ]
    captions.write_text(json.dumps({"annotations": notes}), encoding="utf-8")
    real.mkdir()
    for i in range(6):
        Image.effect_noise((40, 36), 30 + 5 * i).save(real / f"{i}.png")
    files = "--model", folder, "--captions", captions, "--real", real, "--out", out
    chosen = "--device", "cpu", "--methods", "lantern++", "--candidates", "vanilla again"

    def read(name: str) -> Any:
        return json.loads((out / name).read_text(encoding="utf-8"))

    command(run, "coco5k", *files, *chosen, "--pictures", 8)
    report = read("coco5k.json")
    needs = ("(and recall) needs the weights", "clip-vit-base-patch32, which", "needs hpsv2")
    for said, need in zip(report["missing"], needs, strict=True):
        assert need in said and said in (out / "coco5k.md").read_text(encoding="utf-8")
    assert [row["name"] for row in report["rows"]] == ["vanilla", "lantern++", "vanilla again"]
    for row in report["rows"]:
        assert set(row["scores"]) == {"fid", "kid"} and row["pictures"] == 8
        assert row["scores"]["kid"] == 6  # pictures of the smaller set
    assert report["rows"][0]["tokens_per_step"] == 1 < report["rows"][1]["tokens_per_step"]
    wanted = [(f"{20 + 10 * i}", f"a {word} lantern") for i, word in enumerate(COLOURS[::-1])]
    assert [(p["id"], p["prompt"]) for p in read("manifest.json")["prompts"]] == wanted
    drawn = sorted(file.name for file in (out / "lantern++").iterdir())
    assert drawn == [f"{i:05}.png" for i in range(8)]

    (out / "lantern++" / "00001.png").unlink()  # it is drawn from its tokens again
    command(run, "coco5k", *files, *chosen, "--pictures", 8)
    assert read("coco5k.json")["rows"] == report["rows"]
