"""Devices and number formats by name."""

from __future__ import annotations

import torch

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
