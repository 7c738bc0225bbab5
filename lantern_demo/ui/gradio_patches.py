"""Every use of a part of Gradio that its documentation does not promise.

Each function names the Gradio version that needs it, and the reason. Check each with a new version
of Gradio: `tests/test_gradio_patches.py` fails when another version than CHECKED is installed.

Some dependences are elsewhere. `style.css` names classes of Gradio's own elements:
`.html-container`, `.main.fillable`, `.tab-container`, `main.contain` and `.column`. A run changes
the `run_state.PageRun` that it handed to a `gr.State`; a test checks that Gradio keeps the object
itself.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import gradio as gr
import httpx
from gradio import networking, route_utils, routes, utils
from gradio.state_holder import SessionState
from jinja2 import FunctionLoader

CHECKED = "6.31.0"
WRAPPER = utils.function_wrapper
URL_OK = networking.url_ok
DELETE = route_utils.delete_files_created_by_app
TEMPLATES: Any = routes.templates.env.loader
FIRST_PAGE_SECONDS = 300


def calm_queue(page: gr.Blocks) -> None:
    """Let the queue of a page do less during timed runs.

    Gradio 6.31 polls its queue a thousand times a second while a request waits. After every event
    it sums up the latest 10,000 for a monitoring page, which is off here. Both take the interpreter
    from a timed run. No option sets these three attributes of `Queue`.
    """
    queue = page._queue
    queue.ANALYTICS_MAX_EVENTS = 1
    queue.sleep_when_free = 0.02
    queue.progress_update_sleep_when_free = 0.5


def waiting(page: gr.Blocks, concurrency_id: str) -> int:
    """Return how many events of a concurrency id wait in the queue of a page.

    Gradio 6.31 has no documented call for it before an event joins. It reads the `queue` of an
    `EventQueue`.
    """
    queues = page._queue.event_queue_per_concurrency_id
    return len(queues[concurrency_id].queue) if concurrency_id in queues else 0


def unread(page: gr.Blocks, session: str | None) -> int:
    """Return how many messages to a session nobody has read yet.

    Gradio 6.31 runs a call whether or not its stream is ever opened, and has no documented way to
    ask. It reads `Queue.pending_messages_per_session`.
    """
    messages = page._queue.pending_messages_per_session
    return messages[session].qsize() if session in messages else 0


def drop_lost_messages(page: gr.Blocks) -> None:
    """Drop a message for a session that has no message queue.

    For such a message Gradio 6.31 raises KeyError while it sends the waiting clients their
    positions, and its queue stops for good. A request that names its session "" leads to that. So
    does one that waits while 2,000 other sessions come: Gradio keeps only the latest.

    It replaces `Queue.send_message`.
    """
    queue = page._queue
    send = queue.send_message

    def send_message(event: Any, message: Any) -> None:
        if event.session_hash in queue.pending_messages_per_session:
            send(event, message)

    queue.send_message = send_message


def close_what_is_left() -> None:
    """Let a handler that Gradio leaves, as after Stop, end at once.

    Gradio 6.31 wraps every handler in a generator, and closes the wrapper. The handler's generator
    ends when nothing refers to it any more. In Python 3.12.0 to 3.12.3 the closed wrapper still
    does (CPython issue 118272), and the run would keep the device. It replaces
    `utils.function_wrapper`.
    """

    def closing_wrapper(handler: Callable[..., Any], *about: Any, **more: Any) -> Any:
        if not inspect.isgeneratorfunction(handler):
            return WRAPPER(handler, *about, **more)

        @functools.wraps(handler)
        def wrapper(*arguments: Any, **named: Any) -> Iterator[Any]:
            def answers() -> Iterator[Any]:
                yield from running

            with closing(handler(*arguments, **named)) as running:
                yield from WRAPPER(answers, *about, **more)()

        return wrapper

    utils.function_wrapper = closing_wrapper


def keep_deleting() -> None:
    """Let the deletion of old files go on after a fault.

    Gradio 6.31 ends it for good if a file is added while it goes through them, or if one cannot be
    deleted. It replaces `route_utils.delete_files_created_by_app`.
    """

    def delete(*given: Any) -> None:
        with suppress(RuntimeError, OSError):  # an hour later it deletes the rest
            DELETE(*given)

    route_utils.delete_files_created_by_app = delete


def keep_states() -> None:
    """Keep the states of a page that has lost its connection, as on a computer that slept.

    Gradio 6.31 never takes such a page for open again, and deletes each state an hour after it was
    set, though the visitor is back. `launch` limits how many visitors have states. It replaces
    `SessionState.is_closed`.
    """
    SessionState.is_closed = property(lambda _: False, lambda *_: None)


def wait_for_first_page() -> None:
    """Give a launched page as long as it needs to answer for the first time.

    Gradio 6.31 asks its own server for the page, and gives it 3 seconds. On a busy machine it takes
    longer, since the model is loaded meanwhile, and the launch would fail with advice about
    proxies. It replaces `networking.url_ok` for one call: a shared address is asked after that.
    """

    def url_ok(url: str) -> bool:
        networking.url_ok = URL_OK
        try:
            return httpx.head(url, timeout=FIRST_PAGE_SECONDS, verify=False).status_code < 400
        except httpx.TransportError:
            return False

    networking.url_ok = url_ok


def preview_links(title: str, text: str, picture: str) -> None:
    """Give links to the page a preview: a title, a text and a picture of this server.

    Gradio 6.31 has two sets of tags in its page, with its own name and picture, and no option for
    them. It replaces the loader of `routes.templates`. A page's `config` has its whole address.
    """
    address = "{{ config['root'] }}/"
    tags = {"og:type": "website", "og:title": title, "og:description": text}
    tags |= {"og:url": address, "og:image": address + picture}
    tags |= {"twitter:card": "summary_large_image"}
    own = "".join(f'<meta property="{name}" content="{value}" />' for name, value in tags.items())

    def load(name: str) -> str:
        page = TEMPLATES.get_source(routes.templates.env, name)[0]
        page = re.sub(r'<meta\s+(name|property)="(og|twitter):[^>]*>', "", page)
        return page.replace("<head>", f"<head>{own}", 1)  # sites read the beginning alone

    routes.templates.env.loader = FunctionLoader(load)


def keep_file(block: gr.components.Component, path: str) -> str:
    """Copy a file to where Gradio serves the files of a component, and return the copy's path.

    Gradio 6.31 copies a file only when an answer is sent, and the run's folder is gone by then. No
    documented call copies it earlier. It uses `Block.move_resource_to_block_cache`.
    """
    return block.move_resource_to_block_cache(path) or ""
