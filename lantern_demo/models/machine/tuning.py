"""Choose how a model runs on this machine: which networks or fused models decode it, and with which kind of matmul. Choices are
kept on disk, so that the same seed gives the same picture after a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from lantern_demo.models import families
from lantern_demo.models.bundled import Networks
from lantern_demo.models.families import Runners
from lantern_demo.models.files import disk_cache
from lantern_demo.models.lean import fastest_drafter_kind, fastest_kind
from lantern_demo.models.machine.device import device_name
from lantern_demo.models.machine.matmul import KINDS, OF_FORMAT, exact_kinds, supported

LARGEST = 2**30  # bytes of a target's weights up to which its networks stay in memory next to the fused models
CACHED = 2**26  # bytes of a target's weights up to which they stay in a processor's caches: one thread computes


class Tuning:
    """The choices for one model on one device with one number format."""

    def __init__(self, model: str, device: torch.device, dtype: str) -> None:
        self.model, self.device, self.dtype = model, device, dtype
        self.products = ""  # the kinds of matmul in use, once they are chosen

    def runners(self, networks: Networks) -> Runners:
        """Return the models that decode.

        These are the fused models of its family, if there are any for the device, else the networks themselves. On a CPU they
        have the fastest matmuls in the number format. The drafter of a float32 model may round, since its drafts are verified
        exactly. A large target's weights are in memory once: its network releases them. Raise ValueError for a number format
        that does not work here.
        """
        target, drafter = networks.target, networks.drafter
        if self.device.type == "cuda":
            return families.joined_runners(networks)
        fused = families.family_of(target.config).cpu
        if fused is None:
            return Runners(target, drafter)
        release = not small_on_cpu(networks, self.device, LARGEST)
        if self.dtype != "float32":
            kind = OF_FORMAT[self.dtype]
            if not supported(kind):
                raise ValueError(f"dtype {self.dtype} does not work on this processor with this PyTorch; use float32")
            return families.lean_runners(networks, kind, kind, release)
        exact = exact_kinds(target.parameters())
        kind = drafter_kind = self._kept_kind("products", exact, lambda: fastest_kind(fused.target, target))
        if drafter is not None:
            drafter_kind = self._kept_kind("drafter-products", tuple(KINDS), lambda: fastest_drafter_kind(fused.drafter, drafter))
        self.products = f"{kind} {drafter_kind}"
        return families.lean_runners(networks, kind, drafter_kind, release)

    def file(self, name: str, versions: object = "") -> Path:
        """Return the file of a choice, which depends on device, number format, PyTorch and `versions`."""
        return disk_cache.choice_file(f"{self.model}-{name}", device_name(self.device), self.dtype, torch.__version__, versions)

    def _kept_kind(self, name: str, allowed: tuple[str, ...], find: Callable[[], str]) -> str:
        """Return a kind of matmul among the allowed ones."""
        return disk_cache.cached_choice(self.file(name, allowed), lambda kind: kind in allowed and supported(kind), find)


def small_on_cpu(networks: Networks, device: torch.device, most: int) -> bool:
    """Return whether a model is on a CPU and its target's weights take at most `most` bytes."""
    return device.type == "cpu" and sum(p.numel() * p.element_size() for p in networks.target.parameters()) <= most
