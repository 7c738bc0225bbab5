"""The switch of the Triton kernels: the variable LANTERN_KERNELS turns them on with 1.

They run on an NVIDIA GPU of compute capability 8.0 or newer. They are off by default, since no card
has run them in this form. They are tried when a model is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from lantern_demo.decoding.loop import device_work
from lantern_demo.decoding.ops import Ops
from lantern_demo.kernels.launch import INTERPRETED, why_off

VARIABLE = "LANTERN_KERNELS"
OLDEST = (8, 0)  # compute capability
TRITON = (3, 5)  # 3.4 has neither dots of 8 columns nor the waits of early starts
# A GPU that is lent for a run alone: kernels would be compiled in the time of its visitors.
LENT = os.environ.get("SPACES_ZERO_GPU") == "true"


def ops_of(device: torch.device, vocabulary: int, networks: Sequence[Any] = ()) -> Ops:
    """Return the operations of runs on a device, with rows of a vocabulary.

    They are kernels where these are on and pass their trial. Then the layers of the networks,
    prepared `llama.Decoder`s, are kernels too. Raises ValueError for a wrong value of the variable.
    """
    if not _could(device):
        return Ops()
    if not _wanted():
        return Ops(f"without kernels: {VARIABLE}=1 turns them on")
    try:
        _check_triton()
        from lantern_demo.kernels import trial  # it needs Triton

        with device_work(device):
            return trial.passed(device, vocabulary, networks)
    except Exception as error:  # of a broken installation, or of the trial
        return Ops(why_off(error))


def on(device: torch.device) -> bool:
    """Return whether a device could run kernels, and the variable turns them on."""
    return _could(device) and _wanted()


def _could(device: torch.device) -> bool:
    """Return whether kernels are made for a device: NVIDIA's, new enough, this process's own."""
    if INTERPRETED:
        return device.type == "cpu"
    if device.type != "cuda" or LENT or torch.version.hip is not None:
        return False  # AMD's capabilities look like NVIDIA's
    return torch.cuda.get_device_capability(device) >= OLDEST


def _wanted() -> bool:
    value = os.environ.get(VARIABLE, "0")
    if value not in ("0", "1"):
        raise ValueError(f"{VARIABLE} is {value!r}; allowed are 0 (off) and 1 (on)")
    return value == "1"


def _check_triton() -> None:
    """Raise ImportError where Triton is missing or too old."""
    import triton

    if tuple(map(int, triton.__version__.split(".")[:2])) < TRITON:
        raise ImportError(f"Triton {triton.__version__} is older than 3.5")
