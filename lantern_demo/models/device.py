"""Devices and number formats by name."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import torch

DRIVER = Path("/proc/driver/nvidia/version")  # there where NVIDIA's driver is loaded, with its version

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
INT8 = "int8"  # products of 8-bit weights and inputs, the rest in float32: small models on a CPU


def pick_device(device: str) -> torch.device:
    """The torch device of a name. Raises ValueError when there is no such device here."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ValueError(f"device must be auto, cpu, cuda or cuda:N, got {device!r}") from None
    if chosen.type not in ("cpu", "cuda") or (chosen.type == "cuda" and not torch.cuda.is_available()):
        raise ValueError(f"device {device!r} is not available here; use auto or cpu")
    return chosen


def unused_gpu() -> str | None:
    """That an NVIDIA GPU which seems to be here is not used, as a sentence; None when one is used, when nothing tells of one, when it
    is hidden by CUDA_VISIBLE_DEVICES, and with a PyTorch that was built without CUDA."""
    if torch.version.cuda is None or torch.cuda.is_available() or os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return None
    if not DRIVER.exists() and shutil.which("nvidia-smi") is None:
        return None
    found = re.search(r"\d+\.\d[\d.]*", DRIVER.read_text()) if DRIVER.exists() else None
    driver = f"NVIDIA's driver {found[0]}" if found else "NVIDIA's driver"
    return (
        f"This machine has {driver}, but PyTorch {torch.__version__}, built for CUDA {torch.version.cuda}, finds no GPU that it can "
        "use, so everything runs on the processor. Mostly the driver is too old for that CUDA: update it, or install a PyTorch built "
        "for an older one."
    )


def half(device: torch.device) -> str:
    """The 16-bit number format of a device: bfloat16, or float16 on a GPU that lacks it."""
    lacking = device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
    return "float16" if lacking else "bfloat16"


def pick_dtype(dtype: str, device: torch.device, large: bool) -> str:
    """A number format's name; "auto" is float32, but 16 bits for a large model on a GPU. Raises ValueError for an unknown one, and
    for int8 where there is none."""
    if dtype == "auto":
        return half(device) if large and device.type == "cuda" else "float32"
    if dtype not in (*DTYPES, INT8):
        raise ValueError(f"dtype must be one of auto, {', '.join(DTYPES)}, {INT8}, got {dtype!r}")
    if dtype == INT8 and (large or device.type != "cpu"):
        raise ValueError(f"dtype {INT8} is for small models on a CPU; use auto or one of {', '.join(DTYPES)}")
    return dtype
