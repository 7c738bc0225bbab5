"""The measures of published models, with small networks in the place of Inception and CLIP."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from transformers import CLIPConfig, CLIPModel

from lantern_demo.bench.quality import distances, published


class Means(nn.Module):
    """A stand-in for Inception: means of the picture's four quarters."""

    def forward(self, images: Tensor) -> Tensor:
        assert images.dtype == torch.uint8
        return nn.functional.adaptive_avg_pool2d(images.float() / 255, 2).flatten(1)


class ColourClip(nn.Module):
    """A stand-in for CLIP that knows red and blue, and answers as transformers 5 does."""

    config = SimpleNamespace()

    def get_image_features(self, pixels: Tensor) -> Any:
        return SimpleNamespace(pooler_output=pixels.float().mean((2, 3))[:, [0, 2]])

    def get_text_features(self, ids: Tensor, mask: Tensor) -> Any:
        return SimpleNamespace(pooler_output=ids.float())


def colour_processor(text: Any = None, images: Any = None, **options: Any) -> dict[str, Tensor]:
    if images is not None:
        return {"pixel_values": torch.stack(images)}
    assert options["truncation"]
    assert all(t.startswith("A photo depicts ") for t in text)
    ids = torch.tensor([[float("red" in t), float("blue" in t)] for t in text])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_captions_are_the_longest_of_every_picture(tmp_path: Path) -> None:
    notes = [(7, "a cat"), (3, "two dogs run"), (7, " a cat\n sits "), (3, "dogs"), (7, "the cat sat")]
    file = write(
        tmp_path / "captions.json", {"annotations": [{"image_id": i, "id": n, "caption": c} for n, (i, c) in enumerate(notes)]}
    )
    assert published.read_captions(file) == ["the cat sat", "two dogs run"]
    lines = write(tmp_path / "captions.txt", "\n a cat \n\ntwo  dogs\nthree\n")
    assert published.read_captions(lines) == ["a cat", "two dogs", "three"]
    some = published.read_captions(lines, 2, seed=1)
    assert some == published.read_captions(lines, 2, seed=1) and len(set(some)) == 2


@pytest.mark.parametrize(("name", "content", "says"), [
    ("a.json", "{", "must be a COCO captions file"), ("a.json", [1], "must be a COCO captions file"),
    ("a.json", {"images": []}, "'annotations'"), ("a.json", {"annotations": {}}, "must be a list, got dict"),
    ("a.json", {"annotations": [{"image_id": 1, "bbox": []}]}, "annotation 0 in .* must have an image_id and a caption"),
    ("a.json", {"annotations": [{"image_id": 1, "caption": " "}]}, "annotation 0 in .* is empty"),
    ("a.json", {"annotations": []}, "holds no captions"), ("a.txt", "\n\n", "holds no captions"),
    ("a.txt", "one\ntwo", "holds 2 captions, 3 were asked for"),
])  # fmt: skip
def test_what_is_wrong_with_captions_is_said(tmp_path: Path, name: str, content: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        published.read_captions(write(tmp_path / name, content), 3)
    with pytest.raises(ValueError, match="cannot be read from"):
        published.read_captions(tmp_path / "nowhere.json")


def test_pictures_are_cropped_to_their_centre_and_resized(tmp_path: Path) -> None:
    wide = Image.new("RGB", (90, 40), "blue")
    wide.paste("red", (25, 0, 65, 40))
    seen = published.prepare(wide, 16)
    assert seen.shape == (3, 16, 16) and seen.dtype == torch.uint8
    assert (seen == torch.tensor([255, 0, 0], dtype=torch.uint8)[:, None, None]).all()
    noise = Image.fromarray(numpy.random.default_rng(0).integers(0, 256, (20, 20, 3), dtype=numpy.uint8))
    assert (published.prepare(noise, 20).permute(1, 2, 0).numpy() == numpy.asarray(noise)).all()
    wanted = numpy.asarray(noise.resize((8, 8), Image.Resampling.LANCZOS))
    assert (published.prepare(noise, 8).permute(1, 2, 0).numpy() == wanted).all()

    for number in range(5):
        noise.save(tmp_path / f"{number}.png")
    write(tmp_path / "notes.txt", "no picture")
    assert [f.name for f in published.real_files(tmp_path)] == [f"{n}.png" for n in range(5)]
    assert len(published.real_files(tmp_path, 3)) == 3
    assert [part.shape[0] for part in published.batches(published.real_files(tmp_path), 2, 8)] == [2, 2, 1]
    with pytest.raises(ValueError, match="holds 5 pictures, 6 were asked for"):
        published.real_files(tmp_path, 6)
    with pytest.raises(ValueError, match=r"notes\.txt cannot be read as a picture"):
        list(published.batches([tmp_path / "notes.txt"]))
    with pytest.raises(ValueError, match="must lie in a folder"):
        published.real_files(tmp_path / "0.png")


def test_what_is_missing_can_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", gone)
    with pytest.raises(ModuleNotFoundError, match=r"need torchmetrics\.image\.fid, which is not installed; run: pip install"):
        published.inception()


def test_scores_are_those_of_our_own_distances() -> None:
    pytest.importorskip("torchmetrics")
    g = torch.Generator().manual_seed(0)
    real, made = torch.randn(60, 5, generator=g), 0.7 * torch.randn(50, 5, generator=g) + 0.3
    before = torch.get_rng_state()
    found = published.scores(real, made)
    assert torch.equal(before, torch.get_rng_state())
    assert found == published.scores(real, made)
    assert found["fid"] == pytest.approx(distances.frechet(made, real), rel=1e-4)
    # Every subset of the smaller set is all of it, so that only the larger one varies.
    assert found["kid"] == pytest.approx(distances.Kernel(made, real)(), abs=3 * found["kid_std"])
    assert published.scores(real[:50], made)["kid"] == pytest.approx(distances.Kernel(made, real[:50])(), rel=1e-3)
    assert (found["precision"], found["recall"]) == distances.precision_recall(real, made)
    with pytest.raises(ValueError, match="more than 3 pictures"):
        published.scores(real[:3], made)


def test_a_clip_network_of_transformers_gives_the_cosine() -> None:
    pytest.importorskip("torchmetrics")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    words = {"vocab_size": 64, "max_position_embeddings": 8, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    model = CLIPModel(
        CLIPConfig(text_config={**sizes, **words}, vision_config={**sizes, "image_size": 16, "patch_size": 8}, projection_dim=4)
    ).eval()
    ids, images = torch.tensor([[1, 9, 2], [1, 30, 2]]), torch.randint(256, (2, 3, 16, 16), dtype=torch.uint8)

    def processor(text: Any = None, images: Any = None, **options: Any) -> dict[str, Tensor]:
        if images is not None:
            return {"pixel_values": torch.stack(images) / 255}
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    with torch.inference_mode():
        both = model(input_ids=ids, pixel_values=images / 255, attention_mask=torch.ones_like(ids))
    wanted = 100 * nn.functional.cosine_similarity(both.image_embeds, both.text_embeds).mean().item()
    found = published.clip_score(published.Clip(model, processor), [images], ["one", "two"])
    assert found == pytest.approx(max(0.0, wanted), rel=1e-4)
    assert wanted != 0


def test_pictures_are_measured_from_end_to_end() -> None:
    pytest.importorskip("torchmetrics")
    g = numpy.random.default_rng(0)

    def pictures(count: int, colour: int) -> list[Image.Image | Path]:
        noise = g.integers(0, 60, (count, 12, 20, 3), dtype=numpy.uint8)
        noise[..., colour] += 180
        return [Image.fromarray(one) for one in noise]

    network, clip = Means(), published.Clip(ColourClip(), colour_processor)
    real = published.features_of(network, published.batches(pictures(40, 0)))
    captions = ["a red one"] * 33
    same, other = (published.measure(pictures(33, colour), captions, real, network, clip) for colour in (0, 2))
    assert set(same) == {"fid", "kid", "kid_std", "precision", "recall", "clip", "pictures", "real"}
    assert same["pictures"] == 33 and same["real"] == 40
    assert same["fid"] < 0.01 * other["fid"]
    assert same["precision"] > 0.5 and other["precision"] == other["recall"] == 0
    assert same["clip"] > 95 and other["clip"] < 30
    for wrong in (captions[:-1], [*captions, "one more"]):
        with pytest.raises(ValueError, match="every picture needs its caption"):
            published.clip_score(clip, published.batches(pictures(33, 0)), wrong)
