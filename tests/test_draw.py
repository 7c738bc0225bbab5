"""/draw: the one call that most programs want."""

from __future__ import annotations

import httpx
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from PIL import Image

FIVE = ("seconds", "speedup", "passes", "tokens_a_pass", "changed")


@pytest.fixture(scope="module")
def client(server: str) -> Client:
    return Client(server, verbose=False)


def test_a_prompt_is_enough(client: Client) -> None:
    picture, numbers = client.predict("a red zebra lantern", api_name="/draw")
    with Image.open(picture) as image:
        assert image.size == (256, 256) and image.info["method"] == "lantern++"
    assert tuple(numbers)[:5] == FIVE
    assert numbers["method"] == "lantern++" and numbers["unknown_words"] == ["zebra"]
    assert numbers["seconds"] > 0 and 0 < numbers["changed"] <= 1 and numbers["speedup"] is None
    assert numbers["passes"] * numbers["tokens_a_pass"] == pytest.approx(255)


def test_with_vanilla_the_speedup_is_known(client: Client) -> None:
    picture, numbers = client.predict("a red lantern", method="eagle1", seed=9, with_vanilla=True, api_name="/draw")
    assert numbers["speedup"] > 0 and numbers["changed"] == 0 and (numbers["method"], numbers["seed"]) == ("eagle1", 9)
    with Image.open(picture) as image:
        assert image.info["method"] == "eagle1"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"prompt": ""}, "prompt is empty; say what to draw"),
        ({"prompt": "a lantern", "method": "medusa"}, "method must be one of vanilla"),
        ({"prompt": "a lantern", "model": "nothing"}, "model must be one of"),
        ({"prompt": "a lantern", "with_vanilla": "perhaps"}, "with_vanilla must be true or false, got 'perhaps'"),
    ],
)
def test_bad_input_gets_a_sentence(client: Client, asked: dict[str, object], sentence: str) -> None:
    with pytest.raises(AppError, match=sentence):
        client.predict(**asked, api_name="/draw")


def test_it_says_what_there_is_to_draw(server: str) -> None:
    endpoint = httpx.get(f"{server}gradio_api/info").json()["named_endpoints"]["/draw"]
    assert "What there is to draw here: " in endpoint["description"] and "{can_draw}" not in endpoint["description"]
    assert [p["parameter_name"] for p in endpoint["parameters"] if not p["parameter_has_default"]] == ["prompt"]
    assert all(p["python_type"]["description"] for p in endpoint["parameters"])
