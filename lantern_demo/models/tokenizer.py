"""Image tokenizers, a decoder to larger pictures, colours and neighbours of tokens.

Tokenizers are VQ networks in the form of transformers' JanusVQVAE, with the look-up of LlamaGen or
of Chameleon.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAE, JanusVQVAEDecoder


def fit_groups(network: nn.Module) -> None:
    """Give every group norm of a VQ network groups of 4 channels, 32 groups at most.

    The published width has 32 groups of 4. A group of one channel would remove its mean, and with
    it the colour of a whole picture. So a narrower network has fewer groups.
    """
    for module in network.modules():
        if isinstance(module, nn.GroupNorm):
            module.num_groups = min(32, module.num_channels // 4)


class ImageTokenizer(nn.Module):
    """Pictures to codebook indices and back.

    The published tokenizer compares and decodes vectors after L2 normalisation (LlamaGen,
    vq_model.py). JanusVQVAE normalises only when it decodes, so this class does the encoder's
    look-up.
    """

    def __init__(self, config: JanusVQVAEConfig) -> None:
        super().__init__()
        self.vq = JanusVQVAE(config)
        fit_groups(self.vq)
        self.grid = config.num_patches
        self.codebook_size = config.num_embeddings

    def scaled(self, vectors: Tensor, dim: int) -> Tensor:
        """Return float32 vectors for comparing and decoding: of unit length along `dim`."""
        return F.normalize(vectors.float(), dim=dim)

    @property
    def codebook(self) -> Tensor:
        """The vectors that the decoder reads [V, e] float32."""
        return self.scaled(self.vq.quantize.embedding.weight, -1)

    def latent(self, images: Tensor) -> Tensor:
        """Map images [B, 3, H, W] in [0, 1] to `scaled` vectors [B, e, G, G], not yet quantised."""
        return self.scaled(self.vq.quant_conv(self.vq.encoder(images * 2 - 1)), 1)

    def encode(self, images: Tensor) -> Tensor:
        """Map images [B, 3, H, W] in [0, 1] to token ids [B, G * G] int64, row by row."""
        z = self.latent(images).flatten(2).transpose(1, 2)
        book = self.codebook
        # |z - e|^2 less |z|^2, which is the same for every e
        return (book.square().sum(-1) - 2 * z @ book.t()).argmin(-1)

    def decode(self, tokens: Tensor) -> Tensor:
        """Map token ids [B, G * G] to images [B, 3, H, W] float32 in [0, 1]."""
        return self.decode_latent(self.vectors(tokens))

    @property
    def size(self) -> int:
        """Pixels a side of the images that it reads and decodes to."""
        return int(self.grid * 2 ** (len(self.vq.config.channel_multiplier) - 1))

    def vectors(self, tokens: Tensor) -> Tensor:
        """Map token ids [B, G * G] to the codebook vectors [B, e, G, G] that the decoder takes."""
        z = F.embedding(tokens, self.codebook).to(self.vq.post_quant_conv.weight.dtype)
        return z.transpose(1, 2).unflatten(2, (self.grid, self.grid))

    def decode_latent(self, z: Tensor) -> Tensor:
        """Map codebook vectors [B, e, G, G] to images [B, 3, H, W] float32 in [0, 1]."""
        pixels = self.vq.decoder(self.vq.post_quant_conv(z))
        return (pixels.float().clamp(-1, 1) + 1) / 2


class PictureDecoder(nn.Module):
    """A second decoder for an image tokenizer's tokens, to pictures of several times its size.

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
        """Map codebook vectors [B, e, G, G] to pixels [B, 3, size, size], not clamped."""
        return F.pixel_shuffle(self.decoder(self.post_quant_conv(z)), self.scale)

    def forward(self, z: Tensor) -> Tensor:
        """Map codebook vectors [B, e, G, G] to pictures [B, 3, size, size] float32 in [0, 1]."""
        return (self.raw(z).float().clamp(-1, 1) + 1) / 2


# -- the mean colour of each token, with which the page paints an unfinished picture

# most tokens whose colours are decoded; a codebook of 16,384 would take minutes on a CPU
DECODED = 2048
BATCH = 256
# tokens a side of a decoded patch: there a token is closer to its colour in a picture than alone
SIDE = 2


@torch.inference_mode()
def token_colours(tokenizer: ImageTokenizer) -> Tensor:
    """Return the mean colour of each token [V, 3] int32, 0 to 255.

    It is that of a decoded patch of this token alone. Of a large codebook DECODED tokens are
    decoded. Each other token has the colour of the nearest of those by L2 distance.
    """
    book = tokenizer.codebook
    known = torch.linspace(0, len(book) - 1, min(DECODED, len(book)), device=book.device)
    known = known.round().long()
    colours = torch.cat([_patches(tokenizer, part) for part in book[known].split(BATCH)])
    nearest = torch.cat([torch.cdist(part, book[known]).argmin(1) for part in book.split(BATCH)])
    return (255 * colours[nearest]).round().to(torch.int32)


def _patches(tokenizer: ImageTokenizer, vectors: Tensor) -> Tensor:
    """Map codebook vectors [n, e] to mean colours [n, 3] in [0, 1]."""
    z = vectors.to(tokenizer.vq.post_quant_conv.weight.dtype)[:, :, None, None]
    z = z.expand(-1, -1, SIDE, SIDE)
    return tokenizer.decode_latent(z.contiguous()).mean((2, 3))


def neighbour_table(vectors: Tensor, k: int) -> Tensor:
    """Return the k nearest codebook entries of every entry, [V, k] int32, nearest first.

    The distance is L2, and an entry is no neighbour of itself. `vectors` [V, e] should be those
    that the tokenizer's decoder reads: see `ImageTokenizer.codebook`. The released table used the
    raw vectors (jadohu/LANTERN, generate_codebook.py).
    """
    rows = []
    for part in torch.arange(vectors.shape[0], device=vectors.device).split(1024):
        distance = torch.cdist(vectors[part].float(), vectors.float())
        distance[torch.arange(len(part), device=vectors.device), part] = torch.inf
        rows.append(distance.topk(k, largest=False).indices.to(torch.int32))
    return torch.cat(rows)
