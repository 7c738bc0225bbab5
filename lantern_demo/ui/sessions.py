"""What is kept of visitors in memory: of the latest pages what they show, of calls of the API nothing."""

from __future__ import annotations

import gradio as gr

KEPT = 100  # sessions, of a few MB each; the one that was away longest goes first, and can then run nothing *again*


def forget_calls(page: gr.Blocks) -> None:
    """Let go of a plain call's session when the call ends: nobody can come back to it, and Gradio would keep it as it keeps a page's."""
    queue = page._queue
    close = queue.reset_iterators

    async def reset_iterators(event_id: str) -> None:
        await close(event_id)
        # A call that names no session has its own id for one.
        page.state_holder.session_data.pop(event_id, None)
        page.state_holder.time_last_used.pop(event_id, None)

    queue.reset_iterators = reset_iterators
