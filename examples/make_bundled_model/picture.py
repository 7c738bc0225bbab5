"""Train the picture decoder of the bundled model, which draws the tokens of 128 pixels at 256.

Encoder, codebook and tokens stay unchanged. A training pair is a scene's tokens, from its 128-pixel
picture, and the same scene drawn at 256. Pairs are made on first use and kept in the run's folder.
The decoder starts from the tokenizer's own.
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

from examples.make_bundled_model.lanterns import HELD_OUT, render, sample_scenes
from examples.make_bundled_model.tokenizer import load_image_tokenizer, psnr
from examples.train_drafter import run
from lantern_demo.models import bundled
from lantern_demo.models.tokenizer import ImageTokenizer, PictureDecoder
from lantern_demo.paths import user_path

CHUNK = 8  # scenes drawn at a time
VALIDATED = 8  # chunks of held-out scenes of a validation
SCALE = 2  # of a picture's side over the tokenizer's
SPECK = 9  # pixels; a speck is narrower, and brighter than its surroundings
# config.num_res_blocks: one more residual block per level than in the tokenizer's decoder
BLOCKS = 2


def config(tokenizer: ImageTokenizer) -> JanusVQVAEConfig:
    """Return a decoder's configuration: the tokenizer's with one more block per level and SCALE x
    SCALE times the pixels.
    """
    shape = tokenizer.vq.config.to_diff_dict()
    return JanusVQVAEConfig(**{**shape, "num_res_blocks": BLOCKS, "out_channels": 3 * SCALE**2})


@torch.no_grad()
def start_from(decoder: PictureDecoder, tokenizer: ImageTokenizer) -> None:
    """Copy the tokenizer's decoder, so that training starts from its pictures, every pixel drawn
    SCALE x SCALE times.

    The additional blocks start as identities.
    """
    old = {f"decoder.{k}": v for k, v in tokenizer.vq.decoder.state_dict().items()}
    old.update(
        {f"post_quant_conv.{k}": v for k, v in tokenizer.vq.post_quant_conv.state_dict().items()}
    )
    for end in ("weight", "bias"):  # a pixel shuffle reads the channels colour by colour
        old[f"decoder.conv_out.{end}"] = old[f"decoder.conv_out.{end}"].repeat_interleave(
            SCALE**2, 0
        )
    found = decoder.load_state_dict(old, strict=False)
    if found.unexpected_keys:
        raise ValueError(
            f"the picture decoder has no {found.unexpected_keys[0]}, which the tokenizer's decoder "
            "has"
        )
    for name, weight in decoder.named_parameters():
        if name in found.missing_keys and name.split(".")[-2] in ("conv2", "proj_out"):
            weight.zero_()


def load_picture_decoder(
    folder: Path, tokenizer: ImageTokenizer, device: torch.device
) -> PictureDecoder:
    """Load the picture decoder of a model folder, or the averaged one of a training run for
    `tokenizer`.

    Raises ValueError for a model folder without one.
    """
    if (folder / "config.json").exists():
        found = bundled.load(folder, device).picture
        if found is None:
            raise ValueError(f"{folder} has no picture decoder")
        return found
    decoder = PictureDecoder(config(tokenizer)).to(device)
    decoder.load_state_dict(
        torch.load(folder / "last.pt", map_location=device, weights_only=True)["average"]
    )
    return decoder.requires_grad_(False).eval()


class Pairs:
    """Tokens and pictures of `count` scenes, kept in files of `folder`.

    A chunk of them is made on first use.
    """

    def __init__(
        self, folder: Path, tokenizer: ImageTokenizer, count: int, size: int, seed: int
    ) -> None:
        """Chunk i has the scenes of seed `seed` + i. `count` is rounded up to whole chunks."""
        self.tokenizer, self.size, self.seed = tokenizer, size, seed
        self.count = -(-count // CHUNK) * CHUNK
        folder.mkdir(parents=True, exist_ok=True)

        def kept(name: str, dtype: type, *shape: int) -> numpy.memmap:
            path = folder / f"{name}-{self.count}-{seed}.raw"
            return numpy.memmap(path, dtype, "r+" if path.exists() else "w+", shape=shape)

        self._tokens = kept("tokens", numpy.int16, self.count, tokenizer.grid**2)
        self._pictures = kept("pictures", numpy.uint8, self.count, 3, size, size)
        self._made = kept("made", numpy.uint8, self.count // CHUNK)

    def __call__(self, step: int, batch: int) -> tuple[Tensor, Tensor]:
        """Return the batch of a step: tokens [batch, N] int64, pictures [batch, 3, size, size]
        float32 in [0, 1].

        The first epoch takes the scenes in order, each later one shuffles them differently.
        """
        rows = []
        for place in range(step * batch, (step + 1) * batch):
            turn, row = divmod(place, self.count)
            rows.append(
                row
                if turn == 0
                else int(numpy.random.default_rng((self.seed, turn)).permutation(self.count)[row])
            )
        for chunk in {row // CHUNK for row in rows}:
            self._make(chunk)
        tokens, pictures = (
            torch.from_numpy(self._tokens[rows].astype(numpy.int64)),
            torch.from_numpy(self._pictures[rows]),
        )
        return tokens, pictures.float() / 255

    def _make(self, chunk: int) -> None:
        if self._made[chunk]:
            return
        scenes = sample_scenes(CHUNK, self.seed + chunk).to(self.tokenizer.codebook.device)
        with torch.no_grad():
            tokens, pictures = self.tokenizer.encode(render(scenes)), render(scenes, self.size)
        rows = slice(chunk * CHUNK, (chunk + 1) * CHUNK)
        self._tokens[rows] = tokens.to(torch.int16).cpu().numpy()
        self._pictures[rows] = (pictures * 255).round().byte().cpu().numpy()
        self._made[chunk] = 1


def slopes(pictures: Tensor) -> tuple[Tensor, Tensor]:
    """Compute differences of neighbouring pixels of [B, 3, H, W], across and down -> two of [B, 3,
    H - 1, W - 1].
    """
    corner = pictures[..., :-1, :-1]
    return pictures[..., :-1, 1:] - corner, pictures[..., 1:, :-1] - corner


def steepness(pictures: Tensor) -> Tensor:
    """Compute the mean slope of pictures [B, 3, H, W] in windows of 8 x 8, every 4 pixels -> [B, 3,
    h, w].
    """
    across, down = slopes(pictures)
    return F.avg_pool2d(across.abs() + down.abs(), 8, 4)


def steepness_kept(output: Tensor, picture: Tensor) -> Tensor:
    """Compute the mean slope of pictures over that of the true ones, per picture of [B, 3, H, W] ->
    [B].
    """
    mean = [
        torch.stack([part.abs().mean((1, 2, 3)) for part in slopes(one)]).sum(0)
        for one in (output, picture)
    ]
    return mean[0] / mean[1]


def specks(pictures: Tensor) -> Tensor:
    """Subtract from the brightness of pictures [B, 3, H, W] its morphological opening of SPECK
    pixels -> [B, 1, H, W].

    The rest shows stars, and the crests of ripples that catch a light.
    """
    light = pictures.mean(1, keepdim=True)
    darkest = -F.max_pool2d(-light, SPECK, 1, SPECK // 2)
    return light - F.max_pool2d(darkest, SPECK, 1, SPECK // 2)


def picture_loss(output: Tensor, picture: Tensor) -> Tensor:
    """Return the training loss: errors of pixels, of slopes at three scales, of steepness, and of
    specks.

    Tokens do not fix the exact position of an edge. Errors of pixels and slopes are then smallest
    for a blur, and for no star at all. Steepness of windows and of the whole picture demands as
    much edge nearby as the true picture has, at any position. Errors of specks have more weight, so
    that probable stars are drawn.
    """
    error = output - picture
    loss = error.abs().mean() + 6 * error.square().mean()
    for factor, weight in ((1, 2.0), (2, 2.0), (4, 1.0)):
        across, down = slopes(error if factor == 1 else F.avg_pool2d(error, factor))
        loss = loss + weight * (across.abs().mean() + down.abs().mean())
    loss = loss + 20 * (specks(picture).square() * error.abs()).mean()
    loss = loss + 20 * (steepness(output) - steepness(picture)).abs().mean()
    return loss + 0.25 * (steepness_kept(output, picture) - 1).abs().mean()


class _Float32Conv(nn.Conv2d):
    """The last convolution, in float32 under autocast: bfloat16's rounding would be as large as the
    slopes of a sky.
    """

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


def main() -> None:
    parser = run.parser(__doc__ or "", steps=20_000, batch=4, lr=1.5e-4, warmup=50)
    parser.add_argument(
        "--tokenizer", type=user_path, required=True, help="a tokenizer run or a model folder"
    )
    parser.add_argument(
        "--scenes",
        type=int,
        default=5000,
        help="scenes to draw for training; 0.2 MB each in the run's folder",
    )
    parser.add_argument(
        "--start-from",
        type=user_path,
        help="a model folder or a run, from whose picture decoder to go on",
    )
    args = parser.parse_args()
    opts = run.options(args)
    tokenizer = load_image_tokenizer(args.tokenizer, opts.device).requires_grad_(False).eval()
    model = PictureDecoder(config(tokenizer)).to(opts.device)
    if args.start_from is None:
        start_from(model, tokenizer)
    else:
        model.load_state_dict(
            load_picture_decoder(args.start_from, tokenizer, opts.device).state_dict()
        )
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    model.decoder.conv_out.__class__ = _Float32Conv
    pairs = Pairs(
        opts.out,
        tokenizer,
        args.scenes,
        model.size,
        400_000_003 + 1_000_003 * (opts.seed * opts.world + opts.rank),
    )

    def batch_loss(step: int) -> tuple[Tensor, dict[str, float]]:
        tokens, picture = (part.to(opts.device) for part in pairs(step, opts.batch))
        with run.cast(opts.device):
            output = model.raw(
                tokenizer.vectors(tokens).contiguous(memory_format=torch.channels_last)
            )
        numbers = {"psnr": psnr((output.detach().clamp(-1, 1) + 1) / 2, picture).mean().item()}
        return picture_loss(output, picture * 2 - 1), numbers

    def validate() -> dict[str, float]:
        quality, kept = [], []
        for part in range(VALIDATED):
            scenes = sample_scenes(CHUNK, HELD_OUT + 100 + part).to(opts.device)
            picture = render(scenes, model.size)
            output = model(tokenizer.vectors(tokenizer.encode(render(scenes))))
            quality.append(psnr(output, picture))
            kept.append(steepness_kept(output, picture))
        return {
            "held_out_psnr": torch.cat(quality).mean().item(),
            "held_out_steepness": torch.cat(kept).mean().item(),
        }

    run.train(model, opts, batch_loss, validate)


if __name__ == "__main__":
    main()
