"""LlamaGen's image tokenizer: look-up, decoder, encoder, and the neighbour table of its codebook."""

from __future__ import annotations

import pytest
import torch.nn.functional as F
from released import Golden, cases, close, image_tokenizer, same_neighbours
from torch import Tensor

from lantern_demo.models.tokenizer import ImageTokenizer

CASES = cases("image tokenizer")


def tokenizer_of(case: Golden) -> ImageTokenizer:
    return image_tokenizer(case, case.tensors["quant"].shape[-1])


def looked_up(model: ImageTokenizer, ids: Tensor, like: Tensor) -> Tensor:
    """Codebook vectors of ids [B, G * G] in the shape of `like` [B, e, G, G]."""
    return F.embedding(ids, model.codebook).transpose(1, 2).view(like.shape)


@pytest.mark.parametrize("case", CASES)
def test_decode(case: Golden) -> None:
    model, golden = tokenizer_of(case), case.tensors
    vectors = looked_up(model, golden["codes"], golden["quantized_of_codes"])
    close(vectors, golden["quantized_of_codes"])
    close(model.decode_raw(vectors), golden["decoded"])
    close(model.decode(golden["codes"]), (golden["decoded"].clamp(-1, 1) + 1) / 2)


@pytest.mark.parametrize("case", CASES)
def test_encode(case: Golden) -> None:
    model, golden = tokenizer_of(case), case.tensors
    image = (golden["image"] + 1) / 2
    close(model.vq.quant_conv(model.vq.encoder(golden["image"])), golden["encoder_latent"])
    close(model.latent(image), F.normalize(golden["encoder_latent"], dim=1))
    ids = model.encode(image)
    assert ids.shape == (len(image), golden["quant"].shape[-1] ** 2)
    assert ids.flatten().tolist() == golden["indices"].flatten().tolist()
    quant = looked_up(model, ids, golden["quant"])
    close(quant, golden["quant"])
    close(model.decode_raw(quant), golden["decoded_of_quant"])


@pytest.mark.parametrize("case", CASES)
def test_neighbours(case: Golden) -> None:
    """The released table compares the vectors as stored, not scaled to unit length."""
    same_neighbours(tokenizer_of(case).vq.quantize.embedding.weight, case.tensors["neighbours_raw_codebook"])
