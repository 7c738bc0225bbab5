"""Chameleon's image tokenizer against the released code and transformers'."""

from __future__ import annotations

import pytest
import torch
from released import Golden, cases, chameleon_tokenizer, close, with_32_groups
from transformers import ChameleonVQVAE, ChameleonVQVAEConfig

from lantern_demo.models.registry import TokenizerSizes
from lantern_demo.models.tensors import fill
from lantern_demo.models.tokenizer import blank_tokenizer

CPU = torch.device("cpu")


@pytest.mark.parametrize("case", cases("chameleon tokenizer"))
@torch.no_grad()
def test_tokenizer_of_the_released_code(case: Golden) -> None:
    model, golden = chameleon_tokenizer(case), case.tensors
    close(
        model.decode_latent(model.vectors(golden["codes"])),
        (golden["decoded"].clamp(-1, 1) + 1) / 2,
    )
    image = (golden["image"] + 1) / 2
    close(model.latent(image), golden["encoder_latent"])
    assert torch.equal(model.codebook, model.vq.quantize.embedding.weight), (
        "of any length, and the decoder sees them so"
    )
    assert model.encode(image).flatten().tolist() == golden["indices"].tolist()


@torch.no_grad()
def test_encoder_of_the_library() -> None:
    """Sizes as published but narrower; the library reads pictures in [-1, 1]."""
    sizes = TokenizerSizes(
        channels=32, multipliers=(1, 2, 4), latent=24, dim=24, codebook=90, kind="chameleon"
    )
    theirs = ChameleonVQVAE(
        ChameleonVQVAEConfig(
            base_channels=32,
            channel_multiplier=[1, 2, 4],
            num_res_blocks=2,
            latent_channels=24,
            embed_dim=24,
            num_embeddings=90,
            resolution=32,
        )
    ).eval()
    torch.manual_seed(3)
    images = torch.rand(2, 3, 32, 32)
    # Codes that these very pictures use: every other of their vectors, at random a little off.
    vectors = theirs.quant_conv(theirs.encoder(images * 2 - 1)).permute(0, 2, 3, 1).flatten(0, 2)
    theirs.quantize.embedding.weight.copy_(
        vectors[torch.randperm(len(vectors))[:90]] + 0.001 * torch.randn(90, 24)
    )
    blank = blank_tokenizer(sizes, 8)
    state = {f"vq.{name}": w for name, w in theirs.state_dict().items()}
    rest = {
        name: torch.zeros(w.shape) for name, w in blank.state_dict().items() if name not in state
    }
    assert all(name.startswith(("vq.decoder.", "vq.post_quant_conv.")) for name in rest)
    ours = with_32_groups(fill(blank, state | rest, CPU, torch.float32))
    found = theirs.encode(images * 2 - 1, return_dict=True)
    assert ours.encode(images).flatten().tolist() == found.image_tokens.flatten().tolist()
    assert len(set(found.image_tokens.flatten().tolist())) > 50
