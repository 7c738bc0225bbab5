"""FID, KID, CLIP score, precision and recall of pictures of published models: an extra that asks for two more packages.

They are not among the requirements, and their networks are fetched at first use:

    pip install 'torchmetrics[image]==1.9.0' torch-fidelity==0.4.0

Captions and real pictures are the user's own, in practice those of COCO. FID falls with the number of pictures, so only sets of one
size compare, and none with a number from another harness: published ones differ in resizing, in captions and in how many there were.
"""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor, nn

from lantern_demo.bench.quality.distances import precision_recall

INSTALL = "pip install 'torchmetrics[image]==1.9.0' torch-fidelity==0.4.0"
SIZE = 256  # pixels a side of what the networks are shown
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
SUBSETS, SUBSET = 100, 1000  # of KID (Binkowski et al. 2018)
CLIP = "openai/clip-vit-base-patch32"
PREFIX = "A photo depicts "  # before every caption, as in CLIPScore (Hessel et al. 2021) and LANTERN's evaluation


def optional(module: str) -> ModuleType:
    """A module of the extra. Raises ModuleNotFoundError with what to install when it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"FID, KID and CLIP score need {error.name}, which is not installed; run: {INSTALL}") from error


# -- what the user gives


def read_captions(file: Path, count: int | None = None, seed: int = 0) -> list[str]:
    """The captions of a COCO annotation file (.json), of every picture the longest, or of a text file, one a line.

    With `count` that many of them, drawn without repeats by `seed`. Raises ValueError with what is wrong with the file.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"captions cannot be read from {file}: {error}") from error
    if file.suffix.lower() == ".json":
        captions = _coco(text, file)
    else:
        captions = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    if not captions:
        raise ValueError(f"{file} holds no captions")
    if count is None:
        return captions
    if not 0 < count <= len(captions):
        raise ValueError(f"{file} holds {len(captions)} captions, {count} were asked for")
    return random.Random(seed).sample(captions, count)


def _coco(text: str, file: Path) -> list[str]:
    try:
        notes = json.loads(text)["annotations"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{file} must be a COCO captions file, a JSON object with a list of annotations: {error!r}") from error
    if not isinstance(notes, list):
        raise ValueError(f"annotations in {file} must be a list, got {type(notes).__name__}")
    longest: dict[Any, str] = {}
    for number, note in enumerate(notes):
        if (
            not isinstance(note, dict)
            or not isinstance(note.get("caption"), str)
            or not isinstance(note.get("image_id"), (int, str))
        ):
            raise ValueError(
                f"annotation {number} in {file} must have an image_id and a caption in words; is this a captions file?"
            )
        caption = " ".join(note["caption"].split())
        if not caption:
            raise ValueError(f"the caption of annotation {number} in {file} is empty")
        # Of equally long ones the first stays.
        longest[note["image_id"]] = max(longest.get(note["image_id"], ""), caption, key=len)
    return list(longest.values())


def prepare(image: Image.Image, size: int = SIZE) -> Tensor:
    """A picture -> [3, size, size] uint8: the largest square around its centre, resized with Pillow's Lanczos filter."""
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.convert("RGB").crop((left, top, left + side, top + side))
    if side != size:
        square = square.resize((size, size), Image.Resampling.LANCZOS)
    return torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8).view(size, size, 3).permute(2, 0, 1).contiguous()


def real_files(folder: Path, count: int | None = None, seed: int = 0) -> list[Path]:
    """The picture files in a folder, by name; with `count` that many, drawn by `seed`. Raises ValueError when they are not there."""
    if not folder.is_dir():
        raise ValueError(f"real pictures must lie in a folder, got {str(folder)!r}")
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    if not files:
        raise ValueError(f"{folder} holds no pictures ({', '.join(SUFFIXES)})")
    if count is None:
        return files
    if not 0 < count <= len(files):
        raise ValueError(f"{folder} holds {len(files)} pictures, {count} were asked for")
    return sorted(random.Random(seed).sample(files, count))


def batches(pictures: Sequence[Image.Image | Path], batch: int = 32, size: int = SIZE) -> Iterator[Tensor]:
    """Pictures, or the files that they are in, prepared -> [B, 3, size, size] uint8. Raises ValueError naming an unreadable file."""
    for start in range(0, len(pictures), batch):
        yield torch.stack([_opened(one, size) for one in pictures[start : start + batch]])


def _opened(picture: Image.Image | Path, size: int) -> Tensor:
    if isinstance(picture, Image.Image):
        return prepare(picture, size)
    try:
        with Image.open(picture) as image:
            return prepare(image, size)
    except (OSError, UnidentifiedImageError) as error:
        raise ValueError(f"{picture} cannot be read as a picture: {error}") from error


# -- the networks, which tests put small ones in the place of


def inception(weights: Path | None = None) -> nn.Module:
    """The Inception network of FID, [B, 3, H, W] uint8 -> [B, 2048]; its weights are fetched, or read from a file.

    Raises ModuleNotFoundError with what to install.
    """
    fid = optional("torchmetrics.image.fid")
    optional("torch_fidelity")
    path = None if weights is None else str(weights)
    network: nn.Module = fid.NoTrainInceptionV3("inception-v3-compat", ["2048"], path)
    return network


class Clip(nn.Module):
    """A CLIP network of transformers and its processor in the shape that torchmetrics' CLIP score expects.

    Its version 1.9 takes the features for tensors, while transformers 5 gives them in an object; and it cuts long captions after
    the end mark was put behind them, which CLIP reads the caption from. Here the processor cuts them.
    """

    model: Any

    def __init__(self, model: nn.Module, processor: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.processor = model.eval(), processor

    @classmethod
    def fetched(cls, name: str | Path = CLIP) -> Clip:
        """A network by its name on the Hub, or from a local folder."""
        import transformers

        return cls(transformers.CLIPModel.from_pretrained(name), transformers.CLIPProcessor.from_pretrained(name))

    @property
    def config(self) -> Any:
        return self.model.config

    def get_image_features(self, pixels: Tensor) -> Tensor:
        """Pixels as processed [B, 3, H, W] -> [B, D]."""
        return _pooled(self.model.get_image_features(pixels))

    def get_text_features(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Token ids and mask [B, T] -> [B, D]."""
        return _pooled(self.model.get_text_features(ids, mask))

    def process(self, **given: Any) -> Any:
        """As the processor, with captions cut to what the network reads."""
        return self.processor(**given, truncation=True) if "text" in given else self.processor(**given)


def _pooled(features: Any) -> Tensor:
    found: Tensor = features if isinstance(features, Tensor) else features.pooler_output
    return found


# -- the measures


@torch.inference_mode()
def features_of(network: nn.Module, parts: Iterable[Tensor], device: torch.device | str = "cpu") -> Tensor:
    """Pictures [B, 3, H, W] uint8, part by part, through a feature network -> [N, D] float32 on the CPU."""
    network = network.to(device).eval()
    return torch.cat([network(part.to(device)).float().cpu() for part in parts])


class _Given(nn.Module):
    """Stands for the network where the features are there already."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.num_features = features

    def forward(self, features: Tensor) -> Tensor:
        return features


@torch.inference_mode()
def scores(real: Tensor, made: Tensor, k: int = 3) -> dict[str, float]:
    """Features of real pictures [N, D] and of made ones [M, D] -> fid, kid, kid_std, precision and recall.

    FID and KID are torchmetrics'. KID is the mean over SUBSETS subsets of SUBSET pictures, or of all where there are fewer; kid_std
    is their spread, not that of the mean. Precision and recall are `distances.precision_recall` in these very features, while the
    papers take VGG's. Raises ValueError for k pictures or fewer.
    """
    if min(len(real), len(made)) <= k:
        raise ValueError(f"more than {k} pictures of either kind are needed, got {len(real)} real and {len(made)} made ones")
    given = _Given(real.shape[1])
    fid = optional("torchmetrics.image.fid").FrechetInceptionDistance(given)
    subset = min(SUBSET, len(real), len(made))
    kid = optional("torchmetrics.image.kid").KernelInceptionDistance(given, subsets=SUBSETS, subset_size=subset)
    for metric in (fid, kid):
        metric.update(real, real=True)
        metric.update(made, real=False)
    # It draws its subsets from the global generator, which is left as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        mean, spread = kid.compute()
    precision, recall = precision_recall(real.numpy(), made.numpy(), k)
    return {
        "fid": float(fid.compute()), "kid": float(mean), "kid_std": float(spread), "precision": precision, "recall": recall,
    }  # fmt: skip


@torch.inference_mode()
def clip_score(clip: Clip, parts: Iterable[Tensor], captions: list[str], device: torch.device | str = "cpu") -> float:
    """The mean of 100 cos(picture, PREFIX + caption) over pictures [B, 3, H, W] uint8, part by part, and their captions.

    torchmetrics' score: a negative mean counts as 0. Raises ValueError when there are not as many captions as pictures.
    """
    metric = optional("torchmetrics.multimodal.clip_score").CLIPScore(lambda: (clip, clip.process))
    seen = 0
    for part in parts:
        texts = [PREFIX + caption for caption in captions[seen : seen + len(part)]]
        seen += len(part)
        if seen <= len(captions):
            metric.update(list(part.to(device)), texts)
    if seen != len(captions) or not seen:
        raise ValueError(f"every picture needs its caption, got {seen} pictures and {len(captions)} captions")
    return float(metric.compute())


def measure(
    made: Sequence[Image.Image | Path], captions: list[str], real: Tensor, network: nn.Module, clip: Clip | None,
    device: torch.device | str = "cpu",
) -> dict[str, float]:  # fmt: skip
    """All measures of made pictures and their captions, against features of real ones [N, D] (`features_of`, taken once)."""
    found = scores(real, features_of(network, batches(made), device))
    if clip is not None:
        found["clip"] = clip_score(clip, batches(made), captions, device)
    return {**found, "pictures": float(len(made)), "real": float(len(real))}
