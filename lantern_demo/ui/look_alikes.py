"""Pictures of a step's guesses: the finished picture, decoded with the guesses in their places.

Nothing of a run is kept for this: the page sends the picture's tokens and a draft tree, and they
are decoded when a visitor looks at the step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeGuard

from PIL import Image

from lantern_demo.decoding.config import Config
from lantern_demo.decoding.evidence import own_logits
from lantern_demo.decoding.loop import device_work
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling, guide, probabilities
from lantern_demo.decoding.switch import tried
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.run_view import around, webp_address
from lantern_demo.ui.service import Service, on_zero_gpu

NODES = 17  # at most so many of a draft tree, with the root
CELLS = 4  # at most so many places of which the model's likeliest tokens are shown
LIKED = 2  # of these tokens: the page shows the likeliest that is not the kept one
AROUND = 1  # cells shown on each side: a token colours its surroundings
# pictures whose distributions are kept: each costs a pass over the picture, of which a visitor
# looks at many steps
KEPT = 8


class Node(NamedTuple):
    """A token to show: its cell, also past the end, and the tokens up to it by cell."""

    cell: int
    tokens: dict[int, int]


class Looked(NamedTuple):
    """A step that a visitor looks at."""

    pipe: Pipeline
    settings: Settings
    prompt: str
    tokens: list[int]
    tree: list[Node]
    cells: list[int]


def looker(service: Service) -> Callable[[Any], dict[str, Any]]:
    """Make what decodes guesses on request, while nothing runs on the device."""
    liked = lru_cache(KEPT)(_likeliest)

    def look(asked: Any) -> dict[str, Any]:
        """Return the pictures of a step's guesses, or {"error": a sentence}.

        "later" says that the same step may be asked for again. `asked` is checked here: anybody can
        send anything.
        """
        try:
            step = _checked(service, asked)
            if on_zero_gpu():
                raise ValueError(texts.NO_LOOK_HERE)
            found = service.at_once(_decoded, step, liked)
            return found or {"error": texts.LOOK_LATER, "later": True}
        except ValueError as error:
            return {"error": texts.to_visitor(error)}

    return look


def _checked(service: Service, asked: Any) -> Looked:
    if not isinstance(asked, dict):
        raise ValueError("the step must be an object")
    pipe = service.pipe_of(asked.get("model"))
    if pipe is None:
        raise ValueError(texts.LOOK_NOT_LOADED)
    codes, places = len(pipe.networks.tokenizer.codebook), pipe.info.tokens
    tokens, cells = asked.get("tokens"), asked.get("cells")
    if not _ids(tokens, codes) or len(tokens) != places or not _ids(cells, places):
        raise ValueError("the step must have the tokens of a picture, and some of its cells")
    given = asked.get("settings")
    if not isinstance(given, dict) or not set(given) <= set(Settings().as_dict()):
        raise ValueError("settings must be a run's settings")
    tree = _tree(asked.get("tree"), codes, places)
    settings, prompt = Settings(**given), pipe.check_prompt(asked.get("prompt"))
    return Looked(pipe, settings, prompt, tokens, tree, cells[:CELLS])


def _decoded(step: Looked, likeliest: Callable[..., Any]) -> dict[str, Any]:
    """Return the pictures of a step's guesses.

    "picture": a strip of squares; "tree": the square of each node, None past the picture's end;
    "liked": for each of `cells` [[token, probability, square]], the likeliest first.
    """
    pipe, places = step.pipe, len(step.tokens)
    liked: list[list[tuple[int, float]]] = []
    if step.cells:
        sampling = step.settings.sampling()
        with pipe.threads.used(), device_work(pipe.device):
            by_cell = tried(partial(likeliest, pipe, step.prompt, sampling, tuple(step.tokens)))
        liked = [by_cell[cell] for cell in step.cells]
    inside = [node for node in step.tree if node.cell < places]
    wanted = [
        Node(cell, {cell: token})
        for cell, tokens in zip(step.cells, liked, strict=True)
        for token, _ in tokens
    ]
    square = iter(range(len(inside) + len(wanted)))
    return {
        "picture": webp_address(_strip(pipe, step.tokens, inside + wanted)),
        "tree": [next(square) if node.cell < places else None for node in step.tree],
        "liked": [[[token, p, next(square)] for token, p in tokens] for tokens in liked],
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
            images[drawn] = pipe.images.decode(list(drawn))
        squares.append(around(images[drawn], cell, pipe.info.grid, AROUND))
    size = squares[0].width
    strip = Image.new("RGB", (len(squares) * size, size))
    for i, square in enumerate(squares):
        strip.paste(square, (i * size, 0))
    return strip
