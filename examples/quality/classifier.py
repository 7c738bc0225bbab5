"""The classifier that reads the attributes of lanterns from a picture.

`docs/training.md` names the program that trained it.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.models import bundled
from lantern_demo.scenes import ATTRIBUTES

SIZE = 128  # pixels a side
# The classes of each attribute. `examples/quality/judge.py` names things.
READ = {name: classes for name, classes in ATTRIBUTES.items() if name != "thing"}


def reduced(images: Tensor) -> Tensor:
    """Return pictures [B, 3, H, H], area-averaged to SIZE pixels a side if larger."""
    return F.interpolate(images, size=SIZE, mode="area") if images.shape[-1] > SIZE else images


class AttributeClassifier(nn.Module):
    """Map pictures [B, 3, H, W] in [0, 1] to logits [B, classes] per attribute.

    Pictures larger than SIZE pixels are reduced to that by area averaging.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage in range(4):
            out = width * min(4, 2**stage)
            layers += [
                nn.Conv2d(channels, out, 3, stride=2, padding=1),
                nn.BatchNorm2d(out),
                nn.ReLU(),
            ]
            layers += [nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
            channels = out
        self.body = nn.Sequential(*layers)
        self.mix = nn.Sequential(nn.Linear(channels * 16, 256), nn.ReLU())
        self.heads = nn.ModuleDict(
            {name: nn.Linear(256, len(classes)) for name, classes in READ.items()}
        )

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        seen = self.mix(F.adaptive_avg_pool2d(self.body(reduced(images) * 2 - 1), 4).flatten(1))
        return {name: head(seen) for name, head in self.heads.items()}

    @torch.no_grad()
    def read(self, images: Tensor) -> dict[str, Tensor]:
        """Return the most likely class index [B] of every attribute, on the CPU."""
        self.eval()
        return {name: logits.argmax(-1).cpu() for name, logits in self(images).items()}


def load_classifier(folder: Path | None, device: torch.device) -> AttributeClassifier:
    """Load the classifier of a model folder. Raise ValueError if it has none."""
    if folder is None or not (folder / "classifier").is_dir():
        raise ValueError(
            "attributes are read by a classifier, which lies in the model's folder; there is none "
            f"in {folder}"
        )
    return bundled.load_part(folder / "classifier", AttributeClassifier(), device)
