"""Train the image tokenizer and the picture decoder together.

The encoder reads scenes at 128 pixels, and the picture decoder draws the 16 x 16 tokens at 256. Encoder, codebook and decoder
learn in one run from pixels at 256. The run's folder keeps the scenes, which are drawn at first use; a GPU draws each batch
anew. With --decoder-of, only the picture decoder of a finished run learns, and the tokens stay unchanged. It learns from
slightly wrong tokens too: neighbours in the codebook and, with --target, draws of a target.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import JanusVQVAEConfig

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.make_bundled_model.emoji import sprites
from examples.make_bundled_model.render import SIZE, Renderer, contact_sheet, joined, sample_scenes
from lantern_demo.decoding.sampling import Sampling, draw, probabilities
from lantern_demo.models import bundled
from lantern_demo.models.picture import PictureDecoder
from lantern_demo.models.tokenizer import ImageTokenizer
from lantern_demo.training import run
from lantern_demo.training.captioned import captions
from lantern_demo.training.drafter import load_target

SCENES_SEED = 500_000_003  # seed of the first chunk of training scenes
HELD_OUT = 900_000_007  # seed of the scenes that no training batch uses
VALIDATED = 64  # held-out scenes of a validation
CHUNK = 8  # scenes drawn at a time
READ = 128  # pixels a side of the encoder's input
WIDTH = 8  # dimensions of a codebook vector
SHAKEN, NEAR = 0.1, 50  # share of tokens that --decoder-of replaces, each by one of so many neighbours in the codebook
DRAWN = 0.5  # largest share of a picture's tokens that --target replaces by its draws
STEEP, WINDOW = 10.0, 8  # weight of the error of the mean steepness in windows of so many pixels


def encoder_config(codebook: int) -> JanusVQVAEConfig:
    """Return the sizes of LlamaGen's VQ network at small width: 128 px to 16 x 16 tokens of 8 dimensions."""
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
    """Return the sizes of a picture decoder: attention over the tokens, then a decoder of the same kind that works at up to
    64 px, with 4 x 4 output pixels for each of these.

    On a processor it takes half the time of one that works at 128 px, at twice its width at 64 px.
    """
    shape = encoder_config(codebook).to_diff_dict()
    own = {"base_channels": 32, "channel_multiplier": [2, 3, 3], "out_channels": 3 * 4**2}
    return JanusVQVAEConfig(**{**shape, **own, "latent_channels": 160, "attention_layers": 4})


class Quantiser(nn.Module):
    """A codebook of unit vectors that follows the encoder by running means. Unused entries restart at random vectors."""

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
            total[empty] = vectors[torch.randint(len(vectors), (int(empty.sum()),), device=vectors.device)]
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


class SceneTokenizer(nn.Module):
    """The encoder and codebook of an image tokenizer, and a picture decoder."""

    def __init__(self, codebook: int, picture: JanusVQVAEConfig | None = None) -> None:
        """picture: the sizes of the picture decoder, if they are not those of `picture_config`."""
        super().__init__()
        self.tokenizer = ImageTokenizer(encoder_config(codebook), decodes=False)
        self.tokenizer.vq.quantize.embedding.weight.requires_grad_(False)
        self.picture = PictureDecoder(picture or picture_config(codebook))
        self.quantiser = Quantiser(codebook, WIDTH)  # a module, so that a checkpoint holds it
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                module.reset_parameters()  # the library starts convolutions too small to learn from scratch

    def latent(self, pictures: Tensor) -> Tensor:
        """Map pictures [B, 3, 256, 256] in [0, 1] to unit vectors [B, 8, 16, 16] before quantisation."""
        return self.tokenizer.latent(F.avg_pool2d(pictures, SIZE // READ))

    def encode(self, pictures: Tensor) -> Tensor:
        """Encode pictures [B, 3, 256, 256] in [0, 1] as token ids [B, 256] int64."""
        return self.tokenizer.encode(F.avg_pool2d(pictures, SIZE // READ))


def load(folder: Path, device: torch.device | str = "cpu") -> SceneTokenizer:
    """Load the averaged networks of a run, or those of a model folder, frozen."""
    if (folder / "config.json").exists():
        config = json.loads((folder / "config.json").read_text())
        model = SceneTokenizer(config["tokenizer"]["num_embeddings"], JanusVQVAEConfig(**config["picture"])).to(device)
        bundled.load_part(folder / "tokenizer", model.tokenizer)
        bundled.load_part(folder / "picture", model.picture)
        model.quantiser.total.copy_(model.tokenizer.codebook)
        return model.requires_grad_(False).eval()
    saved = torch.load(folder / "last.pt", map_location=device, weights_only=True)["average"]
    model = SceneTokenizer(saved["quantiser.count"].shape[0]).to(device)
    model.load_state_dict(saved)
    return model.requires_grad_(False).eval()


class Bank:
    """`count` scenes in files of `folder`. Each chunk of them is drawn at its first use."""

    def __init__(self, folder: Path, renderer: Renderer, count: int, seed: int) -> None:
        """Chunk i has the scenes of seed `seed` + i. `count` is rounded up to whole chunks."""
        self.renderer, self.seed = renderer, seed
        self.count = -(-count // CHUNK) * CHUNK

        def array(name: str, *shape: int) -> numpy.memmap:
            path = folder / f"{name}-{self.count}-{seed}.raw"
            return numpy.memmap(path, numpy.uint8, "r+" if path.exists() else "w+", shape=shape)

        self._pictures = array("pictures", self.count, 4, SIZE, SIZE)
        self._made = array("made", self.count // CHUNK)

    def kept(self, chunk: int) -> Tensor | None:
        """Return a chunk as `Renderer` draws it, [8, 4, 256, 256] in [0, 1], or None if it is not drawn yet."""
        if chunk >= len(self._made) or not self._made[chunk]:
            return None
        return torch.from_numpy(self._pictures[chunk * CHUNK : (chunk + 1) * CHUNK]).float() / 255

    def __call__(self, step: int, batch: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return pictures [batch, 3, 256, 256] of a step, the share of each pixel that sprites cover [batch, 1, 256, 256], both
        in [0, 1], and the attributes [batch] of the scenes.

        The first pass takes the scenes in order, later ones shuffle them. Every other pass mirrors them. A GPU draws new
        scenes faster than a disk reads old ones.
        """
        if self.renderer.pictures.device.type == "cuda":
            scenes = sample_scenes(batch, self.seed + len(self._made) + step)
            drawn = self.renderer(scenes, SIZE)
            return drawn[:, :3], drawn[:, 3:], scenes.attributes()
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
        scenes = joined([sample_scenes(CHUNK, self.seed + row // CHUNK) for row in rows]).attributes()
        at = torch.tensor([i * CHUNK + row % CHUNK for i, row in enumerate(rows)])
        return pictures[:, :3], pictures[:, 3:], {name: values[at] for name, values in scenes.items()}


def shaken(ids: Tensor, near: Tensor) -> Tensor:
    """Replace a share SHAKEN of token ids [B, N] by neighbours, near [V, NEAR]. A picture decoder then draws whole things from
    tokens that do not quite fit each other, as a target draws them."""
    chosen = near[ids, torch.randint(NEAR, ids.shape, device=ids.device)]
    return torch.where(torch.rand(ids.shape, device=ids.device) < SHAKEN, chosen, ids)


class Draws:
    """What a target draws in place of true tokens."""

    def __init__(self, folder: Path, device: torch.device, sampling: Sampling) -> None:
        self.target, self.text = load_target(folder, device)
        self.sampling = sampling

    @torch.no_grad()
    def __call__(self, ids: Tensor, said: list[str], seed: int) -> Tensor:
        """Replace a share of token ids [B, N] of pictures, up to DRAWN of each, by draws given the true tokens before them and
        the captions."""
        g = torch.Generator(ids.device).manual_seed(seed)
        features, mask = self.text(*(part.to(ids.device) for part in self.text.ids(said)))
        condition = self.target.condition(features, mask, True)
        with torch.autocast(ids.device.type, torch.bfloat16):
            hidden = self.target.train_hidden(ids[:, :-1].repeat(2, 1), condition.features, condition.mask)[:, -ids.shape[1] :]
            cond, uncond = self.target.head(hidden[..., : self.target.config.dim]).float().chunk(2)
        p = probabilities(uncond + self.sampling.cfg_scale * (cond - uncond), self.sampling)
        drawn = draw(p.flatten(0, 1), torch.rand(ids.numel(), generator=g, device=ids.device)).view_as(ids)
        share, lot = (torch.rand(len(ids), n, generator=g, device=ids.device) for n in (1, ids.shape[1]))
        return torch.where(lot < DRAWN * share, drawn, ids)


def psnr(output: Tensor, image: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio [B] per picture in dB, for values in [0, 1]."""
    return -10 * (output - image).square().mean(dim=(1, 2, 3)).log10()


def loss_of(output: Tensor, picture: Tensor, cover: Tensor) -> Tensor:
    """Return the loss: errors of pixels, and of slopes between pixels at three scales.

    Sprites and their edges weigh three times. output and picture: [B, 3, H, W] in [-1, 1], cover: [B, 1, H, W] in [0, 1].
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
    return loss + STEEP * (steepness(output) - steepness(picture)).abs().mean()


def steepness(picture: Tensor) -> Tensor:
    """Return the root mean square slope in windows of a picture [B, 3, H, W]. A blurred picture lacks it."""
    slopes = F.pad(picture.diff(dim=-1), (0, 1)).square() + F.pad(picture.diff(dim=-2), (0, 0, 0, 1)).square()
    return (F.avg_pool2d(slopes, WINDOW, WINDOW // 2) + 1e-5).sqrt()


def psnr_of_sprites(output: Tensor, picture: Tensor, cover: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio [B] in dB of the pixels that sprites cover, for values in [0, 1]."""
    error = (output - picture).square().mean(1, keepdim=True)
    return -10 * ((error * cover).sum((1, 2, 3)) / cover.sum((1, 2, 3))).log10()


def main() -> None:
    parser = run.parser(__doc__ or "", steps=8000, batch=4, lr=6e-4, warmup=200, save_every=100, validate_every=200)
    parser.add_argument("--codebook", type=int, default=4096, help="entries of the codebook")
    parser.add_argument("--free", type=int, default=400, help="first steps without quantisation, before the codebook is fitted")
    parser.add_argument(
        "--scenes", type=int, default=12_000, help="scenes to draw for training; 0.26 MB each in the run's folder"
    )
    parser.add_argument("--decoder-of", type=Path, help="folder of a finished run whose picture decoder to train further")
    parser.add_argument("--anew", action="store_true", help="train a new picture decoder for --decoder-of")
    parser.add_argument("--target", type=Path, help="folder of a target whose draws --decoder-of learns to read")
    args = parser.parse_args()
    opts = run.options(args)
    model = SceneTokenizer(args.codebook).to(opts.device)
    if args.decoder_of is not None:
        done = load(args.decoder_of, opts.device)
        model.tokenizer, model.quantiser = done.tokenizer, done.quantiser
        model.picture = model.picture if args.anew else done.picture.requires_grad_(True)
    draws = None if args.target is None else Draws(args.target, opts.device, Sampling(cfg_scale=3.0))
    renderer = Renderer(sprites(), opts.device)
    bank = Bank(opts.out, renderer, args.scenes, SCENES_SEED + 1_000_003 * (opts.seed * opts.world + opts.rank))
    book = model.tokenizer.vq.quantize.embedding.weight
    near = (book @ book.t()).topk(NEAR).indices  # unit vectors
    torch.backends.cudnn.benchmark = True
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

    def batch_loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        *pictures, attributes = bank(step, opts.batch)
        picture, cover = (part.to(opts.device) for part in pictures)
        if step == args.free and args.decoder_of is None:
            fit_codebook(step)
        commit = picture.new_zeros(())
        if args.decoder_of is not None:
            ids = model.encode(picture)
            if draws is not None:
                ids = draws(ids, captions(attributes, torch.arange(len(ids)), random.Random(step), 0.0), opts.batch_seed(step))
            z = model.tokenizer.vectors(shaken(ids, near))
        else:
            with cast():
                z = model.latent(picture).float()
        if args.decoder_of is None and step >= args.free:
            vectors = z.detach().permute(0, 2, 3, 1).reshape(-1, WIDTH)
            ids = (vectors @ book.t()).argmax(-1)
            q = F.embedding(ids, book).view(len(z), *z.shape[2:], -1).permute(0, 3, 1, 2)
            commit = (z - q).square().mean()
            z = z + (q - z).detach()
            book.data.copy_(model.quantiser.follow(vectors, ids))
        with cast():
            output = model.picture.raw(z)
        output = output.float()
        drawn = (output.detach().clamp(-1, 1) + 1) / 2
        numbers = {"psnr": psnr(drawn, picture).mean(), "commit": commit.detach()}
        return loss_of(output, picture * 2 - 1, cover) + 2.0 * commit, numbers

    def validate() -> dict[str, float]:
        used, drawn = torch.zeros(len(book), dtype=torch.bool), []
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
            "codes_used": used.sum().item() / len(book),
        }

    run.train(model, opts, batch_loss, validate)


if __name__ == "__main__":
    main()
