"""What is chosen for this machine: how products are computed, and draft trees that fit. Choices are kept on disk, so that the same
seed gives the same picture at the next start too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from lantern_demo.decoding.methods import Method
from lantern_demo.decoding.trees import TreePolicy
from lantern_demo.fitting import Calibration, Choice, StepCosts, choose, recall, remember
from lantern_demo.models import store
from lantern_demo.models.bundled import Networks
from lantern_demo.models.llamagen.cpu import fastest_drafter_kind, fastest_kind, lean_runners, small_on_cpu
from lantern_demo.models.llamagen.cuda import fused_runners
from lantern_demo.models.llamagen.target import LlamaGen
from lantern_demo.models.products import EXACT, KINDS, supported
from lantern_demo.models.runners import Runners
from lantern_demo.record import device_name

FIT_ROUNDS = 3  # short runs with each tree whose cost is measured


class Machine:
    """One model on one device of this machine."""

    def __init__(self, model: str, device: torch.device, dtype: str) -> None:
        self.model, self.device, self.dtype = model, device, dtype
        self._fitted: dict[str, Choice] = {}  # by method
        self._costs: StepCosts | None = None

    def runners(self, networks: Networks[Any]) -> Runners:
        """What decodes the model: fused twins on a GPU, on a CPU lean twins of a small model with the fastest products of its number
        format (a drafter of a float32 model may round: its drafts are judged exactly all the same), else the networks themselves. Raises ValueError for a number format that does not work here."""
        if self.device.type == "cuda":
            return fused_runners(networks)
        if not isinstance(networks.target, LlamaGen):
            return Runners(
                networks.target, networks.drafter
            )  # of the other family there are no twins for a CPU: it runs as it is
        if not small_on_cpu(networks, self.device) or self.dtype == "float16":
            return Runners(networks.target, networks.drafter)
        drafter = networks.drafter
        if self.dtype != "float32":
            if not supported(self.dtype):
                raise ValueError(f"dtype {self.dtype} does not work on this processor with this PyTorch; use float32")
            return lean_runners(networks, self.dtype, self.dtype)
        kind = self._kept_kind("products", EXACT, lambda: fastest_kind(networks.target))
        if drafter is None:
            return lean_runners(networks, kind, kind)
        return lean_runners(
            networks, kind, self._kept_kind("drafter-products", tuple(KINDS), lambda: fastest_drafter_kind(drafter))
        )

    def _kept_kind(self, name: str, allowed: tuple[str, ...], find: Callable[[], str]) -> str:
        """A kind of products: what is on disk, or else what `find` finds, which is written there. One process finds at a time: two
        would disturb each other's clocks, and draw other pictures should they not agree."""
        file, kind = self._file(name), ""
        with store.locked(file):
            with suppress(OSError, ValueError):
                kind = json.loads(file.read_text())
            if kind not in allowed or not supported(kind):
                kind = find()
                with suppress(OSError):
                    store.put(file, json.dumps(kind) + "\n")
        return kind

    def fit(self, method: Method, calibration: Calibration, times: Callable[[TreePolicy], list[float]]) -> None:
        """Choose the tree of a method, once; `times` gives the seconds of some steps with a tree."""
        file = self._file(method.id, calibration)
        with store.locked(file):
            choice = recall(file)
            if choice is None:
                # A GPU's steps take the same time over and over, and each short run there begins with a capture.
                rounds = 1 if self.device.type == "cuda" else FIT_ROUNDS
                self._costs = self._costs or StepCosts(times, rounds)
                choice = choose(method, calibration, self._costs)
                if choice is not None and self._costs.steady:
                    remember(file, choice)
        if choice is not None:
            self._fitted[method.id] = choice

    def fitted(self, method: Method) -> Choice | None:
        """The tree that was chosen for a method."""
        return self._fitted.get(method.id)

    def _file(self, name: str, versions: object = "") -> Path:
        """The file of a choice: one for everything that it depends on."""
        everything = f"{device_name(self.device)} {self.dtype} {torch.__version__} {versions}"
        digest = hashlib.sha256(everything.encode()).hexdigest()[:12]
        return store.root() / "fitted" / f"{self.model}-{name}-{digest}.json"
