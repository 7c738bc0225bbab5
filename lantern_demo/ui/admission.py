"""Admit requests to the queue: limits on waiting requests in all and per client, on request size,
and on visitors kept in memory. Clients take turns.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic

import gradio as gr
from fastapi import HTTPException
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lantern_demo.faults import writable
from lantern_demo.runs.record import depth_of
from lantern_demo.ui import texts
from lantern_demo.ui.gradio_patches import (
    Joining,
    answer_once,
    drop_lost_messages,
    fetch_nothing,
    guard_queue,
    holds_file,
    pending,
    waiting,
)
from lantern_demo.ui.service import on_space

DEVICE = "device"  # the concurrency id of the calls that decode: they take turns
WAITING = 20  # requests that may wait for the device
OF_ONE_CLIENT = 5  # requests of one client that may wait or run
ELSEWHERE = 200  # page events that may wait for anything but the device; each is short
LOOKS, LOOK_SECONDS = 40, 10.0  # looks at a token that a client may take within LOOK_SECONDS
LARGEST_BODY = 8 * 2**20  # bytes of a request body; a larger one is not read
DEEPEST = 20  # levels of lists and objects in a value
# Visitors whose state is kept, a few MB each. The one that was away longest is dropped first, and
# *Run this again* then finds no run.
SESSIONS = 100

_LOG = logging.getLogger(__name__)


class Refused(Exception):
    """A request that may not join the queue."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def refuse(_: HttpRequest, error: Exception) -> JSONResponse:
    """Answer a Refused.

    The page shows `detail`; the API's other refusals have their sentence in `error`.
    """
    assert isinstance(error, Refused)
    sentence = writable(str(error))
    _LOG.info("refused: %s", sentence)
    headers = {"Retry-After": "10"} if error.status in (429, 503) else None
    return JSONResponse(
        {"error": sentence, "detail": sentence}, status_code=error.status, headers=headers
    )


def refuse_body(_: HttpRequest, error: Exception) -> JSONResponse:
    """Answer a body of the wrong form, without repeating it: it may hold values that JSON cannot
    write.
    """
    assert isinstance(error, RequestValidationError)
    found = [
        {
            "loc": [writable(str(part)) for part in e["loc"]],
            "msg": writable(e["msg"]),
            "type": e["type"],
        }
        for e in error.errors()
    ]
    sentence = "; ".join(f"{'.'.join(e['loc'])}: {e['msg']}" for e in found[:5])
    return JSONResponse({"error": sentence, "detail": found}, status_code=422)


def guard(page: gr.Blocks) -> None:
    """Check each request before it joins the queue of a page.

    No request has the server fetch anything.
    """

    def check(asked: Joining) -> None:
        if asked.event is None:
            raise Refused(404, texts.NO_SUCH_EVENT)
        labels = asked.event.labels
        if len(asked.values) != len(labels):
            names = [str(label) for label in labels] if asked.event.public else []
            raise Refused(
                400, texts.wrong_count(asked.event.name, names, len(asked.values), len(labels))
            )
        for label, value in zip(labels, asked.values, strict=True):
            if (depth := depth_of(value, DEEPEST)) > DEEPEST:
                raise Refused(400, texts.TOO_DEEP.format(name=label or "a value", most=DEEPEST))
            if asked.event.public and depth and holds_file(value):
                raise Refused(400, texts.NO_FILE.format(name=label))
        if asked.event.concurrency_id != DEVICE:
            return
        client, waits = client_of(asked.request, asked.session), waiting(page, DEVICE)
        of_client = sum(
            client_of(queued.request, queued.session) == client for queued in pending(page, DEVICE)
        )
        if of_client >= OF_ONE_CLIENT:
            raise Refused(
                429, texts.TOO_MANY_OF_YOURS.format(pending=of_client, most=OF_ONE_CLIENT)
            )
        if waits >= WAITING:
            raise Refused(503, texts.QUEUE_FULL.format(waiting=waits))

    guard_queue(page, check, client_of)
    drop_lost_messages(page)
    answer_once(page, texts.ANSWERED)
    fetch_nothing(texts.NO_ADDRESS)


class Looks:
    """Limit how often a client looks at tokens: each look decodes up to twenty pictures on the
    device.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock, self._times = clock, OrderedDict[str, deque[float]]()

    def refusal(self, page: gr.Blocks, request: HttpRequest) -> str | None:
        """Return why a request may not look now, or None.

        Waiting runs come first, and a client may look LOOKS times in LOOK_SECONDS.
        """
        if waiting(page, DEVICE):
            return texts.LOOK_LATER
        client, now = client_of(request, None), self._clock()
        times = self._times.pop(client, deque(maxlen=LOOKS))
        self._times[client] = times
        while len(self._times) > SESSIONS:
            self._times.popitem(last=False)
        if len(times) == LOOKS and now - times[0] < LOOK_SECONDS:
            return texts.LOOK_SLOWER
        times.append(now)
        return None


def client_of(request: HttpRequest, session: str | None) -> str:
    """Return the address of the client.

    On a Space the proxy names it in a header, which any client elsewhere could forge.

    For clients on this machine each session (a tab or a `gradio_client.Client`) counts separately.
    """
    named = request.headers.get("x-forwarded-for") if on_space() else None
    address = (
        named.split(",")[0].strip() if named else request.client.host if request.client else ""
    )
    try:
        local = ipaddress.ip_address(address).is_loopback
    except ValueError:
        local = False
    return f"{address} {session}" if local and session else address


class SmallRequests:
    """ASGI middleware that answers 413 to a request with a body of more than LARGEST_BODY bytes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        sentence = texts.TOO_LARGE.format(megabytes=LARGEST_BODY // 2**20)
        stated = next(
            (value for name, value in scope["headers"] if name == b"content-length"), b"0"
        )
        if not stated.isdigit() or int(stated) > LARGEST_BODY:
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
