"""Speed beside FID, KID, precision, recall and CLIP score, for models that draw captions of the user's own.

No classifier reads these pictures, and there is no truth but the user's real pictures, in practice those of COCO. The network that looks
at them is an extra that is not among the requirements, and is fetched at first use:

    pip install torch-fidelity==0.4.0

FID falls with the number of pictures, so only sets of one size compare, and none with a number from another harness: published ones
differ in resizing, in captions and in how many there were.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor, nn

from lantern_demo.bench.quality import distances
from lantern_demo.bench.report import number, table

INSTALL = "pip install torch-fidelity==0.4.0"
SIZE = 256  # pixels a side of what the networks are shown
BATCH = 32
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
CLIP = "openai/clip-vit-base-patch32"
PREFIX = "A photo depicts "  # before every caption, as in CLIPScore (Hessel et al. 2021) and LANTERN's evaluation
COLUMNS = ("fid", "kid", "clip", "precision", "recall")


def lines_of(file: Path) -> list[str]:
    """The lines of a text file that hold something. Raises ValueError for one that cannot be read."""
    return [line for line in _text(file).splitlines() if line.strip()]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"captions cannot be read from {file}: {error}") from error


def captions_of(file: Path) -> list[tuple[str, str]]:
    """The captions of a file with their ids: of a COCO annotation file (.json) the longest of every picture, in the order of pictures' first
    captions, or the lines of a text file. Raises ValueError with what is wrong with the file."""
    found = _coco(_text(file), file) if file.suffix.lower() == ".json" else dict(enumerate(lines_of(file)))
    return [(str(key), " ".join(caption.split())) for key, caption in found.items() if caption.strip()]


def read_captions(file: Path, count: int, seed: int = 0) -> list[str]:
    """`count` of a file's captions, drawn without repeats by `seed`. Raises ValueError with what is wrong with the file."""
    captions = [caption for _, caption in captions_of(file)]
    if not 0 < count <= len(captions):
        raise ValueError(f"{file} holds {len(captions)} captions, {count} were asked for")
    return random.Random(seed).sample(captions, count)


def _coco(text: str, file: Path) -> dict[Any, str]:
    longest: dict[Any, str] = {}
    try:
        for note in json.loads(text)["annotations"]:
            # Of equally long ones the first stays.
            longest[note["image_id"]] = max(longest.get(note["image_id"], ""), " ".join(note["caption"].split()), key=len)
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{file} must be a COCO captions file, a JSON object with a list of annotations that have an image_id and a caption: {error!r}"
        ) from error
    return longest


def real_files(folder: Path) -> list[Path]:
    """The picture files in a folder, by name. Raises ValueError when there are none."""
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES) if folder.is_dir() else []
    if not files:
        raise ValueError(f"--real must name a folder of pictures ({', '.join(SUFFIXES)}), got {str(folder)!r}")
    return files


def opened(picture: Image.Image | Path) -> Image.Image:
    """A picture, or the file it is in, in RGB. Raises ValueError naming a file that cannot be read."""
    if isinstance(picture, Image.Image):
        return picture.convert("RGB")
    try:
        with Image.open(picture) as image:
            return image.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise ValueError(f"{picture} cannot be read as a picture: {error}") from error


def prepare(picture: Image.Image | Path, size: int = SIZE) -> Tensor:
    """A picture, or the file it is in -> [3, size, size] uint8: the largest square around its centre, resized with Pillow's Lanczos
    filter. Raises ValueError naming a file that cannot be read."""
    picture = opened(picture)
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    square = picture.crop((left, top, left + side, top + side))
    if side != size:
        square = square.resize((size, size), Image.Resampling.LANCZOS)
    return torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8).view(size, size, 3).permute(2, 0, 1).contiguous()


def batches(pictures: Sequence[Image.Image | Path], size: int = SIZE) -> Iterator[Tensor]:
    """Pictures prepared, a batch at a time -> [B, 3, size, size] uint8."""
    for start in range(0, len(pictures), BATCH):
        yield torch.stack([prepare(one, size) for one in pictures[start : start + BATCH]])


def inception() -> nn.Module:
    """The Inception network of FID, [B, 3, H, W] uint8 -> a tuple with features [B, 2048]; its weights are fetched.

    Raises ModuleNotFoundError with what to install.
    """
    try:
        from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"FID and KID need {error.name}, which is not installed; run: {INSTALL}") from error
    network: nn.Module = FeatureExtractorInceptionV3("inception-v3-compat", ["2048"])
    return network


@torch.inference_mode()
def features_of(network: nn.Module, pictures: Sequence[Image.Image | Path], device: torch.device) -> Tensor:
    """Pictures through a feature network -> [N, D] float32 on the CPU."""
    network = network.to(device).eval()
    found = [network(part.to(device)) for part in batches(pictures)]
    return torch.cat([(one[0] if isinstance(one, tuple) else one).float().cpu() for one in found])


def scores(real: Any, made: Any) -> dict[str, float]:
    """Features of real pictures [N, D] and of made ones [M, D] -> fid, kid, precision and recall, as `distances` defines them; the
    papers take precision and recall in VGG's features. Raises ValueError for three pictures or fewer."""
    precision, recall = distances.Manifolds(real, made)()
    return {
        "fid": distances.frechet(made, real), "kid": distances.Kernel(made, real)(), "precision": precision, "recall": recall,
        "pictures": len(made), "real": len(real),
    }  # fmt: skip


def clip() -> tuple[Any, Any]:
    """A CLIP network of transformers and its processor, fetched."""
    import transformers

    return transformers.CLIPModel.from_pretrained(CLIP).eval(), transformers.CLIPProcessor.from_pretrained(CLIP)


@torch.inference_mode()
def clip_score(
    network: Any, processor: Any, pictures: Sequence[Image.Image | Path], captions: list[str], device: torch.device
) -> float:
    """The mean of 100 cos(picture, PREFIX + caption) over pictures and their captions; a negative mean counts as 0."""
    found: list[float] = []
    for start in range(0, len(pictures), BATCH):
        some = slice(start, start + BATCH)
        texts = [PREFIX + caption for caption in captions[some]]
        given = processor(
            text=texts, images=[opened(one) for one in pictures[some]], return_tensors="pt", padding=True, truncation=True
        )
        seen = network.to(device)(**given.to(device))
        found += torch.nn.functional.cosine_similarity(seen.image_embeds, seen.text_embeds).tolist()
    return max(0.0, 100 * sum(found) / len(found))


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of such a front."""
    shown = [key for key in COLUMNS if any(key in row["scores"] for row in rows)]
    lines = [
        [
            row["label"], str(row["pictures"]), f"{row['speed']['tokens_per_step']:.2f}", f"{row['speed']['c']:.2f}",
            f"{row['speed']['speedup']['median']:.2f}x", number(row["speed"]["price"], 4),
            *(f"{row['scores'][key]:.4f}" for key in shown),
        ]
        for row in rows
    ]  # fmt: skip
    head = ["point", "pictures", "tokens / step", "c", "speedup", "price", *(key.upper() for key in shown)]
    note = "Vanilla again is vanilla with other seeds: a difference no larger than its own is noise. FID compares only at equal numbers."
    return table(head, lines) + f"\n\n{note}\n"
