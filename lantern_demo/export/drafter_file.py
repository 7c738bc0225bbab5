"""Read a drafter's file: EAGLE's and LANTERN's published format, a folder or a file of tensors with config.json beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from lantern_demo.export.eagle import EagleDrafter, EagleSizes
from lantern_demo.export.readers import TextReader

FILES = ("model.safetensors", "pytorch_model.bin")
_WIDTHS = ("fc.weight", "layers.0.mlp.up_proj.weight")  # without these it is no such drafter


def read_drafter(path: str | Path, reader: TextReader, spare: int) -> EagleDrafter:
    """A drafter on the device and in the dtype of the reader's model, with room for the prompt and `spare` positions behind it.

    Raises ValueError, which names lantern_drafter, for a path without a drafter and for one that does not fit the model.
    """
    file = _file(Path(path))
    weights, said = _tensors(file), _config(file.with_name("config.json"))
    if missing := [name for name in _WIDTHS if name not in weights]:
        raise ValueError(
            f"lantern_drafter is {file}, which has no tensor {missing[0]}; allowed are drafters of EAGLE-1 and EAGLE-2 "
            "and LANTERN's of Anole: one layer behind fc over an embedding and a state"
        )
    sizes = _sizes(weights, said, reader, spare)
    with torch.device("meta"):  # the weights are the file's
        drafter = EagleDrafter(sizes)
    _check(file, weights, {name: list(x.shape) for name, x in drafter.state_dict().items()})
    like = reader.model.get_output_embeddings().weight
    drafter.load_state_dict({name: x.to(like.device, like.dtype) for name, x in weights.items()}, assign=True)
    drafter.rope = sizes.rope_table().to(like.device)
    drafter.bind(reader)
    return drafter.eval().requires_grad_(False)


def _file(path: Path) -> Path:
    """The file of tensors at a path."""
    found = [path, *(path / name for name in FILES)]
    if file := next((file for file in found if file.is_file()), None):
        return file
    raise ValueError(f"lantern_drafter is {str(path)!r}; it must be a file of tensors, or a folder with {' or '.join(FILES)}")


def _tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, without tables that the network makes itself."""
    try:
        safe = file.suffix == ".safetensors"
        found = load_file(file) if safe else torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # each library has faults of its own
        raise ValueError(f"lantern_drafter is {file}, which cannot be read as .safetensors or a PyTorch file: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(x, Tensor) for x in found.values()):
        raise ValueError(f"lantern_drafter is {file}; it must hold tensors by name and nothing else")
    return {name: x for name, x in found.items() if not name.endswith("rotary_emb.inv_freq")}


def _config(path: Path) -> Mapping[str, Any]:
    """What the config.json beside a drafter says; nothing where there is none."""
    if not path.is_file():
        return {}
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"lantern_drafter has a {path} that is no JSON: {error}") from error
    return said if isinstance(said, dict) else {}


def _number(said: Mapping[str, Any], name: str, default: float) -> float:
    """What a config.json says of a number above 0, a whole one if the default is. Raises ValueError where it says another."""
    value = default if said.get(name) is None else said[name]
    least = 1 if isinstance(default, int) else 0
    if isinstance(value, bool) or not isinstance(value, int if least else (int, float)) or not value > 0:
        kind = "a whole number, 1 or more" if least else "a number above 0"
        raise ValueError(f"lantern_drafter has {name} {value!r} in its config.json; it must be {kind}")
    return value


def _sizes(weights: Mapping[str, Tensor], said: Mapping[str, Any], reader: TextReader, spare: int) -> EagleSizes:
    """What a file and its config.json say; what they do not is as in the target."""
    text = reader.model.config.get_text_config()
    ropes = [x for x in (said.get("rope_parameters"), getattr(text, "rope_parameters", None)) if isinstance(x, dict)]
    theta = next((x["rope_theta"] for x in ropes if "rope_theta" in x), 10000.0)
    heads = int(_number(said, "num_attention_heads", text.num_attention_heads))
    like = heads if "num_attention_heads" in said else getattr(text, "num_key_value_heads", heads)
    shared = int(_number(said, "num_key_value_heads", like))
    if heads % shared:
        raise ValueError(f"lantern_drafter has {heads} heads and {shared} of keys; the first must be a multiple of the second")
    attention = "layers.0.self_attn."
    own_dim = getattr(text, "head_dim", None) if heads == text.num_attention_heads else None
    return EagleSizes(
        dim=text.hidden_size,
        heads=heads,
        shared=shared,
        head_dim=int(_number(said, "head_dim", own_dim or text.hidden_size // heads)),
        ffn=weights[_WIDTHS[1]].shape[0],
        eps=_number(said, "rms_norm_eps", float(getattr(text, "rms_norm_eps", 1e-6))),
        theta=_number(said, "rope_theta", float(theta)),
        vocabulary=text.vocab_size if "embed_tokens.weight" in weights else 0,
        bias="fc.bias" in weights,
        biased=f"{attention}q_proj.bias" in weights,
        before="layers.0.input_layernorm.weight" in weights,
        normed=f"{attention}q_norm.weight" in weights,
        prefix=reader.prompt.shape[1],
        rows=reader.prompt.shape[0],
        positions=reader.prompt.shape[1] + spare,
    )


def _check(file: Path, weights: Mapping[str, Tensor], wanted: Mapping[str, list[int]]) -> None:
    """Raises ValueError unless a file has the tensors that are wanted, of their shapes, and no others."""
    for name, shape in wanted.items():
        if name not in weights:
            raise ValueError(f"lantern_drafter is {file}, which has no tensor {name}; it must have one of shape {shape}")
        if list(weights[name].shape) != shape:
            raise ValueError(
                f"lantern_drafter is {file}, whose {name} has shape {list(weights[name].shape)}; "
                f"for this model it must be {shape}"
            )
    if strange := sorted(set(weights) - set(wanted)):
        raise ValueError(f"lantern_drafter is {file}, which has a tensor {strange[0]}; allowed are {', '.join(sorted(wanted))}")
