"""Train the image tokenizer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import JanusVQVAEConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.make_bundled_model.lanterns import HELD_OUT, Scenes, render, sample_scenes
from examples.train_drafter import run
from lantern_demo.models import bundled
from lantern_demo.models.tokenizer import ImageTokenizer

FITTED = 40  # batches that the codebook is fitted to, in addition to the step's own
VALIDATED = 256  # held-out scenes of a validation
BATCH = 32  # of them at a time


def config(codebook: int = 2048) -> JanusVQVAEConfig:
    """Return the configuration of a narrow VQ network of LlamaGen: 128 px to 16 x 16 tokens of 8
    dimensions.
    """
    return JanusVQVAEConfig(
        base_channels=32,
        channel_multiplier=[1, 2, 2, 4],
        num_res_blocks=1,
        latent_channels=64,
        embed_dim=8,
        num_embeddings=codebook,
        num_patches=16,
    )


class Quantiser(torch.nn.Module):
    """A codebook of unit vectors that follows the encoder by running means.

    Unused entries restart at random vectors.
    """

    count: Tensor
    total: Tensor

    def __init__(self, size: int, width: int, decay: float = 0.99) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("count", torch.ones(size))
        self.register_buffer("total", torch.zeros(size, width))

    @torch.no_grad()
    def start(self, vectors: Tensor, rounds: int = 12) -> None:
        """Fit the codebook to unit vectors [n, e] by k-means, before any quantisation."""
        size = self.count.shape[0]
        book = vectors[torch.randperm(len(vectors), device=vectors.device)[:size]].clone()
        for _ in range(rounds):
            nearest = torch.cat([(part @ book.t()).argmax(-1) for part in vectors.split(8192)])
            total = torch.zeros_like(book).index_add_(0, nearest, vectors)
            empty = total.norm(dim=-1) == 0
            total[empty] = vectors[
                torch.randint(len(vectors), (int(empty.sum()),), device=vectors.device)
            ]
            book = F.normalize(total, dim=-1)
        self.total.copy_(book)
        self.count.fill_(1.0)

    @torch.no_grad()
    def follow(self, vectors: Tensor, ids: Tensor) -> Tensor:
        """Update with unit vectors [n, e] and their ids [n], and return the new codebook [V, e]."""
        used = torch.bincount(ids, minlength=self.count.shape[0]).float()
        added = torch.zeros_like(self.total).index_add_(0, ids, vectors)
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(used)
            torch.distributed.all_reduce(added)
        self.count.mul_(self.decay).add_(used, alpha=1 - self.decay)
        self.total.mul_(self.decay).add_(added, alpha=1 - self.decay)
        dead = (self.count < 0.03).nonzero().flatten()
        if len(dead):
            fresh = vectors[torch.randint(len(vectors), (len(dead),), device=vectors.device)]
            if torch.distributed.is_initialized():
                torch.distributed.broadcast(fresh, 0)
            self.total[dead], self.count[dead] = fresh * 0.5, 0.5
        return F.normalize(self.total, dim=-1)


def reconstruction_loss(output: Tensor, image: Tensor) -> Tensor:
    """Return a weighted sum of L1, L2 and errors of differences over 1 and 2 pixels, which keep
    ribs and ripples.
    """
    error = output - image
    slopes = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    wide = (error[..., 2:] - error[..., :-2]).abs().mean() + (
        error[..., 2:, :] - error[..., :-2, :]
    ).abs().mean()
    return error.abs().mean() + 6 * error.square().mean() + 2 * slopes + 2 * wide


def psnr(output: Tensor, image: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio [B] per picture in dB, for values in [0, 1]."""
    return -10 * (output - image).square().mean(dim=(1, 2, 3)).log10()


def load_image_tokenizer(folder: Path, device: torch.device) -> ImageTokenizer:
    """Load the tokenizer of a model folder, or the averaged one of a training run."""
    if (folder / "config.json").exists():
        return bundled.load(folder, device).tokenizer
    saved = torch.load(folder / "last.pt", map_location=device, weights_only=True)["average"]
    weights = {k: v for k, v in saved.items() if not k.startswith("quantiser.")}
    model = ImageTokenizer(config(weights["vq.quantize.embedding.weight"].shape[0])).to(device)
    model.load_state_dict(weights)
    return model.eval()


@torch.no_grad()
def some_vectors(
    model: ImageTokenizer, opts: run.Options, draw: Callable[[Scenes], Tensor]
) -> list[Tensor]:
    """Return the encoder's vectors [n, 8] of FITTED batches, to fit a codebook to."""
    found = []
    for extra in range(FITTED):
        image = draw(sample_scenes(opts.batch, opts.batch_seed(-1 - extra)).to(opts.device))
        found.append(model.latent(image).float().permute(0, 2, 3, 1).flatten(0, 2))
    return found


def main() -> None:
    parser = run.parser(__doc__ or "", steps=3000, batch=12, lr=1.2e-3)
    parser.add_argument("--codebook", type=int, default=2048, help="entries of the codebook")
    parser.add_argument(
        "--free",
        type=int,
        default=200,
        help="first steps without quantisation, before the codebook is fitted",
    )
    parser.add_argument(
        "--decoder-only", action="store_true", help="keep encoder and codebook, improve the decoder"
    )
    args = parser.parse_args()
    opts = run.options(args)
    model = ImageTokenizer(config(args.codebook)).to(opts.device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    for module in model.modules():
        if isinstance(module, torch.nn.Conv2d):
            # the library starts convolutions too small to learn from scratch
            module.reset_parameters()
    quantiser = Quantiser(args.codebook, 8).to(opts.device)
    model.add_module("quantiser", quantiser)  # so that a checkpoint holds it
    if args.decoder_only:
        for part in (model.vq.encoder, model.vq.quant_conv):
            part.requires_grad_(False)
    book = model.vq.quantize.embedding.weight.requires_grad_(False)
    # Only the renderer is compiled. With torch 2.13 on a CPU, a compiled VQ network had zero
    # gradients.
    draw = torch.compile(render) if opts.compile else render
    cast = run.cast(opts.device)

    def batch_loss(step: int) -> tuple[Tensor, dict[str, float]]:
        image = draw(sample_scenes(opts.batch, opts.batch_seed(step)).to(opts.device)).contiguous(
            memory_format=torch.channels_last
        )
        with cast:
            z = model.latent(image).float()
        vectors = z.detach().permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        commit = z.new_zeros(())
        if step == args.free:
            with cast:
                more = some_vectors(model, opts, draw)
            quantiser.start(torch.cat([vectors, *more]))
            book.data.copy_(quantiser.total)
        if step >= args.free:
            ids = (vectors @ book.t()).argmax(-1)
            q = F.embedding(ids, book).view(z.shape[0], *z.shape[2:], -1).permute(0, 3, 1, 2)
            commit = (z - q).square().mean()
            z = z + (q - z).detach()
            if not args.decoder_only:
                book.data.copy_(quantiser.follow(vectors, ids))
        with cast:
            output = model.decode_raw(z)
        loss = reconstruction_loss(output.float(), image * 2 - 1)
        return loss + 2.0 * commit, {
            "psnr": psnr((output.detach().float().clamp(-1, 1) + 1) / 2, image).mean().item()
        }

    def validate() -> dict[str, float]:
        used, quality = torch.zeros(args.codebook, dtype=torch.bool), []
        # The running average of a codebook is not on the sphere. `ImageTokenizer` normalises it.
        for part in range(VALIDATED // BATCH):
            image = render(sample_scenes(BATCH, HELD_OUT + part).to(opts.device))
            ids = model.encode(image)
            used[ids.flatten().cpu()] = True
            quality.append(psnr(model.decode(ids), image))
        return {
            "held_out_psnr": torch.cat(quality).mean().item(),
            "codes_used": used.sum().item() / args.codebook,
        }

    run.train(model, opts, batch_loss, validate)


if __name__ == "__main__":
    main()
