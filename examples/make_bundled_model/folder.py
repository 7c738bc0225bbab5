"""Write model folders, which `lantern_demo.models.bundled` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file
from torch import Tensor, nn

from lantern_demo.models.bundled import PALETTE, Networks, layout_of
from lantern_demo.models.tensors import SCALE, Layout, shapes_of

SHARD = "9MB"  # a Space takes no plain git file over 10 MB


def save(
    folder: Path,
    networks: Networks,
    dtype: torch.dtype = torch.float16,
    eight_bits: bool = False,
) -> None:
    """Write a model folder; tensors are stored in `dtype`, the target's matrices maybe in 8 bits.

    Raise ValueError when there is no drafter.
    """
    if networks.drafter is None:
        raise ValueError("a model folder has a drafter; these networks lack one")
    folder.mkdir(parents=True, exist_ok=True)
    vq = networks.tokenizer.vq.config
    config = {
        "target": asdict(networks.target.config),
        "drafter": asdict(networks.drafter.config),
        "text": {**networks.text.encoder.config.to_diff_dict(), "length": networks.text.length},
        "tokenizer": vq.to_diff_dict(),
        "trained": networks.trained,
    }
    if networks.trees:
        config["trees"] = networks.trees
    if networks.preset:
        config["preset"] = networks.preset
    if networks.picture is not None:
        config["picture"] = networks.picture.config.to_diff_dict()
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    networks.text.tokenizer.save(str(folder / "words.json"))
    if networks.palette is not None:
        save_file({PALETTE: networks.palette}, folder / f"{PALETTE}.safetensors")
    for name, part in networks.parts().items():
        save_part(folder / name, part, dtype, eight_bits and name == "target")


def save_part(folder: Path, part: nn.Module, dtype: torch.dtype, eight_bits: bool = False) -> None:
    """Write one network's tensors to a folder, and replace its old ones."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    # clones, so that a tied tensor is written under each of its names
    state = {
        name: (t.detach().to(dtype) if t.is_floating_point() else t).contiguous().clone()
        for name, t in published_tensors(part, layout_of(part)).items()
    }
    state = in_eight_bits(state) if eight_bits else state
    save_torch_state_dict(state, folder, max_shard_size=SHARD)


def published_tensors(network: nn.Module, layout: Layout) -> dict[str, Tensor]:
    """Return a network's tensors under their published names.

    Several of ours that are rows of one published tensor stand in the order of their rows.
    """
    shapes = shapes_of(network)
    rows: dict[str, list[Tensor]] = {}
    for ours, tensor in network.state_dict().items():
        rows.setdefault(layout.published(ours, shapes), []).append(tensor)
    return {name: torch.cat(parts) if len(parts) > 1 else parts[0] for name, parts in rows.items()}


def in_eight_bits(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors with matrices as int8 and a float16 scale for each row, named NAME.scale."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or not tensor.is_floating_point():
            found[name] = tensor
            continue
        # the smallest normal number of float16, so that a row of zeros has a scale too
        scale = (tensor.float().abs().amax(1) / 127).clamp(min=2**-14).half()
        found[name] = (tensor.float() / scale.float()[:, None]).round().clamp(-127, 127).char()
        found[name + SCALE] = scale
    return found
