"""What a paper's tables say of pictures, each by the package that others take for it, where it and its weights are at hand.

Nothing is fetched. FID and KID are taken in Inception's features and precision and recall in VGG16's, both of torch-fidelity, of pictures
cropped to a square and resized to 256; CLIP is OpenAI's ViT-B/32 by transformers; HPSv2 is version 2.1 by hpsv2. Harnesses differ in
resizing and in weights: only numbers of one harness, at one number of pictures, compare.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from lantern_demo.bench.quality import distances, published

Scores = dict[str, float]
Scorer = Callable[[list[Path], list[str]], Scores]  # of picture files and their captions

COLUMNS = {"fid": "FID", "kid": "KID", "precision": "precision", "recall": "recall", "clip": "CLIP", "hpsv2": "HPSv2"}
HPS = ("xswu/HPSv2", "HPS_v2.1_compressed.pt")
HPS_BASE = ("laion/CLIP-ViT-H-14-laion2B-s32B-b79K", "open_clip_pytorch_model.bin")  # what hpsv2 starts from


class MissingError(Exception):
    """A sentence on what a measure lacks."""


def _imported(measure: str, module: str, install: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingError(f"{measure} needs {error.name or module}, which is not installed: pip install {install}") from error


def _in_torch_hub(measure: str, name: str, source: str) -> str:
    """The file of weights that a package keeps in torch's hub folder."""
    file = Path(torch.hub.get_dir()) / "checkpoints" / name
    if not file.is_file():
        raise MissingError(f"{measure} needs the weights {file}, which are not there: put there {source}")
    return str(file)


def _in_hub_cache(measure: str, repository: str, name: str) -> str:
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(repository, name)
    if not isinstance(file, str):
        raise MissingError(
            f"{measure} needs {name} of {repository}, which is not in Hugging Face's cache: hf download {repository} {name}"
        )
    return file


def inception() -> nn.Module:
    """[B, 3, H, W] uint8 -> a tuple with features [B, 2048]."""
    package = _imported("FID", "torch_fidelity.feature_extractor_inceptionv3", "torch-fidelity")
    weights = _in_torch_hub("FID", package.URL_INCEPTION_V3.rpartition("/")[2], package.URL_INCEPTION_V3)
    network: nn.Module = package.FeatureExtractorInceptionV3(
        "inception-v3-compat", ["2048"], feature_extractor_weights_path=weights
    )
    return network


def vgg() -> nn.Module:
    """[B, 3, H, W] uint8 -> a tuple with features [B, 4096], as precision and recall are taken in (Kynkäänniemi et al. 2019)."""
    package = _imported("precision and recall", "torch_fidelity.feature_extractor_vgg16", '"torch-fidelity>=0.4.0" torchvision')
    source = "https://download.pytorch.org/models/vgg16-397923af.pth"
    weights = _in_torch_hub("precision and recall", source.rpartition("/")[2], source)
    network: nn.Module = package.FeatureExtractorVGG16("vgg16", ["fc2_relu"], feature_extractor_weights_path=weights)
    return network


def clip() -> tuple[Any, Any]:
    """CLIP and its processor, of transformers."""
    import transformers

    try:
        options = {"local_files_only": True}
        network = transformers.CLIPModel.from_pretrained(published.CLIP, **options).eval()
        return network, transformers.CLIPProcessor.from_pretrained(published.CLIP, **options)
    except OSError as error:
        raise MissingError(
            f"the CLIP score needs {published.CLIP}, which is not in Hugging Face's cache: hf download {published.CLIP}"
        ) from error


def hps() -> tuple[nn.Module, Any, Any]:
    """HPSv2's network, what prepares a picture, and what reads captions (Wu et al. 2023)."""
    package = _imported("HPSv2", "hpsv2.img_score", "hpsv2")
    weights = _in_hub_cache("HPSv2", *HPS)
    _in_hub_cache("HPSv2", *HPS_BASE)
    package.initialize_model()
    network = package.model_dict["model"]
    network.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True)["state_dict"])
    return network.eval(), package.model_dict["preprocess_val"], package.get_tokenizer("ViT-H-14")


def of_distances(real: Path | None, device: torch.device) -> Scorer:
    """FID (Heusel et al. 2017) and KID (Binkowski et al. 2018) to the pictures in a folder."""
    network, files = inception(), _real(real)
    truth = published.features_of(network, files, device)

    def score(pictures: list[Path], captions: list[str]) -> Scores:
        made = published.features_of(network, pictures, device)
        return {"fid": distances.frechet(made, truth), "kid": distances.Kernel(made, truth)()}

    return score


def of_manifolds(real: Path | None, device: torch.device) -> Scorer:
    """Precision and recall against the pictures in a folder."""
    network, files = vgg(), _real(real)
    truth = published.features_of(network, files, device)

    def score(pictures: list[Path], captions: list[str]) -> Scores:
        made = published.features_of(network, pictures, device)
        return dict(zip(("precision", "recall"), distances.Manifolds(truth, made)(), strict=True))

    return score


def of_clip(real: Path | None, device: torch.device) -> Scorer:
    """The mean CLIP score times 100 (Hessel et al. 2021)."""
    network, processor = clip()
    return lambda pictures, captions: {"clip": published.clip_score(network, processor, pictures, captions, device)}


def of_hps(real: Path | None, device: torch.device) -> Scorer:
    """The mean human preference score."""
    network, prepare, tokenizer = hps()
    network.to(device)

    @torch.inference_mode()
    def score(pictures: list[Path], captions: list[str]) -> Scores:
        found: list[float] = []
        for start in range(0, len(pictures), published.BATCH):
            some = slice(start, start + published.BATCH)
            images = torch.stack([prepare(published.opened(file)) for file in pictures[some]]).to(device)
            with torch.autocast(device.type, enabled=device.type == "cuda"):
                seen = network(images, tokenizer(captions[some]).to(device))
            found += (seen["image_features"] * seen["text_features"]).sum(-1).float().tolist()
        return {"hpsv2": fmean(found)}

    return score


def _real(folder: Path | None) -> list[Path]:
    if folder is None:
        raise MissingError("FID, KID, precision and recall need real pictures to compare with: --real FOLDER")
    return published.real_files(folder)


def at_hand(
    makers: Iterable[Callable[[Path | None, torch.device], Scorer]], real: Path | None, device: torch.device
) -> tuple[list[Scorer], list[str]]:
    """Those that can be had, and a sentence for each that cannot. Raises ValueError for a folder `real` without pictures."""
    found, missing = list[Scorer](), dict[str, None]()
    for make in makers:
        try:
            found.append(make(real, device))
        except MissingError as error:
            missing[str(error)] = None
    return found, list(missing)
