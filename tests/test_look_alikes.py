"""What anybody can send to look at a token, and the names of finished runs that anybody can ask
for.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from PIL import Image

from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.look_alikes import AROUND, DRAFTS, LIKED, LookAlikes
from lantern_demo.ui.run_view import picture_of
from lantern_demo.ui.service import Service

TOKENS = 256


@pytest.fixture(scope="module")
def alikes(tiny_service: Service) -> LookAlikes:
    return LookAlikes(tiny_service)


def place(**changes: Any) -> dict[str, Any]:
    asked = {
        "model": "tiny",
        "prompt": "a red lantern",
        "settings": Settings().as_dict(),
        "tokens": [3] * TOKENS,
        "cell": 40,
        "drafts": [1, 2],
    }
    return asked | changes


def shows(
    alikes: LookAlikes, strip: Image.Image, square: int, tokens: list[int], cell: int
) -> bool:
    """Whether a square of a strip is the part of a picture around a cell."""
    (pipe,), side = alikes._service.loaded.values(), strip.height
    size, (row, column) = pipe.info.image_size // pipe.info.grid, divmod(cell, pipe.info.grid)
    left, top = (column - AROUND) * size, (row - AROUND) * size
    part = pipe.decode_image(tokens).crop((left, top, left + side, top + side))
    return strip.crop((square * side, 0, (square + 1) * side, side)).tobytes() == part.tobytes()


def test_a_place_is_shown(alikes: LookAlikes) -> None:
    found = alikes.look(place(drafts=[1, 2, 4, 5, 6]))
    assert "error" not in found, found
    assert [row[0] for row in found["drafts"]] == [1, 2, 4][:DRAFTS], (
        "no more than are shown, however many are sent"
    )
    strip = picture_of(found["picture"])
    assert strip.width == strip.height * len(found["tokens"]) and found["tokens"][0] == 3
    assert found["squares"] == len(found["tokens"]) and found["tree"] is None
    assert all(0 <= p <= 1 for _, p in found["liked"])


def test_a_token_that_is_no_draft_is_shown_beside_without_its_neighbours(
    alikes: LookAlikes,
) -> None:
    alone, found = alikes.look(place(drafts=[])), alikes.look(place(drafts=[], beside=[9, 10]))
    liked = [token for token, _ in alone["liked"]]
    assert not {9, 10} & {3, *liked}
    assert found["tokens"] == [3, 9, *liked] and found["drafts"] == [], (
        "one at most, however many are sent"
    )
    assert found["squares"] == alone["squares"] + 1
    assert alikes.look(place(drafts=[], beside=[3])) == alone, "what is there is not shown twice"


def test_the_squares_are_of_the_tokens_and_the_favourites_of_the_place(
    alikes: LookAlikes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def liked(**changes: Any) -> list[int]:
        return [token for token, _ in alikes.look(place(**changes))["liked"]]

    assert len(liked()) == LIKED and liked(cell=0) == [], "nothing is before the first"
    before = [3] * 39
    assert liked(tokens=[*before, 5, *[3] * 216]) != liked(), (
        "the distribution given the tokens before"
    )
    assert liked(tokens=[*before, 3, *[5] * 216]) == liked(), "and none behind"
    strips: list[Image.Image] = []
    monkeypatch.setattr(
        "lantern_demo.ui.look_alikes.webp_address", lambda strip: strips.append(strip) or ""
    )
    found = alikes.look(place())
    for square, token in enumerate(found["tokens"]):
        assert shows(alikes, strips[0], square, [*[3] * 40, token, *[3] * 215], 40)


TREE = {"tokens": [3, 5, 7, 6, 3], "parents": [0, 0, 0, 1, 2], "at": 254}


def test_the_nodes_of_a_tree_are_shown_with_the_drafts_above_them(
    alikes: LookAlikes, monkeypatch: pytest.MonkeyPatch
) -> None:
    strips: list[Image.Image] = []
    monkeypatch.setattr(
        "lantern_demo.ui.look_alikes.webp_address", lambda strip: strips.append(strip) or ""
    )
    found = alikes.look(place(tree=TREE | {"at": 100}))
    (strip,) = strips
    assert strip.width == strip.height * found["squares"] and len(found["tree"]) == 5
    before, behind = [3] * 101, [3] * 155
    for square, drawn, cell in zip(
        found["tree"],
        ([3, 3], [5, 3], [7, 3], [5, 6], [7, 3]),
        (100, 101, 101, 102, 102),
        strict=True,
    ):
        assert shows(alikes, strip, square, [*before, *drawn, *behind][:TOKENS], cell), cell
    beyond = [square is None for square in alikes.look(place(tree=TREE))["tree"]]
    assert beyond == [False, False, False, True, True]


def test_nothing_is_decoded_outside_a_lease(
    alikes: LookAlikes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lantern_demo.ui.look_alikes.on_zero_gpu", lambda: True)
    assert alikes.look(place()) == {"error": texts.to_visitor(texts.NO_LOOK_HERE)}


WRONG: dict[str, list[Any]] = {
    "cell": [TOKENS, -1, True, None, "0"],
    "tokens": [
        None,
        "3" * TOKENS,
        [3] * 1_000_000,
        *([v] * TOKENS for v in (10**9, -1, True, 3.0)),
    ],
    "drafts": [None, [10**9], ["1"], [False]],
    "beside": [None, [-1]],
    "settings": [None, {"seeds": 1}, {"seed": [1]}, {"tree": ["0"] * 100_000}],
    "prompt": [None, "", "x" * 100_000, "\x00"],
    "tree": [
        *([], {}, {"tokens": [3] * 18, "parents": [0] * 18, "at": 0}),
        *(TREE | changed for changed in ({"at": TOKENS}, {"parents": [0, 0, 0, 1, 4]})),
        TREE | {"tokens": [10**9] * 5},
    ],
    "model": [None, "../tiny", ["tiny"]],
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_place_is_refused_by_a_sentence(alikes: LookAlikes, name: str) -> None:
    for value in WRONG[name]:
        found = alikes.look(place(**{name: value}))
        assert set(found) == {"error"}, str(value)[:100]
        assert len(found["error"]) < 400


def test_nothing_is_decoded_beside_a_run(alikes: LookAlikes) -> None:
    with alikes._service._turn:
        assert alikes.look(place()) == {"error": texts.LOOK_LATER}
    assert "error" not in alikes.look(place())


def test_looking_over_http(server: str) -> None:
    """Past the page, by hand: the function of the stage and no other."""
    config = httpx.get(f"{server}config").json()
    stage = next(c["id"] for c in config["components"] if c["props"].get("elem_id") == "stage")

    def post(**changes: Any) -> httpx.Response:
        body = {"session_hash": "by-hand", "component_id": stage, "fn_name": "look"}
        body |= {"data": place()} | changes
        return httpx.post(f"{server}gradio_api/component_server", json=body, timeout=60)

    assert "picture" in post().json()
    assert set(post(data=None).json()) == {"error"}
    assert post(data=place(cell=TOKENS)).json()["error"].startswith("The place must have")
    for name in ("__init__", "postprocess", "", "look.__globals__"):
        assert post(fn_name=name).status_code == 404
