"""What crawlers read: the tags in the HTML of "/" itself, and the picture that a Space names in
them.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from bs4 import BeautifulSoup
from PIL import Image
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from lantern_demo.ui import head, texts
from lantern_demo.ui.recorded import recorded_runs


class Tags:
    """The tags of a page as somebody reads them who runs no script: their contents by name, and the
    title.
    """

    def __init__(self, page: str) -> None:
        soup = BeautifulSoup(page, "html.parser")
        self.title = [tag.string for tag in soup("title")]
        self.scripts = len(soup("script"))
        self.named: dict[str, list[str]] = {}
        for tag in soup("meta"):
            if name := tag.get("property") or tag.get("name"):
                self.named.setdefault(name, []).append(tag.get("content") or "")


def test_the_page_says_what_it_is_without_a_script(server: str) -> None:
    answer = httpx.get(server, params={"prompt": 'a "red" lantern', "seed": "3"})
    found = Tags(answer.text)
    assert found.title == [texts.TITLE]
    assert all(len(contents) == 1 and contents[0] for contents in found.named.values()), (
        "no second tag, and no empty one"
    )
    told = {name: contents[0] for name, contents in found.named.items()}
    assert told["og:title"] == told["twitter:title"] == texts.TITLE
    assert (
        told["description"]
        == told["og:description"]
        == told["twitter:description"]
        == texts.DESCRIPTION
    )
    assert told["og:url"] == str(answer.url)
    assert told["twitter:card"] == "summary" and "og:image" not in told
    assert "og:site_name" not in told and not any(
        "radio" in name + content for name, content in told.items()
    )


@pytest.mark.parametrize("coding", ["identity", "gzip", "br"])
def test_the_length_is_that_of_what_is_sent(server: str, coding: str) -> None:
    with httpx.stream("GET", server, headers={"Accept-Encoding": coding}) as answer:
        assert answer.status_code == 200
        assert sum(map(len, answer.iter_raw())) == int(answer.headers["content-length"])
    assert httpx.head(server).status_code == 200


def test_a_proxy_names_the_address_and_can_put_nothing_else_into_the_page(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = httpx.get(
        server, headers={"X-Forwarded-Host": "lanterns.example", "X-Forwarded-Proto": "https"}
    ).text
    assert Tags(told).named["og:url"] == ["https://lanterns.example/"]
    plain = Tags(httpx.get(server).text)
    for name in ("Host", "X-Forwarded-Host"):
        spoilt = httpx.get(server, headers={name: '"><script>alert(1)</script>'})
        assert "<script>alert(1)" not in spoilt.text
        if spoilt.status_code == 200:
            assert Tags(spoilt.text).scripts == plain.scripts
    monkeypatch.setenv("SPACE_HOST", "someone-lanterns.hf.space")
    monkeypatch.setenv("SPACE_ID", "someone/lanterns")
    told = httpx.get(server, headers={"X-Forwarded-Host": "another.example"}).text
    found = Tags(told).named
    assert found["og:url"] == ["https://someone-lanterns.hf.space/"], (
        "a Space knows its own address"
    )
    assert found["og:image"] == [head.CARD.format(space="someone/lanterns")] and found[
        "twitter:card"
    ] == ["summary_large_image"]


PAGE = (
    b'<html><head><meta property="og:title" content="Gradio" /><title>Gradio</title>\n<script>"<meta '
    b'name=\\"description\\">"</script></head></html>'
)


def served(page: Any, **options: Any) -> TestClient:
    """A page behind the middleware, at "/" and elsewhere."""
    tags = Middleware(head.Head, tags=lambda request: f"<title>{request.url.path}</title>")
    return TestClient(
        Starlette(routes=[Route("/", page), Route("/more", page)], middleware=[tags]), **options
    )


def in_parts(_: Request) -> StreamingResponse:
    return StreamingResponse(iter([PAGE[:20], PAGE[20:70], b"", PAGE[70:]]), media_type="text/html")


@pytest.mark.parametrize("page", [in_parts, lambda _: HTMLResponse(PAGE)])
def test_tags_go_before_the_first_script_however_the_page_is_sent(page: Any) -> None:
    answer = served(page).get("/")
    assert (
        answer.text
        == """<html><head>\n<title>/</title>\n<script>"<meta name=\\"description\\">"</script></head></html>"""
    )
    assert answer.headers["content-length"] == str(len(answer.content))
    behind = served(page, root_path="/lanterns").get("/lanterns/")
    assert "<title>/lanterns/</title>" in behind.text


def test_what_is_not_the_page_passes_through() -> None:
    assert served(in_parts).get("/more").content == PAGE
    answer = served(lambda _: JSONResponse({"<head>": "<script"})).get("/")
    assert answer.json() == {"<head>": "<script"} and "title" not in answer.text


def test_the_picture_of_the_tags_is_that_of_a_recorded_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = Path(__file__).parents[1] / "examples"
    monkeypatch.setattr(sys, "argv", ["link_card.py", "--out", str(tmp_path / "card.png")])
    runpy.run_path(str(examples / "link_card.py"), run_name="__main__")
    assert head.CARD.endswith("/examples/link_card.png")
    for path in (tmp_path / "card.png", examples / "link_card.png"):
        with Image.open(path) as picture:
            assert picture.size == (1200, 630)
            assert picture.info["prompt"] == recorded_runs()[0].record["prompt"]
