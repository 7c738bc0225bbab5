"""Networks for an accelerator: joined matmuls, and Triton kernels where they are on and right."""

from __future__ import annotations

import torch

from lantern_demo.decoding import sampling, switch
from lantern_demo.decoding.loop import device_work
from lantern_demo.models.llama import Decoder


def for_accelerator(network: Decoder) -> None:
    """Prepare a network for an accelerator: join its matmuls, and use kernels if they are on."""
    network.join()
    use_kernels(network.config.vocab, network.rope.device, network)


def use_kernels(vocabulary: int, device: torch.device, network: Decoder | None = None) -> None:
    """Let Triton kernels select from rows of a vocabulary, and run a prepared network, if they are
    on and pass their trial on the device."""
    if not switch.on(device):
        return
    try:
        from lantern_demo.models import trial  # it needs Triton

        with device_work(device):
            if network is not None:
                network.fused = trial.layers_of(network)
            sampling.kernels = trial.selections(vocabulary, device)
    except Exception as error:  # of a broken installation, or of the trial
        switch.refuse(error)
