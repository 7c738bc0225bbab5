"""Every use of a part of Gradio that its documentation does not promise.

Open this file first when you upgrade Gradio.

Each function names the problem that it works around. All were checked with the version CHECKED;
`tests/test_gradio_patches.py` fails when one of the parts is gone, and when another version is
installed.

Some dependences cannot be moved here. `style.css` and `web/*.css` name classes of Gradio's own
elements: `.html-container`, `.gr-accordion`, `.label-wrap`, `.main.fillable`, `.main.contain`,
`.column`, `.tab-like-container`, `.head`, `.toast-wrap` and `.show-api`, and the mark
`data-testid="status-tracker"` of its loading indicator. `web/layers.js` uses the role `listbox` of
an open list. `web/lost.js` answers the requests for `/gradio_api/app_id` that Gradio's page makes
once the server does not answer. `head.with_tags` matches the line with which Gradio's HTML loads a
script for frames. `web/ahead.js` recognises an endless counter by the source of its function and
stops it, and keeps `beforeunload` from Gradio. A run mutates the `run_state.Shown` that it handed
to a `gr.State`. This only works since Gradio keeps the object itself and no copy; a test checks
that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import gradio as gr
import gradio.processing_utils
import gradio.routes
from fastapi import HTTPException
from fastapi import Request as HttpRequest
from gradio.route_utils import FnIndexInferError, get_root_url
from gradio.server_messages import ProcessCompletedMessage
from gradio.utils import get_function_description

CHECKED = "6.31.0"

# Errors that Gradio raises for a plain HTTP call with too many or too few parameters, or to no
# endpoint, and the paths of such calls. Without our own handler each is a bare 500.
MISCALLS = (TypeError, KeyError, FnIndexInferError)
CALL_PATHS = ("/call/", "/run/", "/api/", "/queue/join", "/component_server")

# Skip Gradio's request for the page after the launch. It times out after three seconds, too soon on
# a busy machine.
LAUNCH_OPTIONS: dict[str, Any] = {"_frontend": False}


# Opened directly, /?view=api shows the page: Gradio marks its documentation as open without loading
# it. Two presses of its button load it.
OPEN_VIEW = """() => {
  if (new URLSearchParams(location.search).get("view") !== "api") return;
  const button = document.querySelector("footer button.show-api");
  if (!button) return;
  button.click();
  setTimeout(() => button.click(), 100);
}"""


@dataclass(frozen=True)
class Joining:
    """A request that asks to join the queue. `event` is None when there is no such event."""

    event: Event | None
    values: list[Any]  # one for each input of the event
    request: HttpRequest
    session: str | None  # that the request named


@dataclass(frozen=True)
class Event:
    """The event that a request calls."""

    name: str | None
    public: bool  # whether programs may call it
    labels: list[str | None]  # of its inputs
    concurrency_id: str  # names the queue that it waits in


@dataclass(frozen=True)
class Queued:
    """A request that waits in the queue or runs."""

    event_id: str
    request: HttpRequest
    session: str | None  # that the request named
    waits: bool


def guard_queue(
    page: gr.Blocks,
    check: Callable[[Joining], None],
    client: Callable[[HttpRequest, str | None], str],
) -> None:
    """Call `check` for each request before it joins the queue of a page; an exception from `check`
    is the answer. No other request joins between a check and the join that follows. `client` names
    the client of a request and its session; clients take turns.

    It replaces `Queue.push`: Gradio limits only the length of the whole queue. It checks neither
    the number nor the types of the values before a worker takes them. It serves requests in order
    of arrival, however many one client has.
    """
    queue, one_by_one = page._queue, asyncio.Lock()
    join = queue.push

    async def push(body: Any, request: HttpRequest, username: str | None) -> Any:
        fn = page.fns.get(body.fn_index)
        event = None
        if fn is not None and fn.fn is not None:
            labels = [getattr(block, "label", None) for block in fn.inputs]
            event = Event(fn.api_name, fn.api_visibility != "private", labels, fn.concurrency_id)
        async with one_by_one:
            check(Joining(event, body.data, request, body.session_hash))
            joined = await join(body=body, request=request, username=username)
            if event is not None and joined[0]:
                take_turns(page, event.concurrency_id, client)
            return joined

    queue.push = push


def take_turns(
    page: gr.Blocks, concurrency_id: str, client: Callable[[HttpRequest, str | None], str]
) -> None:
    """Sort the requests that wait for a concurrency id into rounds: each client's first request
    that runs or waits, then each client's second, and so on. Within a round the requests keep their
    order. Waiting clients get their new positions.
    """
    queue, before, rounds = page._queue, Counter[str](), dict[str, int]()
    for queued in pending(page, concurrency_id):
        name = client(queued.request, queued.session)
        rounds[queued.event_id], before[name] = before[name], before[name] + 1
    line = queue.event_queue_per_concurrency_id[concurrency_id].queue
    # `line.sort` would show other threads an empty list meanwhile
    line[:] = sorted(line, key=lambda event: rounds[event._id])
    queue.broadcast_estimations(concurrency_id)


def drop_lost_messages(page: gr.Blocks) -> None:
    """Drop a message for a session that has no message queue.

    For such a message Gradio raises KeyError while it sends the waiting clients their positions,
    and its queue stops for good. A request that names its session "" leads to that. So does one
    that waits while 2,000 other sessions come: Gradio keeps only the latest.

    It replaces `Queue.send_message`.
    """
    queue = page._queue
    send = queue.send_message

    def send_message(event: Any, message: Any) -> None:
        if event.session_hash in queue.pending_messages_per_session:
            send(event, message)

    queue.send_message = send_message


def calm_queue(page: gr.Blocks) -> None:
    """Let the queue of a page do less during timed runs.

    It sets three attributes of `Queue`. After every run Gradio sums up the latest ones for its
    monitoring page, which is switched off here. While a request waits, it polls the queue a
    thousand times a second, which takes the interpreter from the timed run.
    """
    queue = page._queue
    queue.ANALYTICS_MAX_EVENTS = 1
    queue.sleep_when_free, queue.progress_update_sleep_when_free = 0.02, 0.5


def waiting(page: gr.Blocks, concurrency_id: str) -> int:
    """Count the requests that wait for a concurrency id.

    Gradio's own count, `/queue/status`, is of all ids together.
    """
    line = page._queue.event_queue_per_concurrency_id.get(concurrency_id)
    return 0 if line is None else len(line.queue)


def pending(page: gr.Blocks, concurrency_id: str) -> Iterator[Queued]:
    """Yield the requests that run under a concurrency id, then those that wait for it, the next one
    first. Gradio has no public list of them.
    """
    queue = page._queue
    running = [
        event
        for job in queue.active_jobs
        for event in job or ()
        if event.concurrency_id == concurrency_id and event.alive
    ]
    line = queue.event_queue_per_concurrency_id.get(concurrency_id)
    waits = [] if line is None else list(line.queue)
    for event in [*running, *waits]:
        # Gradio gives a request without a session a new one, named by the event's id.
        yield Queued(
            event._id,
            event.request,
            None if event.session_hash == event._id else event.session_hash,
            event in waits,
        )


def ahead_of(page: gr.Blocks, concurrency_id: str, session: str | None) -> int | None:
    """Count the requests that run or wait before the next one of a session for a concurrency id;
    None if the session has none.
    """
    for place, queued in enumerate(pending(page, concurrency_id)):
        if queued.waits and queued.session == session:
            return place
    return None


def forget_calls(page: gr.Blocks) -> None:
    """Drop a plain call's session when the call ends.

    No client can return to it, and Gradio would keep it like a page's.

    It replaces `Queue.reset_iterators`, which Gradio calls at the end of each event.
    """
    queue = page._queue
    close = queue.reset_iterators

    async def reset_iterators(event_id: str) -> None:
        await close(event_id)
        # A call that names no session has its own id for one.
        page.state_holder.session_data.pop(event_id, None)
        page.state_holder.time_last_used.pop(event_id, None)

    queue.reset_iterators = reset_iterators


def answer_once(page: gr.Blocks, sentence: str) -> None:
    """Answer a plain call with a sentence when a client requests it again after its last answer.

    Gradio would keep that connection open and never send anything. An id that no call has, or whose
    client hung up, still gets Gradio's own answer: an event with a bare 404, after which the stream
    breaks off and the log has a traceback, since Gradio raises within the stream.

    It replaces `Queue.push`, and `get` of the queue that holds a call's messages.
    """
    queue = page._queue
    join = queue.push

    async def push(body: Any, request: HttpRequest, username: str | None) -> Any:
        plain = body.session_hash is None
        success, event_id, state = await join(body=body, request=request, username=username)
        if plain and success:
            # A call that names no session has its own id for one.
            messages = queue.pending_messages_per_session[event_id]
            take, last = (
                messages.get,
                ProcessCompletedMessage(
                    event_id=event_id, output={"error": sentence}, success=False
                ),
            )

            async def get() -> Any:
                message = await take()
                if isinstance(message, ProcessCompletedMessage):
                    messages.put_nowait(last)
                return message

            messages.get = get
        return success, event_id, state

    queue.push = push


def fetch_nothing(sentence: str) -> None:
    """Refuse with a sentence every address that Gradio would fetch for a visitor: as a file among
    an event's values, also of an event outside the queue, and after `file=`. This holds for all
    pages of the process.

    It replaces `async_ssrf_protected_download` and the route's `secure_url_stream_response`, which
    ask any public host and have no switch.
    """

    async def refuse_value(*_: Any, **__: Any) -> None:
        raise gr.Error(sentence, print_exception=False)

    async def refuse_path(*_: Any) -> None:
        raise HTTPException(403, sentence)

    gradio.processing_utils.async_ssrf_protected_download = refuse_value
    gradio.routes.secure_url_stream_response = refuse_path


def http_request(request: Any) -> HttpRequest:
    """Return the plain request from the request of a component's function.

    The function may get the plain one itself, though its signature names Gradio's.
    """
    return request if isinstance(request, HttpRequest) else request.request


def own_address(page: gr.Blocks, request: HttpRequest) -> str:
    """Return the whole address under which a request for "/" found a page, without a slash at its
    end. Gradio reads it from the request and from proxies' headers, so it is untrusted text.
    """
    return get_root_url(request, "/", request.scope.get("root_path") or page.root_path)


def holds_file(value: Any) -> bool:
    """Return whether Gradio would take a part of a value for a server file, or fail on it.

    Gradio tests only for these two keys, and fails where `meta` is no object.
    """
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return (isinstance(value, dict) and {"path", "meta"} <= value.keys()) or any(
        map(holds_file, inner)
    )


def keep_file(block: gr.components.Component, path: str) -> str:
    """Copy a file to where Gradio serves the files of a component, and return the copy's path.

    Gradio copies only once an answer is sent, when the run's folder is gone already.
    """
    return block.move_resource_to_block_cache(path) or ""


def no_tool(page: gr.Blocks, name: str) -> Callable[[Any], AbstractAsyncContextManager[None]]:
    """Return a lifespan for the server of a page that leaves an endpoint out of the MCP tools,
    where MCP is on. Gradio makes a tool of every endpoint that it documents.

    It changes `GradioMCPServer.tool_to_endpoint`.
    """

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        if page.mcp_server_obj is not None:
            tools = page.mcp_server_obj.tool_to_endpoint
            page.mcp_server_obj.tool_to_endpoint = {
                tool: of for tool, of in tools.items() if of != f"/{name}"
            }
        yield

    return lifespan


def document(page: gr.Blocks, dependency: Any, endpoint: Callable[..., Any]) -> None:
    """Put the names and sentences of an endpoint's docstring on its page of the documentation:
    `gr.api` takes only the types, from the signature. The label of an answer is its sentence up to
    the first colon.
    """
    event = page.fns[dependency["id"]]
    _, sentences, returns = get_function_description(endpoint)
    for component, (name, sentence) in zip(event.inputs, sentences.items(), strict=True):
        component.label, component.api_info()["additional_description"] = name, sentence
    for component, sentence in zip(event.outputs, returns, strict=True):
        component.label, component.api_info()["description"] = sentence.split(":")[0], sentence
