"""What anybody can send to look at a step, and the pictures that come back."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from PIL import Image

from lantern_demo.ui import texts
from lantern_demo.ui.guess_pictures import AROUND, looker
from lantern_demo.ui.service import Service

TOKENS = 256
Look = Callable[[Any], dict[str, Any]]


@pytest.fixture(scope="module")
def look(tiny_service: Service) -> Look:
    return looker(tiny_service)


TREE = {"tokens": [3, 5, 7, 6, 3], "parents": [0, 0, 0, 1, 2], "at": 100}


def step(**changes: Any) -> dict[str, Any]:
    return {"model": "tiny", "tokens": [3] * TOKENS, "tree": TREE} | changes


def test_the_nodes_of_a_tree_are_shown_with_the_guesses_above_them(
    look: Look, tiny_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    strips: list[Image.Image] = []
    address = "lantern_demo.ui.guess_pictures.webp_address"
    monkeypatch.setattr(address, lambda strip: strips.append(strip) or "")
    squares = look(step())["tree"]
    (strip,) = strips
    side, pipe = strip.height, tiny_service.wait()
    assert strip.width == side * 5 and len(squares) == 5
    before, behind, size = [3] * 101, [3] * 155, pipe.info.image_size // pipe.info.grid
    drawn, cells = ([3, 3], [5, 3], [7, 3], [5, 6], [7, 3]), (100, 101, 101, 102, 102)
    for square, tokens, cell in zip(squares, drawn, cells, strict=True):
        row, column = divmod(cell, pipe.info.grid)
        left, top = (column - AROUND) * size, (row - AROUND) * size
        whole = pipe.images.decode([*before, *tokens, *behind][:TOKENS])
        part = whole.crop((left, top, left + side, top + side))
        shown = strip.crop((square * side, 0, (square + 1) * side, side))
        assert shown.tobytes() == part.tobytes(), cell
    ends = look(step(tree=TREE | {"at": 254}))["tree"]
    assert [square is None for square in ends] == [False, False, False, True, True]


WRONG_TREES = {"at": TOKENS}, {"parents": [0, 0, 0, 1, 4]}, {"tokens": [10**9] * 5}
WRONG: list[dict[str, Any]] = [{"tree": TREE | changed} for changed in WRONG_TREES]
WRONG += [{"tree": dict(TREE, tokens=[3] * 18, parents=[0] * 18)}, {"model": "../tiny"}]
WRONG += [{"tokens": [value] * TOKENS} for value in (10**9, -1, True, 3.0)]
WRONG += [{"tokens": [3] * 1_000_000}]


@pytest.mark.parametrize("changes", WRONG, ids=range(len(WRONG)))
def test_what_is_no_step_is_refused_by_a_sentence(look: Look, changes: dict[str, Any]) -> None:
    found = look(step(**changes))
    assert set(found) == {"error"} and len(found["error"]) < 400


def test_nothing_is_decoded_beside_a_run_nor_outside_a_lease(
    look: Look, tiny_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tiny_service.wait().turn():
        assert look(step()) == {"error": texts.LOOK_LATER, "later": True}
    assert "error" not in look(step())
    monkeypatch.setattr("lantern_demo.ui.guess_pictures.on_zero_gpu", lambda: True)
    assert look(step()) == {"error": texts.to_visitor(ValueError(texts.NO_LOOK_HERE))}


def test_looking_over_http(server: str) -> None:
    """Past the page, by hand: the function of the panel and no other."""
    config = httpx.get(f"{server}config").json()
    panel = next(c["id"] for c in config["components"] if c["props"].get("elem_id") == "how-panel")

    def post(**changes: Any) -> httpx.Response:
        body = {"session_hash": "by-hand", "component_id": panel, "fn_name": "look"}
        body |= {"data": step()} | changes
        return httpx.post(f"{server}gradio_api/component_server", json=body, timeout=60)

    assert "picture" in post().json()
    assert set(post(data=None).json()) == {"error"}
    assert post(data=step(tokens=[TOKENS])).json()["error"].startswith("The step must have")
    for name in ("__init__", "postprocess", "", "look.__globals__"):
        assert post(fn_name=name).status_code == 404
