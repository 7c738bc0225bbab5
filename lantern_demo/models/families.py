"""What model families differ in: networks, names of tensors, configurations, prompts, tokenizers.

A family is a file next to this one with five names:

    NETWORKS                    the networks by their configurations, the target's and the drafter's
    LAYOUTS                     by format, which no other family may have
    TOKENIZER                   the class of the image tokenizer, made from a JanusVQVAEConfig
    configured(sizes, format)   sizes where config.json leaves them out, and what else it must say;
                                None for a format without config.json
    prompt_reader(sizes, located, device)   a `PromptEncoder` from the files of the part "text"

A new one is also a row of FAMILIES, and rows of the registry.
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
from torch import nn
from transformers import JanusVQVAEConfig

from lantern_demo.models import anole, llamagen
from lantern_demo.models.device import DTYPES, half
from lantern_demo.models.hub import Located
from lantern_demo.models.registry import (
    AnoleConfig,
    LlamaGenConfig,
    ModelInfo,
    Part,
    Published,
    Sizes,
    check_drafter,
)
from lantern_demo.models.tensors import (
    AS_PUBLISHED,
    CheckpointError,
    Layout,
    check_config,
    read_config,
)
from lantern_demo.models.text import T5, PromptEncoder
from lantern_demo.models.tokenizer import ImageTokenizer

# the module of each target's configuration
FAMILIES: dict[type[Sizes], ModuleType] = {LlamaGenConfig: llamagen, AnoleConfig: anole}
# Layouts of all published files by format. Drafters have this project's names in every family.
LAYOUTS: dict[str, Layout] = {
    "drafter": AS_PUBLISHED,
    "t5": T5,
    **{form: layout for one in FAMILIES.values() for form, layout in one.LAYOUTS.items()},
}
# the network of each configuration
NETWORKS: dict[type[Sizes], Any] = {
    sizes: network for one in FAMILIES.values() for sizes, network in one.NETWORKS.items()
}


def blank_network(sizes: Sizes) -> Any:
    """Return a network with its weights on the meta device; its rotary table is real."""
    with torch.device("meta"):
        network = NETWORKS[type(sizes)](sizes)
    network.rope = network.rope_table()
    return network


def blank_tokenizer(published: Published) -> ImageTokenizer:
    """Return the image tokenizer of a published model, on the meta device."""
    # the library's defaults are the sizes of LlamaGen's VQ-16
    config = JanusVQVAEConfig(**published.tokenizer, num_patches=published.target.grid)
    with torch.device("meta"):
        tokenizer: ImageTokenizer = FAMILIES[type(published.target)].TOKENIZER(config)
    return tokenizer


def dtype_of(info: ModelInfo, dtype: str | torch.dtype, device: torch.device) -> str:
    """Return the number format of target and drafter on a device, for a name or "auto".

    "auto" is 16 bits for a published model, else float32. Raise ValueError for an unknown name.
    """
    dtype = str(dtype).removeprefix("torch.")
    if dtype != "auto":
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of auto, {', '.join(DTYPES)}, got {dtype!r}")
        return dtype
    if info.published is None:
        return "float32"
    return half(device)


def expected(part: Part, published: Published, located: Located) -> nn.Module:
    """Make the blank network that a part's files must fill, configured by these files.

    The part is any but the text encoder. Raise CheckpointError when they belong to another model.
    """
    target = published.target
    if part == "tokenizer":
        return blank_tokenizer(published)
    if part == "target":
        return blank_network(configured(target, located))
    drafter = configured(published.drafter, located)
    try:
        check_drafter(drafter, target)
    except ValueError as error:
        raise CheckpointError(f"{located.beside('config.json')} {error}") from None
    return blank_network(drafter)


def configured(sizes: Any, located: Located) -> Any:
    """Return the sizes of a network, with what the config.json beside its weights says.

    Some formats have none, and it may be missing beside a drafter. Raise CheckpointError when it is
    another model's.
    """
    form, path = located.source.format, located.beside("config.json")
    wanted = dict[str, Any]()
    if form != "drafter":
        found = FAMILIES[type(sizes)].configured(sizes, form)
        if found is None:
            return sizes
        sizes, wanted = found
    elif not path.is_file():
        return sizes
    config = read_config(path)
    if form == "drafter" and "dim" in config:  # of `examples/train_drafter`
        try:
            return type(sizes)(**config)
        except TypeError as error:
            what = f"{path} is not a drafter's configuration"
            raise CheckpointError(f"{what} ({error}); train it anew") from error
    heads = {"num_attention_heads": sizes.heads, "num_key_value_heads": sizes.heads}
    check_config(path, config, heads | wanted)
    # LANTERN's name, and those of older and newer versions of transformers
    theta = (config.get("rope_parameters") or {}).get("rope_theta", sizes.rope_base)
    theta = config.get("rope_base", config.get("rope_theta", theta))
    changes = {"eps": float(config.get("rms_norm_eps", sizes.eps)), "rope_base": float(theta)}
    if form == "drafter":
        changes["bias"] = bool(config.get("bias", sizes.bias))
    return replace(sizes, **changes)


def prompt_reader(published: Published, located: Located, device: torch.device) -> PromptEncoder:
    """Return the prompt reader of a model, from the published files of its text encoder.

    Raise CheckpointError when the files are not the model's own.
    """
    family = FAMILIES[type(published.target)]
    reader: PromptEncoder = family.prompt_reader(published.target, located, device)
    return reader
