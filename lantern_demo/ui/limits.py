"""Limits: how many requests wait, how large one is, how many visitors are kept."""

from __future__ import annotations

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lantern_demo.ui import texts

WAITING = 20  # requests in Gradio's queue; it refuses more
LARGEST_BODY = 8 * 2**20  # bytes of a request body; a larger one is not read
# Visitors whose state is kept, a few MB each. The one that was away longest is dropped first, and
# *Repeat* then finds no run.
SESSIONS = 100


class SmallRequests:
    """ASGI middleware that answers 413 to a request with a body of more than LARGEST_BODY bytes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sentence = texts.TOO_LARGE.format(megabytes=LARGEST_BODY // 2**20)
        stated = Headers(scope=scope).get("content-length", "0")
        if not stated.isdecimal() or int(stated) > LARGEST_BODY:
            refusal = JSONResponse(
                {"error": sentence, "detail": sentence},
                status_code=413,
                headers={"Connection": "close"},
            )
            await refusal(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > LARGEST_BODY:  # sent in pieces, without a length
                raise HTTPException(413, sentence)
            return message

        await self.app(scope, counted, send)
