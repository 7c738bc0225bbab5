"""Anole against transformers' Chameleon with small random weights."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest
import torch
from library_models import walk
from published import decoder_sizes
from released import Golden, cases, chameleon_tokenizer, close, with_32_groups
from torch import Tensor
from transformers import ChameleonConfig, ChameleonModel, ChameleonVQVAE, ChameleonVQVAEConfig

from lantern_demo.models.anole import FIRST, Anole
from lantern_demo.models.registry import AnoleConfig, TokenizerSizes
from lantern_demo.models.tensors import fill
from lantern_demo.models.tokenizer import blank_tokenizer

SIZES = AnoleConfig(
    dim=64,
    layers=3,
    heads=4,
    ffn=96,
    embeddings=120,
    vocab=80,
    grid=4,
    prefix=16,
    rope_base=500.0,
    eps=3e-5,
)
PROMPT = torch.tensor([[0, 97, 91, 113, 98, 105, 118, 119]])
CPU = torch.device("cpu")


@lru_cache(maxsize=1)
@torch.no_grad()
def pair() -> tuple[ChameleonModel, Tensor, Anole]:
    """The library's model with random weights, a head for its whole vocabulary [E, H], and ours
    with the same.
    """
    config = ChameleonConfig(
        **decoder_sizes(SIZES),
        vocab_size=SIZES.embeddings,
        num_hidden_layers=SIZES.layers,
        max_position_embeddings=256,
        swin_norm=False,
        attn_implementation="eager",
        vocabulary_map={"<image>": 99, "IMGIMGAZ": 4},
        vq_config=ChameleonVQVAEConfig(
            base_channels=32,
            channel_multiplier=[1],
            num_res_blocks=1,
            latent_channels=8,
            embed_dim=8,
            num_embeddings=8,
        ),
    )
    torch.manual_seed(0)
    theirs = ChameleonModel(config).eval()
    for name, weight in theirs.named_parameters():
        wide = weight.dim() > 1 and "_norm." not in name
        torch.nn.init.normal_(
            weight, std=1.5 * weight.shape[1] ** -0.5
        ) if wide else torch.nn.init.normal_(weight, 1.0, 0.2)
    head = torch.randn(SIZES.embeddings, SIZES.dim)
    state = {name: w for name, w in theirs.state_dict().items() if not name.startswith("vqmodel.")}
    ours = Anole(SIZES)
    ours.load_state_dict(
        {**state, "lm_head.weight": head[FIRST : FIRST + SIZES.vocab]}, strict=True
    )
    return theirs, head, ours.requires_grad_(False).eval()


@pytest.mark.parametrize("guided", [False, True])
def test_prompt_steps_and_tree(guided: bool) -> None:
    """States to 1e-4 and logits too."""
    theirs, head, ours = pair()
    condition = ours.condition(PROMPT, None, guided)
    real = (
        torch.ones(condition.features.shape, dtype=torch.bool)
        if condition.mask is None
        else condition.mask
    )
    image = slice(FIRST, FIRST + SIZES.vocab)

    @torch.no_grad()
    def states(tokens: Tensor | None, slots: Tensor, sees: Tensor, cache: Any) -> Tensor:
        ids = condition.features if tokens is None else (tokens + FIRST).expand(len(real), -1)
        there = torch.nn.functional.pad(real, (0, sees.shape[1] - real.shape[1]), value=True)
        mask = torch.where(sees & there[:, None], 0.0, torch.finfo(torch.float32).min)[:, None]
        positions = (slots - (~real).sum(1, keepdim=True)).clamp(min=0)
        return theirs(
            input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache
        ).last_hidden_state

    def check(hidden: Tensor, wanted: Tensor) -> None:
        rows = (
            real
            if hidden.shape[1] == real.shape[1]
            else torch.ones(hidden.shape[:2], dtype=torch.bool)
        )
        close(hidden[rows], wanted[rows])
        close(ours.head(hidden)[rows], (wanted @ head.t())[rows][:, image])

    walk(ours, condition, states, check)


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
