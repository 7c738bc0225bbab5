"""One colour for each token of a codebook, for the preview of an unfinished picture."""

from __future__ import annotations

import torch
from torch import Tensor

from lantern_demo.models.tokenizer import ImageTokenizer

# most tokens whose colours are decoded; a codebook of 16,384 would take minutes on a CPU
DECODED = 2048
BATCH = 256
# tokens a side of a decoded patch: there a token is closer to its colour in a picture than alone
SIDE = 2


@torch.inference_mode()
def token_colours(tokenizer: ImageTokenizer) -> Tensor:
    """Return the mean colour of each token [V, 3] int32, 0 to 255: that of a decoded patch of this
    token alone.

    Of a large codebook DECODED tokens are decoded. Each other token has the colour of the nearest
    of those by L2 distance.
    """
    book = tokenizer.codebook
    known = (
        torch.linspace(0, len(book) - 1, min(DECODED, len(book)), device=book.device).round().long()
    )
    colours = torch.cat([_patches(tokenizer, part) for part in book[known].split(BATCH)])
    nearest = torch.cat([torch.cdist(part, book[known]).argmin(1) for part in book.split(BATCH)])
    return (255 * colours[nearest]).round().to(torch.int32)


def _patches(tokenizer: ImageTokenizer, vectors: Tensor) -> Tensor:
    """Map codebook vectors [n, e] to mean colours [n, 3] in [0, 1]."""
    z = vectors.to(tokenizer.vq.post_quant_conv.weight.dtype)[:, :, None, None].expand(
        -1, -1, SIDE, SIDE
    )
    return tokenizer.decode_latent(z.contiguous()).mean((2, 3))
