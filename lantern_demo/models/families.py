"""The table of model families. Every difference between families is looked up here.

A new family is an entry of FAMILIES and a file next to this one. The file holds its target and its
drafter, its published formats, and its prompt reader. A target's inside is free: a head of several
layers, another grid, or a prompt in the sequence need no entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

from lantern_demo.decoding import interfaces, sampling, switch
from lantern_demo.models import anole, llamagen
from lantern_demo.models.bundled import Networks
from lantern_demo.models.cpu import exact_kind
from lantern_demo.models.device import DTYPES, half
from lantern_demo.models.hub import Located
from lantern_demo.models.llama import Decoder
from lantern_demo.models.registry import (
    AnoleConfig,
    AnoleDrafterConfig,
    DrafterConfig,
    DrafterSizes,
    LlamaGenConfig,
    ModelInfo,
    NetworkSizes,
    Part,
    Published,
    TargetSizes,
)
from lantern_demo.models.tensors import (
    AS_PUBLISHED,
    CheckpointError,
    Layout,
    check_config,
    eps_and_theta,
    read_config,
)
from lantern_demo.models.text import T5, PromptEncoder, caption_encoder
from lantern_demo.models.tokenizer import blank_tokenizer

# bytes of a target's weights up to which one thread computes: at 87 MB two are slower by half
CACHED = 2**27


@dataclass(frozen=True)
class Family:
    """The parts of a family. Its functions take its own configurations and networks."""

    target_network: Callable[[Any], nn.Module]
    # the configuration of its drafters, and their network
    drafter: type[DrafterSizes]
    drafter_network: Callable[[Any], nn.Module]
    # names of tensors in its published files, by the format of `registry.Source`
    layouts: Mapping[str, Layout]
    # The fields of a configuration that published files set. Raises CheckpointError for files of
    # another model.
    target_facts: Callable[[Any, Located], dict[str, Any]]
    # Makes the prompt reader from the target's configuration and the files of the part "text", for
    # a device. Raises CheckpointError.
    prompts: Callable[[Any, Located, torch.device], PromptEncoder]
    # As `target_facts`, from the contents of config.json beside LANTERN's drafters and the usual
    # configuration.
    drafter_facts: Callable[[dict[str, Any], Any], dict[str, Any]]


# by the configuration of their targets
FAMILIES: dict[type[TargetSizes], Family] = {
    LlamaGenConfig: Family(
        target_network=llamagen.LlamaGen,
        drafter=DrafterConfig,
        drafter_network=llamagen.Drafter,
        layouts=llamagen.LAYOUTS,
        target_facts=llamagen.target_facts,
        drafter_facts=llamagen.drafter_facts,
        prompts=caption_encoder,
    ),
    AnoleConfig: Family(
        target_network=anole.Anole,
        drafter=AnoleDrafterConfig,
        drafter_network=anole.AnoleDrafter,
        layouts=anole.LAYOUTS,
        target_facts=anole.target_facts,
        drafter_facts=eps_and_theta,
        prompts=anole.prompt_reader,
    ),
}

# Layouts of all published files by format. Drafters have this project's names in every family.
LAYOUTS: dict[str, Layout] = {"drafter": AS_PUBLISHED, "t5": T5} | {
    name: layout for family in FAMILIES.values() for name, layout in family.layouts.items()
}


def family_of(target: NetworkSizes) -> Family:
    """Return the family of a target's configuration. Raise TypeError for an unknown one."""
    kind: Any = type(target)
    if kind not in FAMILIES:
        raise TypeError(f"{kind.__name__} is the configuration of no family in models/families.py")
    return FAMILIES[kind]


def network_of(sizes: NetworkSizes) -> Any:
    """Build the target or the drafter of a configuration, on the device that PyTorch builds on.

    Raise TypeError for the configuration of no family.
    """
    for family in FAMILIES.values():
        if type(sizes) is family.drafter:
            return family.drafter_network(sizes)
    return family_of(sizes).target_network(sizes)


def blank_network(sizes: NetworkSizes) -> Any:
    """Return a network with its weights on the meta device; its rotary table is real."""
    with torch.device("meta"):
        network = network_of(sizes)
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
        return blank_tokenizer(published.tokenizer, target.grid)
    if part == "drafter":
        return blank_network(drafter_config(located, target, published.drafter))
    return blank_network(replace(target, **family_of(target).target_facts(target, located)))


def drafter_config(
    located: Located, target: TargetSizes, usual: DrafterSizes | None = None
) -> DrafterSizes:
    """Return the configuration of a target's drafter, by the config.json beside its weights.

    That file has the fields of `checkpoints.save_drafter`, or those of a library's LLaMA or
    Chameleon, as LANTERN's training wants them. The latter may be missing; what it leaves out is as
    in `usual`. Raise CheckpointError for a drafter of another target.
    """
    family = family_of(target)
    path = located.beside("config.json")
    said = read_config(path) if path.is_file() else {}
    if "dim" not in said:
        usual = usual or drafter_for(target, ffn=target.ffn)
        check_config(path, said, usual.heads)
        bias = bool(said.get("bias", usual.bias))
        return replace(usual, bias=bias, **family.drafter_facts(said, usual))
    try:
        config = family.drafter(**said)
        config.check_target(target)
    except TypeError as error:
        what = f"{path} is not a drafter's configuration"
        raise CheckpointError(f"{what} ({error}); train it anew") from error
    except ValueError as error:
        raise CheckpointError(f"{path} {error}") from None
    return config


def drafter_for(target: TargetSizes, **own: Any) -> DrafterSizes:
    """Return the configuration of a drafter for a target, with fields of its own."""
    kind = family_of(target).drafter
    shared = {"dim", "heads", "vocab", "embeddings", "grid", "prefix", "rope_base"}
    shared &= {one.name for one in fields(kind)}
    return kind(**{name: getattr(target, name) for name in shared}, **own)


def prompt_reader(published: Published, located: Located, device: torch.device) -> PromptEncoder:
    """Return the prompt reader of a model, from the published files of its text encoder.

    Raise CheckpointError when the files are not the model's own.
    """
    return family_of(published.target).prompts(published.target, located, device)


@dataclass(frozen=True)
class Runners:
    """The networks that decode a model, its own or the fused ones of the bundled model.

    Their kinds of matmul are those of `cpu.KINDS`, None where PyTorch decides.
    """

    target: interfaces.Target
    drafter: interfaces.Drafter | None
    kind: str | None = None
    drafter_kind: str | None = None


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


def for_accelerator(network: Decoder) -> None:
    """Prepare a network for an accelerator: join its matmuls, and use kernels if they are on."""
    network.join()
    if not switch.on(network.rope.device):
        return
    try:
        from lantern_demo.decoding import selection  # it needs Triton, as the next
        from lantern_demo.models.kernels import fused

        network.fused = fused(network.layers)
        sampling.kernels = selection
    except Exception as error:  # of a broken installation, or of the check of the GPU
        switch.refuse(error)


def joined_runners(networks: Networks) -> Runners:
    """Return the runners for an accelerator: the networks, matmuls of the same input joined."""
    for_accelerator(networks.target)
    if networks.drafter is not None:
        for_accelerator(networks.drafter)
    return Runners(networks.target, networks.drafter)


@torch.inference_mode()
def lean_runners(networks: Networks, kind: str, drafter_kind: str) -> Runners:
    """Return the fused runners of a model folder on a CPU, with a kind of matmul each."""
    target = llamagen.LeanTarget(networks.target, kind)
    return Runners(target, llamagen.LeanDrafter(networks.drafter, drafter_kind), kind, drafter_kind)
