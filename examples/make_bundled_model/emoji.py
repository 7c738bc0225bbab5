"""Fetch the pictures of the world's things from an npm package.

    python examples/make_bundled_model/emoji.py --out runs/sprites.npz

`npm pack` downloads it. Its hash is checked before anything is read from it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import hashlib
import io
import shutil
import subprocess
import tarfile
import tempfile

import numpy
import torch
from PIL import Image
from torch import Tensor

from examples.make_bundled_model.world import PICTURES
from lantern_demo.bench.report import parser_of

PACKAGE = "@lobehub/fluent-emoji-3d@1.1.0"  # Microsoft's Fluent emoji, MIT
ARCHIVE = "lobehub-fluent-emoji-3d-1.1.0.tgz"
SHA512 = (
    "5a5ab69554ad4e7afc043a48274a449d328ee0bb83c71a931214ef46d0f50cb4"
    "45d267bba207914232a87a10c75ee549d9069e720979c1106feb4954006de1ee"
)
SPRITE = 256  # pixels a side
MARGIN = 4  # transparent pixels around a sprite


def fetch(folder: Path) -> Path:
    """Download the package into a folder and return the archive.

    Raise SystemExit with a sentence if npm is missing or fails, or if the hash differs.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise SystemExit(f"npm is needed to download {PACKAGE}: install Node.js")
    command = [npm, "pack", "--silent", "--pack-destination", str(folder), PACKAGE]
    ran = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    path = folder / ARCHIVE
    if ran.returncode or not path.exists():
        raise SystemExit(f"npm could not download {PACKAGE}: {ran.stderr.strip()}")
    if hashlib.sha512(path.read_bytes()).hexdigest() != SHA512:
        raise SystemExit(f"{PACKAGE} does not have the hash that this program knows")
    return path


def fitted(picture: Image.Image, crop: float) -> Tensor:
    """Cut a picture to its visible part and enlarge this to a sprite [4, SPRITE, SPRITE] uint8.

    It stands in the middle of the lower edge. Colours are multiplied by opacity. The lowest share
    `crop` of the visible part is cut off.
    """
    picture = picture.convert("RGBA")
    box = picture.getchannel("A").point(lambda a: 255 * (a > 24)).getbbox()
    assert box is not None
    left, top, right, bottom = box
    picture = picture.crop((left, top, right, round(bottom - crop * (bottom - top))))
    scale = (SPRITE - 2 * MARGIN) / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    rgba = numpy.asarray(picture, numpy.float32) / 255
    rgba = numpy.concatenate((rgba[..., :3] * rgba[..., 3:], rgba[..., 3:]), -1)
    channels = [
        numpy.asarray(
            Image.fromarray(rgba[..., c]).resize((width, height), Image.Resampling.LANCZOS)
        )
        for c in range(4)
    ]
    sprite = torch.zeros(4, SPRITE, SPRITE, dtype=torch.uint8)
    x, y = (SPRITE - width) // 2, SPRITE - MARGIN - height
    values = (numpy.stack(channels).clip(0, 1) * 255).round().astype(numpy.uint8)
    sprite[:, y : y + height, x : x + width] = torch.from_numpy(values)
    return sprite


def sprites(archive: Path) -> Tensor:
    """Return the sprites of PICTURES in their order, [N, 4, SPRITE, SPRITE] uint8.

    Raise KeyError if the archive lacks a picture.
    """
    made = []
    with tarfile.open(archive) as package:
        for thing in PICTURES.values():
            file = package.extractfile(f"package/assets/{thing.file}.webp")
            assert file is not None
            made.append(fitted(Image.open(io.BytesIO(file.read())), thing.crop))
    return torch.stack(made)


def write(path: Path, sprites: Tensor) -> None:
    """Write sprites to a compressed file."""
    numpy.savez_compressed(path, sprites=sprites.numpy())


def read(path: Path) -> Tensor:
    """Read the sprites that `write` wrote."""
    return torch.from_numpy(numpy.load(path)["sprites"])


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        write(args.out, sprites(fetch(Path(folder))))


if __name__ == "__main__":
    main()
