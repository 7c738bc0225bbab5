"""All differences between model families: networks, names of tensors, configurations, prompts.

A new family is a file next to this one, named here. The file holds its target and its drafter, its
published formats, and its prompt reader.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from lantern_demo.decoding import interfaces
from lantern_demo.decoding.ops import PYTORCH, Ops
from lantern_demo.models import anole, llamagen
from lantern_demo.models.bundled import Networks
from lantern_demo.models.cpu import KINDS, exact_kind
from lantern_demo.models.device import DTYPES, half
from lantern_demo.models.hub import Located
from lantern_demo.models.prepare import for_accelerator
from lantern_demo.models.registry import (
    AnoleConfig,
    AnoleDrafterConfig,
    DrafterConfig,
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
from lantern_demo.models.text import T5, PromptEncoder, load_text
from lantern_demo.models.tokenizer import blank_tokenizer

# bytes of a target's weights up to which one thread computes: at 87 MB two are slower by half
CACHED = 2**27

# Layouts of all published files by format. Drafters have this project's names in every family.
LAYOUTS: dict[str, Layout] = {
    "drafter": AS_PUBLISHED,
    "t5": T5,
    **llamagen.LAYOUTS,
    **anole.LAYOUTS,
}
# the network of each configuration
NETWORKS: dict[type[Sizes], Any] = {
    LlamaGenConfig: llamagen.LlamaGen,
    DrafterConfig: llamagen.Drafter,
    AnoleConfig: anole.Anole,
    AnoleDrafterConfig: anole.AnoleDrafter,
}


def blank_network(sizes: Sizes) -> Any:
    """Return a network with its weights on the meta device; its rotary table is real."""
    with torch.device("meta"):
        network = NETWORKS[type(sizes)](sizes)
    network.rope = network.rope_table()
    return network


def dtype_of(info: ModelInfo, asked: str | torch.dtype, device: torch.device) -> str:
    """Return the number format of target and drafter on a device, for a name or "auto".

    "auto" is 16 bits for a published model, else float32. Raise ValueError for an unknown name.
    """
    asked = str(asked).removeprefix("torch.")
    if asked != "auto":
        if asked not in DTYPES:
            raise ValueError(f"dtype must be one of auto, {', '.join(DTYPES)}, got {asked!r}")
        return asked
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

    LlamaGen's own files have none, and it may be missing beside a drafter. Raise CheckpointError
    when it is another model's.
    """
    form, path = located.source.format, located.beside("config.json")
    if form == "llamagen" or (form == "drafter" and not path.is_file()):
        return sizes
    said = read_config(path)
    if form == "drafter" and "dim" in said:  # of `examples/train_drafter`
        try:
            return type(sizes)(**said)
        except TypeError as error:
            what = f"{path} is not a drafter's configuration"
            raise CheckpointError(f"{what} ({error}); train it anew") from error
    wanted = {"num_attention_heads": sizes.heads, "num_key_value_heads": sizes.heads}
    if form == "lantern":
        wanted |= {"block_size": sizes.tokens, "cls_token_num": sizes.prefix}
        sizes = replace(sizes, eps=1e-6)  # of LANTERN's template, which a file may leave out
    elif form == "anole":
        wanted |= {"vocab_size": sizes.embeddings, "swin_norm": False}
    check_config(path, said, wanted)
    # LANTERN's name, and those of older and newer versions of transformers
    theta = (said.get("rope_parameters") or {}).get("rope_theta", sizes.rope_base)
    theta = said.get("rope_base", said.get("rope_theta", theta))
    found = {"eps": float(said.get("rms_norm_eps", sizes.eps)), "rope_base": float(theta)}
    if form == "drafter":
        found["bias"] = bool(said.get("bias", sizes.bias))
    return replace(sizes, **found)


def prompt_reader(published: Published, located: Located, device: torch.device) -> PromptEncoder:
    """Return the prompt reader of a model, from the published files of its text encoder.

    Raise CheckpointError when the files are not the model's own.
    """
    target = published.target
    if isinstance(target, AnoleConfig):
        return anole.prompt_reader(target, located)
    assert isinstance(target, LlamaGenConfig)
    return load_text(located, target.caption_dim, device, DTYPES[half(device)])


@dataclass(frozen=True)
class Runners:
    """The networks that decode a model, its own or the fused ones of the bundled model, and the
    operations of its runs."""

    target: interfaces.Target
    drafter: interfaces.Drafter | None
    ops: Ops = PYTORCH
    products: str = ""  # how they compute matmuls, in words; empty where PyTorch decides


def small_on_cpu(networks: Networks, device: torch.device) -> bool:
    """Return whether a model is on a CPU and its target's weights take at most CACHED bytes."""
    return (
        device.type == "cpu"
        and sum(p.numel() * p.element_size() for p in networks.target.parameters()) <= CACHED
    )


def runners(networks: Networks, device: torch.device, dtype: str) -> Runners:
    """Return the models that decode.

    On a CPU a model folder in float32 has fused models, whose matmuls give float32 results with its
    weights. Their drafter may round, since drafts are verified exactly. Published models are
    modules everywhere.
    """
    if device.type == "cuda":
        return joined_runners(networks)
    if networks.sources or dtype != "float32":
        return Runners(networks.target, networks.drafter)
    return lean_runners(networks, exact_kind(networks.target.parameters()), exact_kind(()))


def joined_runners(networks: Networks) -> Runners:
    """Return the runners for an accelerator: the networks, matmuls of the same input joined."""
    ops = for_accelerator(networks.target, networks.drafter)
    return Runners(networks.target, networks.drafter, ops)


@torch.inference_mode()
def lean_runners(networks: Networks, kind: str, drafter_kind: str) -> Runners:
    """Return the fused runners of a model folder on a CPU, with a kind of matmul each."""
    target = llamagen.LeanTarget(networks.target, kind)
    products = "; the drafter: ".join(dict.fromkeys((KINDS[kind], KINDS[drafter_kind])))
    drafter = llamagen.LeanDrafter(networks.drafter, drafter_kind)
    return Runners(target, drafter, products=products)
