"""The families of models, in one table: what differs from family to family is looked up here and asked for nowhere else.

A new family is an entry of FAMILIES and a folder beside this file. The folder holds its target and its drafter, whose
configurations build them (`common.TargetSizes`, `common.DrafterSizes`), its published formats, its prompt reader, and faster
fused models where it has any. What a target does inside is its own: a head of several layers, another grid, or a prompt in the
sequence need nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

import lantern_demo.models.anole.weights as anole_weights
import lantern_demo.models.janus.weights as janus_weights
import lantern_demo.models.llamagen.weights as llamagen_weights
from lantern_demo.decoding import interfaces
from lantern_demo.models.anole.cpu import LeanAnole
from lantern_demo.models.anole.drafter import AnoleDrafterConfig
from lantern_demo.models.anole.prompts import PromptTokens
from lantern_demo.models.anole.target import AnoleConfig
from lantern_demo.models.bundled import Networks
from lantern_demo.models.common import DrafterSizes, TargetSizes
from lantern_demo.models.files.blank import blank_network, blank_tokenizer
from lantern_demo.models.files.hub import Located
from lantern_demo.models.files.tensors import AS_PUBLISHED, Layout, weights_of
from lantern_demo.models.janus.cpu import LeanJanus
from lantern_demo.models.janus.drafter import JanusDrafterConfig
from lantern_demo.models.janus.prompts import ChatPrompt
from lantern_demo.models.janus.target import JanusConfig
from lantern_demo.models.lean import LeanDecoder, packed
from lantern_demo.models.llamagen.captions import CaptionEncoder
from lantern_demo.models.llamagen.cpu import LeanDrafter, LeanTarget
from lantern_demo.models.llamagen.drafter import DrafterConfig
from lantern_demo.models.llamagen.labels import ClassLabels
from lantern_demo.models.llamagen.target import LlamaGenConfig
from lantern_demo.models.registry import ModelInfo, Part, Published
from lantern_demo.models.text import PromptEncoder


@dataclass(frozen=True)
class FusedForCpu:
    """Fused models for a CPU, built of a network and a kind of products (see `matmul.KINDS`), a target's also of whether the
    network gives its weights up."""

    target: Callable[..., LeanDecoder]
    drafter: Callable[[Any, str], interfaces.Drafter]


@dataclass(frozen=True)
class Family:
    """What a family of models brings with it. The functions take its own configurations and networks."""

    target: type[TargetSizes[Any]]  # the configuration of its targets, by which a model's family is known
    drafter: type[DrafterSizes[Any]]  # the configuration of its drafters
    layouts: Mapping[str, Layout]  # how tensors are named in its published files, by the format of `registry.Source`
    # The fields of a configuration that published files set. It raises CheckpointError for files of another model.
    target_facts: Callable[[Any, Located], dict[str, Any]]
    # What reads prompts, of the target's configuration and the files of the part "text", for a device. It raises CheckpointError.
    prompts: Callable[[Any, Located, torch.device], PromptEncoder]
    drafter_facts: Callable[[Any, Located], dict[str, Any]] | None = None  # as `target_facts`; None: none is published
    cpu: FusedForCpu | None = None  # None: on a CPU the networks run as they are


FAMILIES: dict[str, Family] = {
    "LlamaGen": Family(
        target=LlamaGenConfig,
        drafter=DrafterConfig,
        layouts=llamagen_weights.LAYOUTS,
        target_facts=llamagen_weights.target_facts,
        drafter_facts=llamagen_weights.drafter_facts,
        prompts=CaptionEncoder.of,
        cpu=FusedForCpu(LeanTarget, LeanDrafter),
    ),
    "Anole": Family(
        target=AnoleConfig,
        drafter=AnoleDrafterConfig,
        layouts=anole_weights.LAYOUTS,
        target_facts=anole_weights.target_facts,
        drafter_facts=anole_weights.drafter_facts,
        prompts=PromptTokens.of,
        cpu=FusedForCpu(LeanAnole, packed),
    ),
    "Janus": Family(
        target=JanusConfig,
        drafter=JanusDrafterConfig,
        layouts=janus_weights.LAYOUTS,
        target_facts=janus_weights.target_facts,
        prompts=ChatPrompt.of,
        cpu=FusedForCpu(LeanJanus, packed),
    ),
}

# Layouts of all published files by format. Drafters have this project's names in every family.
LAYOUTS: dict[str, Layout] = {"drafter": AS_PUBLISHED} | {
    name: layout for family in FAMILIES.values() for name, layout in family.layouts.items()
}


def family_of(target: TargetSizes[Any]) -> Family:
    """The family of a target's configuration. Raises TypeError for one that no family has."""
    for family in FAMILIES.values():
        if type(target) is family.target:
            return family
    raise TypeError(f"{type(target).__name__} is the configuration of no family in models/families.py")


def expected(part: Part, published: Published, located: Located) -> nn.Module:
    """Make the blank network that the files of any part but the text encoder must fill, configured as they say.

    Raises CheckpointError when they belong to another model.
    """
    if part == "tokenizer":
        return blank_tokenizer(published.tokenizer, published.target.grid)
    family = family_of(published.target)
    sizes: TargetSizes[nn.Module] | DrafterSizes[nn.Module] = published.target
    facts: Callable[[Any, Located], dict[str, Any]] | None = family.target_facts
    if part == "drafter":
        assert published.drafter is not None
        sizes, facts = published.drafter, family.drafter_facts
    assert facts is not None
    return blank_network(replace(sizes, **facts(sizes, located)))


def weights(network: nn.Module, located: Located) -> Iterator[tuple[str, Tensor]]:
    """The weights of a (blank) network out of a part's published files; see `tensors.weights_of`."""
    return weights_of(network, located.weights, LAYOUTS[located.source.format])


def prompt_reader(published: Published, located: Located | None, device: torch.device) -> PromptEncoder:
    """What reads a model's prompts, out of the published files of its text encoder; without them a prompt names a class.

    Raises CheckpointError when the files are not the model's own.
    """
    return ClassLabels() if located is None else family_of(published.target).prompts(published.target, located, device)


@dataclass(frozen=True)
class Runners:
    """What decodes a model, its own networks or fused models of them: a target, its drafter if it has one, and the kinds of
    products that they use (see `matmul.KINDS`), None where PyTorch decides."""

    target: interfaces.Target
    drafter: interfaces.Drafter | None
    kind: str | None = None
    drafter_kind: str | None = None


def runs_fused(info: ModelInfo, device: torch.device) -> bool:
    """Whether a published model runs on its family's fused models for a CPU."""
    return device.type == "cpu" and info.published is not None and family_of(info.published.target).cpu is not None


def joined_runners(networks: Networks) -> Runners:
    """What decodes a model on an accelerator: its networks, in which products that read the same are one from now on."""
    layers = [*networks.target.blocks, *([] if networks.drafter is None else [networks.drafter.layer])]
    for layer in layers:
        layer.join()
    return Runners(networks.target, networks.drafter)


@torch.inference_mode()
def lean_runners(networks: Networks, kind: str, drafter_kind: str, spent: bool = False) -> Runners:
    """What decodes a model on a CPU: its family's fused models, with a kind of products each. spent: the target's network gives
    its weights up as the fused one packs them."""
    fused, drafter = family_of(networks.target.config).cpu, networks.drafter
    assert fused is not None
    fused_drafter = None if drafter is None else fused.drafter(drafter, drafter_kind)
    return Runners(fused.target(networks.target, kind, spent), fused_drafter, kind, None if drafter is None else drafter_kind)
