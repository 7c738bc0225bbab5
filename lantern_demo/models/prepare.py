"""Networks made ready for a device: fused on a CPU; on a GPU joined, with Triton kernels where they
are on and right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from lantern_demo.decoding import interfaces
from lantern_demo.decoding.ops import PYTORCH, Ops
from lantern_demo.kernels.switch import ops_of
from lantern_demo.models import llamagen
from lantern_demo.models.bundled import Networks
from lantern_demo.models.cpu import PRODUCTS, exact_product
from lantern_demo.models.llama import Attention, Decoder, DecoderTarget

# bytes of a target's weights up to which one thread computes: at 87 MB two are slower by half
CACHED = 2**27


@dataclass(frozen=True)
class Prepared:
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


def prepared(networks: Networks, device: torch.device, dtype: str) -> Prepared:
    """Make a model's networks ready to decode.

    On a CPU a model folder in float32 has fused models, whose matmuls give float32 results with its
    weights. Their drafter may round, since drafts are verified exactly. Published models are
    modules everywhere.
    """
    if device.type == "cuda":
        return on_gpu(networks.target, networks.drafter)
    if networks.sources or dtype != "float32":
        return Prepared(networks.target, networks.drafter)
    return on_cpu(networks, exact_product(networks.target.parameters()), exact_product(()))


def on_gpu(target: DecoderTarget, drafter: Any) -> Prepared:
    """Join the matmuls of a model's networks. Return them, and the operations of their runs."""
    networks: list[Decoder] = [target] if drafter is None else [target, drafter]
    for network in networks:
        network.join()
    # kernels normalise no queries and keys
    known = [one for one in networks if one.attention.normed is Attention.normed]
    return Prepared(target, drafter, ops_of(target.rope.device, target.config.vocab, known))


@torch.inference_mode()
def on_cpu(networks: Networks, product: str, drafter_product: str) -> Prepared:
    """Return the fused networks of a model folder on a CPU, with a product each."""
    target = llamagen.LeanTarget(networks.target, product)
    products = "; the drafter: ".join(dict.fromkeys((PRODUCTS[product], PRODUCTS[drafter_product])))
    drafter = llamagen.LeanDrafter(networks.drafter, drafter_product)
    return Prepared(target, drafter, products=products)
