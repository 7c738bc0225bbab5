"""Pictures of a step's guesses: the finished picture, decoded with the guesses in it.

Nothing of a run is kept for this: the page sends the picture's tokens and a draft tree, and they
are decoded when a visitor looks at the step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeGuard

from PIL import Image

from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.settings.knobs import is_id
from lantern_demo.ui import texts
from lantern_demo.ui.run_view import around, webp_address
from lantern_demo.ui.service import Service, on_zero_gpu

NODES = 17  # at most so many of a draft tree, with the root
AROUND = 1  # cells shown on each side: a token colours its surroundings


class Node(NamedTuple):
    """A token to show: its cell, also past the end, and the tokens up to it by cell."""

    cell: int
    tokens: dict[int, int]


class Looked(NamedTuple):
    """A step that a visitor looks at."""

    pipe: Pipeline
    tokens: list[int]
    tree: list[Node]


def looker(service: Service) -> Callable[[Any], dict[str, Any]]:
    """Make what decodes guesses on request, while nothing runs on the device."""

    def look(request: Any) -> dict[str, Any]:
        """Return the pictures of a step's guesses, or {"error": a sentence}.

        "later" means that the step may be requested again. `request` is checked here: anybody can
        send anything.
        """
        try:
            if service.state == "loading":
                return {"error": texts.LOOK_LOADING, "later": True}
            step = _checked(service, request)
            if on_zero_gpu():
                raise ValueError(texts.NO_LOOK_HERE)
            return service.at_once(_decoded, step) or {"error": texts.LOOK_LATER, "later": True}
        except ValueError as error:
            return {"error": texts.to_visitor(error)}

    return look


def _checked(service: Service, request: Any) -> Looked:
    if not isinstance(request, dict):
        raise ValueError("the step must be an object")
    pipe = service.pipe_of(request.get("model"))
    if pipe is None:
        raise ValueError(texts.LOOK_NOT_LOADED)
    codes, places = len(pipe.networks.tokenizer.codebook), pipe.info.tokens
    tokens = request.get("tokens")
    if not _ids(tokens, codes) or len(tokens) != places:
        raise ValueError("the step must have the tokens of a picture")
    return Looked(pipe, tokens, _tree(request.get("tree"), codes, places))


def _decoded(step: Looked) -> dict[str, Any]:
    """Return the pictures of a step's guesses.

    "picture": a strip of squares; "tree": the square of each node, None past the picture's end.
    """
    places, square = len(step.tokens), itertools.count()
    inside = [node for node in step.tree if node.cell < places]
    return {
        "picture": webp_address(_strip(step.pipe, step.tokens, inside)),
        "tree": [next(square) if node.cell < places else None for node in step.tree],
    }


def _ids(value: Any, limit: int) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(is_id(x, limit) for x in value)


def _tree(tree: Any, codes: int, places: int) -> list[Node]:
    """Return the nodes of a draft tree that was sent; raise ValueError for anything else.

    It is {"tokens", "parents": an earlier node for each but the root, "at": the root's cell}.
    """
    found = tree if isinstance(tree, dict) else {}
    tokens, parents, at = (found.get(name) for name in ("tokens", "parents", "at"))
    if (
        not _ids(tokens, codes)
        or not _ids(parents, NODES)
        or not is_id(at, places)
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
            images[drawn] = pipe.images.decode(list(drawn))
        squares.append(around(images[drawn], cell, pipe.info.grid, AROUND))
    size = squares[0].width
    strip = Image.new("RGB", (len(squares) * size, size))
    for i, square in enumerate(squares):
        strip.paste(square, (i * size, 0))
    return strip
