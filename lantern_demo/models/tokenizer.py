"""Image tokenizers: VQ networks in the form of transformers' JanusVQVAE, with the look-up of
LlamaGen or of Chameleon.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAE


def fit_groups(network: nn.Module) -> None:
    """Give every group norm of a VQ network groups of 4 channels, 32 groups at most.

    The published width has 32 groups of 4.

    A group of one channel would remove its mean, and with it the colour of a whole picture. So a
    narrower network has fewer groups.
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
        """Return vectors along a dimension in float32 as they are compared and decoded: of unit
        length.
        """
        return F.normalize(vectors.float(), dim=dim)

    @property
    def codebook(self) -> Tensor:
        """The vectors that the decoder reads [V, e] float32."""
        return self.scaled(self.vq.quantize.embedding.weight, -1)

    def latent(self, images: Tensor) -> Tensor:
        """Map images [B, 3, H, W] in [0, 1] to vectors before quantisation [B, e, G, G], `scaled`."""
        return self.scaled(self.vq.quant_conv(self.vq.encoder(images * 2 - 1)), 1)

    def encode(self, images: Tensor) -> Tensor:
        """Map images [B, 3, H, W] in [0, 1] to token ids [B, G * G] int64, row by row."""
        z, book = self.latent(images).flatten(2).transpose(1, 2), self.codebook
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
        """Map token ids [B, G * G] to their codebook vectors [B, e, G, G], as the decoder takes
        them.
        """
        z = F.embedding(tokens, self.codebook).to(self.vq.post_quant_conv.weight.dtype)
        return z.transpose(1, 2).unflatten(2, (self.grid, self.grid))

    def decode_latent(self, z: Tensor) -> Tensor:
        """Map codebook vectors [B, e, G, G] to images [B, 3, H, W] float32 in [0, 1]."""
        return (self.decode_raw(z).float().clamp(-1, 1) + 1) / 2

    def decode_raw(self, z: Tensor) -> Tensor:
        """Map codebook vectors [B, e, G, G] to pixels [B, 3, H, W], nominally in [-1, 1], not
        clamped.
        """
        return self.vq.decoder(self.vq.post_quant_conv(z))


class ChameleonTokenizer(ImageTokenizer):
    """Chameleon's VQ network: attention only in the middle, and a codebook whose vectors are
    compared and decoded unchanged (facebookresearch/chameleon, vqgan.py).

    transformers' own ChameleonVQVAE has an encoder and no decoder; the tests compare this encoder
    with it.
    """

    def __init__(self, config: JanusVQVAEConfig) -> None:
        super().__init__(config)
        for level in (*self.vq.encoder.down, *self.vq.decoder.up):
            level.attn = nn.ModuleList()

    def scaled(self, vectors: Tensor, dim: int) -> Tensor:
        return vectors.float()


# `tensors.renaming` of `ImageTokenizer` in LlamaGen's files, and in those of Janus, which has the
# same tokenizer.
VQ_NAMES = (
    (r"^vq\.", ""),
    (r"\.(down|up)\.(\d+)\.block\.", r".conv_blocks.\2.res."),
    (r"\.(down|up)\.(\d+)\.", r".conv_blocks.\2."),
    (r"\.mid\.block_1\.", ".mid.0."),
    (r"\.mid\.attn_1\.", ".mid.1."),
    (r"\.mid\.block_2\.", ".mid.2."),
)
