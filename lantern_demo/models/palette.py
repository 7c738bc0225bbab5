"""One colour for each token of a codebook: a preview of a picture that is not decoded yet."""

from __future__ import annotations

import torch
from torch import Tensor

from lantern_demo.models.tokenizer import ImageTokenizer

DECODED = 2048  # tokens at most whose colours are decoded; a published codebook of 16,384 would take minutes on a CPU
BATCH = 256
SIDE = 2  # tokens a side of a decoded patch: a token among its like is nearer to its colour in a picture than one alone


@torch.inference_mode()
def token_colours(tokenizer: ImageTokenizer) -> Tensor:
    """The mean colour of each token [V, 3] int32, 0 to 255: of a patch of that token alone, as the decoder draws it.

    Of a large codebook DECODED tokens are decoded, and each of the others has the colour of the nearest of those by L2 distance.
    """
    book = tokenizer.codebook
    known = torch.linspace(0, len(book) - 1, min(DECODED, len(book)), device=book.device).round().long()
    colours = torch.cat([_patches(tokenizer, part) for part in book[known].split(BATCH)])
    nearest = torch.cat([torch.cdist(part, book[known]).argmin(1) for part in book.split(BATCH)])
    return (255 * colours[nearest]).round().to(torch.int32)


def _patches(tokenizer: ImageTokenizer, vectors: Tensor) -> Tensor:
    """Codebook vectors [n, e] -> mean colours [n, 3] in [0, 1]."""
    z = vectors.to(tokenizer.vq.post_quant_conv.weight.dtype)[:, :, None, None].expand(-1, -1, SIDE, SIDE)
    return tokenizer.decode_latent(z.contiguous()).mean((2, 3))
