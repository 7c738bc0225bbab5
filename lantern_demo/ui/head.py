"""Describe the page in its HTML for readers that run none of its scripts: search engines and link
previews.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from html import escape

import gradio as gr
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lantern_demo.ui import texts
from lantern_demo.ui.gradio_patches import own_address

# written by examples/link_card.py
CARD = "https://huggingface.co/spaces/{space}/resolve/main/examples/link_card.png"

# Gradio's own tags of the kinds that are written here: its name, its picture, and empty ones.
THEIRS = re.compile(
    rb"""\s*<(?:meta\s+(?:property|name)="(?:og:|twitter:|description)[^>]*|title>[^<]*</title)>"""
)


class Head:
    """ASGI middleware that replaces Gradio's tags in the HTML of "/" with `tags`.

    All other responses pass unchanged.
    """

    def __init__(self, app: ASGIApp, tags: Callable[[Request], str]) -> None:
        self.app, self.tags = app, tags

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].removeprefix(
            scope.get("root_path", "")
        ) not in ("", "/"):
            await self.app(scope, receive, send)
            return
        start: Message | None = None  # held back until the length of the new page is known
        page = bytearray()

        async def described(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                if Headers(raw=message["headers"]).get("content-type", "").startswith("text/html"):
                    start = message
                    return
            elif start is not None:
                page.extend(message.get("body", b""))
                if message.get("more_body"):
                    return
                message = {
                    "type": "http.response.body",
                    "body": with_tags(bytes(page), self.tags(Request(scope))),
                }
                MutableHeaders(raw=start["headers"])["content-length"] = str(len(message["body"]))
                await send(start)
            await send(message)

        await self.app(scope, receive, described)


def with_tags(page: bytes, tags: str) -> bytes:
    """Return the HTML of a page with tags in its head, before the first script: the scripts hold
    texts that look like tags.
    """
    # Gradio's script for framed pages loads only in a frame.
    page = page.replace(
        b"document.head.appendChild(script);",
        b"if (parent !== window) document.head.appendChild(script);",
    )
    head, script, rest = page.partition(b"<script")
    return THEIRS.sub(b"", head) + tags.encode() + b"\n" + script + rest


def tags(page: gr.Blocks, request: Request) -> str:
    """Return the title and the tags of a page.

    Previews need absolute addresses: the Space's, else the requested one.

    Only the files of a Space have known addresses, so only there the tags name a picture.
    """
    space = os.environ.get("SPACE_HOST")
    address = f"https://{space}" if space else own_address(page, request)
    asked = f"?{request.url.query}" if request.url.query else ""  # a link to a run stays one
    told = {
        "description": texts.DESCRIPTION,
        "og:type": "website",
        "og:title": texts.TITLE,
        "og:description": texts.DESCRIPTION,
        "og:url": f"{address}/{asked}",
        "twitter:card": "summary",
        "twitter:title": texts.TITLE,
        "twitter:description": texts.DESCRIPTION,
    }
    if repository := os.environ.get("SPACE_ID"):
        picture = CARD.format(space=repository)
        told |= {
            "og:image": picture,
            "twitter:image": picture,
            "twitter:card": "summary_large_image",
        }
    lines = [
        f'<meta {"property" if name.startswith("og:") else "name"}="{name}" content="{escape(text)}" />'
        for name, text in told.items()
    ]
    return "\n".join(["", f"<title>{escape(texts.TITLE)}</title>", *lines])
