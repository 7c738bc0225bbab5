"""Compute the measures of papers' tables with the usual packages, if these and their weights are
installed.

Nothing is downloaded. torch-fidelity computes FID and KID from Inception's features, precision and
recall from VGG16's. Pictures are cropped to a square and resized to 256. CLIP is OpenAI's ViT-B/32
in transformers. HPSv2 is version 2.1 in hpsv2. Harnesses differ in resizing and weights: compare
only numbers of one harness at one number of pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor, nn

Scores = dict[str, float]
Scorer = Callable[[list[Path], list[str]], Scores]  # of picture files and their captions

COLUMNS = {
    "fid": "FID",
    "kid": "KID",
    "precision": "precision",
    "recall": "recall",
    "clip": "CLIP",
    "hpsv2": "HPSv2",
}
SIZE = 256  # pixels a side of the networks' inputs
BATCH = 32
SUBSET = 1000  # most pictures of each of KID's subsets
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")
CLIP = "openai/clip-vit-base-patch32"
# before every caption, as in CLIPScore (Hessel et al. 2021) and LANTERN's evaluation
PREFIX = "A photo depicts "
HPS = ("xswu/HPSv2", "HPS_v2.1_compressed.pt")
# base weights that hpsv2 loads first
HPS_BASE = ("laion/CLIP-ViT-H-14-laion2B-s32B-b79K", "open_clip_pytorch_model.bin")


def real_files(folder: Path) -> list[Path]:
    """Return the picture files in a folder, by name.

    Raises ValueError for a folder without pictures.
    """
    found = folder.iterdir() if folder.is_dir() else ()
    files = sorted(path for path in found if path.suffix.lower() in SUFFIXES)
    if not files:
        raise ValueError(
            f"--real must name a folder of pictures ({', '.join(SUFFIXES)}), got {str(folder)!r}"
        )
    return files


def opened(file: Path) -> Image.Image:
    """Open a picture file in RGB. Raises ValueError that names an unreadable file."""
    try:
        with Image.open(file) as image:
            return image.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise ValueError(f"{file} cannot be read as a picture: {error}") from error


def prepare(image: Image.Image, size: int = SIZE) -> Tensor:
    """Crop an RGB picture to its largest central square and resize it with Pillow's Lanczos filter
    -> [3, size, size] uint8.
    """
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    square = image.crop((left, top, left + side, top + side))
    if side != size:
        square = square.resize((size, size), Image.Resampling.LANCZOS)
    return torch.from_numpy(numpy.array(square)).permute(2, 0, 1)


def batches(count: int) -> list[slice]:
    """Split `count` pictures into slices of at most BATCH."""
    return [slice(start, start + BATCH) for start in range(0, count, BATCH)]


@torch.inference_mode()
def features_of(network: nn.Module, files: Sequence[Path], device: torch.device) -> Tensor:
    """Compute features [N, D] float32 of picture files, on the CPU.

    Raises ValueError that names an unreadable file.
    """
    network, found = network.to(device).eval(), []
    for part in batches(len(files)):
        seen = network(torch.stack([prepare(opened(file)) for file in files[part]]).to(device))
        found.append((seen[0] if isinstance(seen, tuple) else seen).float().cpu())
    return torch.cat(found)


class MissingError(Exception):
    """A sentence on a missing dependency of a measure."""


def _imported(measure: str, module: str, install: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingError(
            f"{measure} needs {error.name or module}, which is not installed: pip install {install}"
        ) from error


def _in_torch_hub(measure: str, source: str) -> str:
    """Return the file of weights that a package keeps in torch's hub folder."""
    file = Path(torch.hub.get_dir()) / "checkpoints" / source.rpartition("/")[2]
    if not file.is_file():
        raise MissingError(
            f"{measure} needs the weights {file}, which are not there: put there {source}"
        )
    return str(file)


def _in_hub_cache(measure: str, repository: str, name: str) -> str:
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(repository, name)
    if not isinstance(file, str):
        raise MissingError(
            f"{measure} needs {name} of {repository}, which is not in Hugging Face's cache: hf "
            f"download {repository} {name}"
        )
    return file


def fidelity(measure: str, part: str) -> Any:
    """Return a module of torch-fidelity."""
    return _imported(measure, f"torch_fidelity.{part}", '"torch-fidelity>=0.4.0"')


def inception() -> nn.Module:
    """Return a network that maps [B, 3, H, W] uint8 to a tuple with features [B, 2048]."""
    package = fidelity("FID", "feature_extractor_inceptionv3")
    weights = _in_torch_hub("FID", package.URL_INCEPTION_V3)
    return package.FeatureExtractorInceptionV3(
        "inception-v3-compat", ["2048"], feature_extractor_weights_path=weights
    )


def vgg() -> nn.Module:
    """Return a network that maps [B, 3, H, W] uint8 to a tuple with features [B, 4096]
    (Kynkäänniemi et al. 2019).
    """
    measure = "precision (and recall)"
    package = fidelity(measure, "feature_extractor_vgg16")
    weights = _in_torch_hub(measure, "https://download.pytorch.org/models/vgg16-397923af.pth")
    return package.FeatureExtractorVGG16(
        "vgg16", ["fc2_relu"], feature_extractor_weights_path=weights
    )


def clip() -> tuple[Any, Any]:
    """Return CLIP and its processor from transformers."""
    import transformers

    try:
        options = {"local_files_only": True}
        network = transformers.CLIPModel.from_pretrained(CLIP, **options).eval()
        return network, transformers.CLIPProcessor.from_pretrained(CLIP, **options)
    except OSError as error:
        raise MissingError(
            f"the CLIP score needs {CLIP}, which is not in Hugging Face's cache: hf download {CLIP}"
        ) from error


def hps() -> tuple[nn.Module, Any, Any]:
    """Return HPSv2's network, its picture transform and its tokenizer (Wu et al. 2023)."""
    package = _imported("HPSv2", "hpsv2.img_score", "hpsv2")
    weights = _in_hub_cache("HPSv2", *HPS)
    _in_hub_cache("HPSv2", *HPS_BASE)
    package.initialize_model()
    network = package.model_dict["model"]
    network.load_state_dict(
        torch.load(weights, map_location="cpu", weights_only=True)["state_dict"]
    )
    return network.eval(), package.model_dict["preprocess_val"], package.get_tokenizer("ViT-H-14")


def of_distances(real: Path | None, device: torch.device) -> Scorer:
    """Return a scorer of FID (Heusel et al. 2017) and KID (Binkowski et al. 2018) to the pictures
    in a folder. FID's upward bias grows as sets shrink: only sets of the same size compare.
    """
    fid, kid = (fidelity(part.upper(), f"metric_{part}") for part in ("fid", "kid"))
    features = partial(features_of, inception(), device=device)
    truth = features(_real(real)).double()
    reference = fid.fid_features_to_statistics(truth)

    def score(pictures: list[Path], captions: list[str]) -> Scores:
        made = features(pictures).double()
        own = fid.fid_features_to_statistics(made)
        found = fid.fid_statistics_to_metric(own, reference, verbose=False)
        size = min(SUBSET, len(made), len(truth))
        found |= kid.kid_features_to_metric(made, truth, kid_subset_size=size, verbose=False)
        return {
            "fid": found["frechet_inception_distance"],
            "kid": found["kernel_inception_distance_mean"],
        }

    return score


def of_manifolds(real: Path | None, device: torch.device) -> Scorer:
    """Return a scorer of precision and recall against the pictures in a folder."""
    metric = fidelity("precision (and recall)", "metric_prc")
    features = partial(features_of, vgg(), device=device)
    truth = features(_real(real))

    def score(pictures: list[Path], captions: list[str]) -> Scores:
        found = metric.prc_features_to_metric(features(pictures), truth, verbose=False)
        return {name: found[name] for name in ("precision", "recall")}

    return score


def of_clip(real: Path | None, device: torch.device) -> Scorer:
    """Return a scorer of the mean of 100 cos(picture, PREFIX + caption), at least 0 (Hessel et al.
    2021).
    """
    network, processor = clip()
    network.to(device)

    @torch.inference_mode()
    def score(pictures: list[Path], captions: list[str]) -> Scores:
        found: list[float] = []
        for part in batches(len(pictures)):
            texts = [PREFIX + caption for caption in captions[part]]
            images = [opened(file) for file in pictures[part]]
            given = processor(
                text=texts, images=images, return_tensors="pt", padding=True, truncation=True
            )
            seen = network(**given.to(device))
            found += torch.nn.functional.cosine_similarity(
                seen.image_embeds, seen.text_embeds
            ).tolist()
        return {"clip": max(0.0, 100 * sum(found) / len(found))}

    return score


def of_hps(real: Path | None, device: torch.device) -> Scorer:
    """Return a scorer of the mean human preference score."""
    network, prepare, tokenizer = hps()
    network.to(device)

    @torch.inference_mode()
    def score(pictures: list[Path], captions: list[str]) -> Scores:
        found: list[float] = []
        for part in batches(len(pictures)):
            images = torch.stack([prepare(opened(file)) for file in pictures[part]]).to(device)
            with torch.autocast(device.type, enabled=device.type == "cuda"):
                seen = network(images, tokenizer(captions[part]).to(device))
            found += (seen["image_features"] * seen["text_features"]).sum(-1).float().tolist()
        return {"hpsv2": fmean(found)}

    return score


def _real(folder: Path | None) -> list[Path]:
    if folder is None:
        raise MissingError(
            "FID, KID, precision and recall need real pictures to compare with: --real FOLDER"
        )
    return real_files(folder)


def at_hand(
    makers: Iterable[Callable[[Path | None, torch.device], Scorer]],
    real: Path | None,
    device: torch.device,
) -> tuple[list[Scorer], list[str]]:
    """Return the available scorers, and a sentence for each missing dependency.

    Raises ValueError for a folder `real` without pictures."""
    found, missing = list[Scorer](), dict[str, None]()
    for make in makers:
        try:
            found.append(make(real, device))
        except MissingError as error:
            missing[str(error)] = None
    return found, list(missing)
