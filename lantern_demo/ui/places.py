"""Show a visitor whose run waits how many requests are before it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import gradio as gr

from lantern_demo.ui.admission import DEVICE
from lantern_demo.ui.components import status_html
from lantern_demo.ui.gradio_patches import ahead_of

SECONDS = 0.25  # between two looks at the queue
JOINING = 4  # looks until a run that was requested in the same moment has joined


def places(page: gr.Blocks) -> Callable[[gr.Request], AsyncIterator[str]]:
    """Return an event that runs along with a waiting one, and yields that one's position in the
    queue when it changes.
    """

    async def tell(request: gr.Request) -> AsyncIterator[str]:
        told, looks = 0, 0
        while (
            before := ahead_of(page, DEVICE, request.session_hash)
        ) is not None or looks < JOINING:
            if (before or 0) != told:
                told = before or 0
                yield status_html(f"{told} before you.", "busy") if told else ""
            looks += 1
            await asyncio.sleep(SECONDS)
        yield ""

    return tell
