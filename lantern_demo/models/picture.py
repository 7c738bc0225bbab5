"""The picture decoder: codebook vectors to pictures larger than those that the image tokenizer was trained on."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAEDecoder

from lantern_demo.models.tokenizer import fit_groups

HEAD = 32  # width of a head of attention


class PictureDecoder(nn.Module):
    """A second decoder for the tokens of an image tokenizer: codebook vectors in, pictures of several times its size out.

    It has the architecture of the tokenizer's decoder. The last convolution gives `scale` x `scale` pixels for every pixel of
    the tokenizer's size (pixel shuffle, arXiv 1609.05158). So no layer works at the full size.

    Layers of attention over all tokens may come first. They see which tokens do not fit the others.
    """

    def __init__(self, config: JanusVQVAEConfig) -> None:
        """`config.out_channels` is 3 scale squared. Raise ValueError for another number. `config.attention_layers`, if it is
        there, are the layers of attention, as wide as `config.latent_channels`."""
        super().__init__()
        self.scale = math.isqrt(config.out_channels // 3)
        if self.scale < 1 or 3 * self.scale**2 != config.out_channels:
            raise ValueError(f"out_channels must be 3 times a square (3, 12, 27), got {config.out_channels}")
        self.config = config
        width, layers = config.latent_channels, getattr(config, "attention_layers", 0)
        self.post_quant_conv = nn.Conv2d(config.embed_dim, width, 1)
        if layers:
            self.places = nn.Parameter(torch.zeros(width, config.num_patches, config.num_patches))
            layer = nn.TransformerEncoderLayer(
                width, width // HEAD, 3 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
            )
            self.attention = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.decoder = JanusVQVAEDecoder(config)
        fit_groups(self)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # its convolutions take half the time on a processor

    @property
    def size(self) -> int:
        """Pixels a side of a picture."""
        return int(self.config.num_patches * 2 ** (len(self.config.channel_multiplier) - 1) * self.scale)

    def raw(self, z: Tensor) -> Tensor:
        """Map codebook vectors [B, e, G, G] to pixels [B, 3, size, size], nominally in [-1, 1], not clamped."""
        x = self.post_quant_conv(z)
        if hasattr(self, "attention"):
            # a patch of another size may stand anywhere
            places = self.places if x.shape[2:] == self.places.shape[1:] else self.places.mean((1, 2), keepdim=True)
            tokens = self.attention((x + places).flatten(2).transpose(1, 2))
            x = tokens.transpose(1, 2).unflatten(2, x.shape[2:])
        return F.pixel_shuffle(self.decoder(x.contiguous(memory_format=torch.channels_last)), self.scale)

    def forward(self, z: Tensor) -> Tensor:
        """Map codebook vectors [B, e, G, G] to pictures [B, 3, size, size] float32 in [0, 1]."""
        return (self.raw(z).float().clamp(-1, 1) + 1) / 2
