"""Networks for an accelerator: joined matmuls, and Triton kernels where they are on and right."""

from __future__ import annotations

from lantern_demo.decoding.ops import Ops
from lantern_demo.kernels.switch import ops_of
from lantern_demo.models.llama import Attention, Decoder


def for_accelerator(target: Decoder, drafter: Decoder | None = None) -> Ops:
    """Join the matmuls of a model's networks. Return the operations of its runs, see `ops_of`."""
    networks = [target] if drafter is None else [target, drafter]
    for network in networks:
        network.join()
    # kernels normalise no queries and keys
    known = [one for one in networks if one.attention.normed is Attention.normed]
    return ops_of(target.rope.device, target.config.vocab, known)
