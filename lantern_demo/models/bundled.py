"""Read and write a model folder: config.json, sharded safetensors of its four networks (a folder each), the words of its text encoder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import load_torch_model, save_torch_state_dict
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import nn
from transformers import JanusVQVAEConfig, T5Config

from lantern_demo.models.drafter import Drafter, DrafterConfig
from lantern_demo.models.llamagen import LlamaGen, LlamaGenConfig
from lantern_demo.models.text import TextEncoder
from lantern_demo.models.tokenizer import ImageTokenizer

SHARD = "9MB"  # a Space takes no plain git file over 10 MB


@dataclass
class Networks:
    """The four networks of a text-to-image model, and what its config says of its training."""

    text: TextEncoder
    target: LlamaGen
    drafter: Drafter
    tokenizer: ImageTokenizer
    trained: dict[str, Any]

    def parts(self) -> dict[str, nn.Module]:
        return {"text": self.text, "target": self.target, "drafter": self.drafter, "tokenizer": self.tokenizer}


def save(folder: Path, networks: Networks, dtype: torch.dtype = torch.float16) -> None:
    """Write a model folder; tensors are stored in `dtype`."""
    folder.mkdir(parents=True, exist_ok=True)
    vq = networks.tokenizer.vq.config
    config = {
        "target": asdict(networks.target.config),
        "drafter": asdict(networks.drafter.config),
        "text": {**networks.text.encoder.config.to_diff_dict(), "length": networks.text.length},
        "tokenizer": vq.to_diff_dict(),
        "trained": networks.trained,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    networks.text.tokenizer.save(str(folder / "words.json"))
    for name, part in networks.parts().items():
        save_part(folder / name, part, dtype)


def save_part(folder: Path, part: nn.Module, dtype: torch.dtype) -> None:
    """Write one network's tensors to a folder of its own, replacing what was there."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    # clones, so that a tied tensor is written under each of its names
    tensors = part.state_dict().items()
    state = {k: (v.detach().to(dtype) if v.is_floating_point() else v).contiguous().clone() for k, v in tensors}
    save_torch_state_dict(state, folder, max_shard_size=SHARD)


def load_part(folder: Path, part: nn.Module) -> None:
    """Read one network's tensors. Raises ValueError naming the folder when a tensor is missing, unknown or mis-shaped."""
    try:
        load_torch_model(part, folder, strict=True)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise ValueError(f"the weights in {folder} cannot be read: {error}") from error


def load(folder: Path, device: torch.device, dtype: torch.dtype = torch.float32) -> Networks:
    """Read a model folder. The text encoder and the image tokenizer stay in float32: they run once per image.

    Raises ValueError naming the file when the folder is not one, or a tensor is missing, unknown or mis-shaped.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text())
        text = T5Config(**{k: v for k, v in config["text"].items() if k != "length"})
        words = Tokenizer.from_file(str(folder / "words.json"))
        networks = Networks(
            TextEncoder(words, text, config["text"]["length"]),
            LlamaGen(LlamaGenConfig(**config["target"])),
            Drafter(DrafterConfig(**config["drafter"])),
            ImageTokenizer(JanusVQVAEConfig(**config["tokenizer"])),
            config["trained"],
        )
    except (OSError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not the config of a model folder: {error!r}") from error
    for name, part in networks.parts().items():
        load_part(folder / name, part)
        part.requires_grad_(False).eval().to(device)
    networks.target.to(dtype)
    networks.drafter.to(dtype)
    # The rotary tables are float32 whatever the weights are.
    networks.target.rope, networks.drafter.rope = networks.target.rope.float(), networks.drafter.rope.float()
    return networks
