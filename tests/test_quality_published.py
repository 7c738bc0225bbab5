"""The measures of published models, with small networks in the place of Inception and CLIP."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import BatchEncoding, CLIPConfig, CLIPModel

from lantern_demo.bench.quality import protocol, scorers

CPU = torch.device("cpu")


class Means(nn.Module):
    """A stand-in for Inception: means of the picture's four quarters."""

    def forward(self, images: Tensor) -> tuple[Tensor]:
        assert images.dtype == torch.uint8
        return (nn.functional.adaptive_avg_pool2d(images.float() / 255, 2).flatten(1),)


class ColourClip(nn.Module):
    """A stand-in for CLIP that knows red and blue."""

    def forward(self, pixel_values: Tensor, input_ids: Tensor) -> Any:
        return SimpleNamespace(image_embeds=pixel_values.mean((2, 3))[:, [0, 2]], text_embeds=input_ids.float())


def colour_processor(text: list[str], images: list[Image.Image], **options: Any) -> BatchEncoding:
    assert options["truncation"] and all(t.startswith("A photo depicts ") for t in text)
    pixels = torch.stack([scorers.prepare(image, 8).float() / 255 for image in images])
    ids = torch.tensor([[float("red" in t), float("blue" in t)] for t in text])
    return BatchEncoding({"pixel_values": pixels, "input_ids": ids})


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_captions_are_the_longest_of_every_picture_by_its_id(tmp_path: Path) -> None:
    notes = [(17, "a cat"), (3, "two dogs run"), (17, " a cat\n sits "), (3, "dogs"), (17, "the cat sat")]
    file = write(tmp_path / "a.json", {"annotations": [{"image_id": i, "id": n, "caption": c} for n, (i, c) in enumerate(notes)]})
    assert protocol.read_coco(file) == [("3", "two dogs run", ""), ("17", "the cat sat", "")]
    lines = write(tmp_path / "captions.txt", "\n a cat \n\ntwo  dogs\n" + "more\n" * 9)
    assert [prompt.text for prompt in protocol.read_coco(lines)] == ["a cat", "two dogs", *["more"] * 9]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.json", "{", "must be a COCO captions file"),
        ("a.json", [1], "must be a COCO captions file"),
        ("a.json", {"images": []}, "'annotations'"),
        ("a.json", {"annotations": 3}, "must be a COCO captions file"),
        ("a.json", {"annotations": [{"image_id": 1, "bbox": []}]}, "must be a COCO captions file"),
        ("a.json", {"annotations": [{"image_id": 1, "caption": 2}]}, "must be a COCO captions file"),
    ],
)
def test_what_is_wrong_with_captions_is_said(tmp_path: Path, name: str, content: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        protocol.read_coco(write(tmp_path / name, content))
    with pytest.raises(ValueError, match="cannot be read from"):
        protocol.read_coco(tmp_path / "nowhere.json")


def test_pictures_are_cropped_to_their_centre_and_resized(tmp_path: Path) -> None:
    wide = Image.new("RGB", (90, 40), "blue")
    wide.paste("red", (25, 0, 65, 40))
    seen = scorers.prepare(wide, 16)
    assert seen.shape == (3, 16, 16) and seen.dtype == torch.uint8
    assert (seen == torch.tensor([255, 0, 0], dtype=torch.uint8)[:, None, None]).all()
    noise = Image.fromarray(numpy.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=numpy.uint8))
    assert (scorers.prepare(noise, 20).permute(1, 2, 0).numpy() == numpy.asarray(noise)).all()
    wanted = numpy.asarray(noise.resize((8, 8), Image.Resampling.LANCZOS))
    assert (scorers.prepare(noise, 8).permute(1, 2, 0).numpy() == wanted).all()

    for number in range(5):
        noise.save(tmp_path / f"{number}.png")
    write(tmp_path / "notes.txt", "no picture")
    assert [f.name for f in scorers.real_files(tmp_path)] == [f"{n}.png" for n in range(5)]
    assert scorers.features_of(Means(), scorers.real_files(tmp_path), CPU).shape == (5, 12)
    with pytest.raises(ValueError, match=r"notes\.txt cannot be read as a picture"):
        scorers.opened(tmp_path / "notes.txt")
    with pytest.raises(ValueError, match="must name a folder of pictures"):
        scorers.real_files(tmp_path / "0.png")


def test_a_clip_network_of_transformers_gives_the_cosine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    words = {"vocab_size": 64, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    model = CLIPModel(
        CLIPConfig(text_config={**sizes, **words}, vision_config={**sizes, "image_size": 16, "patch_size": 8}, projection_dim=4)
    ).eval()
    ids, pixels = torch.tensor([[1, 9, 2], [1, 30, 2]]), torch.rand(2, 3, 16, 16)
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}
    with torch.inference_mode():
        both = model(**given)
    wanted = 100 * nn.functional.cosine_similarity(both.image_embeds, both.text_embeds).mean().item()
    blank = save([Image.new("RGB", (16, 16))] * 2, tmp_path / "blank")
    monkeypatch.setattr(scorers, "clip", lambda: (model, lambda **_: BatchEncoding(given)))
    found = scorers.of_clip(None, CPU)(blank, ["one", "two"])["clip"]
    assert found == pytest.approx(max(0.0, wanted), rel=1e-4)
    assert wanted != 0


def test_pictures_are_measured_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    g = numpy.random.default_rng(0)

    def pictures(count: int, colour: int) -> list[Image.Image]:
        noise = g.integers(0, 60, (count, 12, 20, 3), dtype=numpy.uint8)
        noise[..., colour] += 180
        return [Image.fromarray(one) for one in noise]

    monkeypatch.setattr(scorers, "inception", Means)
    monkeypatch.setattr(scorers, "vgg", Means)
    files = {
        name: save(pictures(count, colour), tmp_path / name)
        for name, count, colour in (("real", 40, 0), ("red", 33, 0), ("blue", 33, 2))
    }
    (distances, manifolds), missing = scorers.at_hand([scorers.of_distances, scorers.of_manifolds], tmp_path / "real", CPU)
    same, other = (distances(files[name], []) | manifolds(files[name], []) for name in ("red", "blue"))
    assert missing == [] and set(same) == {"fid", "kid", "precision", "recall"}
    assert same["fid"] < 0.01 * other["fid"] and same["kid"] < other["kid"]
    assert same["precision"] > 0.5 and other["precision"] == other["recall"] == 0
    captions = ["a red one"] * 33
    monkeypatch.setattr(scorers, "clip", lambda: (ColourClip(), colour_processor))
    red, blue = (scorers.of_clip(None, CPU)(files[name], captions)["clip"] for name in ("red", "blue"))
    assert red > 95 and blue < 30
    with pytest.raises(ValueError, match="at least 4 pictures"):
        manifolds(files["red"][:3], [])


def save(pictures: list[Image.Image], folder: Path) -> list[Path]:
    folder.mkdir()
    for number, picture in enumerate(pictures):
        picture.save(folder / f"{number:02}.png")
    return scorers.real_files(folder)
