"""Train the image tokenizer of the emoji scenes and its picture decoder together:
`python examples/make_bundled_model/emoji_tokenizer.py --out runs/emoji-tokenizer`.

The encoder reads scenes at 128 pixels; the picture decoder draws the 16 x 16 tokens at 256. Encoder, codebook and decoder learn
in one run, from pixels at 256 alone, so that nothing is spent on a decoder that would be replaced. Scenes are drawn once, when
they are first needed, and kept in the run's folder; a run that is started again goes on from its last checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import JanusVQVAEConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.make_bundled_model.emoji import sprites
from examples.make_bundled_model.render import SIZE, Renderer, contact_sheet, sample_scenes
from examples.make_bundled_model.tokenizer import Quantiser, psnr
from lantern_demo.models.picture import PictureDecoder
from lantern_demo.models.tokenizer import ImageTokenizer
from lantern_demo.training import run

HELD_OUT = 900_000_007  # seed of the scenes that no training batch uses
VALIDATED = 64  # held-out scenes that a validation looks at
CHUNK = 8  # scenes that are drawn at a time
READ = 128  # pixels a side of what the encoder reads
WIDTH = 8  # dimensions of a codebook vector


def encoder_config(codebook: int) -> JanusVQVAEConfig:
    """LlamaGen's VQ network at small width: 128 px to 16 x 16 tokens of 8 dimensions."""
    return JanusVQVAEConfig(
        base_channels=32,
        channel_multiplier=[1, 2, 2, 4],
        num_res_blocks=1,
        latent_channels=64,
        embed_dim=WIDTH,
        num_embeddings=codebook,
        num_patches=16,
    )


def picture_config(codebook: int) -> JanusVQVAEConfig:
    """A decoder of the same kind that works at 64 px and below, and gives 4 x 4 pixels for each of these.

    On a processor it takes half the time of one that works at 128 px, at twice its width at 64 px.
    """
    shape = encoder_config(codebook).to_diff_dict()
    return JanusVQVAEConfig(**{**shape, "base_channels": 64, "channel_multiplier": [1, 2, 2], "out_channels": 3 * 4**2})


class EmojiTokenizer(nn.Module):
    """Encoder and codebook of an image tokenizer, and a picture decoder; the tokenizer's own decoder stays untrained."""

    def __init__(self, codebook: int) -> None:
        super().__init__()
        self.tokenizer = ImageTokenizer(encoder_config(codebook))
        self.tokenizer.vq.decoder.requires_grad_(False)
        self.tokenizer.vq.post_quant_conv.requires_grad_(False)
        self.tokenizer.vq.quantize.embedding.weight.requires_grad_(False)
        self.picture = PictureDecoder(picture_config(codebook))
        self.quantiser = Quantiser(codebook, WIDTH)  # a module, so that a checkpoint holds it
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                module.reset_parameters()  # the library starts convolutions too small to learn from scratch

    def latent(self, pictures: Tensor) -> Tensor:
        """Pictures [B, 3, 256, 256] in [0, 1] -> unit vectors before quantisation [B, 8, 16, 16]."""
        return self.tokenizer.latent(F.avg_pool2d(pictures, SIZE // READ))

    def encode(self, pictures: Tensor) -> Tensor:
        """Pictures [B, 3, 256, 256] in [0, 1] -> token ids [B, 256] int64."""
        return self.tokenizer.encode(F.avg_pool2d(pictures, SIZE // READ))

    def decode(self, tokens: Tensor) -> Tensor:
        """Token ids [B, 256] -> pictures [B, 3, 256, 256] float32 in [0, 1]."""
        return self.picture(self.tokenizer.vectors(tokens))


def load(folder: Path, device: torch.device | str = "cpu") -> EmojiTokenizer:
    """The averaged networks of a run."""
    saved = torch.load(folder / "last.pt", map_location=device, weights_only=True)["average"]
    model = EmojiTokenizer(saved["quantiser.count"].shape[0]).to(device)
    model.load_state_dict(saved)
    return model.requires_grad_(False).eval()


class Bank:
    """`count` scenes, drawn once and kept in a file of `folder`; a chunk of them is drawn when it is first asked for."""

    def __init__(self, folder: Path, renderer: Renderer, count: int, seed: int) -> None:
        """Chunk i is of the scenes of seed `seed` + i. `count` is rounded up to whole chunks."""
        self.renderer, self.seed = renderer, seed
        self.count = -(-count // CHUNK) * CHUNK

        def kept(name: str, *shape: int) -> numpy.memmap:
            path = folder / f"{name}-{self.count}-{seed}.raw"
            return numpy.memmap(path, numpy.uint8, "r+" if path.exists() else "w+", shape=shape)

        self._pictures = kept("pictures", self.count, 4, SIZE, SIZE)
        self._made = kept("made", self.count // CHUNK)

    def __call__(self, step: int, batch: int) -> tuple[Tensor, Tensor]:
        """The batch of a step -> pictures [batch, 3, 256, 256] and what sprites cover of them [batch, 1, 256, 256], in [0, 1].

        The first pass takes the scenes in their order, later ones shuffle them. Every other pass mirrors them.
        """
        rows, mirrored = [], []
        for place in range(step * batch, (step + 1) * batch):
            turn, row = divmod(place, self.count)
            rows.append(row if turn == 0 else int(numpy.random.default_rng((self.seed, turn)).permutation(self.count)[row]))
            mirrored.append(turn % 2 == 1)
        for chunk in {row // CHUNK for row in rows}:
            if not self._made[chunk]:
                drawn = self.renderer(sample_scenes(CHUNK, self.seed + chunk), SIZE)
                self._pictures[chunk * CHUNK : (chunk + 1) * CHUNK] = (drawn * 255).round().byte().cpu().numpy()
                self._made[chunk] = 1
        pictures = torch.from_numpy(self._pictures[rows]).float() / 255
        pictures = torch.where(torch.tensor(mirrored)[:, None, None, None], pictures.flip(-1), pictures)
        return pictures[:, :3], pictures[:, 3:]


def loss_of(output: Tensor, picture: Tensor, cover: Tensor) -> Tensor:
    """Errors of pixels, and of the slopes between pixels at three sizes; those on sprites and their edges weigh three times.

    output and picture: [B, 3, H, W] in [-1, 1], cover: [B, 1, H, W] in [0, 1].
    """
    error = output - picture
    weight = 1 + 2 * F.max_pool2d(cover, 9, 1, 4)
    weight = weight / weight.mean()
    loss = (weight * (error.abs() + 6 * error.square())).mean()
    for factor, share in ((1, 2.0), (2, 2.0), (4, 1.0)):
        part = error if factor == 1 else F.avg_pool2d(error, factor)
        heavy = weight if factor == 1 else F.avg_pool2d(weight, factor)
        across, down = part.diff(dim=-1).abs(), part.diff(dim=-2).abs()
        loss = loss + share * ((heavy[..., 1:] * across).mean() + (heavy[..., 1:, :] * down).mean())
    return loss


def psnr_of_sprites(output: Tensor, picture: Tensor, cover: Tensor) -> Tensor:
    """Peak signal-to-noise ratio in dB of what sprites cover -> [B]."""
    error = (output - picture).square().mean(1, keepdim=True)
    return -10 * ((error * cover).sum((1, 2, 3)) / cover.sum((1, 2, 3))).log10()


def main() -> None:
    parser = run.parser(__doc__ or "", steps=8000, batch=4, lr=6e-4, warmup=200, save_every=100, validate_every=200)
    parser.add_argument("--codebook", type=int, default=4096, help="entries of the codebook")
    parser.add_argument("--free", type=int, default=400, help="first steps without quantisation, before the codebook is fitted")
    parser.add_argument(
        "--scenes", type=int, default=12_000, help="scenes to draw for training; 0.26 MB each in the run's folder"
    )
    args = parser.parse_args()
    opts = run.options(args)
    model = EmojiTokenizer(args.codebook).to(opts.device)
    renderer = Renderer(sprites(), opts.device)
    bank = Bank(opts.out, renderer, args.scenes, 500_000_003 + 1_000_003 * (opts.seed * opts.world + opts.rank))
    book = model.tokenizer.vq.quantize.embedding.weight
    held = torch.cat([renderer(sample_scenes(CHUNK, HELD_OUT + part)).cpu() for part in range(VALIDATED // CHUNK)])
    # bfloat16 where the processor has it, else it is slower than float32
    fast = opts.device.type == "cuda" or torch.ops.mkldnn._is_mkldnn_bf16_supported()

    def cast() -> torch.autocast:
        return torch.autocast(opts.device.type, torch.bfloat16, enabled=fast)

    @torch.no_grad()
    def fit_codebook(step: int) -> None:
        found = []
        for extra in range(80):
            with cast():
                z = model.latent(bank(max(0, step - 1 - extra), opts.batch)[0].to(opts.device)).float()
            found.append(z.permute(0, 2, 3, 1).flatten(0, 2))
        model.quantiser.start(torch.cat(found))
        book.data.copy_(model.quantiser.total)

    def batch_loss(step: int) -> tuple[Tensor, dict[str, float]]:
        picture, cover = (part.to(opts.device) for part in bank(step, opts.batch))
        if step == args.free:
            fit_codebook(step)
        with cast():
            z = model.latent(picture).float()
        commit = z.new_zeros(())
        if step >= args.free:
            vectors = z.detach().permute(0, 2, 3, 1).reshape(-1, WIDTH)
            ids = (vectors @ book.t()).argmax(-1)
            q = F.embedding(ids, book).view(z.shape[0], *z.shape[2:], -1).permute(0, 3, 1, 2)
            commit = (z - q).square().mean()
            z = z + (q - z).detach()
            book.data.copy_(model.quantiser.follow(vectors, ids))
        with cast():
            output = model.picture.raw(z)
        output = output.float()
        drawn = (output.detach().clamp(-1, 1) + 1) / 2
        numbers = {"psnr": psnr(drawn, picture).mean().item(), "commit": commit.item()}
        return loss_of(output, picture * 2 - 1, cover) + 2.0 * commit, numbers

    def validate() -> dict[str, float]:
        used, drawn = torch.zeros(args.codebook, dtype=torch.bool), []
        free = not bool(model.quantiser.total.any())
        for part in held.split(CHUNK):
            picture = part[:, :3].to(opts.device)
            z = model.latent(picture)
            if not free:
                ids = model.encode(picture)
                used[ids.flatten().cpu()] = True
                z = model.tokenizer.vectors(ids)
            drawn.append(model.picture(z).cpu())
        output = torch.cat(drawn)
        pairs = torch.cat([part for k in (0, 8) for part in (held[k : k + 8, :3], output[k : k + 8])])
        contact_sheet(pairs, 8).save(opts.out / "held_out.png")
        return {
            "held_out_psnr": psnr(output, held[:, :3]).mean().item(),
            "held_out_sprites_psnr": psnr_of_sprites(output, held[:, :3], held[:, 3:]).mean().item(),
            "codes_used": used.sum().item() / args.codebook,
        }

    run.train(model, opts, batch_loss, validate)


if __name__ == "__main__":
    main()
