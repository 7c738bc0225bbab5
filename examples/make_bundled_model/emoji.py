"""The pictures of the emoji scenes' nouns, from two npm packages:
`python examples/make_bundled_model/emoji.py --sheet runs/nouns.png`.

`npm pack` downloads both packages into a cache folder, where their hashes are checked before anything is read from them.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from PIL import Image, ImageDraw
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.make_bundled_model.emoji_scenes import NOUNS, Noun

CACHE = Path("~/.cache/lantern-demo").expanduser()
SPRITE = 256  # pixels a side
MARGIN = 4  # transparent pixels around a sprite


@dataclass(frozen=True)
class Package:
    """A version of an npm package, and the hashes of its archive."""

    name: str
    version: str
    file: str  # as `npm pack` names it
    sha256: str
    sha512: str


PICTURES = Package(
    "@lobehub/fluent-emoji-3d",
    "1.1.0",
    "lobehub-fluent-emoji-3d-1.1.0.tgz",
    "c1bb7eee7de090205a232518a9ab4adb3df458bfbe8a1f78232991194c8b2e58",
    "5a5ab69554ad4e7afc043a48274a449d328ee0bb83c71a931214ef46d0f50cb4"
    "45d267bba207914232a87a10c75ee549d9069e720979c1106feb4954006de1ee",
)
NAMES = Package(
    "emojibase-data",
    "17.0.0",
    "emojibase-data-17.0.0.tgz",
    "d01d0e2ca4e22cb402679532155342c71e2e871f25c32223c013b8b166ebdf5a",
    "62f81be405a81d588757f82ad6aaf96406ab7018a9f81dbbfd92d1b142646e00"
    "0468b959fdfa1ff60f3cd8b4e9984a728413440b49b6484988b658c7b13ca08c",
)


def check(archive: Path, package: Package) -> None:
    """Raises ValueError naming the file when an archive is not the one that the hashes were taken of."""
    data = archive.read_bytes()
    for kind in ("sha256", "sha512"):
        found = hashlib.new(kind, data).hexdigest()
        if found != getattr(package, kind):
            raise ValueError(f"{archive} has the {kind} {found}, not {getattr(package, kind)}: delete it and try again")


def archive_of(package: Package, cache: Path = CACHE) -> Path:
    """The archive of a package in the cache folder, downloaded when it is not there, and checked.

    Raises RuntimeError when npm is missing or cannot download it, and ValueError when its hashes are others.
    """
    path = cache / package.file
    if not path.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeError(f"npm is needed to download {package.name}@{package.version}; or put {package.file} into {cache}")
        cache.mkdir(parents=True, exist_ok=True)
        command = [npm, "pack", "--silent", "--pack-destination", str(cache), f"{package.name}@{package.version}"]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode or not path.exists():
            raise RuntimeError(f"npm could not download {package.name}@{package.version}: {ran.stderr.strip()}")
    check(path, package)
    return path


def keywords(cache: Path = CACHE) -> dict[str, tuple[str, list[str]]]:
    """Names and keywords of all emoji in English, by the name of their picture file without its suffix and without fe0f."""
    with tarfile.open(archive_of(NAMES, cache)) as archive:
        file = archive.extractfile("package/en/data.json")
        assert file is not None
        data: list[dict[str, Any]] = json.load(file)
    return {entry["hexcode"].lower().replace("-fe0f", ""): (entry["label"], entry.get("tags", [])) for entry in data}


def fitted(picture: Image.Image, crop: float = 0.0) -> Tensor:
    """A picture cut to what it shows and enlarged until that fills a sprite, standing in the middle of its lower edge.

    -> [4, SPRITE, SPRITE] uint8, colours multiplied by opacity. The lowest share `crop` of what it shows is cut off.
    """
    picture = picture.convert("RGBA")
    box = picture.getchannel("A").point(lambda a: 255 * (a > 24)).getbbox()
    assert box is not None
    left, top, right, bottom = box
    picture = picture.crop((left, top, right, round(bottom - crop * (bottom - top))))
    scale = (SPRITE - 2 * MARGIN) / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    rgba = numpy.asarray(picture, numpy.float32) / 255
    premultiplied = numpy.concatenate((rgba[..., :3] * rgba[..., 3:], rgba[..., 3:]), -1)
    channels = [Image.fromarray(premultiplied[..., c]).resize((width, height), Image.Resampling.LANCZOS) for c in range(4)]
    values = numpy.stack([numpy.asarray(c) for c in channels]).clip(0, 1)
    sprite = torch.zeros(4, SPRITE, SPRITE, dtype=torch.uint8)
    x, y = (SPRITE - width) // 2, SPRITE - MARGIN - height
    sprite[:, y : y + height, x : x + width] = torch.from_numpy((values * 255).round().astype(numpy.uint8))
    return sprite


def sprites(nouns: Sequence[Noun] = NOUNS, cache: Path = CACHE) -> Tensor:
    """The sprites of nouns in their order -> [N, 4, SPRITE, SPRITE] uint8, as `fitted`. Downloads what the cache folder lacks."""
    wanted = {f"package/assets/{noun.file}.webp": i for i, noun in enumerate(nouns)}
    found: dict[int, Tensor] = {}
    with tarfile.open(archive_of(PICTURES, cache)) as archive:
        for member in archive:
            if member.name in wanted:
                file = archive.extractfile(member)
                assert file is not None
                index = wanted[member.name]
                found[index] = fitted(Image.open(io.BytesIO(file.read())), nouns[index].crop)
    missing = [noun.name for i, noun in enumerate(nouns) if i not in found]
    if missing:
        raise ValueError(f"{PICTURES.name} {PICTURES.version} has no picture of {', '.join(missing)}")
    return torch.stack([found[i] for i in range(len(nouns))])


def sheet(pictures: Tensor, nouns: Sequence[Noun], columns: int = 20, size: int = 64) -> Image.Image:
    """Sprites with their names below, row by row."""
    width, height = size + 12, size + 18
    image = Image.new("RGB", (columns * width, -(-len(nouns) // columns) * height), (96, 108, 98))
    draw = ImageDraw.Draw(image)
    for i, (sprite, noun) in enumerate(zip(pictures, nouns, strict=True)):
        x, y = i % columns * width, i // columns * height
        rgba = sprite.permute(1, 2, 0).numpy().astype(numpy.float32)
        rgba[..., :3] /= rgba[..., 3:].clip(1) / 255
        small = Image.fromarray(rgba.clip(0, 255).astype(numpy.uint8)).resize((size, size), Image.Resampling.LANCZOS)
        image.paste(small, (x + 6, y + 2), small)
        draw.text((x + 2, y + size + 4), noun.name[:13], fill="white")
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw all nouns of the emoji scenes into one picture.")
    parser.add_argument("--sheet", type=Path, required=True, help="file to write")
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"folder of the packages (default: {CACHE})")
    args = parser.parse_args()
    sheet(sprites(cache=args.cache), NOUNS).save(args.sheet)


if __name__ == "__main__":
    main()
