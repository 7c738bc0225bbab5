"""Guesses as pictures: what one place of a finished picture looks like with other tokens in it. A guess and its neighbours in the codebook
look alike, which is why a relaxed rule may take one for the other.

Nothing of a run is kept for this: the page sends the picture's tokens, and the places are decoded when somebody looks at them.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any, TypeGuard

import torch
from PIL import Image

from lantern_demo.decoding.config import Config
from lantern_demo.decoding.methods import METHODS
from lantern_demo.pipeline import Pipeline
from lantern_demo.price import own_laws
from lantern_demo.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.run_view import webp_address
from lantern_demo.ui.service import Service, on_zero_gpu

GUESSES, NEAR, LIKED = 3, 4, 4  # at most so many guesses, neighbours of each, and favourites of the model
AROUND = 1  # cells shown on each side: a token colours its surroundings
PATIENCE = 5.0  # seconds that a look waits for the one before it
KEPT = 8  # pictures whose laws are kept: a law costs a pass over the picture, and a visitor looks at many cells of one


class LookAlikes:
    """Decodes places on request, while nothing runs on the device."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._laws: OrderedDict[Any, list[list[tuple[int, float]]]] = OrderedDict()
        self._one = Lock()  # a look at a time: the next one waits for it, and not for a run

    def look(self, asked: Any) -> dict[str, Any]:
        """What a page's script shows of a place: {"picture": a strip of squares, "tokens": the token of each square, "guesses": [[guess,
        its neighbours...]], "liked": [[token, chance]]}, or {"error": a sentence}. `asked` is checked here: anybody can send anything.
        """
        try:
            pipe, settings, prompt, tokens, cell, guesses = self._checked(asked)
            if on_zero_gpu():
                raise ValueError(texts.NO_LOOK_HERE)
            if not self._one.acquire(timeout=PATIENCE):
                return {"error": texts.LOOK_LATER}
            try:
                found = self._service.at_once(self._decoded, pipe, settings, prompt, tokens, cell, guesses)
            finally:
                self._one.release()
        except ValueError as error:
            return {"error": texts.to_visitor(str(error))}
        return {"error": texts.LOOK_LATER} if found is None else found

    def _checked(self, asked: Any) -> tuple[Pipeline, Settings, str, list[int], int, list[int]]:
        if not isinstance(asked, dict):
            raise ValueError("the place must be an object")
        pipe = next((pipe for pipe in self._service.loaded() if pipe.info.id == asked.get("model")), None)
        if pipe is None:
            raise ValueError(texts.LOOK_NOT_LOADED)
        codes, places = len(pipe.networks.tokenizer.codebook), pipe.info.tokens
        tokens, cell, guesses = (asked.get(name) for name in ("tokens", "cell", "guesses"))
        cells = [cell]
        if not _ids(tokens, codes) or len(tokens) != places or not _ids(cells, places) or not _ids(guesses, codes):
            raise ValueError("the place must have the tokens of a picture, one of its cells, and guesses")
        given = asked.get("settings")
        if not isinstance(given, dict) or not set(given) <= set(Settings().as_dict()):
            raise ValueError("settings must be a run's settings")
        return pipe, Settings(**given), pipe.check_prompt(asked.get("prompt")), tokens, cells[0], guesses[:GUESSES]

    def _decoded(
        self, pipe: Pipeline, settings: Settings, prompt: str, tokens: list[int], cell: int, guesses: list[int]
    ) -> dict[str, Any]:
        with torch.inference_mode():
            table = pipe.neighbours(settings.neighbours)
            rows = [[guess, *table[guess, :NEAR].tolist()] for guess in guesses]
            liked = self._liked(pipe, settings, prompt, tokens)[cell]
        wanted = list(dict.fromkeys([tokens[cell], *(token for row in rows for token in row), *(token for token, _ in liked)]))
        squares = [
            _square(pipe.decode_image([*tokens[:cell], token, *tokens[cell + 1 :]]), cell, pipe.info.grid) for token in wanted
        ]
        strip = Image.new("RGB", (len(squares) * squares[0].width, squares[0].height))
        for i, square in enumerate(squares):
            strip.paste(square, (i * square.width, 0))
        return {"picture": webp_address(strip), "tokens": wanted, "guesses": rows, "liked": liked}

    def _liked(self, pipe: Pipeline, settings: Settings, prompt: str, tokens: list[int]) -> list[list[tuple[int, float]]]:
        """By place the model's favourites, each with its chance given all tokens before; none of the first, which has none before it."""
        key = (pipe.info.id, prompt, settings.sampling(), tuple(tokens))
        if key not in self._laws:
            encoded = pipe.encode(prompt)
            condition = pipe.networks.target.condition(encoded.features, encoded.mask, settings.cfg_scale != 1)
            config = Config(METHODS["vanilla"], len(tokens), settings.sampling(), device=pipe.device)
            tops = [law.topk(min(LIKED, len(law))) for law in own_laws(pipe.target, condition, tokens, config)]
            self._laws[key] = [[], *(list(zip(top.indices.tolist(), top.values.tolist(), strict=True)) for top in tops)]
            while len(self._laws) > KEPT:
                self._laws.popitem(last=False)
        return self._laws[key]


def _ids(value: Any, limit: int) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(isinstance(x, int) and not isinstance(x, bool) and 0 <= x < limit for x in value)


def _square(image: Image.Image, cell: int, grid: int) -> Image.Image:
    """The surroundings of a cell; at the rim of the picture the cell is not in their middle."""
    size, wide = image.width // grid, min(grid, 2 * AROUND + 1)
    left, top = (min(max(place - AROUND, 0), grid - wide) * size for place in (cell % grid, cell // grid))
    return image.crop((left, top, left + wide * size, top + wide * size))
