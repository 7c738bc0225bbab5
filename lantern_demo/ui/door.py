"""Who may join the queue, with what: so many requests wait in all, so many of one client, and none is larger than anything asked
for here could be."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
from collections.abc import Iterator
from typing import Any

import gradio as gr
from fastapi import HTTPException
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from gradio.queueing import Event
from gradio_client.utils import is_file_obj_with_meta
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lantern_demo.faults import writable
from lantern_demo.ui import words
from lantern_demo.ui.engine import on_space

WAITING = 20  # requests that may wait for the device
OF_ONE_CLIENT = 5  # of which so many, waiting or running, may be one client's
ELSEWHERE = 200  # page events that may wait for something else than the device: each is over in a moment
LARGEST_BODY = 8 * 2**20  # bytes of a request; what is larger is not read
DEEPEST = 20  # levels of lists and objects in a value

_LOG = logging.getLogger(__name__)


class Refused(Exception):
    """A request that may not join the queue."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def refuse(_: HttpRequest, error: Exception) -> JSONResponse:
    """Answer a Refused. The page shows `detail`, and `error` is where the API's other refusals have their sentence."""
    assert isinstance(error, Refused)
    sentence = writable(str(error))
    _LOG.info("refused: %s", sentence)
    headers = {"Retry-After": "10"} if error.status in (429, 503) else None
    return JSONResponse({"error": sentence, "detail": sentence}, status_code=error.status, headers=headers)


def refuse_body(_: HttpRequest, error: Exception) -> JSONResponse:
    """Answer a body of another form than an endpoint takes, without repeating it: it may hold what JSON cannot write."""
    assert isinstance(error, RequestValidationError)
    found = [
        {"loc": [writable(str(part)) for part in e["loc"]], "msg": writable(e["msg"]), "type": e["type"]} for e in error.errors()
    ]
    sentence = "; ".join(f"{'.'.join(e['loc'])}: {e['msg']}" for e in found[:5])
    return JSONResponse({"error": sentence, "detail": found}, status_code=422)


def keep(page: gr.Blocks, device: str) -> None:
    """Put a doorkeeper before the queue of a page; `device` is the concurrency id of what runs on the device."""
    queue, one_by_one = page._queue, asyncio.Lock()
    join = queue.push
    # Gradio sums up the latest runs after every one of them, for the monitoring page that is switched off here.
    queue.ANALYTICS_MAX_EVENTS = 1
    # And it looks at the queue a thousand times a second while somebody waits, which takes the interpreter from what is being timed.
    queue.sleep_when_free, queue.progress_update_sleep_when_free = 0.02, 0.5

    async def push(body: Any, request: HttpRequest, username: str | None) -> Any:
        fn = page.fns.get(body.fn_index)
        if fn is None or fn.fn is None:
            raise Refused(404, words.NO_SUCH_EVENT)
        if len(body.data) != len(fn.inputs):
            names = [block.label for block in fn.inputs] if fn.api_visibility == "public" else []
            raise Refused(400, words.wrong_count(fn.api_name, names, len(body.data), len(fn.inputs)))
        for block, value in zip(fn.inputs, body.data, strict=True):
            if (depth := _depth(value)) > DEEPEST:
                raise Refused(400, words.too_deep(block.label or "a value", DEEPEST))
            if fn.api_visibility == "public" and depth and _holds_file(value):
                raise Refused(400, words.no_file(block.label))
        async with one_by_one:
            if fn.concurrency_id == device:
                _admit(queue, device, client_of(request, body.session_hash))
            return await join(body=body, request=request, username=username)

    queue.push = push


def _depth(value: Any) -> int:
    """How many levels of lists and objects a value has, counted no further than just beyond DEEPEST."""
    level, depth = [value], 0
    while depth <= DEEPEST and (level := [v for v in level if isinstance(v, (list, dict))]):
        depth += 1
        level = [x for v in level for x in (v.values() if isinstance(v, dict) else v)]
    return depth


def _holds_file(value: Any) -> bool:
    """Whether Gradio would take a part of a value for a file of the server's."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return is_file_obj_with_meta(value) or any(map(_holds_file, inner))


def _admit(queue: Any, device: str, client: str) -> None:
    """Raises Refused when too many wait, or too many of this client."""
    mine = sum(client_of(event.request, _session(event)) == client for event in pending(queue, device))
    if mine >= OF_ONE_CLIENT:
        raise Refused(429, words.too_many_of_yours(mine, OF_ONE_CLIENT))
    waits = waiting(queue, device)
    if waits >= WAITING:
        raise Refused(503, words.queue_full(waits))


def waiting(queue: Any, device: str) -> int:
    """How many requests wait for the device."""
    line = queue.event_queue_per_concurrency_id.get(device)
    return 0 if line is None else len(line.queue)


def pending(queue: Any, device: str) -> Iterator[Event]:
    """The requests that wait for the device or run on it."""
    line = queue.event_queue_per_concurrency_id.get(device)
    yield from () if line is None else line.queue
    for job in queue.active_jobs:
        yield from (event for event in job or () if event.concurrency_id == device and event.alive)


def client_of(request: HttpRequest, session: str | None) -> str:
    """Who asks: an address. On a Space the proxy before it names the address; elsewhere a stranger could name any.

    On the machine itself every session, a tab or a `gradio_client.Client`, counts as a client of its own.
    """
    named = request.headers.get("x-forwarded-for") if on_space() else None
    address = named.split(",")[0].strip() if named else request.client.host if request.client else ""
    try:
        local = ipaddress.ip_address(address).is_loopback
    except ValueError:
        local = False
    return f"{address} {session}" if local and session else address


def _session(event: Event) -> str | None:
    """The session that a request named; Gradio gives one of its own to those that named none."""
    return None if event.session_hash == event._id else event.session_hash


class SmallRequests:
    """ASGI middleware: a request whose body is larger than anything here needs is answered 413."""

    def __init__(self, app: ASGIApp, largest: int = LARGEST_BODY) -> None:
        self.app, self.largest = app, largest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        stated = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not stated.isdigit() or int(stated) > self.largest:
            await self._answer(send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self.largest:  # sent in pieces, without a length
                raise HTTPException(413, words.too_large(self.largest))
            return message

        await self.app(scope, counted, send)

    async def _answer(self, send: Send) -> None:
        sentence = words.too_large(self.largest)
        body = json.dumps({"error": sentence, "detail": sentence}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})
