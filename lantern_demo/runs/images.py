"""Decode tokens to pictures, and make the tables of a model's codebook."""

from __future__ import annotations

from collections.abc import Callable

import torch
from PIL import Image
from torch import Tensor

from lantern_demo import disk_cache
from lantern_demo.decoding.timing import Clock
from lantern_demo.models.bundled import Networks
from lantern_demo.models.device import Threads
from lantern_demo.models.registry import ModelInfo
from lantern_demo.models.tokenizer import neighbour_table, token_colours
from lantern_demo.settings.knobs import MAX_LANTERN_K
from lantern_demo.torch_defaults import own_defaults

KEPT = 8  # pictures


class Images:
    """Pictures of a model's tokens, and the neighbours and colours of each token."""

    def __init__(
        self, info: ModelInfo, networks: Networks, device: torch.device, threads: Threads
    ) -> None:
        self._networks, self._device, self._threads = networks, device, threads
        self._published = info.published is not None
        self._drawn: dict[tuple[int, ...], tuple[Image.Image, float]] = {}  # see `timed`
        self._neighbours: dict[str, Tensor] = {}
        self._palette = networks.palette

    def decode(self, tokens: list[int]) -> Image.Image:
        """Decode all tokens of a picture to an RGB image."""
        return self.timed(tokens)[0]

    @own_defaults()
    @torch.inference_mode()
    def timed(self, tokens: list[int]) -> tuple[Image.Image, float]:
        """Return the image of all tokens of a picture, and the seconds that decoding them took.

        The latest are kept, since with shared noise all exact methods draw the same: the seconds
        are then those of the first.
        """
        key = tuple(tokens)
        if key not in self._drawn:
            clock = Clock(self._device)
            with self._threads.used(), clock.measure("image"):
                pixels = self._networks.draw(torch.tensor([tokens], device=self._device))[0]
                rows = (pixels * 255).round().byte().permute(1, 2, 0).cpu().numpy()
            self._drawn[key] = Image.fromarray(rows), clock.seconds["image"]
            while len(self._drawn) > KEPT:
                del self._drawn[next(iter(self._drawn))]
        image, seconds = self._drawn[key]
        return image.copy(), seconds  # a caller may draw on it

    @own_defaults()
    @torch.inference_mode()
    def neighbours(self, vectors: str = "decoder") -> Tensor:
        """Return the neighbour table [V, k] int32 on the device.

        vectors: "decoder", those that the picture decoder reads, or "raw", the stored ones.
        """
        if vectors not in self._neighbours:
            tokenizer = self._networks.tokenizer
            raw = tokenizer.vq.quantize.embedding.weight
            book = tokenizer.codebook if vectors == "decoder" else raw
            columns = min(MAX_LANTERN_K, len(book) - 1)
            name = f"neighbours-{columns}"
            with self._threads.used():
                table = self._kept(name, book, lambda: neighbour_table(book, columns))
            self._neighbours[vectors] = table.to(self._device)
        return self._neighbours[vectors]

    @own_defaults()
    def palette(self) -> Tensor:
        """Return the colour of each token [V, 3] uint8 on the CPU; the page paints with them."""
        if self._palette is None:
            tokenizer = self._networks.tokenizer
            with self._threads.used():
                made = self._kept("palette", tokenizer.codebook, lambda: token_colours(tokenizer))
            self._palette = made.to("cpu", torch.uint8)
        return self._palette

    def _kept(self, name: str, codebook: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """Make a table of a codebook.

        For a published model this takes seconds to minutes, and the disk keeps the table.
        """
        return disk_cache.table(name, codebook, make) if self._published else make()
