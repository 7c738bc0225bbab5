"""Options of events: where they wait, and what Gradio shows of them."""

from __future__ import annotations

from typing import Any

# events of the page alone
QUIET: dict[str, Any] = {"api_visibility": "private", "show_progress": "hidden"}
# events that are answered even when the queue is full
AT_ONCE: dict[str, Any] = {"queue": False, **QUIET}
# Events with this concurrency id stand in one queue before the device: page, API and MCP together.
# Gradio begins them in order. `Pipeline.turn` separates them.
ON_DEVICE: dict[str, Any] = {"concurrency_id": "device", "concurrency_limit": 1}
