"""Pictures of drafts: one cell of a finished picture, decoded with other tokens in it.

A draft and its neighbours in the codebook look similar, which is why a relaxed rule may take one
for the other.

Nothing of a run is kept for this: the page sends the picture's tokens, and cells are decoded when a
visitor looks at them.
"""

from __future__ import annotations

from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple, TypeGuard

import torch
from PIL import Image

from lantern_demo.decoding.config import Config
from lantern_demo.decoding.evidence import own_logits
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling, guide, probabilities
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.run_view import around, webp_address
from lantern_demo.ui.service import Service, on_zero_gpu

# at most so many drafts, neighbours of each, and likeliest tokens of the model
DRAFTS, NEAR, LIKED = 3, 4, 4
BESIDE = 1  # at most so many tokens that are no drafts, shown without neighbours
# of a draft tree with the model's own token below it; the page draws larger ones without pictures
NODES = 17
AROUND = 1  # cells shown on each side: a token colours its surroundings
PATIENCE = 5.0  # seconds that a look waits for the one before it
# pictures whose distributions are kept: each costs a pass over the picture, of which a visitor
# looks at many cells
KEPT = 8


class Node(NamedTuple):
    """A node of a draft tree: its cell, also past the end, and its path's tokens by cell."""

    cell: int
    tokens: dict[int, int]


class Place(NamedTuple):
    """A cell that a visitor looks at."""

    pipe: Pipeline
    settings: Settings
    prompt: str
    tokens: list[int]
    cell: int
    drafts: list[int]
    beside: list[int]
    tree: list[Node] | None


class LookAlikes:
    """Decodes cells on request, while nothing runs on the device."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._liked = lru_cache(KEPT)(_likeliest)
        self._one = Lock()  # one look at a time: the next one waits for it, but not for a run

    def look(self, asked: Any) -> dict[str, Any]:
        """Return the pictures of a cell, or {"error": a sentence}.

        `asked` is checked here: anybody can send anything.

        "picture": a strip of squares; "squares": how many; "tokens": the cell's token in each of
        the first ones; "drafts": [[draft, its neighbours...]]; "liked": [[token, probability]];
        "tree": the square of each node of a draft tree, None past the picture's end, or None if no
        tree was sent.
        """
        try:
            place = self._checked(asked)
            if on_zero_gpu():
                raise ValueError(texts.NO_LOOK_HERE)
            if not self._one.acquire(timeout=PATIENCE):
                return {"error": texts.LOOK_LATER}
            try:
                found = self._service.at_once(self._decoded, place)
            finally:
                self._one.release()
        except ValueError as error:
            return {"error": texts.to_visitor(str(error))}
        return {"error": texts.LOOK_LATER} if found is None else found

    def _checked(self, asked: Any) -> Place:
        if not isinstance(asked, dict):
            raise ValueError("the place must be an object")
        pipe = self._service.loaded.get(str(asked.get("model")))
        if pipe is None:
            raise ValueError(texts.LOOK_NOT_LOADED)
        codes, places = len(pipe.networks.tokenizer.codebook), pipe.info.tokens
        tokens, cell, drafts = (asked.get(name) for name in ("tokens", "cell", "drafts"))
        beside = asked.get("beside", [])
        if (
            not _ids(tokens, codes)
            or len(tokens) != places
            or not _is_id(cell, places)
            or not _ids(drafts, codes)
            or not _ids(beside, codes)
        ):
            raise ValueError(
                "the place must have the tokens of a picture, one of its cells, and drafts"
            )
        given = asked.get("settings")
        if not isinstance(given, dict) or not set(given) <= set(Settings().as_dict()):
            raise ValueError("settings must be a run's settings")
        tree = None if asked.get("tree") is None else _tree(asked["tree"], codes, places)
        settings, prompt = Settings(**given), pipe.check_prompt(asked.get("prompt"))
        return Place(pipe, settings, prompt, tokens, cell, drafts[:DRAFTS], beside[:BESIDE], tree)

    def _decoded(self, place: Place) -> dict[str, Any]:
        pipe, cell, tree = place.pipe, place.cell, place.tree
        with torch.inference_mode():
            table = pipe.neighbours(place.settings.neighbours)
            rows = [[draft, *table[draft, :NEAR].tolist()] for draft in place.drafts]
            sampling = place.settings.sampling()
            liked = self._liked(pipe, place.prompt, sampling, tuple(place.tokens))[cell]
        drafted = [token for row in rows for token in row]
        shown = [place.tokens[cell], *place.beside, *drafted, *(token for token, _ in liked)]
        wanted = list(dict.fromkeys(shown))
        nodes = [Node(cell, {cell: token}) for token in wanted] + (tree or [])
        inside = [node for node in nodes if node.cell < len(place.tokens)]
        numbers = iter(range(len(wanted), len(inside)))
        return {
            "picture": webp_address(_strip(pipe, place.tokens, inside)),
            "squares": len(inside),
            "tokens": wanted,
            "drafts": rows,
            "liked": liked,
            "tree": tree
            and [next(numbers) if node.cell < len(place.tokens) else None for node in tree],
        }


def _likeliest(
    pipe: Pipeline, prompt: str, sampling: Sampling, tokens: tuple[int, ...]
) -> list[list[tuple[int, float]]]:
    """Return the model's likeliest tokens by cell, each with its probability.

    It is given all tokens before; the first cell has none.
    """
    encoded = pipe.read(prompt).encoded
    condition = pipe.networks.target.condition(
        encoded.features, encoded.mask, sampling.cfg_scale != 1
    )
    config = Config(METHODS["vanilla"], len(tokens), sampling, device=pipe.device)
    liked: list[list[tuple[int, float]]] = [[]]
    for logits in own_logits(pipe.target, condition, list(tokens), config):
        probs = probabilities(guide(logits, sampling.cfg_scale), sampling)
        top = probs.topk(min(LIKED, probs.shape[-1]))
        liked += [
            list(zip(*row, strict=True))
            for row in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]
    return liked


def _is_id(value: Any, limit: int) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit


def _ids(value: Any, limit: int) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(_is_id(x, limit) for x in value)


def _tree(asked: Any, codes: int, places: int) -> list[Node]:
    """Return the nodes of a draft tree that was sent; raise ValueError for anything else.

    It is {"tokens", "parents": an earlier node for each but the root, "at": the root's cell}.
    """
    found = asked if isinstance(asked, dict) else {}
    tokens, parents, at = (found.get(name) for name in ("tokens", "parents", "at"))
    if (
        not _ids(tokens, codes)
        or not _ids(parents, NODES)
        or not _is_id(at, places)
        or not 1 <= len(tokens) == len(parents) <= NODES
        or any(parent >= node for node, parent in enumerate(parents) if node)
    ):
        raise ValueError(
            f"tree must have at most {NODES} tokens, the parent of each among those "
            "before it, and the root's place"
        )
    nodes = [Node(at, {at: tokens[0]})]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        cell, before = nodes[parent].cell + 1, nodes[parent].tokens
        nodes.append(Node(cell, before | {cell: token}))
    return nodes


def _strip(pipe: Pipeline, tokens: list[int], nodes: list[Node]) -> Image.Image:
    """Return the pictures around each node's cell, with the node's tokens in it, side by side.

    Equal pictures are decoded once.
    """
    images: dict[tuple[int, ...], Image.Image] = {}
    squares = []
    for cell, replaced in nodes:
        drawn = tuple(replaced.get(place, token) for place, token in enumerate(tokens))
        if drawn not in images:
            images[drawn] = pipe.decode_image(list(drawn))
        squares.append(around(images[drawn], cell, pipe.info.grid, AROUND))
    size = squares[0].width
    strip = Image.new("RGB", (len(squares) * size, size))
    for i, square in enumerate(squares):
        strip.paste(square, (i * size, 0))
    return strip
