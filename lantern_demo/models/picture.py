"""The picture decoder: codebook vectors to pictures larger than those that the image tokenizer was
trained on.
"""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAEDecoder

from lantern_demo.models.tokenizer import fit_groups


class PictureDecoder(nn.Module):
    """A second decoder for the tokens of an image tokenizer: codebook vectors in, pictures of
    several times its size out.

    It has the architecture of the tokenizer's decoder. The last convolution gives `scale` x `scale`
    pixels for every pixel of the tokenizer's size (pixel shuffle, arXiv 1609.05158). So no layer
    works at the full size.
    """

    def __init__(self, config: JanusVQVAEConfig) -> None:
        """`config.out_channels` is 3 scale squared. Raise ValueError for another number."""
        super().__init__()
        self.scale = math.isqrt(config.out_channels // 3)
        if self.scale < 1 or 3 * self.scale**2 != config.out_channels:
            raise ValueError(
                f"out_channels must be 3 times a square (3, 12, 27), got {config.out_channels}"
            )
        self.config = config
        self.post_quant_conv = nn.Conv2d(config.embed_dim, config.latent_channels, 1)
        self.decoder = JanusVQVAEDecoder(config)
        fit_groups(self)

    @property
    def size(self) -> int:
        """Pixels a side of a picture."""
        return int(
            self.config.num_patches * 2 ** (len(self.config.channel_multiplier) - 1) * self.scale
        )

    def raw(self, z: Tensor) -> Tensor:
        """Map codebook vectors [B, e, G, G] to pixels [B, 3, size, size], nominally in [-1, 1], not
        clamped.
        """
        return F.pixel_shuffle(self.decoder(self.post_quant_conv(z)), self.scale)

    def forward(self, z: Tensor) -> Tensor:
        """Map codebook vectors [B, e, G, G] to pictures [B, 3, size, size] float32 in [0, 1]."""
        return (self.raw(z).float().clamp(-1, 1) + 1) / 2
